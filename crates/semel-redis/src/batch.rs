//! Batches of key transitions: which items go into one script, and what is asked again.
//!
//! A script carries each key once. It carries out what it can by itself and shows the records of all other items; those
//! are answered by the pure machine. Where the machine changes the record, a script swaps it for the new one, if it is
//! still the one that was seen; if not, the machine is asked again. Further items of the same key are decided after it,
//! in the order asked.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::LazyLock;

use bytes::Bytes;
use futures_util::future::join_all;
use redis::{Cmd, Value};
use semel_core::claim::{Record, Token, step};
use semel_core::limits::{self, LimitExceeded};
use semel_core::store::Replies;
use semel_core::{ErrorKind, Key, StoreError, Timestamp};

use crate::Redis;
use crate::error::{Doing, corrupt, may_be_one_item};
use crate::link::{LOOK, Lua, SWAP, short};
use crate::names::{TOKENS, pack};
use crate::record::{Packed, expiry_ms};

/// A token that Redis never gives out: a record that carries it is granted by the swap, which draws the real one.
pub(crate) const NO_TOKEN: Token = Token(i64::MIN);
/// Times that one item is asked again because others came in between.
const TRIES_MAX: u32 = 16;
/// Items of one script: while it runs, the server does nothing else. The tokens of one entry have no room for more.
const SCRIPT_ITEMS_MAX: usize = TOKENS as usize;
/// Bytes of the outcomes of one script.
const SCRIPT_BYTES_MAX: usize = 1 << 20;

/// One kind of transition.
pub(crate) struct Transition<T, R> {
    pub(crate) operation: &'static str,
    pub(crate) key: fn(&T) -> &Key,
    pub(crate) check: fn(&T) -> Result<(), LimitExceeded>,
    /// Bytes that it sends, roughly.
    pub(crate) bytes: fn(&T) -> usize,
    /// What carries out the common case; without it the records are only looked at.
    pub(crate) script: Option<Script<T>>,
    /// The pure machine; a new token is [`NO_TOKEN`].
    pub(crate) step: Step<T, R>,
    /// The reply to an item that the script carried out, with its number (of a claim the token), and the record now, where
    /// that is known.
    pub(crate) done: fn(&T, i64, Timestamp) -> (Option<Record>, R),
    /// Whether this reply promises that something is stored, so that enough replicas must have it. One that only tells what
    /// the record says promises nothing.
    pub(crate) promises: fn(&R) -> bool,
    /// The reply with the token drawn.
    pub(crate) granted: fn(R, Token) -> R,
    /// Whether those who wait for the end of the run go on waiting after it.
    pub(crate) runs_on: bool,
}

type Step<T, R> = fn(Option<Record>, &T, Timestamp) -> (Option<Record>, R);

/// A script that does more than to look.
pub(crate) struct Script<T> {
    pub(crate) ask: Ask,
    pub(crate) arguments: fn(&T, &mut Cmd),
}

/// What is asked of all items of a call.
#[derive(Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) doing: Doing,
    pub(crate) lua: &'static LazyLock<Lua>,
    /// Whether it may grant: then the registry is its first key, and what makes its entries its first arguments.
    pub(crate) grants: bool,
    /// Adds what it is told once for all items.
    pub(crate) common: fn(&Redis, &mut Cmd),
    /// Whether the time that it answers is the server's clock, and not the id of an entry.
    pub(crate) tells_time: bool,
    /// What a script means that has carried out all items and answers with one number: the number of this item, and the time
    /// unless it comes with it.
    pub(crate) all_done: fn(i64, i64) -> (i64, Timestamp),
}

const LOOK_AT: Ask = Ask {
    doing: Doing::Reading,
    lua: &LOOK,
    grants: false,
    common: |_, _| (),
    tells_time: true,
    all_done: |number, _| (number, Timestamp(0)),
};
const SWAP_IN: Ask = Ask {
    doing: Doing::Writing,
    lua: &SWAP,
    grants: true,
    common: |store, command| _ = command.arg(store.names().channel()),
    tells_time: true,
    all_done: |number, _| (number, Timestamp(0)),
};

