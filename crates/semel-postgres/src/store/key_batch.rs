//! Batches of key transitions: which items go into one statement, and what is asked again.
//!
//! A statement carries each key once, sorted, so that two batches never wait for each other in a circle. It carries out
//! what its conditions allow. An item that was not carried out is answered by the pure machine from the record that the
//! statement saw (a claim) or that a second one reads; when the machine would have gone on, somebody came in between, and
//! it is asked again. Further items of the same key are decided after it, in the order asked.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use semel_core::claim::{Record, step};
use semel_core::limits::{self, LimitExceeded};
use semel_core::store::Replies;
use semel_core::{ErrorKind, Key, Retry, StoreError, Timestamp};
use sqlx::postgres::PgRow;

use super::autocommit::{Statement, code, lock_timeout};
use super::key_rows::{self, Answer, Won};
use crate::db::Postgres;

/// Times that one item is asked again because others came in between.
const TRIES_MAX: u32 = 16;
/// Of a statement's items one of so many met a row: then it should have looked first.
const MANY: usize = 8;
/// How long the items of a batch that had to wait for somebody's row wait again, one by one.
const SINGLE_WAIT: Duration = Duration::from_millis(100);

/// One kind of transition.
pub(crate) struct Transition<T, R> {
    pub(crate) operation: &'static str,
    pub(crate) key: fn(&T) -> &Key,
    pub(crate) check: fn(&T) -> Result<(), LimitExceeded>,
    /// The statement for these items, sorted by key, no key twice; the text is `lock_timeout`.
    pub(crate) statement: fn(&[&T], String) -> Statement,
    /// One that carries out only what meets no row, and shows only that, by its key: for most items are new.
    pub(crate) new: Option<fn(&[&T], String) -> Statement>,
    /// Reads a row of its answer.
    pub(crate) answer: fn(&PgRow) -> Result<Answer, sqlx::Error>,
    /// The reply to an item that was carried out, and the record now, where that is known.
    pub(crate) won: fn(&T, &Won, Timestamp) -> (Option<Record>, R),
    /// The pure machine, with a token that no real one equals.
    pub(crate) step: Step<T, R>,
    /// The reply when another transaction has held the key's row for too long; an error where there is none.
    pub(crate) blocked: fn(Duration) -> Option<R>,
}

type Step<T, R> = fn(Option<Record>, &T, Timestamp) -> (Option<Record>, R);

/// What became of one item in one statement.
enum Fate<R> {
    Answered(Result<R, StoreError>),
    /// Another transaction holds the row, for longer than this.
    Blocked(Duration, StoreError),
    /// Somebody came in between.
    Again,
}

/// A key's record as the last statement left it.
type Known = (Option<Record>, Timestamp);

impl Postgres {
    pub(crate) async fn run<T: Sync, R: Send>(
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
        let mut tries = vec![0_u32; items.len()];
        loop {
            let mut round: Vec<usize> = Vec::new();
            let mut keys = HashSet::new();
            for (index, item) in items.iter().enumerate() {
                if replies[index].is_none() && keys.insert((transition.key)(item)) {
                    round.push(index);
                }
            }
            if round.is_empty() {
                break;
            }
            round.sort_unstable_by_key(|index| (transition.key)(&items[*index]));
            let sent: Vec<&T> = round.iter().map(|index| &items[*index]).collect();
            let (fates, mut known) = self.ask(&sent, transition).await;
            let mut blocked = HashMap::new();
            let busy = |wait, error| (transition.blocked)(wait).ok_or(error);
            for (index, fate) in round.iter().zip(fates) {
                tries[*index] += 1;
                replies[*index] = match fate {
                    Fate::Answered(reply) => Some(reply),
                    Fate::Blocked(wait, error) => {
                        blocked.insert((transition.key)(&items[*index]), (wait, error.clone()));
                        Some(busy(wait, error))
                    }
                    Fate::Again if tries[*index] < TRIES_MAX => None,
                    Fate::Again => {
                        let text = "others changed the key again and again; nothing was done";
                        Some(Err(StoreError::new(
                            ErrorKind::NotApplied,
                            transition.operation,
                            text,
                        )))
                    }
                };
                if replies[*index].is_none() {
                    known.remove((transition.key)(&items[*index]));
                }
            }
            // Further items of these keys, as long as they change nothing.
            for (index, item) in items.iter().enumerate() {
                let key = (transition.key)(item);
                if replies[index].is_some() {
                    continue;
                }
                // They would wait as long, one after the other, and everything else in the batch with them.
                if let Some((wait, error)) = blocked.get(key) {
                    replies[index] = Some(busy(*wait, error.clone()));
                    continue;
                }
                let Some((record, now)) = known.get(key) else {
                    continue;
                };
                let (after, reply) = (transition.step)(record.clone(), item, *now);
                if step::changes(record.as_ref(), after.as_ref(), *now) {
                    known.remove(key);
                } else {
                    replies[index] = Some(Ok(reply));
                }
            }
        }
        let missing = || {
            let text = "an item was not answered: a bug in this build";
            Err(StoreError::new(ErrorKind::Corrupt, transition.operation, text))
        };
        replies
            .into_iter()
            .map(|reply| reply.unwrap_or_else(missing))
            .collect()
    }

