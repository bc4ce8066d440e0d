//! A key inside your own transaction.

use semel_core::claim::once::Waiters;
use semel_core::claim::{Keep, Lease, Record, State, Token, once as machine, step};
use semel_core::{ErrorKind, Fingerprint, Key, StoreError, StoredOutcome, Timestamp};
use sqlx::{MySql as Driver, Row as _, Transaction};

use crate::error::{DEADLOCK, DUPLICATE, LOCK_WAIT_TIMEOUT, classify, number};
use crate::store::key_rows::{Stored, version};

const ONCE: &str = include_str!("../sql/key_once.sql");
const MINE: &str = include_str!("../sql/key_once_mine.sql");
const LOOK: &str = include_str!("../sql/key_once_look.sql");
const SET_TOKEN: &str = include_str!("../sql/key_once_token.sql");
const AGAIN: &str = include_str!("../sql/key_once_again.sql");
const COMPLETE: &str = include_str!("../sql/key_once_complete.sql");

/// Times that a key is asked again because its row came or went in between.
const TRIES_MAX: u32 = 16;
/// A token that was drawn so long before its row was held is drawn again: a wait for somebody's row came in between.
const TOKEN_AGE_US_MAX: i64 = 5_000_000;

/// One for the process: what waits here holds a connection, whichever pool it is from.
static WAITERS: Waiters = Waiters::new();

/// The answer to [`once`].
pub type Once = semel_core::claim::Once<Pending>;

/// How [`once`] remembers and waits.
#[derive(Debug, Clone, Copy)]
pub struct OnceOptions {
    /// How long the outcome is remembered.
    pub keep: Keep,
    /// Transactions of this process that may wait for one key at the same time; each holds a connection. Whoever comes
    /// beyond is told [`Once::Busy`]. Default 4.
    pub waiters_max: u32,
}

impl Default for OnceOptions {
    fn default() -> Self {
        Self {
            keep: Keep::default(),
            waiters_max: 4,
        }
    }
}

/// Marks a key as done in your transaction and says whether this is the first time. Only on [`Once::First`] run the
/// effect, in this transaction, and give its outcome to [`Pending::complete`].
///
/// # Guarantees
/// *Atomic*: mark, outcome and your rows commit together. A rollback or a crash before the commit leaves nothing, and
/// the next one is first. A concurrent duplicate waits for the end of this transaction (at most your session's
/// `innodb_lock_wait_timeout`), then gets the outcome, or is the first if there is none. It reads with a lock, so that the
/// server's default isolation, REPEATABLE READ, does not hide the outcome from it (rule K6). A key that is claimed or
/// unknown in the key store is never passed.
///
/// # Limits
/// At most [`OnceOptions::waiters_max`] transactions of this process wait for one key. Ask before other work: under
/// REPEATABLE READ your own reads show what was committed at your first one.
///
/// # Errors
/// A limit of `options.keep`. `NotApplied` when another transaction was in the way (a deadlock; a wait that took too
/// long): this transaction is lost, repeat the whole of it, as [`transact`](super::transact) does. After a deadlock the
/// server would run further statements outside of any transaction, each committed by itself; so the connection is then
/// put into a transaction that takes no writes, and whoever swallows the error is refused (1792).
///
/// ```no_run
/// # async fn f(db: &semel_mysql::Mysql, key: semel_core::Key) -> Result<(), Box<dyn std::error::Error>> {
/// use semel_core::Fingerprint;
/// use semel_core::claim::succeeded;
/// use semel_mysql::tx::{Once, OnceOptions, once};
///
/// let mut tx = db.begin().await?;
/// let answer = match once(&mut tx, &key, Fingerprint::of(b"40.00 to Ada"), OnceOptions::default()).await? {
///     Once::First(pending) => {
///         sqlx::query("UPDATE account SET cents = cents + 4000 WHERE name = 'Ada'").execute(&mut *tx).await?;
///         pending.complete(&mut tx, succeeded("paid")).await?;
///         db.commit(tx).await?;
///         "paid".into()
///     }
///     Once::Done { outcome, .. } => String::from_utf8_lossy(outcome.bytes()).into_owned(),
///     other => format!("not now: {other:?}"),
/// };
/// # Ok(()) }
/// ```
pub async fn once(
    tx: &mut Transaction<'_, Driver>,
    key: &Key,
    fingerprint: Fingerprint,
    options: OnceOptions,
) -> Result<Once, StoreError> {
    options.keep.check()?;
    match try_once(tx, key, fingerprint, options).await {
        Ok(once) => Ok(once),
        Err(Failed::Server(error)) => Err(lost(tx, "once", error).await),
        Err(Failed::Store(error)) => Err(error),
    }
}

