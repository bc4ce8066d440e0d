//! What may wait in a stream: set here, measured here, and compared by a trigger that is there only while something is set.
//!
//! The trigger reads and never writes: under a snapshot of the writer's own, a row that was changed since would fail its
//! transaction. So nothing is counted while no relay measures, and the age then counts from the last measure.

use semel_core::store::{MEASURE_KEPT_MS, MEASURE_ROWS, Measured, StreamLimit, check_stream};
use semel_core::{ErrorKind, StoreError};
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Row as _};

use super::key_rows::NOW;
use super::outbox::waiting;
use super::outbox_look::RANGES;
use super::outbox_mark::condition;
use crate::db::Mysql;
use crate::error::{autocommit_failed, classify, number};
use crate::server::UNFIT;

/// The trigger is there already.
const TRIGGER_EXISTS: u16 = 1359;
/// Making or dropping a trigger waits for every transaction that has used the table, and writers wait behind it.
const WAIT: &str = "SET SESSION lock_wait_timeout = 2";
const LOCK: &str = "SELECT GET_LOCK(CONCAT('semel-limit:', MD5(DATABASE())), 5)";
const UNLOCK: &str = "SELECT RELEASE_LOCK(CONCAT('semel-limit:', MD5(DATABASE())))";

impl Mysql {
    pub(super) async fn set_limit(&self, stream: &str, limit: StreamLimit) -> Result<(), StoreError> {
        check_stream(stream, 1)?;
        limit.check()?;
        let rows_max = limit.rows_max.map(|rows| i64::try_from(rows).unwrap_or(i64::MAX));
        let found = sqlx::query("SELECT rows_max, age_max_ms FROM semel_outbox_limit WHERE stream = ?")
            .bind(stream)
            .fetch_optional(&self.own)
            .await
            .map_err(|error| classify("limit_stream", error))?;
        let found: (Option<i64>, Option<i64>) = match found {
            Some(row) => (
                row.try_get_unchecked(0)
                    .map_err(|error| classify("limit_stream", error))?,
                row.try_get_unchecked(1)
                    .map_err(|error| classify("limit_stream", error))?,
            ),
            None => (None, None),
        };
        if found == (rows_max, limit.age_max_ms) {
            return Ok(());
        }
        if limit.is_none() {
            return self.drop_limit(stream).await;
        }
        let sql = format!(
            "INSERT INTO semel_outbox_limit (stream, rows_max, age_max_ms, measured_us) VALUES (?, ?, ?, {NOW})
             ON DUPLICATE KEY UPDATE rows_max = VALUES(rows_max), age_max_ms = VALUES(age_max_ms)"
        );
        let insert = sqlx::query(AssertSqlSafe(sql))
            .bind(stream)
            .bind(rows_max)
            .bind(limit.age_max_ms);
        self.with_triggers(insert).await?;
        self.measure_stream(stream).await.map(|_| ())
    }

    pub(super) async fn set_known_only(&self, only: bool) -> Result<(), StoreError> {
        let found: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM semel_outbox_limit WHERE stream = ''")
            .fetch_one(&self.own)
            .await
            .map_err(|error| classify("only_known_streams", error))?;
        if (found == 1) == only {
            return Ok(());
        }
        if !only {
            return self.drop_limit("").await;
        }
        let sql = "INSERT INTO semel_outbox_limit (stream) VALUES ('') ON DUPLICATE KEY UPDATE waiting = 0";
        self.with_triggers(sqlx::query(sql)).await
    }

    /// Makes the triggers where they are missing, then writes what they are to check.
    async fn with_triggers(
        &self,
        insert: sqlx::query::Query<'_, sqlx::MySql, sqlx::mysql::MySqlArguments>,
    ) -> Result<(), StoreError> {
        let failed = |error| classify("limit_stream", error);
        let (log_bin, format): (i64, String) =
            sqlx::query_as("SELECT CAST(@@global.log_bin AS SIGNED), CAST(@@global.binlog_format AS CHAR)")
                .fetch_one(&self.own)
                .await
                .map_err(failed)?;
        if log_bin != 0 && format != "ROW" {
            let text = format!(
                "binlog_format is {format}: with it a trigger locks what it reads, and relays would wait for writers; set it \
                 to ROW, or limit no stream"
            );
            return Err(StoreError::new(ErrorKind::Invalid, "limit_stream", text).with_code(UNFIT));
        }
        let mut connection = self.own.acquire().await.map_err(failed)?;
        connection.close_on_drop();
        lock(&mut connection).await?;
        for sql in [
            include_str!("../sql/outbox_limit_on.sql"),
            include_str!("../sql/outbox_delayed_limit_on.sql"),
        ] {
            match sqlx::raw_sql(sql).execute(&mut *connection).await {
                Err(error) if number(&error) != Some(TRIGGER_EXISTS) => return Err(failed(error)),
                _ => {}
            }
        }
        insert
            .execute(&mut *connection)
            .await
            .map_err(|error| autocommit_failed("limit_stream", error))?;
        sqlx::raw_sql(UNLOCK)
            .execute(&mut *connection)
            .await
            .map_err(failed)?;
        Ok(())
    }