    /// Those that meet no row first, then the others; all at once where rows were met of late.
    async fn ask<'t, T: Sync, R: Send>(
        &self,
        sent: &[&'t T],
        transition: &Transition<T, R>,
    ) -> (Vec<Fate<R>>, HashMap<&'t Key, Known>) {
        let Some(new) = transition.new.filter(|_| !self.replays.look_first(None)) else {
            return self.ask_all(sent, transition, transition.new.is_some()).await;
        };
        let operation = transition.operation;
        let statement = || new(sent, lock_timeout(self.lock_wait));
        let rows = self.autocommit(operation, statement).await;
        let won = rows.and_then(|rows| {
            let mut won = Vec::with_capacity(rows.len());
            for row in &rows {
                won.push(
                    key_rows::won_new(row, sent, transition.key, won.len())
                        .map_err(|error| unread(operation, error))?,
                );
            }
            Ok(won)
        });
        let mut known = HashMap::new();
        let won = match won {
            Ok(won) => won,
            Err(error) => return (self.refuse(sent, transition, error, &mut known).await, known),
        };
        self.note(sent.len() - won.len(), sent.len());
        let mut fates = judge(sent, won, transition, &mut known);
        let open = |n: &usize| matches!(fates[*n], Fate::Again);
        let rest: Vec<usize> = (0..sent.len()).filter(open).collect();
        if !rest.is_empty() {
            let others: Vec<&T> = rest.iter().map(|n| sent[*n]).collect();
            let (others, seen) = self.ask_all(&others, transition, false).await;
            known.extend(seen);
            for (n, fate) in rest.into_iter().zip(others) {
                fates[n] = fate;
            }
        }
        (fates, known)
    }

    /// One statement; one per item when it fails for what a single row may be the cause of. How many rows it met counts for
    /// the next ones, unless its items were chosen for that.
    async fn ask_all<'t, T: Sync, R: Send>(
        &self,
        sent: &[&'t T],
        transition: &Transition<T, R>,
        counts: bool,
    ) -> (Vec<Fate<R>>, HashMap<&'t Key, Known>) {
        let mut known = HashMap::new();
        let fates = match self.statement(sent, transition, self.lock_wait).await {
            Ok(answers) => {
                if counts {
                    let met = answers.iter().filter(|it| it.won.is_none()).count();
                    self.note(met, sent.len());
                }
                judge(sent, answers, transition, &mut known)
            }
            Err(error) => self.refuse(sent, transition, error, &mut known).await,
        };
        (fates, known)
    }

    /// Of a statement's items so many met a row.
    fn note(&self, met: usize, asked: usize) {
        self.replays.note(met * MANY >= asked);
    }

    /// What becomes of the items of a statement that failed.
    async fn refuse<'t, T: Sync, R: Send>(
        &self,
        sent: &[&'t T],
        transition: &Transition<T, R>,
        error: StoreError,
        known: &mut HashMap<&'t Key, Known>,
    ) -> Vec<Fate<R>> {
        if error.reads_only() {
            return self.look_instead(sent, transition, &error, known).await;
        }
        if sent.len() == 1 || !may_be_one_row(&error) {
            let fate = |_| refused(error.clone(), self.lock_wait);
            return sent.iter().map(fate).collect();
        }
        let mut fates = Vec::new();
        for item in sent {
            fates.push(match self.statement(&[*item], transition, SINGLE_WAIT).await {
                Ok(answers) => judge(&[*item], answers, transition, known)
                    .pop()
                    .unwrap_or(Fate::Again),
                Err(error) => refused(error, SINGLE_WAIT),
            });
        }
        fates
    }

    /// The server takes no writes: what is there is told, as far as that needs none.
    async fn look_instead<'t, T: Sync, R: Send>(
        &self,
        sent: &[&'t T],
        transition: &Transition<T, R>,
        error: &StoreError,
        known: &mut HashMap<&'t Key, Known>,
    ) -> Vec<Fate<R>> {
        let seen = self.why_not(sent, &[], transition).await;
        let fates = judge(sent, seen, transition, known);
        let told = |fate| match fate {
            Fate::Answered(Ok(reply)) => Fate::Answered(Ok(reply)),
            Fate::Answered(Err(_)) | Fate::Blocked(..) | Fate::Again => Fate::Answered(Err(error.clone())),
        };
        fates.into_iter().map(told).collect()
    }

