//! Events that wait for their time.

use semel_core::StoreError;
use semel_core::store::Due;
use uuid::Uuid;

use crate::db::Sqlite;
use crate::error::classify;

const NEXT: &str = "SELECT min(due) FROM semel_outbox_delayed WHERE stream = ?1";

impl Sqlite {
    /// See [`OutboxStore::move_due`](semel_core::OutboxStore::move_due).
    pub(super) async fn due(&self, stream: &str, limit: u32) -> Result<Due, StoreError> {
        let failed = |error| classify("move_due", error);
        let now = self.now();
        // Most looks find nothing that is due; those take no lock.
        let next: Option<i64> = sqlx::query_scalar(NEXT)
            .bind(stream)
            .fetch_one(&self.reader)
            .await
            .map_err(failed)?;
        let in_ms = |next: i64| ((next - now.0).max(0) + 999) / 1_000;
        if next.is_none_or(|next| next > now.0) {
            return Ok(Due {
                next_ms: next.map(in_ms),
                ..Due::default()
            });
        }
        let mut tx = self.begin().await?;
        let waiting: Vec<(i64, Vec<u8>)> = sqlx::query_as(
            "SELECT n, event_id FROM semel_outbox_delayed WHERE stream = ?1 AND due <= ?2 ORDER BY due, n LIMIT ?3",
        )
        .bind(stream)
        .bind(now.0)
        .bind(limit)
        .fetch_all(&mut *tx)
        .await
        .map_err(failed)?;
        let mut due = Due::default();
        for (n, id) in waiting {
            let done = sqlx::query(
                "INSERT INTO semel_outbox
                   (stream, slot, event_id, topic, type, source, key, content_type, headers, data, traceparent, created_at)
                 SELECT stream, slot, event_id, topic, type, source, key, content_type, headers, data, traceparent, ?2
                 FROM semel_outbox_delayed WHERE n = ?1 ON CONFLICT (event_id) DO NOTHING",
            )
            .bind(n)
            .bind(now.0)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
            if done.rows_affected() == 1 {
                due.moved += 1;
            } else {
                due.repeated.push(Uuid::from_slice(&id).unwrap_or_default());
            }
            sqlx::query("DELETE FROM semel_outbox_delayed WHERE n = ?1")
                .bind(n)
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
        }
        let next: Option<i64> = sqlx::query_scalar(NEXT)
            .bind(stream)
            .fetch_one(&mut *tx)
            .await
            .map_err(failed)?;
        self.commit(tx).await?;
        due.next_ms = next.map(in_ms);
        Ok(due)
    }
}
