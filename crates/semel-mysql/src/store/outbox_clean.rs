//! Cleaning: events that are settled and old, and rows that filled holes.

use semel_core::StoreError;
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::key_rows::NOW;
use super::outbox_look::{LOOK_ROWS, RANGES};
use super::outbox_mark::{Range, Seen, above, condition};
use super::outbox_rows::Shard;
use crate::db::Mysql;
use crate::error::{autocommit_failed, classify};

/// How long a row that fills a hole is kept, in milliseconds: no statement is still about to use its number.
const FILLER_KEPT_MS: i64 = 7 * 86_400_000;

impl Mysql {
    /// Looks without a lock, then deletes what it found by number: what is settled stays settled.
    pub(super) async fn clean_shard(
        &self,
        found: &Shard,
        keep_ms: i64,
        limit: u64,
    ) -> Result<u64, StoreError> {
        let failed = |error| classify("clean", error);
        let lowest = sqlx::query(
            "SELECT id FROM semel_outbox WHERE stream = ? AND slot BETWEEN ? AND ? ORDER BY id LIMIT 1",
        )
        .bind(&found.id.stream)
        .bind(found.slots.first)
        .bind(found.slots.last)
        .fetch_optional(&self.own)
        .await
        .map_err(failed)?;
        let Some(lowest) = lowest else { return Ok(0) };
        let lowest: i64 = lowest.try_get_unchecked(0).map_err(failed)?;
        let settled = above(&Seen::parse(&found.cursor.prev)?.visible(), lowest - 1);
        if settled.is_empty() {
            return Ok(0);
        }
        let some = condition("id", &settled[..settled.len().min(RANGES)]);
        let sql = format!(
            "SELECT id FROM semel_outbox WHERE {some} AND stream = ? AND slot BETWEEN ? AND ?
               AND created_at < {NOW} - ? * 1000 ORDER BY id LIMIT ?"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .persistent(false)
            .bind(&found.id.stream)
            .bind(found.slots.first)
            .bind(found.slots.last)
            .bind(keep_ms)
            .bind(limit)
            .fetch_all(&self.own)
            .await
            .map_err(failed)?;
        self.delete(&rows).await
    }

    async fn delete(&self, rows: &[MySqlRow]) -> Result<u64, StoreError> {
        let mut deleted = 0;
        for rows in rows.chunks(RANGES) {
            let mut ids: Vec<Range> = Vec::with_capacity(rows.len());
            for row in rows {
                let id: i64 = row
                    .try_get_unchecked(0)
                    .map_err(|error| classify("clean", error))?;
                ids.push((id, id));
            }
            let sql = format!("DELETE FROM semel_outbox WHERE {}", condition("id", &ids));
            let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&self.own).await;
            deleted += done
                .map_err(|error| autocommit_failed("clean", error))?
                .rows_affected();
        }
        Ok(deleted)
    }

    /// Rows that filled holes long ago and that every mark has passed. They are found among the oldest rows.
    pub(super) async fn clean_fillers(&self, shards: &[Shard], limit: u32) -> Result<(), StoreError> {
        let mut passed = i64::MAX;
        for found in shards {
            passed = passed.min(Seen::parse(&found.cursor.prev)?.high);
        }
        let sql = format!(
            "SELECT o.id FROM (SELECT id, stream, created_at FROM semel_outbox WHERE id <= ? ORDER BY id LIMIT ?) AS o
             WHERE o.stream = '' AND o.created_at < {NOW} - ? * 1000
               AND o.id NOT IN (SELECT row_id FROM semel_outbox_home) LIMIT ?"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(passed)
            .bind(LOOK_ROWS as u64)
            .bind(FILLER_KEPT_MS)
            .bind(limit)
            .fetch_all(&self.own)
            .await
            .map_err(|error| classify("clean", error))?;
        self.delete(&rows).await.map(|_| ())
    }
}
