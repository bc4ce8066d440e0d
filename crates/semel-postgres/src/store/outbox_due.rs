//! Events that wait for their time.

use semel_core::StoreError;
use semel_core::store::Due;
use uuid::Uuid;

use crate::db::Postgres;
use crate::error::classify;
use crate::gate::{query_as, query_scalar};

impl Postgres {
    /// See [`OutboxStore::move_due`](semel_core::OutboxStore::move_due).
    pub(super) async fn due(&self, stream: &str, limit: u32) -> Result<Due, StoreError> {
        let failed = |error| classify("move_due", error);
        // Looking takes no lock and no transaction id; most looks find nothing that is due.
        let next_ms = self.next_due_ms(stream).await?;
        if next_ms.is_none_or(|ms| ms > 0) {
            return Ok(Due {
                next_ms,
                ..Due::default()
            });
        }
        let mut tx = self.begin().await?;
        // One mover at a time: two of them could bring a key's events in the wrong order.
        let alone: bool = query_scalar(
            "SELECT pg_try_advisory_xact_lock(hashtextextended('semel.outbox_delayed ' || $1::text, 0))",
        )
        .bind(stream)
        .fetch_one(&mut *tx)
        .await
        .map_err(failed)?;
        if !alone {
            return Ok(Due {
                next_ms,
                ..Due::default()
            });
        }
        let (moved, repeated): (i64, Vec<Uuid>) = query_as(include_str!("../sql/outbox_due.sql"))
            .bind(stream)
            .bind(i64::from(limit))
            .fetch_one(&mut *tx)
            .await
            .map_err(failed)?;
        self.commit(tx).await?;
        Ok(Due {
            moved: moved.unsigned_abs(),
            repeated,
            next_ms: self.next_due_ms(stream).await?,
        })
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