/// What a script says about one item.
enum Answer {
    Done(i64),
    /// The record; and, where too few replicas have confirmed what stands on this node, the error of whoever would be
    /// promised something by it.
    Saw(Option<Bytes>, Option<Box<StoreError>>),
}

type Answers = Vec<Result<(Answer, Timestamp), StoreError>>;

/// A record to be replaced.
struct Swap {
    seen: Bytes,
    new: Vec<u8>,
    expiry_ms: i64,
    grants: bool,
}

/// One item in one round.
struct Item<'t, T> {
    index: usize,
    item: &'t T,
    record: Vec<u8>,
}

/// What stands under a name.
trait Named {
    fn record(&self) -> &[u8];
}

impl<T> Named for Item<'_, T> {
    fn record(&self) -> &[u8] {
        &self.record
    }
}

impl Named for &[u8] {
    fn record(&self) -> &[u8] {
        self
    }
}

impl Named for (&[u8], &Swap) {
    fn record(&self) -> &[u8] {
        self.0
    }
}

impl Redis {
    pub(crate) async fn batch<T: Sync, R: Send>(
        &self,
        items: &[T],
        transition: &Transition<T, R>,
    ) -> Replies<R> {
        let batch = limits::check_batch(items.len());
        let mut replies: Vec<Option<Result<R, StoreError>>> = items
            .iter()
            .map(|item| {
                let refused = batch.clone().and_then(|()| (transition.check)(item)).err();
                refused.map(|limit| Err(limit.into()))
            })
            .collect();
        loop {
            let mut round = Vec::with_capacity(items.len());
            let mut keys = HashSet::new();
            for (index, item) in items.iter().enumerate() {
                let key = (transition.key)(item);
                if replies[index].is_none() && (items.len() == 1 || keys.insert(key)) {
                    let record = self.names().record(key);
                    round.push(Item { index, item, record });
                }
            }
            if round.is_empty() {
                break;
            }
            let mut known = HashMap::new();
            self.round(&round, transition, &mut replies, &mut known).await;
            if round.len() == items.len() {
                break;
            }
            // Further items of these keys, as long as they change nothing.
            for (index, item) in items.iter().enumerate() {
                let key = (transition.key)(item);
                if replies[index].is_some() {
                    continue;
                }
                let Some((record, now)) = known.get(key) else {
                    continue;
                };
                let (after, reply) = (transition.step)(Option::clone(record), item, *now);
                if step::changes(record.as_ref(), after.as_ref(), *now) {
                    known.remove(key);
                } else {
                    replies[index] = Some(Ok(reply));
                }
            }
        }
        let missing = || {
            let text = "an item was not answered: a bug in this build";
            Err(corrupt(transition.operation, text))
        };
        replies
            .into_iter()
            .map(|reply| reply.unwrap_or_else(missing))
            .collect()
    }

