//! A whole transaction, repeated when another one was in the way.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use semel_core::host::{dice, random_16};
use semel_core::{Clock as _, ErrorKind, Retry, RetryPolicy, StoreError, SystemClock, crash_point};
use sqlx::{MySql as Driver, Row as _, Transaction};

use crate::db::{CHECK_MARK, Mysql, still_there};
use crate::error::{DUPLICATE, classify, commit_failed, number};
use crate::store::key_rows::push_hex;

/// How often and after which waits [`transact`] repeats a transaction.
pub const REPEAT: RetryPolicy = RetryPolicy::TRANSACTION;

/// How long [`transact`] asks after a lost commit reply whether it is committed.
const LOOK: Duration = Duration::from_secs(10);
/// Between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Which server this is, and its time in microseconds, whatever the session's time zone. A replica that was promoted may not
/// have received what the old primary had committed.
const WHICH: &str = "SELECT CONCAT_WS(' ', @@hostname, @@port, @@server_id, @@datadir), \
     CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)";

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

/// Runs `body` in a transaction and commits it; repeats both after a deadlock, a wait that took too long or a broken
/// connection, when it is certain that nothing was committed, at most as [`REPEAT`] says. So `body` may run several
/// times: it holds no remote effects.
///
/// With its rows the transaction commits an id of its own. When the reply to the commit is lost, another connection
/// inserts that id: it waits while the commit is still on its way, and is told whether the id is there (rule K5).
///
/// # Errors
/// The body's own ([`TxError::Own`], rolled back); the store's. `ReplyLost`: it may be committed; after a fail-over to
/// another server nobody can say. Call it again when the body asks [`once`](super::once) first: that tells which it was.
/// A body that swallows a deadlock, or runs a statement that commits by itself, gets `ReplyLost`, too: what it did after
/// that was committed statement by statement.
///
/// ```no_run
/// # async fn f(db: &semel_mysql::Mysql) -> Result<(), Box<dyn std::error::Error>> {
/// use semel_mysql::tx::{TxError, transact};
/// transact(db, |tx| Box::pin(async move {
///     let taken = sqlx::query("UPDATE stock SET n = n - 1 WHERE item = 'teapot' AND n > 0");
///     let taken = taken.execute(&mut **tx).await?.rows_affected();
///     if taken == 1 { Ok(()) } else { Err(TxError::Own("sold out")) }
/// }))
/// .await
/// .map_err(|error| error.to_string())?;
/// # Ok(()) }
/// ```
pub async fn transact<'env, T, E>(
    db: &Mysql,
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
    db: &Mysql,
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
    let (server, now): (Option<String>, i64) = sqlx::query(WHICH)
        .fetch_one(&mut *tx)
        .await
        .and_then(|row| Ok((row.try_get_unchecked(0)?, row.try_get_unchecked(1)?)))
        .map_err(|error| classify("commit", error))?;
    let id = commit_id(now);
    // The mark is checked last: then the id is in the transaction that the body ran in.
    let mut last = String::from("INSERT INTO semel_commit (id) VALUES (x'");
    push_hex(&mut last, &id);
    last.push_str("');");
    last.push_str(CHECK_MARK);
    still_there(&mut tx, &last).await?;
    crash_point("once.before_commit");
    let Err(error) = tx.commit().await else {
        crash_point("once.committed");
        return Ok(value);
    };
    let error = commit_failed("commit", error);
    if error.retry() != Retry::OutcomeUnknown {
        return Err(error.into());
    }
    match became(db, &id, server.as_deref()).await {
        Some(true) => Ok(value),
        Some(false) => {
            let text = "the connection broke and the server rolled back";
            Err(StoreError::new(ErrorKind::NotApplied, "commit", text).into())
        }
        None => Err(error.into()),
    }
}

/// The server's time, then randomness: ids grow, and a sweep can tell the old ones. Not this machine's time: where that is
/// wrong, a sweep would remove what is still asked for.
fn commit_id(now_us: i64) -> [u8; 16] {
    let mut id = random_16();
    id[..8].copy_from_slice(&now_us.to_be_bytes());
    id
}

/// Whether the transaction with this id is committed; `None` when that cannot be told.
async fn became(db: &Mysql, id: &[u8; 16], server: Option<&str>) -> Option<bool> {
    let deadline = SystemClock.monotonic() + LOOK;
    while SystemClock.monotonic() < deadline {
        match look(db, id).await {
            Ok((which, committed)) => return (which.as_deref() == server).then_some(committed),
            // A wait that took too long: still committing, for example waiting for a replica.
            Err(error) => tracing::debug!(%error, "looking for a lost commit"),
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    None
}

async fn look(db: &Mysql, id: &[u8; 16]) -> Result<(Option<String>, bool), sqlx::Error> {
    let mut connection = db.pool.acquire().await?;
    // The id stays: should the lost transaction come to its commit after all, it could not.
    let inserted = sqlx::query("INSERT INTO semel_commit (id) VALUES (?)")
        .bind(id.to_vec())
        .execute(&mut *connection)
        .await;
    let committed = match inserted {
        Ok(_) => false,
        Err(error) if number(&error) == Some(DUPLICATE) => true,
        Err(error) => return Err(error),
    };
    let which = sqlx::query(WHICH).fetch_one(&mut *connection).await?;
    Ok((which.try_get_unchecked(0)?, committed))
}
