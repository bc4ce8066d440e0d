//! Statements that are a transaction of their own.

use std::time::Duration;

use semel_core::host::dice;
use semel_core::{RetryPolicy, StoreError};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Either, Postgres as Driver};

use crate::db::Postgres;
use crate::error::{autocommit_failed, classify, commit_failed};

/// Repeats of a statement after a deadlock or a serialisation failure.
const REPEAT: RetryPolicy = RetryPolicy {
    initial_ms: 5,
    factor: 2.0,
    cap_ms: 200,
    jitter: 1.0,
    attempts_max: 8,
    total_ms_max: 10_000,
};

pub(crate) type Statement = Query<'static, Driver, PgArguments>;

impl Postgres {
    /// Sends it, again after a deadlock or serialisation failure: then it is certain that nothing was done.
    pub(crate) async fn autocommit(
        &self,
        operation: &'static str,
        statement: impl Fn() -> Statement + Send + Sync,
    ) -> Result<Vec<PgRow>, StoreError> {
        let mut attempt = 1;
        loop {
            let (error, lost) = match self.attempt(operation, statement()).await? {
                Ok(rows) => return Ok(rows),
                Err(failed) => failed,
            };
            let repeatable = matches!(code(&error).as_deref(), Some("40001" | "40P01"));
            match REPEAT.delay_ms(attempt, 0, dice()) {
                Some(delay) if repeatable => tokio::time::sleep(Duration::from_millis(delay)).await,
                _ => return Err(lost(operation, error)),
            }
            attempt += 1;
        }
    }

    /// One try. What fails comes with what that says about the transaction.
    async fn attempt(
        &self,
        operation: &'static str,
        statement: Statement,
    ) -> Result<Result<Vec<PgRow>, (sqlx::Error, Verdict)>, StoreError> {
        let refused = |error| classify(operation, error);
        if !self.own.pooled() {
            let connection = self.own.pool().acquire().await.map_err(refused)?;
            let done = self.own.answers(connection, statement).await;
            let rows = done.map(|answers| answers.into_iter().filter_map(Either::right).collect());
            return Ok(rows.map_err(|error| (error, autocommit_failed as Verdict)));
        }
        let mut tx = self.own.begin().await.map_err(refused)?;
        let rows = match statement.fetch_all(&mut *tx).await {
            Ok(rows) => rows,
            Err(error) => return Ok(Err((error, classify))),
        };
        let done = tx.commit().await;
        Ok(done
            .map(|()| rows)
            .map_err(|error| (error, commit_failed as Verdict)))
    }
}

/// From a failure to what a caller may do next.
type Verdict = fn(&'static str, sqlx::Error) -> StoreError;

/// The SQLSTATE.
pub(crate) fn code(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

/// A value of `lock_timeout`; there zero would mean for ever.
pub(crate) fn lock_timeout(wait: Duration) -> String {
    format!("{}ms", wait.as_millis().max(1))
}