    /// Answers these items, each of another key.
    async fn round<'t, T: Sync, R: Send>(
        &self,
        round: &[Item<'t, T>],
        transition: &Transition<T, R>,
        replies: &mut [Option<Result<R, StoreError>>],
        known: &mut HashMap<&'t Key, (Option<Record>, Timestamp)>,
    ) {
        let operation = transition.operation;
        let several = round.len() < replies.len();
        let mut pending = Vec::new();
        for (item, answer) in round.iter().zip(self.first(round, transition).await) {
            match answer {
                Ok((Answer::Done(number), now)) => {
                    let (record, reply) = (transition.done)(item.item, number, now);
                    if record.is_some() && several {
                        known.insert((transition.key)(item.item), (record, now));
                    }
                    replies[item.index] = Some(Ok(reply));
                }
                Ok((Answer::Saw(raw, short), now)) => pending.push((item, raw, short, now)),
                Err(error) => replies[item.index] = Some(Err(error)),
            }
        }
        for _ in 0..TRIES_MAX {
            let mut swaps = Vec::new();
            for (item, raw, short, now) in std::mem::take(&mut pending) {
                match (decide(item.item, raw, now, transition), short) {
                    (Ok((_, reply, None)), Some(short)) if (transition.promises)(&reply) => {
                        replies[item.index] = Some(Err(*short));
                    }
                    (Ok((record, reply, None)), _) => {
                        known.insert((transition.key)(item.item), (record, now));
                        replies[item.index] = Some(Ok(reply));
                    }
                    (Ok((_, reply, Some(swap))), _) => swaps.push((item, swap, reply)),
                    (Err(error), _) => replies[item.index] = Some(Err(error)),
                }
            }
            if swaps.is_empty() {
                return;
            }
            let answers = self.swap(&swaps, operation).await;
            let runs = swaps
                .iter()
                .zip(&answers)
                .filter_map(|((item, swap, _), answer)| {
                    let token = granted(answer).filter(|_| swap.grants)?;
                    Some((&item.record[..], token))
                });
            self.runs().began(self.names(), runs);
            for ((item, swap, reply), answer) in swaps.into_iter().zip(answers) {
                match answer {
                    Ok((Answer::Done(token), _)) if swap.grants => {
                        replies[item.index] = Some(Ok((transition.granted)(reply, Token(token))));
                    }
                    Ok((Answer::Done(_), _)) => replies[item.index] = Some(Ok(reply)),
                    // Somebody came in between.
                    Ok((Answer::Saw(raw, short), now)) => pending.push((item, raw, short, now)),
                    Err(error) => replies[item.index] = Some(Err(error)),
                }
            }
        }
        for (item, ..) in pending {
            let text = "others changed the key again and again; nothing was done";
            replies[item.index] = Some(Err(StoreError::new(ErrorKind::NotApplied, operation, text)));
        }
    }