    /// A trigger that stays, because somebody was in the way, finds nothing to check.
    async fn drop_limit(&self, stream: &str) -> Result<(), StoreError> {
        let failed = |error| classify("limit_stream", error);
        let mut connection = self.own.acquire().await.map_err(failed)?;
        connection.close_on_drop();
        lock(&mut connection).await?;
        sqlx::query("DELETE FROM semel_outbox_limit WHERE stream = ?")
            .bind(stream)
            .execute(&mut *connection)
            .await
            .map_err(|error| autocommit_failed("limit_stream", error))?;
        let left: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM semel_outbox_limit")
            .fetch_one(&mut *connection)
            .await
            .map_err(failed)?;
        if left == 0 {
            for sql in [
                "DROP TRIGGER IF EXISTS semel_outbox_in_limits",
                "DROP TRIGGER IF EXISTS semel_outbox_delayed_in_limits",
            ] {
                sqlx::raw_sql(sql)
                    .execute(&mut *connection)
                    .await
                    .map_err(failed)?;
            }
        }
        sqlx::raw_sql(UNLOCK)
            .execute(&mut *connection)
            .await
            .map_err(failed)?;
        Ok(())
    }

    pub(super) async fn measure_stream(&self, stream: &str) -> Result<Option<Measured>, StoreError> {
        let failed = |error| classify("measure", error);
        let sql = format!(
            "SELECT rows_max, waiting, oldest_us, measured_us, {NOW}, age_max_ms FROM semel_outbox_limit WHERE stream = ?"
        );
        let known = sqlx::query(AssertSqlSafe(sql))
            .bind(stream)
            .fetch_optional(&self.own)
            .await
            .map_err(failed)?;
        let Some(known) = known else {
            return Ok(None);
        };
        let of = |column: usize| known.try_get_unchecked::<Option<i64>, _>(column).map_err(failed);
        let (max, was, was_oldest) = (of(0)?, of(1)?.unwrap_or(0), of(2)?);
        let (at, now) = (of(3)?.unwrap_or(0), of(4)?.unwrap_or(0));
        let aged = of(5)?.is_some();
        let max = max.unwrap_or(i64::try_from(MEASURE_ROWS).unwrap_or(i64::MAX));
        let shards = self.shards("measure").await?;
        let of_stream = shards.iter().filter(|found| found.id.stream == stream);
        let mut parts = Vec::new();
        for found in of_stream {
            let waiting = waiting(&found.cursor)?;
            // A mark with more holes than that is one of a few seconds.
            let few = condition("id", &waiting[waiting.len().saturating_sub(RANGES)..]);
            parts.push((few, found.slots.first, found.slots.last));
        }
        if parts.is_empty() {
            parts.push(("id > 0".to_owned(), 0, u16::MAX >> 1));
        }
        let (mut waits, mut oldest) = (0, None::<i64>);
        for (few, first, last) in parts {
            // Where counting was cut, the oldest of the other shards may still be older.
            let left = (max - waits).max(i64::from(aged));
            let sql = format!(
                "SELECT CAST(COUNT(*) AS SIGNED), MIN(created_at) FROM (SELECT created_at FROM semel_outbox
                 WHERE {few} AND stream = ? AND slot BETWEEN ? AND ? ORDER BY id LIMIT ?) AS waiting"
            );
            let row = sqlx::query(AssertSqlSafe(sql))
                .persistent(false)
                .bind(stream)
                .bind(first)
                .bind(last)
                .bind(left)
                .fetch_one(&self.own)
                .await
                .map_err(failed)?;
            let of = |column: usize| row.try_get_unchecked::<Option<i64>, _>(column).map_err(failed);
            waits = max.min(waits + of(0)?.unwrap_or(0));
            oldest = oldest.into_iter().chain(of(1)?).min();
        }
        if (waits, oldest) != (was, was_oldest) || now - at >= MEASURE_KEPT_MS * 1_000 {
            let sql = format!(
                "UPDATE semel_outbox_limit SET waiting = ?, oldest_us = ?, measured_us = {NOW}
                 WHERE stream = ? AND measured_us = ?"
            );
            sqlx::query(AssertSqlSafe(sql))
                .bind(waits)
                .bind(oldest)
                .bind(stream)
                .bind(at)
                .execute(&self.own)
                .await
                .map_err(|error| autocommit_failed("measure", error))?;
        }
        Ok(Some(Measured {
            waiting: waits.unsigned_abs(),
            oldest_ms: oldest.map(|us| (now - us).max(0) / 1_000),
        }))
    }
}

/// Whoever changes what is checked takes turns; the lock ends with the connection.
async fn lock(connection: &mut MySqlConnection) -> Result<(), StoreError> {
    let failed = |error| classify("limit_stream", error);
    sqlx::raw_sql(WAIT)
        .execute(&mut *connection)
        .await
        .map_err(failed)?;
    let locked: Option<i64> = sqlx::query_scalar(LOCK)
        .fetch_one(&mut *connection)
        .await
        .map_err(failed)?;
    if locked == Some(1) {
        return Ok(());
    }
    let text = "another process is changing limits of streams; try again";
    Err(StoreError::new(ErrorKind::NotApplied, "limit_stream", text))
}
