//! Cleaning: events that are settled and old, and rows that filled holes.

use std::sync::atomic::Ordering;

use semel_core::StoreError;
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::key_rows::NOW;
use super::outbox_look::RANGES;
use super::outbox_mark::{Range, Seen, condition, holds};
use super::outbox_rows::Shard;
use crate::db::Mysql;
use crate::error::{autocommit_failed, classify};

/// How long a row that fills a hole is kept, in milliseconds: no statement is still about to use its number.
const FILLER_KEPT_MS: i64 = 7 * 86_400_000;
/// Looks over rows of others in one call at most.
const LOOKS_MAX: usize = 10;
/// Numbers that one look goes over.
const LOOK_NUMBERS: i64 = 20_000;

impl Mysql {
    /// Looks without a lock, then deletes what it found by number: what is settled stays settled. A look goes over a bounded
    /// number of rows, and begins where the last one found the first that is to be kept: streams that keep theirs for long
    /// are not gone over each time.
    pub(super) async fn clean_shard(
        &self,
        found: &Shard,
        keep_ms: i64,
        limit: u64,
    ) -> Result<u64, StoreError> {
        let failed = |error| classify("clean", error);
        let settled = Seen::parse(&found.cursor.prev)?.visible();
        let mut from = self.outbox.clean_from(&found.id);
        let mut doomed = Vec::new();
        let mut at_end = false;
        for _ in 0..LOOKS_MAX {
            let Some((end, last)) = self.window(from).await? else {
                at_end = true;
                break;
            };
            let sql = format!(
                "SELECT id, created_at < {NOW} - ? * 1000 FROM semel_outbox FORCE INDEX (PRIMARY)
                 WHERE id > ? AND id <= ? AND stream = ? AND slot BETWEEN ? AND ? ORDER BY id LIMIT ?"
            );
            let mut kept = None;
            // Mostly the first one is young: that is seen without going over the others.
            for rows in [1, limit] {
                let mine = sqlx::query(AssertSqlSafe(sql.clone()))
                    .bind(keep_ms)
                    .bind(from)
                    .bind(end)
                    .bind(&found.id.stream)
                    .bind(found.slots.first)
                    .bind(found.slots.last)
                    .bind(rows)
                    .fetch_all(&self.own)
                    .await
                    .map_err(failed)?;
                for row in &mine {
                    let id: i64 = row.try_get_unchecked(0).map_err(failed)?;
                    let old = row.try_get_unchecked::<i64, _>(1).map_err(failed)? == 1;
                    if old && holds(&settled, id) && (doomed.len() as u64) < limit {
                        doomed.push(id);
                        from = from.max(id);
                    } else {
                        kept = kept.or(Some(id));
                    }
                }
                if mine.is_empty() || kept.is_some() {
                    break;
                }
            }
            if let Some(kept) = kept {
                from = kept - 1;
                // One that is kept only because the call was full is progress.
                at_end = (doomed.len() as u64) < limit;
                break;
            }
            if doomed.len() as u64 >= limit {
                break;
            }
            from = end;
            if end == last {
                at_end = true;
                break;
            }
        }
        let deleted = self.delete(&doomed).await?;
        self.outbox.set_clean_from(&found.id, from, at_end);
        Ok(deleted)
    }

    /// The end of the next numbers to be looked at, and the last number of all.
    async fn window(&self, from: i64) -> Result<Option<(i64, i64)>, StoreError> {
        let failed = |error| classify("clean", error);
        let row = sqlx::query("SELECT MIN(id), MAX(id) FROM semel_outbox WHERE id > ?")
            .bind(from)
            .fetch_one(&self.own)
            .await
            .map_err(failed)?;
        let first: Option<i64> = row.try_get_unchecked(0).map_err(failed)?;
        let last: Option<i64> = row.try_get_unchecked(1).map_err(failed)?;
        Ok(first
            .zip(last)
            .map(|(first, last)| (last.min(first.saturating_add(LOOK_NUMBERS - 1)), last)))
    }

    async fn delete(&self, ids: &[i64]) -> Result<u64, StoreError> {
        let mut deleted = 0;
        for ids in ids.chunks(RANGES) {
            let ids: Vec<Range> = ids.iter().map(|id| (*id, *id)).collect();
            let sql = format!("DELETE FROM semel_outbox WHERE {}", condition("id", &ids));
            let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&self.own).await;
            deleted += done
                .map_err(|error| autocommit_failed("clean", error))?
                .rows_affected();
        }
        Ok(deleted)
    }

    /// Rows that filled holes long ago and that every mark has passed. They are looked for among some rows at a time, behind
    /// those of the last time and round: rows of a stream that has no relay stay in front of them for ever.
    pub(super) async fn clean_fillers(&self, shards: &[Shard], limit: u32) -> Result<(), StoreError> {
        let failed = |error| classify("clean", error);
        let mut passed = i64::MAX;
        for found in shards {
            passed = passed.min(Seen::parse(&found.cursor.prev)?.high);
        }
        let from = self.outbox.fillers_from().load(Ordering::Relaxed);
        let window = self.window(from).await?;
        let end = window.map(|(end, _)| end.min(passed));
        let sql = format!(
            "SELECT id FROM semel_outbox FORCE INDEX (PRIMARY) WHERE id > ? AND id <= ? AND stream = ''
               AND created_at < {NOW} - ? * 1000 AND id NOT IN (SELECT row_id FROM semel_outbox_home)
             ORDER BY id LIMIT ?"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(from)
            .bind(end.unwrap_or(passed))
            .bind(FILLER_KEPT_MS)
            .bind(limit)
            .fetch_all(&self.own)
            .await
            .map_err(failed)?;
        let read = |row: &MySqlRow| row.try_get_unchecked(0).map_err(failed);
        let ids: Vec<i64> = rows.iter().map(read).collect::<Result<_, _>>()?;
        self.delete(&ids).await?;
        // What did not fit is where the next look begins.
        let next = match window {
            _ if ids.len() >= limit as usize => from,
            Some((end, last)) if end < last.min(passed) => end,
            _ => 0,
        };
        self.outbox.fillers_from().store(next, Ordering::Relaxed);
        Ok(())
    }
}
