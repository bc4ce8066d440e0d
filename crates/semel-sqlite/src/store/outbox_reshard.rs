//! Another number of shards, while relays run (rule O12).

use semel_core::StoreError;
use semel_core::relay::Slots;
use semel_core::store::RESHARD_HOLD_MS;
use sqlx::SqliteConnection;

use crate::db::Sqlite;
use crate::error::classify;

impl Sqlite {
    /// Asks for another number of shards, in a transaction of `register_stream`.
    pub(super) async fn change_shards(
        &self,
        tx: &mut SqliteConnection,
        stream: &str,
        shards: u16,
    ) -> Result<(), StoreError> {
        let failed = |error| classify("register_stream", error);
        let wanted: Option<i64> =
            sqlx::query_scalar("SELECT shards FROM semel_outbox_reshard WHERE stream = ?1")
                .bind(stream)
                .fetch_optional(&mut *tx)
                .await
                .map_err(failed)?;
        if wanted == Some(i64::from(shards)) {
            return Ok(());
        }
        sqlx::query(
            "INSERT INTO semel_outbox_reshard (stream, shards, mark, hold_until) VALUES (?1, ?2, 0, 0)
             ON CONFLICT (stream) DO UPDATE SET shards = excluded.shards",
        )
        .bind(stream)
        .bind(shards)
        .execute(&mut *tx)
        .await
        .map_err(failed)?;
        self.set_mark(tx, stream).await
    }

    /// Sets a mark for all shards of a stream that is to be changed.
    pub(super) async fn set_mark(&self, tx: &mut SqliteConnection, stream: &str) -> Result<(), StoreError> {
        let failed = |error| classify("change shards", error);
        // Whoever has looked before this writes no batch any more: what is saved now is older than the mark.
        sqlx::query("UPDATE semel_outbox_shard SET map = map + 1 WHERE stream = ?1")
            .bind(stream)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        sqlx::query(
            "UPDATE semel_outbox_reshard SET hold_until = ?2,
               mark = coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'semel_outbox'), 0) WHERE stream = ?1",
        )
        .bind(stream)
        .bind(self.now().plus_ms(RESHARD_HOLD_MS).0)
        .execute(&mut *tx)
        .await
        .map_err(failed)?;
        Ok(())
    }

    /// Replaces the map of a stream, if every shard has reached the mark; whether it did.
    pub(super) async fn switch_map(&self, stream: &str) -> Result<bool, StoreError> {
        // What is being sent again may be on its way, and the new shards are free at once.
        const THERE: &str = "SELECT count(*) > 0 AND min(s.prev = r.mark AND s.open IS NULL)
            AND NOT EXISTS (SELECT 1 FROM semel_outbox_exception WHERE stream = ?1 AND asked IS NOT NULL AND taken > 0)
          FROM semel_outbox_shard s JOIN semel_outbox_reshard r ON r.stream = s.stream WHERE s.stream = ?1";
        let failed = |error| classify("change shards", error);
        let there: Option<bool> = sqlx::query_scalar(THERE)
            .bind(stream)
            .fetch_one(&self.reader)
            .await
            .map_err(failed)?;
        if there != Some(true) {
            return Ok(false);
        }
        let mut tx = self.begin().await?;
        let there: Option<bool> = sqlx::query_scalar(THERE)
            .bind(stream)
            .fetch_one(&mut *tx)
            .await
            .map_err(failed)?;
        if there != Some(true) {
            return Ok(false);
        }
        let (shards, mark): (u16, i64) =
            sqlx::query_as("DELETE FROM semel_outbox_reshard WHERE stream = ?1 RETURNING shards, mark")
                .bind(stream)
                .fetch_one(&mut *tx)
                .await
                .map_err(failed)?;
        // All up to the mark is in the log, and the places in it are those of other shards.
        let (epoch, batch_no, version, map, log): (i64, i64, i64, i64, Option<String>) = sqlx::query_as(
            "SELECT max(epoch), max(batch_no), max(version) + 1, max(map) + 1,
               CASE WHEN count(log) > 0 THEN 'rebind' END FROM semel_outbox_shard WHERE stream = ?1",
        )
        .bind(stream)
        .fetch_one(&mut *tx)
        .await
        .map_err(failed)?;
        sqlx::query("DELETE FROM semel_outbox_shard WHERE stream = ?1")
            .bind(stream)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        for index in 0..shards {
            let slots = Slots::of_shard(index, shards);
            sqlx::query(
                "INSERT INTO semel_outbox_shard
                   (stream, shard, slot_first, slot_last, prev, epoch, batch_no, version, map, log)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            )
            .bind(stream)
            .bind(index)
            .bind(slots.first)
            .bind(slots.last)
            .bind(mark)
            .bind(epoch)
            .bind(batch_no)
            .bind(version)
            .bind(map)
            .bind(&log)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
            sqlx::query(
                "UPDATE semel_outbox_exception SET shard = ?2 WHERE stream = ?1 AND slot BETWEEN ?3 AND ?4",
            )
            .bind(stream)
            .bind(index)
            .bind(slots.first)
            .bind(slots.last)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        }
        self.commit(tx).await?;
        Ok(true)
    }
}
