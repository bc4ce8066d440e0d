//! What may wait in a stream: set here, measured here, and compared by a trigger that is there only while something is set.

use semel_core::StoreError;
use semel_core::store::{MEASURE_KEPT_MS, MEASURE_ROWS, Measured, StreamLimit, check_stream};

use crate::db::Postgres;
use crate::error::{autocommit_failed, classify};
use crate::gate::{query, query_as, query_scalar};

/// Both limits, and what was measured last: what waited, the oldest, when that was and how many milliseconds ago, and whether a
/// writer has counted since.
type Known = (Option<i64>, Option<i64>, i64, Option<i64>, i64, f64, bool);

impl Postgres {
    pub(super) async fn set_limit(&self, stream: &str, limit: StreamLimit) -> Result<(), StoreError> {
        check_stream(stream, 1)?;
        limit.check()?;
        let rows_max = limit.rows_max.map(|rows| i64::try_from(rows).unwrap_or(i64::MAX));
        let found: Option<(Option<i64>, Option<i64>)> =
            query_as("SELECT rows_max, age_max_ms FROM semel.outbox_limit WHERE stream = $1")
                .bind(stream)
                .fetch_optional(&self.gate)
                .await
                .map_err(|error| classify("limit_stream", error))?;
        // Whoever says what is said already needs no right to change tables.
        if found.unwrap_or_default() == (rows_max, limit.age_max_ms) {
            return Ok(());
        }
        query("SELECT semel.limit_stream($1, $2, $3)")
            .bind(stream)
            .bind(rows_max)
            .bind(limit.age_max_ms)
            .execute(&self.gate)
            .await
            .map_err(|error| autocommit_failed("limit_stream", error))?;
        self.measure_stream(stream, true).await.map(|_| ())
    }

    pub(super) async fn set_known_only(&self, only: bool) -> Result<(), StoreError> {
        let found: bool = query_scalar("SELECT EXISTS (SELECT FROM semel.outbox_limit WHERE stream = '')")
            .fetch_one(&self.gate)
            .await
            .map_err(|error| classify("only_known_streams", error))?;
        if found == only {
            return Ok(());
        }
        query("SELECT semel.only_known_streams($1)")
            .bind(only)
            .execute(&self.gate)
            .await
            .map_err(|error| autocommit_failed("only_known_streams", error))?;
        Ok(())
    }

    /// Counts what waits; writes it where it differs, or where that is asked for.
    pub(super) async fn measure_stream(
        &self,
        stream: &str,
        write: bool,
    ) -> Result<Option<Measured>, StoreError> {
        let failed = |error| classify("measure", error);
        let known: Option<Known> = query_as(
            "SELECT rows_max, age_max_ms, waiting, CASE WHEN oldest_at IS NOT NULL THEN semel.created_us(oldest_at) END,
               semel.created_us(measured_at), (extract(epoch FROM clock_timestamp() - measured_at) * 1000)::float8,
               EXISTS (SELECT FROM semel.outbox_limit_count c WHERE c.stream = l.stream AND c.measured_at > l.measured_at)
             FROM semel.outbox_limit l WHERE stream = $1",
        )
        .bind(stream)
        .fetch_optional(&self.gate)
        .await
        .map_err(failed)?;
        let Some((rows_max, age_max_ms, was, was_oldest, at, age_ms, counted)) = known else {
            return Ok(None);
        };
        let max = rows_max.unwrap_or(i64::try_from(MEASURE_ROWS).unwrap_or(i64::MAX));
        let (waiting, mut oldest_us, counted_to): (i64, Option<i64>, i64) =
            query_as(include_str!("../sql/outbox_measure.sql"))
                .bind(stream)
                .bind(max)
                .fetch_one(&self.gate)
                .await
                .map_err(failed)?;
        if waiting >= max && age_max_ms.is_some() {
            // Counting was cut, perhaps before it came to the shard with the oldest event.
            let first: Option<i64> = query_scalar(include_str!("../sql/outbox_measure_oldest.sql"))
                .bind(stream)
                .fetch_one(&self.gate)
                .await
                .map_err(failed)?;
            oldest_us = oldest_us.into_iter().chain(first).min();
        }
        let changed = (waiting, oldest_us) != (was, was_oldest);
        if write || changed || counted || age_ms >= MEASURE_KEPT_MS as f64 {
            // Another relay is not waited for, and what is newer stays.
            query(
                "UPDATE semel.outbox_limit l SET waiting = $2, counted_to = $4, measured_at = clock_timestamp(),
                   oldest_at = timestamptz 'epoch' + $3::bigint * interval '1 microsecond'
                 FROM (SELECT stream FROM semel.outbox_limit WHERE stream = $1 AND semel.created_us(measured_at) = $5
                   FOR NO KEY UPDATE SKIP LOCKED) free WHERE l.stream = free.stream",
            )
            .bind(stream)
            .bind(waiting)
            .bind(oldest_us)
            .bind(counted_to)
            .bind(at)
            .execute(&self.gate)
            .await
            .map_err(|error| autocommit_failed("measure", error))?;
        }
        let now_us: i64 = query_scalar("SELECT semel.created_us(clock_timestamp())")
            .fetch_one(&self.gate)
            .await
            .map_err(failed)?;
        Ok(Some(Measured {
            waiting: waiting.unsigned_abs(),
            oldest_ms: oldest_us.map(|us| (now_us - us).max(0) / 1_000),
        }))
    }
}
