//! A whole transaction, repeated when another one was in the way.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use semel_core::host::dice;
use semel_core::{Clock as _, Retry, RetryPolicy, StoreError, SystemClock, crash_point};
use sqlx::{Postgres as Driver, Transaction};

use crate::db::Postgres;
use crate::error::{classify, commit_failed};
use crate::gate::{query_as, query_scalar};

/// How often and after which waits [`transact`] repeats a transaction.
pub const REPEAT: RetryPolicy = RetryPolicy::TRANSACTION;

/// How long [`transact`] asks after a lost commit reply whether it is committed.
pub(super) const LOOK: Duration = Duration::from_secs(10);
/// Between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What no two lives of a server have in common. The start of the first process stays the same when a killed session makes
/// the server recover from its log; the statistics, which are thrown away then, do not.
macro_rules! server_life {
    () => {
        "concat_ws(' ', extract(epoch FROM pg_postmaster_start_time()), \
         (SELECT extract(epoch FROM b.stats_reset) FROM pg_catalog.pg_stat_bgwriter AS b))"
    };
}

/// The last statement before the commit. A failed transaction refuses it, where COMMIT would not (rule O8).
const PROBE: &str = concat!("SELECT pg_current_xact_id_if_assigned()::text, ", server_life!());
/// Whether a transaction is committed. In another life of the server its number may belong to another one: then nobody
/// can say.
const STATUS: &str = concat!(
    "SELECT pg_xact_status($1::xid8) WHERE ",
    server_life!(),
    " = $2 AND NOT pg_is_in_recovery()"
);

/// What a body of [`transact`] returns: `Box::pin(async move { … })`.
pub type TxFuture<'c, T, E> = Pin<Box<dyn Future<Output = Result<T, TxError<E>>> + Send + 'c>>;

/// Why a transaction did not commit.
#[derive(Debug, thiserror::Error)]
pub enum TxError<E> {
    /// The store's reason. Its [`retry`](StoreError::retry) class says whether anything can have been committed.
    #[error(transparent)]
    Store(StoreError),
    /// The body's own reason; it was rolled back.
    #[error("the transaction was given up")]
    Own(#[source] E),
}

impl<E> From<StoreError> for TxError<E> {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl<E> From<sqlx::Error> for TxError<E> {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(classify("transaction", error))
    }
}

/// Runs `body` in a transaction and commits it; repeats both after a serialisation failure, a deadlock or a broken
/// connection, when it is certain that nothing was committed, at most as [`REPEAT`] says. So `body` may run several
/// times: it holds no remote effects.
///
/// When the reply to the commit is lost, the server is asked by the transaction's number what became of it, and waited
/// for while it is still committing (rule K5).
///
/// # Errors
/// The body's own ([`TxError::Own`], rolled back); the store's. `ReplyLost`: it may be committed, and after a restart or
/// fail-over of the server nobody can say. Call it again when the body asks [`once`](super::once) first: that tells
/// which it was.
///
/// ```no_run
/// # async fn f(db: &semel_postgres::Postgres) -> Result<(), Box<dyn std::error::Error>> {
/// use semel_postgres::tx::{TxError, transact};
/// let left: i64 = transact(db, |tx| Box::pin(async move {
///     let row = sqlx::query_scalar("UPDATE stock SET n = n - 1 WHERE item = 'teapot' AND n > 0 RETURNING n");
///     let left: Option<i64> = row.fetch_optional(&mut **tx).await?;
///     left.ok_or(TxError::Own("sold out"))
/// }))
/// .await
/// .map_err(|error| error.to_string())?;
/// # Ok(()) }
/// ```
pub async fn transact<'env, T, E>(
    db: &Postgres,
    mut body: impl for<'c> FnMut(&'c mut Transaction<'env, Driver>) -> TxFuture<'c, T, E>,
) -> Result<T, TxError<E>> {
    let mut attempt = 1;
    loop {
        let error = match try_once(db, &mut body).await {
            Ok(value) => return Ok(value),
            Err(TxError::Store(error)) if error.retry() == Retry::Later => error,
            Err(error) => return Err(error),
        };
        let Some(delay) = REPEAT.delay_ms(attempt, 0, dice()) else {
            return Err(TxError::Store(error));
        };
        tracing::debug!(attempt, %error, "transaction is repeated");
        tokio::time::sleep(Duration::from_millis(delay)).await;
        attempt += 1;
    }
}

async fn try_once<'env, T, E>(
    db: &Postgres,
    body: &mut impl for<'c> FnMut(&'c mut Transaction<'env, Driver>) -> TxFuture<'c, T, E>,
) -> Result<T, TxError<E>> {
    // The transaction borrows nothing; its lifetime lets the body borrow from where it is called.
    let mut tx: Transaction<'env, Driver> = db.begin().await?;
    let value = match body(&mut tx).await {
        Ok(value) => value,
        Err(error) => {
            // Awaited, so that its row locks are gone; what was not committed is gone in any case.
            if let Err(rollback) = tx.rollback().await {
                tracing::debug!(error = %rollback, "rollback");
            }
            return Err(error);
        }
    };
    let (xid, started): (Option<String>, String) = query_as(PROBE)
        .fetch_one(&mut *tx)
        .await
        .map_err(|error| classify("commit", error))?;
    crash_point("once.before_commit");
    let Err(error) = tx.commit().await else {
        crash_point("once.committed");
        return Ok(value);
    };
    let error = commit_failed("commit", error);
    match (error.retry(), xid) {
        // It wrote nothing, so there was nothing to commit.
        (Retry::OutcomeUnknown, None) => Ok(value),
        (Retry::OutcomeUnknown, Some(xid)) => match became(db, &xid, &started).await {
            Some(true) => Ok(value),
            Some(false) => {
                let text = "the connection broke and the server rolled back";
                Err(StoreError::new(semel_core::ErrorKind::NotApplied, "commit", text).into())
            }
            None => Err(error.into()),
        },
        (Retry::Never | Retry::Later, _) => Err(error.into()),
    }
}

/// Whether the transaction is committed; `None` when that cannot be told.
async fn became(db: &Postgres, xid: &str, started: &str) -> Option<bool> {
    let deadline = SystemClock.monotonic() + LOOK;
    while SystemClock.monotonic() < deadline {
        let status = query_scalar::<Option<String>>(STATUS)
            .bind(xid)
            .bind(started)
            .fetch_optional(&db.own)
            .await;
        match status {
            Ok(Some(Some(status))) if status == "committed" => return Some(true),
            Ok(Some(Some(status))) if status == "aborted" => return Some(false),
            // Still committing: for example waiting for a synchronous standby.
            Ok(Some(Some(_))) => {}
            // Another server life, or too long ago.
            Ok(None | Some(None)) => return None,
            Err(error) => tracing::debug!(%error, "looking for a lost commit"),
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    None
}
