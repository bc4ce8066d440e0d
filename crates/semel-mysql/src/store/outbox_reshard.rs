//! Another number of shards, while relays run (rule O12; decisions 0048 and 0056).
//!
//! Shards see marks of their own. The one mark that all are run up to is the union of theirs: every number that any of them
//! has seen. What is missing in it is looked at once more, behind the locks of all, so that whoever ended before a row
//! that is in it was written is in it, too: each key's order holds across the change, whoever saw which of its rows.

use semel_core::StoreError;
use semel_core::relay::{Mark, ShardLease, Slots};
use semel_core::store::{RESHARD_HOLD_MS, RESHARD_REST_MS};
use sqlx::{AssertSqlSafe, Row as _};

use super::key_rows::NOW;
use super::outbox_desk::Tx;
use super::outbox_look::{Look, RANGES};
use super::outbox_mark::{Seen, condition};
use super::outbox_rows::{SHARD, number, shard, text};
use crate::db::Mysql;
use crate::error::classify;

/// A change that is asked for.
pub(super) struct Change {
    /// No batch opens beyond it while it holds.
    pub(super) mark: Mark,
    /// Whether it holds now.
    pub(super) held: bool,
    /// Whether it is time for the next one.
    pub(super) rested: bool,
}

impl Mysql {
    /// The change that is asked for of a stream.
    pub(super) async fn change_of(&self, stream: &str) -> Result<Option<Change>, StoreError> {
        let failed = |error| classify("change shards", error);
        let sql = format!(
            "SELECT mark, hold_until_us > {NOW} AS held, hold_until_us + {RESHARD_REST_MS} * 1000 < {NOW} AS rested
             FROM semel_outbox_reshard WHERE stream = ?"
        );
        let row = sqlx::query(AssertSqlSafe(sql))
            .bind(stream)
            .fetch_optional(&self.own)
            .await
            .map_err(failed)?;
        let read = |row: sqlx::mysql::MySqlRow| -> Result<Change, sqlx::Error> {
            Ok(Change {
                mark: Mark::new(text(&row, "mark")?.unwrap_or_default()),
                held: number(&row, "held")? == 1,
                rested: number(&row, "rested")? == 1,
            })
        };
        row.map(read).transpose().map_err(failed)
    }

    /// Asks for another number of shards, or for the one that there is.
    pub(super) async fn change_shards(
        &self,
        stream: &str,
        found: i64,
        shards: u16,
    ) -> Result<(), StoreError> {
        let failed = |error| classify("register_stream", error);
        let wanted: Option<i64> = sqlx::query("SELECT shards FROM semel_outbox_reshard WHERE stream = ?")
            .bind(stream)
            .fetch_optional(&self.own)
            .await
            .and_then(|row| row.map(|row| number(&row, "shards")).transpose())
            .map_err(failed)?;
        if found == i64::from(shards) {
            if wanted.is_some() {
                sqlx::query("DELETE FROM semel_outbox_reshard WHERE stream = ?")
                    .bind(stream)
                    .execute(&self.own)
                    .await
                    .map_err(failed)?;
            }
            return Ok(());
        }
        if wanted == Some(i64::from(shards)) {
            return Ok(());
        }
        self.set_mark(stream, Some(shards)).await
    }

    /// Sets a mark for all shards of a stream: for another number of shards, or once more for the number wanted.
    pub(super) async fn set_mark(&self, stream: &str, shards: Option<u16>) -> Result<(), StoreError> {
        let failed = |error| classify("change shards", error);
        let mut tx = self.begin().await?;
        let sql = format!(
            "SELECT {SHARD} FROM semel_outbox_shard s WHERE s.stream = ? ORDER BY s.shard FOR UPDATE"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(stream)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed)?;
        let mut marks = Vec::with_capacity(rows.len());
        for row in &rows {
            let cursor = shard(row)?.cursor;
            marks.push(Seen::parse(cursor.open.as_ref().unwrap_or(&cursor.prev))?);
        }
        // Whoever has looked before this writes no batch any more: what is saved now is older than the mark.
        sqlx::query("UPDATE semel_outbox_shard SET map = map + 1 WHERE stream = ?")
            .bind(stream)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        let mark = self.whole(&mut tx, Seen::union(&marks)).await?.mark();
        let until = format!("{NOW} + {RESHARD_HOLD_MS} * 1000");
        let done = match shards {
            Some(shards) => {
                let sql = format!(
                    "INSERT INTO semel_outbox_reshard (stream, shards, mark, hold_until_us) VALUES (?, ?, ?, {until})
                     ON DUPLICATE KEY UPDATE shards = VALUES(shards), mark = VALUES(mark),
                       hold_until_us = VALUES(hold_until_us)"
                );
                let set = sqlx::query(AssertSqlSafe(sql)).bind(stream).bind(shards);
                set.bind(mark.as_str()).execute(&mut *tx).await
            }
            None => {
                // Another shard may have set it meanwhile.
                let sql = format!(
                    "UPDATE semel_outbox_reshard SET mark = ?, hold_until_us = {until}
                     WHERE stream = ? AND hold_until_us + {RESHARD_REST_MS} * 1000 < {NOW}"
                );
                let set = sqlx::query(AssertSqlSafe(sql)).bind(mark.as_str());
                set.bind(stream).execute(&mut *tx).await
            }
        };
        done.map_err(failed)?;
        self.commit(tx).await
    }

