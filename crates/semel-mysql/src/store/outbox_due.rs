//! Events that wait for their time.

use semel_core::StoreError;
use semel_core::store::Due;
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use super::key_rows::NOW;
use crate::db::Mysql;
use crate::error::{classify, is_repeated_event};

impl Mysql {
    /// See [`OutboxStore::move_due`](semel_core::OutboxStore::move_due).
    pub(super) async fn due(&self, stream: &str, limit: u32) -> Result<Due, StoreError> {
        let failed = |error| classify("move_due", error);
        // Most looks find nothing that is due; those take no lock.
        let next_ms = self.next_due_ms(stream).await?;
        if next_ms != Some(0) {
            return Ok(Due {
                next_ms,
                ..Due::default()
            });
        }
        let mut tx = self.begin().await?;
        // One mover at a time: so the events of a key come in the order of their times.
        let alone = sqlx::query("SELECT row_id FROM semel_outbox_home WHERE one = 1 FOR UPDATE SKIP LOCKED")
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed)?;
        if alone.is_none() {
            tx.rollback().await.map_err(failed)?;
            return Ok(Due {
                next_ms,
                ..Due::default()
            });
        }
        // What an open transaction is cancelling is locked, and passed by.
        let sql = format!(
            "SELECT n, event_id FROM semel_outbox_delayed WHERE stream = ? AND due_us <= {NOW}
             ORDER BY due_us, n LIMIT ? FOR UPDATE SKIP LOCKED"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(stream)
            .bind(limit)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed)?;
        let mut due = Due::default();
        for row in &rows {
            let n: i64 = row.try_get_unchecked(0).map_err(failed)?;
            let moved = sqlx::query(
                "INSERT INTO semel_outbox
                   (stream, event_id, topic, type, source, `key`, content_type, headers, data, traceparent)
                 SELECT stream, event_id, topic, type, source, `key`, content_type, headers, data, traceparent
                 FROM semel_outbox_delayed WHERE n = ?",
            )
            .bind(n)
            .execute(&mut *tx)
            .await;
            match moved {
                Ok(_) => due.moved += 1,
                Err(error) if is_repeated_event(&error) => {
                    let id: Vec<u8> = row.try_get_unchecked(1).map_err(failed)?;
                    due.repeated.push(Uuid::from_slice(&id).unwrap_or_default());
                }
                Err(error) => return Err(failed(error)),
            }
            sqlx::query("DELETE FROM semel_outbox_delayed WHERE n = ?")
                .bind(n)
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
        }
        self.commit(tx).await?;
        due.next_ms = self.next_due_ms(stream).await?;
        Ok(due)
    }

    /// Milliseconds until the next event of the stream is due, rounded up; 0 when one is.
    async fn next_due_ms(&self, stream: &str) -> Result<Option<i64>, StoreError> {
        let sql = format!("SELECT MIN(due_us) - {NOW} FROM semel_outbox_delayed WHERE stream = ?");
        let left: Option<i64> = sqlx::query(AssertSqlSafe(sql))
            .bind(stream)
            .fetch_one(&self.own)
            .await
            .and_then(|row: MySqlRow| row.try_get_unchecked(0))
            .map_err(|error| classify("move_due", error))?;
        Ok(left.map(|us| (us.max(0) + 999) / 1_000))
    }
}
