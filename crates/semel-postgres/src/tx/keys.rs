//! A key inside your own transaction.

use semel_core::claim::once::Waiters;
use semel_core::claim::{Keep, Lease, Nonce, Token, once as machine, step};
use semel_core::{ErrorKind, Fingerprint, Key, StoreError, StoredOutcome};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{Postgres as Driver, Row as _, Transaction};

use crate::error::classify;
use crate::gate::query;
use crate::store::key_rows::Answer;
use crate::store::keys::NO_TOKEN;

const FIRST_SQL: &str = include_str!("../sql/key_once_first.sql");
const ONCE_SQL: &str = include_str!("../sql/key_once.sql");
const COMPLETE_SQL: &str = include_str!("../sql/key_once_complete.sql");

/// Times that a key is asked again because its row came or went in between.
const TRIES_MAX: u32 = 16;

/// One for the process: what waits here holds a connection, whichever pool it is from.
pub(super) static WAITERS: Waiters = Waiters::new();

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
/// the next one is first. A concurrent duplicate waits here until that transaction has ended, then gets the outcome. A
/// key that is claimed or unknown in the key store is never passed.
///
/// # Limits
/// The wait is bounded by your transaction's `lock_timeout`, the number of waiters by [`OnceOptions::waiters_max`].
///
/// # Errors
/// A limit of `options.keep`. `NotApplied` when another transaction was in the way (a deadlock; under REPEATABLE READ
/// and above any concurrent duplicate): this transaction is lost, repeat the whole of it, as
/// [`transact`](super::transact) does.
///
/// ```no_run
/// # async fn f(db: &semel_postgres::Postgres, key: semel_core::Key) -> Result<(), Box<dyn std::error::Error>> {
/// use semel_core::Fingerprint;
/// use semel_core::claim::succeeded;
/// use semel_postgres::tx::{Once, OnceOptions, once};
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
    let OnceOptions { keep, waiters_max } = options;
    keep.check()?;
    let failed = |error| classify("once", error);
    let mut fresh = machine::fresh(NO_TOKEN);
    for _ in 0..TRIES_MAX {
        let Some(_waiting) = WAITERS.enter(key, waiters_max.max(1)) else {
            return Ok(Once::Busy { lease_left_ms: 0 });
        };
        // Most keys are new: what is there is looked at only where something is.
        let marked = asked(FIRST_SQL, key, fingerprint, fresh.nonce, keep)
            .fetch_optional(&mut **tx)
            .await
            .map_err(failed)?;
        if let Some(row) = marked {
            fresh.token = Token(row.try_get(0).map_err(failed)?);
            return Ok(Once::First(Pending {
                key: key.clone(),
                lease: fresh,
            }));
        }
        let row = asked(ONCE_SQL, key, fingerprint, fresh.nonce, keep)
            .fetch_one(&mut **tx)
            .await
            .map_err(failed)?;
        let Answer { now, won, seen, .. } = Answer::only(&row).map_err(failed)?;
        if let Some(won) = won {
            fresh.token = won.token.unwrap_or(NO_TOKEN);
            return Ok(Once::First(Pending {
                key: key.clone(),
                lease: fresh,
            }));
        }
        let record = seen?;
        let (after, once) = machine::decide(record.clone(), key, fingerprint, keep, now, fresh);
        // Had the machine gone on, the row came or went after this statement looked: ask again.
        if !step::changes(record.as_ref(), after.as_ref(), now) {
            return Ok(once.map_first(|lease| Pending {
                key: key.clone(),
                lease,
            }));
        }
    }
    let text = "others changed the key again and again; repeat the whole transaction";
    Err(StoreError::new(ErrorKind::NotApplied, "once", text))
}

/// What both statements that mark a key are asked with.
fn asked<'q>(
    sql: &'static str,
    key: &'q Key,
    fingerprint: Fingerprint,
    nonce: Nonce,
    keep: Keep,
) -> Query<'q, Driver, PgArguments> {
    query(sql)
        .bind(key.scope().as_bytes())
        .bind(key.id())
        .bind(fingerprint.to_bytes())
        .bind(nonce.0)
        .bind(keep.retention_ms)
        .bind(keep.tombstone_ms)
}

/// The first run of a key, inside its transaction. Dropped without [`complete`](Pending::complete), the key is done
/// once the transaction commits, and duplicates hear that its outcome was not kept.
#[derive(Debug)]
#[must_use = "run the effect, then complete it in the same transaction"]
pub struct Pending {
    key: Key,
    lease: Lease,
}

impl Pending {
    /// The fencing token of this run.
    #[must_use]
    pub const fn token(&self) -> Token {
        self.lease.token
    }

    pub(super) const fn nonce(&self) -> Nonce {
        self.lease.nonce
    }

    /// Stores the outcome that duplicates will get; kept for as long as the options said, counted from [`once`].
    ///
    /// # Errors
    /// An outcome over its limit; `Invalid` when this is not the transaction of its `once`.
    pub async fn complete(
        self,
        tx: &mut Transaction<'_, Driver>,
        outcome: StoredOutcome,
    ) -> Result<(), StoreError> {
        semel_core::claim::check_outcome(&outcome)?;
        let done = query(COMPLETE_SQL)
            .bind(self.key.scope().as_bytes())
            .bind(self.key.id())
            .bind(self.lease.token.0)
            .bind(self.lease.nonce.0)
            .bind(outcome.code())
            .bind(outcome.bytes())
            .execute(&mut **tx)
            .await
            .map_err(|error| classify("complete", error))?;
        if done.rows_affected() == 1 {
            return Ok(());
        }
        let text = "the key is not marked here: complete it in the transaction in which `once` said First";
        Err(StoreError::new(ErrorKind::Invalid, "complete", text))
    }
}