    /// A mark with everything that ended before a row in it was written: what is missing is looked at until a look that
    /// began after all that was seen finds nothing more.
    async fn whole(&self, tx: &mut Tx, mut seen: Seen) -> Result<Seen, StoreError> {
        let failed = |error| classify("change shards", error);
        while !seen.holes.is_empty() {
            // One statement, so one view.
            let looks = seen.holes.chunks(RANGES).map(|holes| {
                let holes = condition("id", holes);
                format!("SELECT id FROM semel_outbox FORCE INDEX (PRIMARY) WHERE {holes}")
            });
            let sql = looks.collect::<Vec<_>>().join(" UNION ALL ");
            let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut **tx).await;
            let ids = rows.and_then(|rows| rows.iter().map(|row| row.try_get_unchecked(0)).collect());
            let mut ids: Vec<i64> = ids.map_err(failed)?;
            if ids.is_empty() {
                break;
            }
            ids.sort_unstable();
            seen = seen.and(&ids);
        }
        Ok(seen)
    }

    /// The look of a shard that is run up to a mark; where that takes more rows than a look may find, a part of the way, cut
    /// by number: what is earlier of a key has a smaller one.
    pub(super) async fn look_to(
        &self,
        lease: &ShardLease,
        prev: &Mark,
        mark: &Mark,
        map: Option<i64>,
    ) -> Result<Look, StoreError> {
        let (prev, mark) = (Seen::parse(prev)?, Seen::parse(mark)?);
        let rows = self.batch_rows(lease, &mark.since(&prev), 0).await?;
        let seen = match rows.rows.last() {
            Some((last, _)) if rows.more => Seen::union(&[mark.up_to(*last), prev]),
            _ => mark,
        };
        Ok(Look {
            seen,
            mine: rows.rows.to_vec(),
            passed: 0,
            map,
            changing: true,
        })
    }

    /// Replaces the map of a stream, if every shard has reached the mark; whether it did.
    pub(super) async fn switch_map(&self, stream: &str) -> Result<bool, StoreError> {
        // What is being sent again may be on its way, and the new shards are free at once.
        const THERE: &str = "SELECT COUNT(*) > 0 AND COALESCE(MIN(s.prev_mark = r.mark AND s.open_mark IS NULL), 0)
            AND NOT EXISTS (SELECT 1 FROM semel_outbox_exception WHERE stream = ? AND asked IS NOT NULL AND taken > 0) AS there
          FROM semel_outbox_shard s JOIN semel_outbox_reshard r ON r.stream = s.stream WHERE s.stream = ?";
        let failed = |error| classify("change shards", error);
        let there = sqlx::query(THERE)
            .bind(stream)
            .bind(stream)
            .fetch_one(&self.own)
            .await
            .map_err(failed)?;
        if number(&there, "there").map_err(failed)? == 0 {
            return Ok(false);
        }
        let mut tx = self.begin().await?;
        let sql = format!(
            "SELECT {SHARD}, s.map FROM semel_outbox_shard s WHERE s.stream = ? ORDER BY s.shard FOR UPDATE"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(stream)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed)?;
        let there = sqlx::query(THERE)
            .bind(stream)
            .bind(stream)
            .fetch_one(&mut *tx)
            .await
            .map_err(failed)?;
        let change = sqlx::query("SELECT shards, mark FROM semel_outbox_reshard WHERE stream = ? FOR UPDATE")
            .bind(stream)
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed)?;
        let (Some(change), 1) = (change, number(&there, "there").map_err(failed)?) else {
            tx.rollback().await.map_err(failed)?;
            return Ok(false);
        };
        let shards = number(&change, "shards").map_err(failed)?;
        let mark = text(&change, "mark").map_err(failed)?;
        let (mut epoch, mut batch_no, mut version, mut map, mut log) = (0, 0, 0, 0, None);
        for row in &rows {
            let found = shard(row)?;
            epoch = epoch.max(found.epoch);
            batch_no = batch_no.max(found.cursor.batch_no);
            version = version.max(found.cursor.version);
            map = map.max(number(row, "map").map_err(failed)?);
            // All up to the mark is in the log, and the places in it are those of other shards.
            log = log.or(found.cursor.log.map(|_| "rebind"));
        }
        for sql in [
            "DELETE FROM semel_outbox_reshard WHERE stream = ?",
            "DELETE FROM semel_outbox_shard WHERE stream = ?",
        ] {
            let done = sqlx::query(sql).bind(stream).execute(&mut *tx).await;
            done.map_err(failed)?;
        }
        let shards = u16::try_from(shards).unwrap_or(1);
        for index in 0..shards {
            let slots = Slots::of_shard(index, shards);
            sqlx::query(
                "INSERT INTO semel_outbox_shard
                   (stream, shard, slot_first, slot_last, prev_mark, epoch, batch_no, version, map, log)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )
            .bind(stream)
            .bind(index)
            .bind(slots.first)
            .bind(slots.last)
            .bind(&mark)
            .bind(epoch)
            .bind(batch_no)
            .bind(version + 1)
            .bind(map + 1)
            .bind(log)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        }
        sqlx::query(
            "UPDATE semel_outbox_exception e JOIN semel_outbox_shard s
               ON s.stream = e.stream AND e.slot BETWEEN s.slot_first AND s.slot_last
             SET e.shard = s.shard WHERE e.stream = ?",
        )
        .bind(stream)
        .execute(&mut *tx)
        .await
        .map_err(failed)?;
        self.commit(tx).await?;
        Ok(true)
    }
}