    async fn first<T: Sync, R: Send>(&self, round: &[Item<'_, T>], transition: &Transition<T, R>) -> Answers {
        let operation = transition.operation;
        let Some(script) = &transition.script else {
            let fill = |item: &Item<'_, T>, _: &mut Cmd| _ = item;
            return self.each(round, operation, LOOK_AT, |_| 0, fill).await;
        };
        let bytes = |item: &Item<'_, T>| (transition.bytes)(item.item);
        let fill = |item: &Item<'_, T>, command: &mut Cmd| (script.arguments)(item.item, command);
        let mut answers = self.each(round, operation, script.ask, bytes, fill).await;
        if round.len() > 1 {
            self.look_where_full(round, operation, &mut answers).await;
        }
        if script.ask.grants {
            let pairs = round.iter().zip(&answers);
            let runs = pairs.filter_map(|(item, answer)| Some((&item.record[..], granted(answer)?)));
            self.runs().began(self.names(), runs);
        }
        answers
    }

    /// One item that needs room fails the script of all. Those that have a record are answered by it, as far as that takes
    /// no room.
    async fn look_where_full<T: Sync>(
        &self,
        round: &[Item<'_, T>],
        operation: &'static str,
        answers: &mut Answers,
    ) {
        let is_full = |answer: &Result<_, StoreError>| matches!(answer, Err(error) if error.is_full());
        let full: Vec<usize> = (0..answers.len()).filter(|n| is_full(&answers[*n])).collect();
        if full.is_empty() {
            return;
        }
        // Only what may be sent between threads.
        let records: Vec<&[u8]> = full.iter().map(|n| &round[*n].record[..]).collect();
        let fill = |_: &&[u8], _: &mut Cmd| ();
        let looked = self.each(&records, operation, LOOK_AT, |_| 0, fill).await;
        for (n, seen) in full.into_iter().zip(looked) {
            if matches!(seen, Ok((Answer::Saw(Some(_), _), _))) {
                answers[n] = seen;
            }
        }
    }

    async fn swap<T: Sync, R: Send>(
        &self,
        swaps: &[(&Item<'_, T>, Swap, R)],
        operation: &'static str,
    ) -> Answers {
        // Only what may be sent between threads.
        let swaps: Vec<(&[u8], &Swap)> = swaps
            .iter()
            .map(|(item, swap, _)| (&item.record[..], swap))
            .collect();
        let fill = |(_, swap): &(&[u8], &Swap), command: &mut Cmd| {
            command.arg(&swap.seen[..]).arg(&swap.new).arg(swap.expiry_ms);
            command.arg(if swap.grants { "g" } else { "" });
        };
        let bytes = |(_, swap): &(&[u8], &Swap)| swap.seen.len() + swap.new.len();
        self.each(&swaps, operation, SWAP_IN, bytes, fill).await
    }

    /// Runs a script over all items: in pieces, sent at once, and in a cluster by slot.
    async fn each<I: Named + Sync>(
        &self,
        items: &[I],
        operation: &'static str,
        ask: Ask,
        bytes: impl Fn(&I) -> usize,
        fill: impl Fn(&I, &mut Cmd) + Sync,
    ) -> Answers {
        let fill = &fill;
        // Most often all of them go together.
        let together = items.len() == 1
            || !self.link().is_cluster()
                && items.len() <= SCRIPT_ITEMS_MAX
                && items.iter().map(&bytes).sum::<usize>() <= SCRIPT_BYTES_MAX;
        if together {
            let all: Vec<&I> = items.iter().collect();
            return self.piece_or_each(&all, operation, ask, fill).await;
        }
        let mut pieces: BTreeMap<u8, Vec<(Vec<usize>, usize)>> = BTreeMap::new();
        for (index, item) in items.iter().enumerate() {
            let pieces = pieces
                .entry(self.names().registry_tag(item.record()))
                .or_default();
            let size = bytes(item);
            match pieces.last_mut() {
                Some((piece, sum)) if piece.len() < SCRIPT_ITEMS_MAX && *sum + size <= SCRIPT_BYTES_MAX => {
                    piece.push(index);
                    *sum += size;
                }
                _ => pieces.push((vec![index], size)),
            }
        }
        let piece = |indices: Vec<usize>| async move {
            let few: Vec<&I> = indices.iter().map(|index| &items[*index]).collect();
            (indices, self.piece_or_each(&few, operation, ask, fill).await)
        };
        let pieces = pieces.into_values().flatten().map(|(indices, _)| piece(indices));
        let all = join_all(pieces).await;
        let mut answers: Vec<Option<_>> = items.iter().map(|_| None).collect();
        for (indices, some) in all {
            for (index, answer) in indices.into_iter().zip(some) {
                answers[index] = Some(answer);
            }
        }
        let missing = || Err(short(operation, ask.doing));
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(missing))
            .collect()
    }

    /// Runs a script over these items; one that makes it fail fails alone.
    async fn piece_or_each<I: Named + Sync>(
        &self,
        items: &[&I],
        operation: &'static str,
        ask: Ask,
        fill: &(impl Fn(&I, &mut Cmd) + Sync),
    ) -> Answers {
        match self.piece(items, operation, ask, fill).await {
            Err(error) if items.len() > 1 && may_be_one_item(&error) => {
                let mut one_by_one = Vec::with_capacity(items.len());
                for item in items {
                    let answer = self.piece(&[*item], operation, ask, fill).await;
                    one_by_one.push(answer.and_then(|answers| {
                        let none = || Err(short(operation, ask.doing));
                        answers.into_iter().next().unwrap_or_else(none)
                    }));
                }
                one_by_one
            }
            Err(error) => items.iter().map(|_| Err(error.clone())).collect(),
            Ok(answers) => answers,
        }
    }

    async fn piece<I: Named + Sync>(
        &self,
        items: &[&I],
        operation: &'static str,
        ask: Ask,
        fill: &(impl Fn(&I, &mut Cmd) + Sync),
    ) -> Result<Answers, StoreError> {
        let failed = || short(operation, ask.doing);
        let Some(first) = items.first() else {
            return Ok(Vec::new());
        };
        let tag = self.names().registry_tag(first.record());
        let names = match items {
            // In a cluster the tag tells tokens apart, on a single server the place in the call.
            [_, _, ..] if ask.grants && !self.link().is_cluster() => {
                pack(items.iter().map(|item| item.record()))
            }
            _ => Vec::new(),
        };
        let fill = |command: &mut Cmd| {
            if ask.grants {
                command.arg(self.names().registry(tag));
            }
            for item in items {
                command.arg(item.record());
            }
            if ask.grants {
                command.arg(&names).arg(tag);
            }
            (ask.common)(self, command);
            for item in items {
                fill(item, command);
            }
        };
        let keys = items.len() + usize::from(ask.grants);
        let all_done = |number, now: Option<i64>| -> Vec<(Answer, Timestamp)> {
            let done = |(index, _)| {
                let (number, time) = (ask.all_done)(number, index);
                (Answer::Done(number), now.map_or(time, Timestamp))
            };
            (0..).zip(items).map(done).collect()
        };
        let (told, unconfirmed) = self.link().run(operation, ask.doing, ask.lua, keys, fill).await?;
        let (answers, now) = match told {
            Value::Int(number) => {
                let answers = all_done(number, None);
                let now = answers.first().map_or(Timestamp(0), |(_, now)| *now);
                (answers, now)
            }
            Value::Array(mut values) => {
                let Some(Value::Int(now)) = values.pop() else {
                    return Err(failed());
                };
                let answers = match &values[..] {
                    [Value::Int(number)] if items.len() > 1 => all_done(*number, Some(now)),
                    _ if values.len() == items.len() => values
                        .into_iter()
                        .map(|value| Some((answer(value)?, Timestamp(now))))
                        .collect::<Option<_>>()
                        .ok_or_else(failed)?,
                    _ => return Err(failed()),
                };
                (answers, Timestamp(now))
            }
            _ => return Err(failed()),
        };
        if ask.tells_time {
            self.server_time().seen(now);
        }
        let confirmed = |(answer, now)| match (answer, &unconfirmed) {
            (Answer::Done(_), Some(error)) => Err(error.clone()),
            (Answer::Saw(raw, _), Some(error)) => Ok((Answer::Saw(raw, Some(Box::new(error.clone()))), now)),
            (answer, None) => Ok((answer, now)),
        };
        Ok(answers.into_iter().map(confirmed).collect())
    }
}

/// The token of an item that was granted, where the script grants.
const fn granted(answer: &Result<(Answer, Timestamp), StoreError>) -> Option<Token> {
    match answer {
        Ok((Answer::Done(token), _)) => Some(Token(*token)),
        _ => None,
    }
}

fn answer(value: Value) -> Option<Answer> {
    match value {
        Value::Int(number) => Some(Answer::Done(number)),
        Value::BulkString(bytes) => Some(Answer::Saw(Some(bytes.into()), None)),
        Value::Nil => Some(Answer::Saw(None, None)),
        _ => None,
    }
}

/// What the machine says about a record as it was seen: the record, the reply, and what is to be written.
fn decide<T, R>(
    item: &T,
    raw: Option<Bytes>,
    now: Timestamp,
    transition: &Transition<T, R>,
) -> Result<(Option<Record>, R, Option<Swap>), StoreError> {
    let packed = raw.as_ref().map(|raw| {
        Packed::from_bytes(raw).ok_or_else(|| {
            let text = "the stored record of a key cannot be read by this build";
            corrupt(transition.operation, text)
        })
    });
    let packed = packed.transpose()?;
    let waited = packed.as_ref().is_some_and(|packed| packed.waited);
    let before = packed.map(|packed| packed.record);
    let (after, reply) = (transition.step)(before.clone(), item, now);
    if !step::changes(before.as_ref(), after.as_ref(), now) {
        return Ok((before, reply, None));
    }
    let grants = after.as_ref().and_then(Record::lease).map(|lease| lease.token) == Some(NO_TOKEN);
    let expiry_ms = after.as_ref().map_or(0, |record| expiry_ms(record, now));
    let waited = waited && transition.runs_on;
    let new = after.map_or_else(Vec::new, |record| Packed { record, waited }.to_bytes());
    let swap = Swap {
        seen: raw.unwrap_or_default(),
        new,
        expiry_ms,
        grants,
    };
    Ok((None, reply, Some(swap)))
}
