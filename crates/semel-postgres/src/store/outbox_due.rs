//! Events that wait for their time.

use semel_core::StoreError;
use semel_core::store::Due;
use uuid::Uuid;

use crate::db::Postgres;
use crate::error::classify;
use crate::gate::{query, query_as, query_scalar};

/// How long a move waits for an open transaction that has written the id of an event that is due, and how often in one call.
const LOCK_TIMEOUT: &str = "1s";
const WAITS_MAX: usize = 3;

enum Failed {
    Store(StoreError),
    Sql(sqlx::Error),
}

impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

/// Whether a lock was waited for too long.
fn waited(error: &Failed) -> bool {
    let Failed::Sql(sqlx::Error::Database(error)) = error else {
        return false;
    };
    error.code().as_deref() == Some("55P03")
}

impl Postgres {
    /// See [`OutboxStore::move_due`](semel_core::OutboxStore::move_due).
    pub(super) async fn due(&self, stream: &str, limit: u32) -> Result<Due, StoreError> {
        let failed = |error| match error {
            Failed::Store(error) => error,
            Failed::Sql(error) => classify("move_due", error),
        };
        // Looking takes no lock and no transaction id; most looks find nothing that is due.
        let next_ms = self.next_due_ms(stream).await?;
        if next_ms.is_none_or(|ms| ms > 0) {
            return Ok(Due {
                next_ms,
                ..Due::default()
            });
        }
        let due = match self.move_some(stream, limit, None).await {
            Err(error) if waited(&error) => self.move_one_by_one(stream, limit).await.map_err(failed)?,
            done => done.map_err(failed)?,
        };
        Ok(Due {
            next_ms: self.next_due_ms(stream).await?,
            ..due
        })
    }

    /// Moves in one transaction what is due, or one event of it.
    async fn move_some(&self, stream: &str, limit: u32, only: Option<Uuid>) -> Result<Due, Failed> {
        let mut tx = self.begin().await.map_err(Failed::Store)?;
        // What is due was admitted when it was delayed.
        query("SELECT set_config('lock_timeout', $1, true), set_config('semel.outbox_moving', 'yes', true)")
            .bind(LOCK_TIMEOUT)
            .execute(&mut *tx)
            .await?;
        // One mover at a time: two of them could bring a key's events in the wrong order.
        let alone: bool = query_scalar(
            "SELECT pg_try_advisory_xact_lock(hashtextextended('semel.outbox_delayed ' || $1::text, 0))",
        )
        .bind(stream)
        .fetch_one(&mut *tx)
        .await?;
        if !alone {
            return Ok(Due::default());
        }
        let done: Result<(i64, Vec<Uuid>), sqlx::Error> = query_as(include_str!("../sql/outbox_due.sql"))
            .bind(stream)
            .bind(i64::from(limit))
            .bind(only)
            .fetch_one(&mut *tx)
            .await;
        let (moved, repeated) = match done {
            Ok(done) => done,
            // Waited for: the next event's transaction would find the turn taken by this one.
            Err(error) => {
                tx.rollback().await?;
                return Err(error.into());
            }
        };
        self.commit(tx).await.map_err(Failed::Store)?;
        Ok(Due {
            moved: moved.unsigned_abs(),
            repeated,
            next_ms: None,
        })
    }

    /// An open transaction has written the id of an event that is due: that event and later ones of its key wait for it,
    /// others do not.
    async fn move_one_by_one(&self, stream: &str, limit: u32) -> Result<Due, Failed> {
        let waiting: Vec<(Uuid, Option<Vec<u8>>)> = query_as(
            "SELECT event_id, key FROM semel.outbox_delayed WHERE stream = $1 AND due <= statement_timestamp()
             ORDER BY due, n LIMIT $2",
        )
        .bind(stream)
        .bind(i64::from(limit))
        .fetch_all(&self.gate)
        .await?;
        let mut due = Due::default();
        let mut passed_by = Vec::new();
        for (id, key) in waiting {
            if key.is_some() && passed_by.contains(&key) {
                continue;
            }
            match self.move_some(stream, 1, Some(id)).await {
                Ok(one) => {
                    due.moved += one.moved;
                    due.repeated.extend(one.repeated);
                }
                Err(error) if waited(&error) => {
                    passed_by.push(key);
                    if passed_by.len() == WAITS_MAX {
                        break;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(due)
    }

    async fn next_due_ms(&self, stream: &str) -> Result<Option<i64>, StoreError> {
        query_scalar(
            "SELECT least(greatest(ceil(extract(epoch FROM due - clock_timestamp()) * 1000), 0), 1e15)::bigint
             FROM semel.outbox_delayed WHERE stream = $1 ORDER BY due LIMIT 1",
        )
        .bind(stream)
        .fetch_optional(&self.gate)
        .await
        .map_err(|error| classify("move_due", error))
    }
}
