//! Another number of shards, while relays run (rule O12).

use semel_core::StoreError;
use semel_core::relay::{Mark, ShardLease, Slots};
use semel_core::store::RESHARD_HOLD_MS;

use super::outbox::{LOOK_ROWS, Look};
use crate::db::Postgres;
use crate::error::classify;
use crate::gate::{query, query_as, query_scalar};

/// A change that is asked for, as a look finds it.
pub(super) struct Change {
    /// No batch opens beyond it while it holds.
    pub(super) mark: String,
    /// Whether it holds now.
    pub(super) held: bool,
    /// Whether it is time for the next one.
    pub(super) rested: bool,
}

impl Postgres {
    /// Asks for another number of shards.
    pub(super) async fn change_shards(&self, stream: &str, shards: u16) -> Result<(), StoreError> {
        let wanted: Option<i32> = query_scalar("SELECT shards FROM semel.outbox_reshard WHERE stream = $1")
            .bind(stream)
            .fetch_optional(&self.gate)
            .await
            .map_err(|error| classify("register_stream", error))?;
        if wanted == Some(i32::from(shards)) {
            return Ok(());
        }
        self.set_mark(stream, Some(shards)).await
    }

    /// Wants the shards that there are.
    pub(super) async fn keep_shards(&self, stream: &str) -> Result<(), StoreError> {
        let failed = |error| classify("register_stream", error);
        let wanted: Option<i32> = query_scalar("SELECT shards FROM semel.outbox_reshard WHERE stream = $1")
            .bind(stream)
            .fetch_optional(&self.gate)
            .await
            .map_err(failed)?;
        if wanted.is_some() {
            query("DELETE FROM semel.outbox_reshard WHERE stream = $1")
                .bind(stream)
                .execute(&self.gate)
                .await
                .map_err(failed)?;
        }
        Ok(())
    }

    /// Sets a mark for all shards of a stream: for another number of shards, or once more for the number wanted.
    pub(super) async fn set_mark(&self, stream: &str, shards: Option<u16>) -> Result<(), StoreError> {
        let failed = |error| classify("change shards", error);
        let mut tx = self.begin().await?;
        // Whoever has looked before this writes no batch any more: what is saved now is older than the mark.
        query(
            "UPDATE semel.outbox_shard s SET map = s.map + 1 FROM (
               SELECT shard FROM semel.outbox_shard WHERE stream = $1 ORDER BY shard FOR UPDATE) l
             WHERE s.stream = $1 AND s.shard = l.shard",
        )
        .bind(stream)
        .execute(&mut *tx)
        .await
        .map_err(failed)?;
        // A statement of its own, so that its snapshot is taken behind those locks.
        let sql = match shards {
            Some(_) => {
                "INSERT INTO semel.outbox_reshard (stream, shards, mark, hold_until)
                 VALUES ($1, $2, pg_current_snapshot(), clock_timestamp() + $3 * interval '1 ms')
                 ON CONFLICT (stream) DO UPDATE SET shards = excluded.shards, mark = excluded.mark,
                   hold_until = excluded.hold_until"
            }
            None => {
                "UPDATE semel.outbox_reshard SET shards = coalesce($2, shards), mark = pg_current_snapshot(),
                   hold_until = clock_timestamp() + $3 * interval '1 ms' WHERE stream = $1"
            }
        };
        query(sql)
            .bind(stream)
            .bind(shards.map(i32::from))
            .bind(RESHARD_HOLD_MS as f64)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        self.commit(tx).await
    }

    /// The look of a shard that is run up to a mark.
    pub(super) async fn look_to(
        &self,
        lease: &ShardLease,
        prev: &Mark,
        mark: &str,
        look: &mut Look,
    ) -> Result<(), StoreError> {
        (look.first, look.found) = query_as(include_str!("../sql/outbox_look_to.sql"))
            .bind(prev.as_str())
            .bind(&lease.shard.stream)
            .bind(i32::from(lease.slots.first))
            .bind(i32::from(lease.slots.last))
            .bind(LOOK_ROWS)
            .bind(mark)
            .fetch_one(&self.own)
            .await
            .map_err(|error| classify("open_batch", error))?;
        mark.clone_into(&mut look.cur);
        Ok(())
    }

    /// Replaces the map of a stream, if every shard has reached the mark; whether it did.
    pub(super) async fn switch_map(&self, stream: &str) -> Result<bool, StoreError> {
        // What is being sent again may be on its way, and the new shards are free at once.
        const THERE: &str = "SELECT coalesce(bool_and(s.prev::text = r.mark::text AND s.open IS NULL), false)
            AND NOT EXISTS (SELECT FROM semel.outbox_exception WHERE stream = $1 AND asked IS NOT NULL AND taken > 0)
          FROM semel.outbox_shard s JOIN semel.outbox_reshard r ON r.stream = s.stream WHERE s.stream = $1";
        let failed = |error| classify("change shards", error);
        let there: bool = query_scalar(THERE)
            .bind(stream)
            .fetch_one(&self.own)
            .await
            .map_err(failed)?;
        if !there {
            return Ok(false);
        }
        let mut tx = self.begin().await?;
        let locked = query("SELECT FROM semel.outbox_shard WHERE stream = $1 ORDER BY shard FOR UPDATE")
            .bind(stream)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed)?;
        let there: bool = query_scalar(THERE)
            .bind(stream)
            .fetch_one(&mut *tx)
            .await
            .map_err(failed)?;
        if locked.is_empty() || !there {
            return Ok(false);
        }
        let (shards, mark): (i32, String) =
            query_as("DELETE FROM semel.outbox_reshard WHERE stream = $1 RETURNING shards, mark::text")
                .bind(stream)
                .fetch_one(&mut *tx)
                .await
                .map_err(failed)?;
        // All up to the mark is in the log, and the places in it are those of other shards.
        let (epoch, batch_no, version, map, log): (i64, i64, i64, i64, Option<String>) = query_as(
            "WITH gone AS (DELETE FROM semel.outbox_shard WHERE stream = $1 RETURNING epoch, batch_no, version, map, log)
             SELECT max(epoch), max(batch_no), max(version) + 1, max(map) + 1,
               CASE WHEN count(log) > 0 THEN 'rebind' END FROM gone",
        )
        .bind(stream)
        .fetch_one(&mut *tx)
        .await
        .map_err(failed)?;
        let shards = u16::try_from(shards).unwrap_or(1);
        for index in 0..shards {
            let slots = Slots::of_shard(index, shards);
            query(
                "INSERT INTO semel.outbox_shard
                   (stream, shard, slot_first, slot_last, prev, epoch, batch_no, version, map, log)
                 VALUES ($1, $2, $3, $4, $5::text::pg_snapshot, $6, $7, $8, $9, $10)",
            )
            .bind(stream)
            .bind(i32::from(index))
            .bind(i32::from(slots.first))
            .bind(i32::from(slots.last))
            .bind(&mark)
            .bind(epoch)
            .bind(batch_no)
            .bind(version)
            .bind(map)
            .bind(&log)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        }
        query(
            "UPDATE semel.outbox_exception e SET shard = s.shard FROM semel.outbox_shard s
             WHERE e.stream = $1 AND s.stream = $1 AND e.slot BETWEEN s.slot_first AND s.slot_last",
        )
        .bind(stream)
        .execute(&mut *tx)
        .await
        .map_err(failed)?;
        self.commit(tx).await?;
        Ok(true)
    }
}
