//! What may wait in a stream: set here, measured here, and compared by a trigger that is there only while something is set.

use semel_core::StoreError;
use semel_core::store::{
    BACKLOG_FULL, MEASURE_KEPT_MS, MEASURE_ROWS, Measured, STREAM_UNKNOWN, StreamLimit, backlog_full,
    check_stream, stream_unknown,
};
use sqlx::SqliteConnection;

use super::outbox_rows::{SHARD, id_of, shard};
use crate::db::Sqlite;
use crate::error::classify;

/// The triggers' clock, so that it is theirs that is compared.
macro_rules! now {
    () => {
        "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000"
    };
}
/// Both limits, what waited, the oldest, when that was counted, and the time now.
type Known = (Option<i64>, Option<i64>, i64, Option<i64>, i64, i64);
/// Both limits, what waited, and the age of the oldest in milliseconds.
type Told = (Option<i64>, Option<i64>, i64, Option<i64>);

const OFF: &str =
    "DROP TRIGGER IF EXISTS semel_outbox_in_limits; DROP TRIGGER IF EXISTS semel_outbox_delayed_in_limits";

impl Sqlite {
    pub(super) async fn set_limit(&self, stream: &str, limit: StreamLimit) -> Result<(), StoreError> {
        check_stream(stream, 1)?;
        limit.check()?;
        let failed = |error| classify("limit_stream", error);
        let rows_max = limit.rows_max.map(|rows| i64::try_from(rows).unwrap_or(i64::MAX));
        let found: Option<(Option<i64>, Option<i64>)> =
            sqlx::query_as("SELECT rows_max, age_max_ms FROM semel_outbox_limit WHERE stream = ?1")
                .bind(stream)
                .fetch_optional(&self.reader)
                .await
                .map_err(failed)?;
        if found.unwrap_or_default() == (rows_max, limit.age_max_ms) {
            return Ok(());
        }
        let mut tx = self.begin().await?;
        let sql = if limit.is_none() {
            "DELETE FROM semel_outbox_limit WHERE stream = ?1"
        } else {
            "INSERT INTO semel_outbox_limit (stream, rows_max, age_max_ms) VALUES (?1, ?2, ?3)
             ON CONFLICT (stream) DO UPDATE SET rows_max = ?2, age_max_ms = ?3"
        };
        sqlx::query(sql)
            .bind(stream)
            .bind(rows_max)
            .bind(limit.age_max_ms)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        apply(&mut tx).await?;
        self.commit(tx).await?;
        self.measure_stream(stream).await.map(|_| ())
    }

    pub(super) async fn set_known_only(&self, only: bool) -> Result<(), StoreError> {
        let failed = |error| classify("only_known_streams", error);
        let found: i64 = sqlx::query_scalar("SELECT count(*) FROM semel_outbox_limit WHERE stream = ''")
            .fetch_one(&self.reader)
            .await
            .map_err(failed)?;
        if (found == 1) == only {
            return Ok(());
        }
        let mut tx = self.begin().await?;
        let sql = if only {
            "INSERT INTO semel_outbox_limit (stream) VALUES ('') ON CONFLICT (stream) DO NOTHING"
        } else {
            "DELETE FROM semel_outbox_limit WHERE stream = ''"
        };
        sqlx::query(sql).execute(&mut *tx).await.map_err(failed)?;
        apply(&mut tx).await?;
        self.commit(tx).await
    }

