//! Batches of key transitions: which items go into one script, and what is asked again.
//!
//! A script carries each key once. It carries out what it can by itself and shows the records of all other items; those
//! are answered by the pure machine. Where the machine changes the record, a script swaps it for the new one, if it is
//! still the one that was seen; if not, the machine is asked again. Further items of the same key are decided after it,
//! in the order asked.

use std::collections::{HashMap, HashSet};
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
use crate::names::Names;
use crate::record::{Packed, expiry_ms};

/// A token that Redis never gives out: a record that carries it is granted by the swap, which draws the real one.
pub(crate) const NO_TOKEN: Token = Token(i64::MIN);
/// Times that one item is asked again because others came in between.
const TRIES_MAX: u32 = 16;
/// Items of one script: while it runs, the server does nothing else.
const SCRIPT_ITEMS_MAX: usize = 64;
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
    pub(crate) script: Option<Script<T, R>>,
    /// The pure machine; a new token is [`NO_TOKEN`].
    pub(crate) step: Step<T, R>,
    /// The reply with the token drawn.
    pub(crate) granted: fn(R, Token) -> R,
    /// Whether those who wait for the end of the run go on waiting after it.
    pub(crate) runs_on: bool,
}

type Step<T, R> = fn(Option<Record>, &T, Timestamp) -> (Option<Record>, R);

/// A script that does more than to look.
pub(crate) struct Script<T, R> {
    pub(crate) lua: &'static LazyLock<Lua>,
    /// Whether each item's registry is a key, too.
    pub(crate) registry: bool,
    pub(crate) arguments: fn(&Names, &T, &mut Cmd),
    /// The reply to an item that was carried out with this number, and the record now, where that is known.
    pub(crate) done: fn(&T, i64, Timestamp) -> (Option<Record>, R),
}