    async fn statement<T: Sync, R: Send>(
        &self,
        sent: &[&T],
        transition: &Transition<T, R>,
        wait: Duration,
    ) -> Result<Vec<Answer>, StoreError> {
        let operation = transition.operation;
        let statement = || (transition.statement)(sent, lock_timeout(wait));
        let rows = self.autocommit(operation, statement).await?;
        let mut answers = read(operation, &rows, transition.answer)?;
        let waited = answers
            .iter()
            .filter(|it| it.won.as_ref().is_some_and(|won| won.waited));
        let waited = waited
            .filter_map(|it| sent.get(it.n))
            .map(|item| (transition.key)(item));
        self.hints.ended(self, waited);
        if answers.len() < sent.len() {
            let missing = self.why_not(sent, &answers, transition).await;
            answers.extend(missing);
        }
        Ok(answers)
    }

    /// The records of those that were not carried out. That they were not is certain, also when this fails.
    async fn why_not<T: Sync, R: Send>(
        &self,
        sent: &[&T],
        answers: &[Answer],
        transition: &Transition<T, R>,
    ) -> Vec<Answer> {
        let answered: HashSet<usize> = answers.iter().map(|it| it.n).collect();
        let missing: Vec<usize> = (0..sent.len()).filter(|n| !answered.contains(n)).collect();
        let keys: Vec<&Key> = missing.iter().map(|n| (transition.key)(sent[*n])).collect();
        let operation = transition.operation;
        let rows = self
            .autocommit(operation, || super::keys::read_statement(&keys))
            .await;
        match rows.and_then(|rows| read(operation, &rows, Answer::read)) {
            Ok(seen) => seen
                .into_iter()
                .filter_map(|answer| {
                    let n = *missing.get(answer.n)?;
                    Some(Answer { n, ..answer })
                })
                .collect(),
            Err(error) => {
                let text = "nothing was done, and why could not be read";
                let error = StoreError::new(ErrorKind::NotApplied, operation, text).with_source(error);
                let refused = |n| Answer {
                    n,
                    now: Timestamp::default(),
                    won: None,
                    seen: Err(error.clone()),
                };
                missing.into_iter().map(refused).collect()
            }
        }
    }
}

fn read(
    operation: &'static str,
    rows: &[PgRow],
    answer: fn(&PgRow) -> Result<Answer, sqlx::Error>,
) -> Result<Vec<Answer>, StoreError> {
    let answers: Result<_, _> = rows.iter().map(answer).collect();
    answers.map_err(|error| unread(operation, error))
}

fn unread(operation: &'static str, error: sqlx::Error) -> StoreError {
    let text = "the answer cannot be read by this build";
    StoreError::new(ErrorKind::Corrupt, operation, text).with_source(error)
}

/// Whether one row may be the cause, so that the others should be tried without it.
fn may_be_one_row(error: &StoreError) -> bool {
    is_blocked(error) || (error.retry() == Retry::Never && error.kind() != ErrorKind::Schema)
}

/// `lock_timeout`: another transaction has held the row for too long.
fn is_blocked(error: &StoreError) -> bool {
    use std::error::Error as _;
    let source = error
        .source()
        .and_then(|source| source.downcast_ref::<sqlx::Error>());
    source.and_then(code).as_deref() == Some("55P03")
}

fn refused<R>(error: StoreError, wait: Duration) -> Fate<R> {
    if is_blocked(&error) {
        Fate::Blocked(wait, error)
    } else {
        Fate::Answered(Err(error))
    }
}

fn judge<'t, T, R>(
    sent: &[&'t T],
    answers: Vec<Answer>,
    transition: &Transition<T, R>,
    known: &mut HashMap<&'t Key, Known>,
) -> Vec<Fate<R>> {
    let mut fates: Vec<Fate<R>> = sent.iter().map(|_| Fate::Again).collect();
    for Answer { n, now, won, seen } in answers {
        let Some((item, fate)) = sent.get(n).zip(fates.get_mut(n)) else {
            continue;
        };
        let key = (transition.key)(item);
        if let Some(won) = won {
            let (record, reply) = (transition.won)(item, &won, now);
            *fate = Fate::Answered(Ok(reply));
            if record.is_some() {
                known.insert(key, (record, now));
            }
            continue;
        }
        let record = match seen {
            Ok(record) => record,
            Err(error) => {
                *fate = Fate::Answered(Err(error));
                continue;
            }
        };
        let (after, reply) = (transition.step)(record.clone(), item, now);
        if !step::changes(record.as_ref(), after.as_ref(), now) {
            *fate = Fate::Answered(Ok(reply));
            known.insert(key, (record, now));
        }
    }
    fates
}
