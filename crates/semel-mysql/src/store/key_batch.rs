//! Batches of key transitions.
//!
//! A batch looks at its records without locking anything, asks the pure machine, and writes what changed in one
//! statement that is a transaction of its own. That statement replaces exactly the versions that were looked at and
//! inserts exactly the rows that were absent, or does nothing at all; then somebody came in between, and the batch looks
//! again. So the rules stand in one place, a replay costs one look, and kinds can be mixed (decision 0012).

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use semel_core::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, LeaseReply, Record, Release, Settlement, Token,
    step,
};
use semel_core::host::dice;
use semel_core::limits::{self, LimitExceeded};
use semel_core::{ErrorKind, Key, RetryPolicy, StoreError, Timestamp};
use sqlx::MySql as Driver;
use sqlx::pool::PoolConnection;

use super::key_rows::{self, Change, Seen, Way};
use super::key_straight::{self, Straight};
use crate::db::{Mysql, lock_wait};
use crate::error::{BAD_NULL, DEADLOCK, LOCK_WAIT_TIMEOUT, autocommit_failed, classify, number};

/// Times that a whole batch is decided again because others came in between, before its keys go one by one.
const WHOLE_TRIES_MAX: u32 = 4;
/// Times that one key is asked again.
const TRIES_MAX: u32 = 16;
/// How long the keys of a batch that had to wait for somebody's row wait again, one by one: the shortest there is.
const SINGLE_WAIT: Duration = Duration::from_secs(1);
/// Keys that go one by one at the same time.
const SINGLES: usize = 3;
/// Connections that may turn out to be broken before a look gives up.
const LOOKS_MAX: usize = 8;
/// What was decided so long ago is not written any more. With [`LOCK_WAIT_MAX`](crate::LOCK_WAIT_MAX) it stays well below
/// the time for which a sweep leaves an ended record: no key can come, go and be forgotten between look and write.
pub(super) const DECISION_US_MAX: i64 = 5_000_000;
/// Bytes of one statement, where the server would take more.
pub(super) const STATEMENT_BYTES_MAX: usize = 8 << 20;

/// Between two tries.
const REPEAT: RetryPolicy = RetryPolicy {
    initial_ms: 2,
    factor: 2.0,
    cap_ms: 100,
    jitter: 1.0,
    attempts_max: TRIES_MAX,
    total_ms_max: 10_000,
};