/// What a script says about one item.
enum Answer {
    Done(i64),
    Saw(Option<Bytes>),
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
            let mut round = Vec::new();
            let mut keys = HashSet::new();
            for (index, item) in items.iter().enumerate() {
                let key = (transition.key)(item);
                if replies[index].is_none() && keys.insert(key) {
                    let record = self.names().record(key);
                    round.push(Item { index, item, record });
                }
            }
            if round.is_empty() {
                break;
            }
            let mut known = HashMap::new();
            self.round(&round, transition, &mut replies, &mut known).await;
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
        let first = self.first(round, transition).await;
        let mut pending = Vec::new();
        for (item, answer) in round.iter().zip(first) {
            match (answer, &transition.script) {
                (Ok((Answer::Done(number), now)), Some(script)) => {
                    let (record, reply) = (script.done)(item.item, number, now);
                    if record.is_some() {
                        known.insert((transition.key)(item.item), (record, now));
                    }
                    replies[item.index] = Some(Ok(reply));
                }
                (Ok((Answer::Saw(raw), now)), _) => pending.push((item, raw, now)),
                (Ok((Answer::Done(_), _)), None) => {
                    replies[item.index] = Some(Err(short(operation, Doing::Reading)));
                }
                (Err(error), _) => replies[item.index] = Some(Err(error)),
            }
        }
        for _ in 0..TRIES_MAX {
            let mut swaps = Vec::new();
            for (item, raw, now) in std::mem::take(&mut pending) {
                match decide(item.item, raw, now, transition) {
                    Ok((record, reply, None)) => {
                        known.insert((transition.key)(item.item), (record, now));
                        replies[item.index] = Some(Ok(reply));
                    }
                    Ok((_, reply, Some(swap))) => swaps.push((item, swap, reply)),
                    Err(error) => replies[item.index] = Some(Err(error)),
                }
            }
            if swaps.is_empty() {
                return;
            }
            let answers = self.swap(&swaps, operation).await;
            for ((item, swap, reply), answer) in swaps.into_iter().zip(answers) {
                match answer {
                    Ok((Answer::Done(token), _)) if swap.grants => {
                        replies[item.index] = Some(Ok((transition.granted)(reply, Token(token))));
                    }
                    Ok((Answer::Done(_), _)) => replies[item.index] = Some(Ok(reply)),
                    // Somebody came in between.
                    Ok((Answer::Saw(raw), now)) => pending.push((item, raw, now)),
                    Err(error) => replies[item.index] = Some(Err(error)),
                }
            }
        }
        for (item, _, _) in pending {
            let text = "others changed the key again and again; nothing was done";
            replies[item.index] = Some(Err(StoreError::new(ErrorKind::NotApplied, operation, text)));
        }
    }

    async fn first<T: Sync, R: Send>(&self, round: &[Item<'_, T>], transition: &Transition<T, R>) -> Answers {
        let operation = transition.operation;
        let bytes = |item: &Item<'_, T>| (transition.bytes)(item.item);
        match &transition.script {
            None => {
                let fill = |item: &Item<'_, T>, _: &mut Cmd| _ = item;
                self.each(
                    round,
                    operation,
                    Doing::Reading,
                    &LOOK,
                    false,
                    |_| 0,
                    |it| &it.record,
                    fill,
                )
                .await
            }
            Some(script) => {
                let fill = |item: &Item<'_, T>, command: &mut Cmd| {
                    (script.arguments)(self.names(), item.item, command);
                };
                let doing = Doing::Writing;
                self.each(
                    round,
                    operation,
                    doing,
                    script.lua,
                    script.registry,
                    bytes,
                    |it| &it.record,
                    fill,
                )
                .await
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
        let channel = self.names().channel();
        let fill = |(_, swap): &(&[u8], &Swap), command: &mut Cmd| {
            command.arg(&swap.seen[..]).arg(&swap.new).arg(swap.expiry_ms);
            command.arg(if swap.grants { "g" } else { "" }).arg(&channel);
        };
        let bytes = |(_, swap): &(&[u8], &Swap)| swap.seen.len() + swap.new.len();
        self.each(
            &swaps,
            operation,
            Doing::Writing,
            &SWAP,
            true,
            bytes,
            |(record, _)| record,
            fill,
        )
        .await
    }

    /// Runs a script over all items: in pieces, sent at once, and in a cluster by slot.
    #[expect(clippy::too_many_arguments, reason = "three callers, each in one place")]
    async fn each<I: Sync>(
        &self,
        items: &[I],
        operation: &'static str,
        doing: Doing,
        lua: &'static LazyLock<Lua>,
        registry: bool,
        bytes: impl Fn(&I) -> usize,
        record: impl Fn(&I) -> &[u8] + Sync,
        fill: impl Fn(&I, &mut Cmd) + Sync,
    ) -> Answers {
        let mut pieces: HashMap<u8, Vec<(Vec<usize>, usize)>> = HashMap::new();
        for (index, item) in items.iter().enumerate() {
            let tag = if self.link().is_cluster() {
                self.names().tag(record(item))
            } else {
                0
            };
            let pieces = pieces.entry(tag).or_default();
            let size = bytes(item);
            match pieces.last_mut() {
                Some((piece, sum)) if piece.len() < SCRIPT_ITEMS_MAX && *sum + size <= SCRIPT_BYTES_MAX => {
                    piece.push(index);
                    *sum += size;
                }
                _ => pieces.push((vec![index], size)),
            }
        }
        let (record, fill) = (&record, &fill);
        let piece = |indices: Vec<usize>| async move {
            let few: Vec<&I> = indices.iter().map(|index| &items[*index]).collect();
            let answers = self
                .piece(&few, operation, doing, lua, registry, record, fill)
                .await;
            let answers = match answers {
                Err(error) if few.len() > 1 && may_be_one_item(&error) => {
                    let mut one_by_one = Vec::new();
                    for item in few {
                        let answer = self
                            .piece(&[item], operation, doing, lua, registry, record, fill)
                            .await;
                        one_by_one.push(answer.and_then(|answers| {
                            let none = || Err(short(operation, doing));
                            answers.into_iter().next().map_or_else(none, Ok)
                        }));
                    }
                    one_by_one
                }
                Err(error) => few.iter().map(|_| Err(error.clone())).collect(),
                Ok(answers) => answers.into_iter().map(Ok).collect(),
            };
            (indices, answers)
        };
        let pieces = pieces.into_values().flatten().map(|(indices, _)| piece(indices));
        let mut all: Vec<Option<_>> = items.iter().map(|_| None).collect();
        for (indices, answers) in join_all(pieces).await {
            for (index, answer) in indices.into_iter().zip(answers) {
                all[index] = Some(answer);
            }
        }
        let missing = || Err(short(operation, doing));
        all.into_iter()
            .map(|answer| answer.unwrap_or_else(missing))
            .collect()
    }

    #[expect(clippy::too_many_arguments, reason = "two callers, beside each other")]
    async fn piece<I: Sync>(
        &self,
        items: &[&I],
        operation: &'static str,
        doing: Doing,
        lua: &Lua,
        registry: bool,
        record: &(impl Fn(&I) -> &[u8] + Sync),
        fill: &(impl Fn(&I, &mut Cmd) + Sync),
    ) -> Result<Vec<(Answer, Timestamp)>, StoreError> {
        let keys = items.len() * if registry { 2 } else { 1 };
        let fill = |command: &mut Cmd| {
            for item in items {
                command.arg(record(item));
                if registry {
                    command.arg(self.names().registry_of(record(item)));
                }
            }
            for item in items {
                fill(item, command);
            }
        };
        let mut values = self.link().run(operation, doing, lua, keys, fill).await?;
        let Some(Value::Int(now)) = values.pop() else {
            return Err(short(operation, doing));
        };
        if values.len() != items.len() {
            return Err(short(operation, doing));
        }
        let answer = |value| match value {
            Value::Int(number) => Ok((Answer::Done(number), Timestamp(now))),
            Value::BulkString(bytes) => Ok((Answer::Saw(Some(bytes.into())), Timestamp(now))),
            Value::Nil => Ok((Answer::Saw(None), Timestamp(now))),
            _ => Err(short(operation, doing)),
        };
        values.into_iter().map(answer).collect()
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