    pub(super) async fn measure_stream(&self, stream: &str) -> Result<Option<Measured>, StoreError> {
        let failed = |error| classify("measure", error);
        let known: Option<Known> = sqlx::query_as(concat!(
            "SELECT rows_max, age_max_ms, waiting, oldest_us, measured_us, ",
            now!(),
            " FROM semel_outbox_limit WHERE stream = ?1"
        ))
        .bind(stream)
        .fetch_optional(&self.reader)
        .await
        .map_err(failed)?;
        let Some((rows_max, age_max_ms, was, was_oldest, at, now)) = known else {
            return Ok(None);
        };
        let max = rows_max.unwrap_or(i64::try_from(MEASURE_ROWS).unwrap_or(i64::MAX));
        let counted_to: i64 = sqlx::query_scalar("SELECT coalesce(max(id), 0) FROM semel_outbox")
            .fetch_one(&self.reader)
            .await
            .map_err(failed)?;
        let shards = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {SHARD} FROM semel_outbox_shard WHERE stream = ?1"
        )))
        .bind(stream)
        .fetch_all(&self.reader)
        .await
        .map_err(failed)?;
        let mut ranges = Vec::new();
        for row in &shards {
            let found = shard(row)?;
            let settled = id_of(&found.cursor.prev)?.max(found.cursor.last_id);
            ranges.push((settled, i64::from(found.slots.first), i64::from(found.slots.last)));
        }
        if ranges.is_empty() {
            ranges.push((0, 0, i64::from(u16::MAX)));
        }
        let (mut waiting, mut oldest) = (0, None::<i64>);
        for (settled, first, last) in ranges {
            // Where counting was cut, the oldest of the other shards may still be older.
            let left = (max - waiting).max(i64::from(age_max_ms.is_some()));
            let (rows, min): (i64, Option<i64>) = sqlx::query_as(
                "SELECT count(*), min(created_at) FROM (SELECT created_at FROM semel_outbox
                 WHERE id > ?1 AND id <= ?2 AND stream = ?3 AND slot BETWEEN ?4 AND ?5 ORDER BY id LIMIT ?6)",
            )
            .bind(settled)
            .bind(counted_to)
            .bind(stream)
            .bind(first)
            .bind(last)
            .bind(left)
            .fetch_one(&self.reader)
            .await
            .map_err(failed)?;
            waiting = max.min(waiting + rows);
            oldest = oldest.into_iter().chain(min).min();
        }
        if (waiting, oldest) != (was, was_oldest) || now - at >= MEASURE_KEPT_MS * 1_000 {
            let _turn = self.turn("measure").await?;
            sqlx::query(concat!(
                "UPDATE semel_outbox_limit SET waiting = ?2, oldest_us = ?3, counted_to = ?4, measured_us = ",
                now!(),
                " WHERE stream = ?1 AND measured_us = ?5"
            ))
            .bind(stream)
            .bind(waiting)
            .bind(oldest)
            .bind(counted_to)
            .bind(at)
            .execute(&self.writer)
            .await
            .map_err(failed)?;
        }
        Ok(Some(Measured {
            waiting: waiting.unsigned_abs(),
            oldest_ms: oldest.map(|us| (now - us).max(0) / 1_000),
        }))
    }
}

/// The triggers are there while there is something to check, so that nothing is paid for otherwise.
async fn apply(tx: &mut SqliteConnection) -> Result<(), StoreError> {
    let failed = |error| classify("limit_stream", error);
    let limits: i64 = sqlx::query_scalar("SELECT count(*) FROM semel_outbox_limit")
        .fetch_one(&mut *tx)
        .await
        .map_err(failed)?;
    let sql = if limits > 0 {
        include_str!("../sql/outbox_limit_on.sql")
    } else {
        OFF
    };
    sqlx::raw_sql(sql).execute(&mut *tx).await.map_err(failed)?;
    Ok(())
}

/// What a trigger's refusal means, with its numbers; `None` where it was no trigger of limits.
pub(crate) async fn refused(
    tx: &mut SqliteConnection,
    stream: &str,
    error: &sqlx::Error,
) -> Option<StoreError> {
    let words = error.as_database_error()?.message().to_owned();
    if words.contains(STREAM_UNKNOWN) {
        return Some(stream_unknown(stream));
    }
    if !words.contains(BACKLOG_FULL) {
        return None;
    }
    let found: Option<Told> = sqlx::query_as(concat!(
        "SELECT rows_max, age_max_ms, waiting, (",
        now!(),
        " - oldest_us) / 1000 FROM semel_outbox_limit WHERE stream = ?1"
    ))
    .bind(stream)
    .fetch_optional(tx)
    .await
    .ok()?;
    let (rows_max, age_max_ms, waiting, oldest_ms) = found.unwrap_or_default();
    let limit = StreamLimit {
        rows_max: rows_max.map(i64::unsigned_abs),
        age_max_ms,
    };
    let measured = Measured {
        waiting: waiting.unsigned_abs(),
        oldest_ms,
    };
    // What the trigger counted by itself is gone with the statement.
    let reached = measured.reaches(&limit);
    let reached =
        reached.unwrap_or_else(|| format!("rows_max is {rows_max:?}, age_max_ms is {age_max_ms:?}"));
    Some(backlog_full(stream, &reached))
}