/// One transition, or a read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ask<'a> {
    Claim(&'a Claim),
    Complete(&'a Completion),
    Extend(&'a Extension),
    Release(&'a Release),
    Abandon(&'a Abandonment),
    Settle(&'a Settlement),
    Read(&'a Key),
}

/// The answer to an [`Ask`].
#[derive(Debug)]
pub(crate) enum Reply {
    Claim(ClaimReply),
    Lease(LeaseReply),
    Record(Option<Record>),
}

impl<'a> Ask<'a> {
    pub(super) const fn key(self) -> &'a Key {
        match self {
            Self::Claim(it) => &it.key,
            Self::Complete(it) => &it.key,
            Self::Extend(it) => &it.key,
            Self::Release(it) => &it.key,
            Self::Abandon(it) => &it.key,
            Self::Settle(it) => &it.key,
            Self::Read(key) => key,
        }
    }

    pub(super) const fn as_claim(self) -> Option<&'a Claim> {
        match self {
            Self::Claim(claim) => Some(claim),
            _ => None,
        }
    }

    pub(super) const fn as_completion(self) -> Option<&'a Completion> {
        match self {
            Self::Complete(completion) => Some(completion),
            _ => None,
        }
    }

    fn check(self) -> Result<(), LimitExceeded> {
        match self {
            Self::Claim(it) => it.check(),
            Self::Complete(it) => it.check(),
            Self::Extend(it) => it.check(),
            Self::Settle(it) => it.check(),
            Self::Release(_) | Self::Abandon(_) | Self::Read(_) => Ok(()),
        }
    }

    pub(super) const fn operation(self) -> &'static str {
        match self {
            Self::Claim(_) => "claim",
            Self::Complete(_) => "complete",
            Self::Extend(_) => "extend",
            Self::Release(_) => "release",
            Self::Abandon(_) => "abandon",
            Self::Settle(_) => "settle",
            Self::Read(_) => "read",
        }
    }

    fn step(self, record: Option<Record>, now: Timestamp, next: Token) -> (Option<Record>, Reply) {
        let lease = |(record, reply)| (record, Reply::Lease(reply));
        match self {
            Self::Claim(it) => {
                let (record, reply) = step::claim(record, it, now, next);
                (record, Reply::Claim(reply))
            }
            Self::Complete(it) => lease(step::complete(record, it, now)),
            Self::Extend(it) => lease(step::extend(record, it, now)),
            Self::Release(it) => lease(step::release(record, it, now)),
            Self::Abandon(it) => lease(step::abandon(record, it, now)),
            Self::Settle(it) => lease(step::settle(record, it, now)),
            Self::Read(_) => {
                let seen = record.clone().and_then(|record| record.visible_at(now));
                (record, Reply::Record(seen))
            }
        }
    }

    /// The reply when another transaction has held the key's row for too long: whoever holds it is claiming the key, or
    /// runs it inside a transaction.
    fn blocked(self, wait: Duration, error: StoreError) -> Result<Reply, StoreError> {
        match self {
            Self::Claim(_) => Ok(Reply::Claim(ClaimReply::Busy {
                lease_left_ms: i64::try_from(wait.as_millis()).unwrap_or(i64::MAX),
            })),
            _ => Err(error),
        }
    }
}

/// What became of one item in one round.
enum Fate {
    Answered(Result<Reply, StoreError>),
    /// Somebody came in between.
    Again,
    /// Somebody holds a row of this statement.
    Blocked(StoreError),
}

/// A batch, decided on what was seen.
struct Decided {
    /// In the order asked, each with the number of the change that it depends on.
    replies: Vec<(Result<Reply, StoreError>, Option<usize>)>,
    /// Sorted by key.
    changes: Vec<Change>,
}

impl Mysql {
    pub(crate) async fn run(&self, asks: &[Ask<'_>]) -> Vec<Result<Reply, StoreError>> {
        let batch = limits::check_batch(asks.len());
        let mut replies: Vec<Option<Result<Reply, StoreError>>> = asks
            .iter()
            .map(|ask| {
                let refused = batch.clone().and_then(|()| ask.check()).err();
                refused.map(|limit| Err(limit.into()))
            })
            .collect();
        let mut rest = pending(&replies);
        let mut blocked = false;
        match self.straight(asks, &rest).await {
            Straight::Done(done) => {
                for (index, reply) in done {
                    replies[index] = Some(Ok(reply));
                }
                return whole(replies);
            }
            Straight::Failed(error) => {
                for index in rest {
                    replies[index] = Some(Err(error.clone()));
                }
                return whole(replies);
            }
            Straight::Blocked => blocked = true,
            Straight::Look => {}
        }
        for attempt in 1..=WHOLE_TRIES_MAX {
            if rest.is_empty() || blocked {
                break;
            }
            let one_key = rest.iter().all(|index| asks[*index].key() == asks[rest[0]].key());
            if one_key {
                break;
            }
            for (index, fate) in rest.iter().zip(self.round(asks, &rest, self.lock_wait).await) {
                match fate {
                    Fate::Answered(reply) => replies[*index] = Some(reply),
                    Fate::Again => {}
                    Fate::Blocked(_) => blocked = true,
                }
            }
            rest = pending(&replies);
            if !rest.is_empty() {
                pause(attempt).await;
            }
        }
        let wait = if blocked { SINGLE_WAIT } else { self.lock_wait };
        let singles = by_key(asks, &rest)
            .into_iter()
            .map(|which| async move { (self.single(asks, &which, wait).await, which) });
        // Not spawned: dropped with the caller's future, as the store's contract says.
        let mut singles = futures_util::stream::iter(singles).buffer_unordered(SINGLES);
        while let Some((answers, which)) = singles.next().await {
            for (index, answer) in which.into_iter().zip(answers) {
                replies[index] = Some(answer);
            }
        }
        drop(singles);
        if let Some(all_new) = key_straight::all_new(asks, &replies) {
            self.replays.note(!all_new);
        }
        whole(replies)
    }

    /// The items of one key, until they are answered.
    async fn single(
        &self,
        asks: &[Ask<'_>],
        which: &[usize],
        wait: Duration,
    ) -> Vec<Result<Reply, StoreError>> {
        let mut replies: Vec<Option<Result<Reply, StoreError>>> = which.iter().map(|_| None).collect();
        for attempt in 1..=TRIES_MAX {
            let rest = pending(&replies);
            if rest.is_empty() {
                break;
            }
            let now: Vec<usize> = rest.iter().map(|place| which[*place]).collect();
            let mut again = false;
            for (place, fate) in rest.into_iter().zip(self.round(asks, &now, wait).await) {
                match fate {
                    Fate::Answered(reply) => replies[place] = Some(reply),
                    Fate::Blocked(error) => replies[place] = Some(asks[which[place]].blocked(wait, error)),
                    Fate::Again => again = true,
                }
            }
            if again {
                pause(attempt).await;
            }
        }
        let busy = |place: usize| {
            let text = "others changed the key again and again; nothing was done";
            Err(StoreError::new(
                ErrorKind::NotApplied,
                asks[which[place]].operation(),
                text,
            ))
        };
        replies
            .into_iter()
            .enumerate()
            .map(|(place, reply)| reply.unwrap_or_else(|| busy(place)))
            .collect()
    }

    /// Looks, decides, writes.
    async fn round(&self, asks: &[Ask<'_>], which: &[usize], wait: Duration) -> Vec<Fate> {
        let operation = which.first().map_or("batch", |index| asks[*index].operation());
        let mut keys: Vec<&Key> = which.iter().map(|index| asks[*index].key()).collect();
        keys.sort_unstable();
        keys.dedup();
        let (mut connection, seen) = match self.look(operation, &keys).await {
            Ok(seen) => seen,
            Err(error) => return which.iter().map(|_| Fate::Answered(Err(error.clone()))).collect(),
        };
        let now = seen.now;
        let Decided { replies, changes } = decide(asks, which, seen);
        let written = self.write(operation, &mut connection, &changes, now, wait).await;
        replies
            .into_iter()
            .map(
                |(reply, change)| match change.and_then(|change| written.get(change)) {
                    Some(Written::Again) => Fate::Again,
                    Some(Written::Blocked(error)) => Fate::Blocked(error.clone()),
                    Some(Written::Failed(error)) => Fate::Answered(Err(error.clone())),
                    Some(Written::Done) | None => Fate::Answered(reply),
                },
            )
            .collect()
    }

    async fn look(
        &self,
        operation: &'static str,
        keys: &[&Key],
    ) -> Result<(PoolConnection<Driver>, Seen), StoreError> {
        let failed = |error| classify(operation, error);
        let statement = key_rows::look(keys);
        let mut looks = 0;
        loop {
            let mut connection = self.own.acquire().await.map_err(failed)?;
            // Hexadecimal digits and nothing else that came from outside.
            let look = sqlx::raw_sql(sqlx::AssertSqlSafe(statement.clone()));
            looks += 1;
            match look.fetch_all(&mut *connection).await {
                Ok(rows) => return Ok((connection, key_rows::read_look(&rows, operation)?)),
                // The server may have been restarted since this connection was last used; a look changes nothing.
                Err(error) if number(&error).is_none() && looks < LOOKS_MAX => {
                    tracing::debug!(%error, "a connection was broken");
                    // Closed at once: what is given back to the pool may be what is handed out next.
                    connection.close_on_drop();
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// What became of each change.
    async fn write(
        &self,
        operation: &'static str,
        connection: &mut PoolConnection<Driver>,
        changes: &[Change],
        now: Timestamp,
        wait: Duration,
    ) -> Vec<Written> {
        let deadline = Timestamp(now.0.saturating_add(DECISION_US_MAX));
        let mut written = Vec::with_capacity(changes.len());
        let mut rest = changes;
        let shorter = wait != self.lock_wait;
        if shorter && !changes.is_empty() {
            // Not given back with another patience than the session was made with: also where this batch is given up.
            connection.close_on_drop();
        }
        while !rest.is_empty() {
            let count = fitting(rest, self.packet_bytes.min(STATEMENT_BYTES_MAX));
            let (some, later) = rest.split_at(count);
            rest = later;
            let patience = if shorter { lock_wait(wait) } else { String::new() };
            let fate = write_some(operation, connection, some, &patience, deadline).await;
            let stop = !matches!(fate, Written::Done);
            let is_there = |change: &Change| change.replaces != 0;
            let full = matches!(&fate, Written::Failed(error) if error.is_full());
            if full && some.iter().any(is_there) && !some.iter().all(is_there) {
                // No room for new rows: what changes rows that are there needs none, or little, and does without them.
                let there: Vec<Change> = some.iter().filter(|it| is_there(it)).cloned().collect();
                let rest = write_some(operation, connection, &there, &patience, deadline).await;
                let each = |change| {
                    if is_there(change) {
                        rest.clone()
                    } else {
                        fate.clone()
                    }
                };
                written.extend(some.iter().map(each));
            } else {
                written.extend(some.iter().map(|_| fate.clone()));
            }
            if stop {
                // Not sent: decided again with the others, or by itself.
                written.extend(rest.iter().map(|_| Written::Again));
                break;
            }
        }
        written
    }
}

/// Writes these changes, or none of them, in one statement.
async fn write_some(
    operation: &'static str,
    connection: &mut PoolConnection<Driver>,
    changes: &[Change],
    patience: &str,
    deadline: Timestamp,
) -> Written {
    let mut statement = String::new();
    if !patience.is_empty() {
        statement = format!("{patience};");
    }
    statement.push_str(&key_rows::write(
        changes,
        key_rows::version(),
        deadline,
        Way::Replace,
    ));
    // Hexadecimal digits and nothing else that came from outside.
    let done = sqlx::raw_sql(sqlx::AssertSqlSafe(statement))
        .execute(&mut **connection)
        .await;
    match done {
        Ok(_) => Written::Done,
        Err(error) => match number(&error) {
            // Somebody came in between, or the decision is too old by now.
            Some(BAD_NULL | DEADLOCK) => Written::Again,
            Some(LOCK_WAIT_TIMEOUT) => Written::Blocked(classify(operation, error)),
            _ => Written::Failed(autocommit_failed(operation, error)),
        },
    }
}

/// What became of one change.
#[derive(Clone)]
enum Written {
    Done,
    Again,
    Blocked(StoreError),
    Failed(StoreError),
}

fn whole(replies: Vec<Option<Result<Reply, StoreError>>>) -> Vec<Result<Reply, StoreError>> {
    let missing = || {
        let text = "an item was not answered: a bug in this build";
        Err(StoreError::new(ErrorKind::Corrupt, "batch", text))
    };
    replies
        .into_iter()
        .map(|reply| reply.unwrap_or_else(missing))
        .collect()
}

fn pending<T>(replies: &[Option<T>]) -> Vec<usize> {
    let open = replies.iter().enumerate().filter(|(_, reply)| reply.is_none());
    open.map(|(index, _)| index).collect()
}

fn by_key(asks: &[Ask<'_>], which: &[usize]) -> Vec<Vec<usize>> {
    let mut places = HashMap::new();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for index in which {
        let place = *places.entry(asks[*index].key()).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[place].push(*index);
    }
    groups
}

async fn pause(attempt: u32) {
    // The first repeat at once: what came in between is most often committed by now.
    if let Some(delay) = REPEAT.delay_ms(attempt, 0, dice()).filter(|_| attempt > 1) {
        tokio::time::sleep(Duration::from_millis(delay)).await;
    }
}

/// How many of the changes fit into one statement; at least one.
fn fitting(changes: &[Change], bytes_max: usize) -> usize {
    let mut bytes = 4_096_usize;
    let fits = changes.iter().take_while(|change| {
        bytes = bytes.saturating_add(key_rows::text_bytes(change));
        bytes <= bytes_max
    });
    fits.count().max(1)
}

/// One key on the way through a batch.
struct Working {
    record: Result<Option<Record>, StoreError>,
    token_last: i64,
    replaces: i64,
    changed: bool,
}

fn decide(asks: &[Ask<'_>], which: &[usize], seen: Seen) -> Decided {
    let Seen { mut rows, now, floor } = seen;
    // Tokens are the server's microseconds: above all tokens of records that are gone, and above the row's own last one
    // where there is a row (decision 0012). Each grant of a batch gets another one.
    let base = now.0.max(floor.saturating_add(1));
    let mut drawn = 0_i64;
    let mut working: HashMap<&Key, Working> = HashMap::with_capacity(which.len());
    let mut replies = Vec::with_capacity(which.len());
    for index in which {
        let ask = asks[*index];
        let key = ask.key();
        let work = working.entry(key).or_insert_with(|| match rows.remove(key) {
            Some(stored) => Working {
                record: stored.record.map(Some),
                token_last: stored.token_last,
                replaces: stored.version,
                changed: false,
            },
            None => Working {
                record: Ok(None),
                token_last: 0,
                replaces: 0,
                changed: false,
            },
        });
        let before = match &work.record {
            Ok(record) => record.clone(),
            Err(error) => {
                replies.push((Err(error.clone()), key));
                continue;
            }
        };
        let next = Token(base.saturating_add(drawn).max(work.token_last.saturating_add(1)));
        let (after, reply) = ask.step(before.clone(), now, next);
        if let Some(record) = &after
            && step::changes(before.as_ref(), after.as_ref(), now)
        {
            if record.lease().is_some_and(|lease| lease.token == next) {
                drawn += 1;
                work.token_last = next.0;
            }
            work.changed = true;
            work.record = Ok(after);
        }
        replies.push((Ok(reply), key));
    }
    let mut changes: Vec<Change> = working
        .into_iter()
        .filter(|(_, work)| work.changed)
        .filter_map(|(key, work)| {
            Some(Change {
                key: key.clone(),
                record: work.record.ok()??,
                token_last: work.token_last,
                replaces: work.replaces,
            })
        })
        .collect();
    changes.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    let places: HashMap<&Key, usize> = changes.iter().enumerate().map(|(n, it)| (&it.key, n)).collect();
    let replies = replies
        .into_iter()
        .map(|(reply, key)| (reply, places.get(key).copied()))
        .collect();
    Decided { replies, changes }
}