enum Failed {
    Server(sqlx::Error),
    Store(StoreError),
}

impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Self {
        Self::Server(error)
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

async fn try_once(
    tx: &mut Transaction<'_, Driver>,
    key: &Key,
    fingerprint: Fingerprint,
    options: OnceOptions,
) -> Result<Once, Failed> {
    let OnceOptions { keep, waiters_max } = options;
    let pending = |lease| Pending {
        key: key.clone(),
        lease,
        keep,
    };
    for _ in 0..TRIES_MAX {
        let Some(_waiting) = WAITERS.enter(key, waiters_max.max(1)) else {
            return Ok(Once::Busy { lease_left_ms: 0 });
        };
        let mut lease = machine::fresh(Token(0));
        match mark(tx, key, fingerprint, keep, lease).await {
            Ok(()) => {
                lease.token = token_of_mark(tx, key, lease).await?;
                return Ok(Once::First(pending(lease)));
            }
            Err(error) if number(&error) == Some(DUPLICATE) => {}
            Err(error) => return Err(error.into()),
        }
        let row = sqlx::query(LOOK)
            .bind(key.to_bytes())
            .fetch_optional(&mut **tx)
            .await?;
        // It was removed in between.
        let Some(row) = row else { continue };
        let (_, stored) = Stored::read(&row, "once")?;
        let now = Timestamp(row.try_get_unchecked("now_us")?);
        let floor: i64 = row.try_get_unchecked("floor")?;
        lease.token = Token(
            now.0
                .max(floor.saturating_add(1))
                .max(stored.token_last.saturating_add(1)),
        );
        let record = stored.record?;
        let (after, once) = machine::decide(Some(record.clone()), key, fingerprint, keep, now, lease);
        if step::changes(Some(&record), after.as_ref(), now)
            && let Some(after) = after
            && !mark_again(tx, key, &after, lease, stored.version).await?
        {
            continue;
        }
        return Ok(once.map_first(pending));
    }
    let text = "others changed the key again and again; repeat the whole transaction";
    Err(StoreError::new(ErrorKind::NotApplied, "once", text).into())
}

const fn micros(ms: i64) -> i64 {
    ms.saturating_mul(1_000)
}

async fn mark(
    tx: &mut Transaction<'_, Driver>,
    key: &Key,
    fingerprint: Fingerprint,
    keep: Keep,
    lease: Lease,
) -> Result<(), sqlx::Error> {
    sqlx::query(ONCE)
        .bind(key.to_bytes())
        .bind(fingerprint.to_bytes().to_vec())
        .bind(lease.nonce.0.to_vec())
        .bind(micros(keep.retention_ms))
        .bind(micros(keep.retention_ms.saturating_add(keep.tombstone_ms)))
        .bind(micros(keep.retention_ms))
        .bind(StoredOutcome::Forgotten.digest().to_vec())
        .bind(version())
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// The token of the mark that was just made; drawn anew when it is too old, now that the row is held.
async fn token_of_mark(
    tx: &mut Transaction<'_, Driver>,
    key: &Key,
    lease: Lease,
) -> Result<Token, sqlx::Error> {
    let row = sqlx::query(MINE)
        .bind(key.to_bytes())
        .bind(lease.nonce.0.to_vec())
        .fetch_one(&mut **tx)
        .await?;
    let token: i64 = row.try_get_unchecked("token")?;
    let now: i64 = row.try_get_unchecked("now_us")?;
    let floor: i64 = row.try_get_unchecked("floor")?;
    if token > floor && now.saturating_sub(token) <= TOKEN_AGE_US_MAX {
        return Ok(Token(token));
    }
    let token = now.max(floor.saturating_add(1));
    sqlx::query(SET_TOKEN)
        .bind(token)
        .bind(token)
        .bind(key.to_bytes())
        .bind(lease.nonce.0.to_vec())
        .execute(&mut **tx)
        .await?;
    Ok(Token(token))
}

/// Marks a row that is there and free; false when somebody came in between.
async fn mark_again(
    tx: &mut Transaction<'_, Driver>,
    key: &Key,
    after: &Record,
    lease: Lease,
    seen: i64,
) -> Result<bool, sqlx::Error> {
    let State::Done {
        retain_until,
        tombstone_until,
        ..
    } = after.state
    else {
        return Ok(false);
    };
    let done = sqlx::query(AGAIN)
        .bind(after.fingerprint.map(|it| it.to_bytes().to_vec()))
        .bind(lease.token.0)
        .bind(lease.token.0)
        .bind(lease.nonce.0.to_vec())
        .bind(retain_until.0)
        .bind(tombstone_until.0)
        .bind(retain_until.0)
        .bind(StoredOutcome::Forgotten.digest().to_vec())
        .bind(version())
        .bind(key.to_bytes())
        .bind(seen)
        .execute(&mut **tx)
        .await?;
    Ok(done.rows_affected() == 1)
}

/// The error, after the connection was made safe: see [`once`].
async fn lost(tx: &mut Transaction<'_, Driver>, operation: &'static str, error: sqlx::Error) -> StoreError {
    // A wait that took too long undoes the whole transaction where innodb_rollback_on_timeout is set.
    if matches!(number(&error), Some(DEADLOCK | LOCK_WAIT_TIMEOUT))
        && let Err(error) = sqlx::raw_sql("ROLLBACK; START TRANSACTION READ ONLY")
            .execute(&mut **tx)
            .await
    {
        tracing::debug!(%error, "the connection of a lost transaction is broken");
    }
    classify(operation, error)
}

/// The first run of a key, inside its transaction. Dropped without [`complete`](Pending::complete), the key is done
/// once the transaction commits, and duplicates hear that its outcome was not kept.
#[derive(Debug)]
#[must_use = "run the effect, then complete it in the same transaction"]
pub struct Pending {
    key: Key,
    lease: Lease,
    keep: Keep,
}

impl Pending {
    /// The fencing token of this run.
    #[must_use]
    pub const fn token(&self) -> Token {
        self.lease.token
    }

    /// Stores the outcome that duplicates will get; kept from now on for as long as the options said.
    ///
    /// # Errors
    /// An outcome over its limit; `Invalid` when this is not the transaction of its `once`.
    pub async fn complete(
        self,
        tx: &mut Transaction<'_, Driver>,
        outcome: StoredOutcome,
    ) -> Result<(), StoreError> {
        semel_core::claim::check_outcome(&outcome)?;
        let Self { key, lease, keep } = self;
        let done = sqlx::query(COMPLETE)
            .bind(outcome.code())
            .bind(outcome.bytes().to_vec())
            .bind(outcome.digest().to_vec())
            .bind(micros(keep.retention_ms))
            .bind(micros(keep.retention_ms.saturating_add(keep.tombstone_ms)))
            .bind(micros(keep.retention_ms))
            .bind(version())
            .bind(key.to_bytes())
            .bind(lease.token.0)
            .bind(lease.nonce.0.to_vec())
            .execute(&mut **tx)
            .await;
        let done = match done {
            Ok(done) => done,
            Err(error) => return Err(lost(tx, "complete", error).await),
        };
        if done.rows_affected() == 1 {
            return Ok(());
        }
        let text = "the key is not marked here: complete it in the transaction in which `once` said First";
        Err(StoreError::new(ErrorKind::Invalid, "complete", text))
    }
}
