//! Events that wait for their time.

use std::time::Duration;

use semel_core::StoreError;
use semel_core::event::slot;
use semel_core::store::Due;
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Connection as _, Row as _};
use uuid::Uuid;

use super::key_rows::NOW;
use crate::db::{CHECK_MARK, MARK, Mysql, lock_wait, still_there};
use crate::error::{LOCK_WAIT_TIMEOUT, classify, commit_failed, is_repeated_event, number};

/// How long a mover waits for an open transaction that has written the id of an event that is due, and how often in one call.
const LOCK_WAIT: Duration = Duration::from_secs(1);
const WAITS_MAX: usize = 3;
/// Rows of `semel_outbox_lock` that movers lock, from the first one.
const MOVERS: u16 = 4_096;
const MOVERS_MAX: u16 = 256;

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
        // Its connection is not used again: it waits for locks for less long than others.
        let mut connection = self.own.acquire().await.map_err(failed)?;
        connection.close_on_drop();
        sqlx::raw_sql(AssertSqlSafe(lock_wait(LOCK_WAIT)))
            .execute(&mut *connection)
            .await
            .map_err(failed)?;
        let mut tx = connection.begin().await.map_err(failed)?;
        sqlx::raw_sql(MARK).execute(&mut *tx).await.map_err(failed)?;
        // One mover of a stream at a time: so the events of a key come in the order of their times.
        let alone = sqlx::query("SELECT slot FROM semel_outbox_lock WHERE slot = ? FOR UPDATE SKIP LOCKED")
            .bind(MOVERS + slot(stream.as_bytes()) % MOVERS_MAX)
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
            "SELECT n, event_id, `key` FROM semel_outbox_delayed WHERE stream = ? AND due_us <= {NOW}
             ORDER BY due_us, n LIMIT ? FOR UPDATE SKIP LOCKED"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(stream)
            .bind(limit)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed)?;
        let mut due = Due::default();
        let mut passed_by: Vec<Option<Vec<u8>>> = Vec::new();
        for row in &rows {
            let n: i64 = row.try_get_unchecked(0).map_err(failed)?;
            let key: Option<Vec<u8>> = row.try_get_unchecked(2).map_err(failed)?;
            if key.is_some() && passed_by.contains(&key) {
                continue;
            }
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
                // An open transaction has written the same id. The statement is undone and nothing else; later ones of its key
                // wait for it, others do not.
                Err(error) if number(&error) == Some(LOCK_WAIT_TIMEOUT) => {
                    passed_by.push(key);
                    if passed_by.len() == WAITS_MAX {
                        break;
                    }
                    continue;
                }
                Err(error) => return Err(failed(error)),
            }
            sqlx::query("DELETE FROM semel_outbox_delayed WHERE n = ?")
                .bind(n)
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
        }
        // Where a wait that took too long undoes the transaction (innodb_rollback_on_timeout), this says so.
        still_there(&mut tx, CHECK_MARK).await?;
        tx.commit()
            .await
            .map_err(|error| commit_failed("move_due", error))?;
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
