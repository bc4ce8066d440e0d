//! A whole transaction, repeated when another one was in the way.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use semel_core::host::dice;
use semel_core::{Retry, RetryPolicy, StoreError, crash_point};
use sqlx::{Sqlite as Driver, Transaction};

use crate::db::Sqlite;
use crate::error::{classify, commit_failed};

/// How often and after which waits [`transact`] repeats a transaction.
pub const REPEAT: RetryPolicy = RetryPolicy::TRANSACTION;

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

/// Runs `body` in a writing transaction and commits it; repeats both when it is certain that nothing was committed and
/// the same may work later, at most as [`REPEAT`] says. So `body` may run several times: it holds no remote effects.
///
/// # Errors
/// The body's own ([`TxError::Own`], rolled back); the store's. `ReplyLost`: it may be committed. Call it again when
/// the body asks [`once`](super::once) first: that tells which it was.
///
/// ```
/// # async fn f(db: &semel_sqlite::Sqlite) -> Result<(), Box<dyn std::error::Error>> {
/// use semel_sqlite::tx::{TxError, transact};
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
    db: &Sqlite,
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
    db: &Sqlite,
    body: &mut impl for<'c> FnMut(&'c mut Transaction<'env, Driver>) -> TxFuture<'c, T, E>,
) -> Result<T, TxError<E>> {
    // The transaction borrows nothing; its lifetime lets the body borrow from where it is called.
    let mut tx: Transaction<'env, Driver> = db.begin().await?;
    match body(&mut tx).await {
        Ok(value) => {
            crash_point("once.before_commit");
            tx.commit()
                .await
                .map_err(|error| commit_failed("commit", error))?;
            crash_point("once.committed");
            Ok(value)
        }
        Err(error) => {
            // Awaited, so that the file is free for others; what was not committed is gone in any case.
            if let Err(rollback) = tx.rollback().await {
                tracing::debug!(error = %rollback, "rollback");
            }
            Err(error)
        }
    }
}
