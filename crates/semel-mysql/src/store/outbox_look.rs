//! Looking for rows: what is visible behind a mark, and which holes of it nobody will fill.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::relay::{Cursor, Mark, ShardId, ShardLease, Slots};
use semel_core::{Clock as _, ErrorKind, Nonce, StoreError, SystemClock};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::key_rows::push_hex;
use super::outbox_mark::{Range, Seen, above, condition, count, subtract};
use crate::db::{Mysql, lock_wait};
use crate::error::{LOCK_WAIT_TIMEOUT, autocommit_failed, classify, number};

/// Rows of the table behind a mark that one look takes at most: what bounds a batch, a mark and the memory of both.
pub(super) const LOOK_ROWS: usize = 20_000;
/// Ranges in one condition: beyond a thousand MariaDB would make a join of the list.
pub(super) const RANGES: usize = 1_000;
/// Holes of a mark at most: while there are as many, no new ones are looked for.
const HOLES_MAX: usize = 200_000;
/// With more new holes than this, other shards' marks are asked which of them were rows that are cleaned.
const HOLES_ASKED: usize = 16;
/// How long a number may be missing before it is filled, in milliseconds. A statement that draws its numbers writes their
/// rows at once, or waits for a lock.
const FILL_AFTER_MS: u64 = 10_000;
/// A wider hole stays: as one range it costs nothing.
const FILL_WIDTH_MAX: u64 = 1_000;
/// Numbers filled in one go at most, in several rounds; the next go begins behind them.
const FILL_AT_ONCE: u64 = 200_000;
/// How long filling waits for a writer's lock.
const FILL_LOCK_WAIT: Duration = Duration::from_secs(1);
/// So often cleaning begins where it found the first row that was not old.
const CLEAN_RELIED_MAX: u32 = 60;
/// Bytes of a statement, and of the two marks that one statement writes, for each hole at most.
const HOLE_BYTES: usize = 64;

/// What a store object remembers between calls. Nothing depends on it but speed.
#[derive(Debug, Default)]
pub(crate) struct OutboxMemory {
    shards: Mutex<HashMap<ShardId, ShardMemory>>,
    /// Somebody fills holes. Shards look at the same numbers, so one of them is enough.
    filling: AtomicBool,
    /// Rows that filled holes are looked for behind this number.
    fillers_from: AtomicI64,
}

/// While it lives, nobody else of this process fills holes.
struct Filling(Arc<OutboxMemory>);

impl Drop for Filling {
    fn drop(&mut self) {
        self.0.filling.store(false, Ordering::Release);
    }
}

#[derive(Debug, Default)]
struct ShardMemory {
    batch: Option<Batch>,
    /// When the mark stood where, in milliseconds of this process; a young one and one that grows old.
    aged: Option<(u64, i64)>,
    young: Option<(u64, i64)>,
    /// Holes are filled from the first one behind this number.
    fill_from: i64,
    /// No row up to this number is to be cleaned, and how often that was relied on.
    clean_from: (i64, u32),
}

/// Some rows of an open batch, and whose it is.
#[derive(Debug)]
struct Batch {
    nonce: Nonce,
    number: i64,
    open: Option<Mark>,
    rows: Rows,
}

/// Numbers and bytes of data of a batch's rows, growing.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    /// They are those behind this number,
    pub(super) after: i64,
    /// and there may be more behind them.
    pub(super) more: bool,
    pub(super) rows: Arc<[(i64, u32)]>,
}

/// What one look found.
pub(super) struct Look {
    /// Everything that is visible now, as far as it was looked at.
    pub(super) seen: Seen,
    /// Rows of the shard that are new, growing.
    pub(super) mine: Vec<(i64, u32)>,
    /// Rows passed over because they are another shard's.
    pub(super) passed: usize,
    /// The version of the stream's map of shards, as this look saw it; `None` where the shard is not in it.
    pub(super) map: Option<i64>,
    /// Whether another map is asked for.
    pub(super) changing: bool,
}

impl OutboxMemory {
    fn lock(&self) -> MutexGuard<'_, HashMap<ShardId, ShardMemory>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rows of the open batch behind `after`, if it has them. They must be of this very ownership: after a fail-over another
    /// owner may have opened a batch of the same number.
    pub(super) fn batch(&self, lease: &ShardLease, cursor: &Cursor, after: i64) -> Option<Rows> {
        let shards = self.lock();
        let batch = shards.get(&lease.shard)?.batch.as_ref()?;
        let rows = &batch.rows;
        let same = batch.nonce == lease.nonce && batch.number == cursor.batch_no && batch.open == cursor.open;
        let has = rows.after <= after && (!rows.more || rows.rows.last().is_some_and(|last| last.0 > after));
        (same && has).then(|| rows.clone())
    }

    pub(super) fn set_batch(&self, lease: &ShardLease, cursor: &Cursor, rows: Rows) {
        let batch = Batch {
            nonce: lease.nonce,
            number: cursor.batch_no,
            open: cursor.open.clone(),
            rows,
        };
        self.lock().entry(lease.shard.clone()).or_default().batch = Some(batch);
    }

    /// Of these holes those that are old, from where the last go ended; once each time that they grow older.
    fn old_holes(&self, shard: &ShardId, seen: &Seen, now_ms: u64) -> Vec<Range> {
        let mut shards = self.lock();
        let memory = shards.entry(shard.clone()).or_default();
        let (since, _) = *memory.young.get_or_insert((now_ms, seen.high));
        if now_ms.saturating_sub(since) < FILL_AFTER_MS {
            return Vec::new();
        }
        memory.aged = memory.young.replace((now_ms, seen.high));
        let Some((_, old)) = memory.aged else {
            return Vec::new();
        };
        let narrow = |range: &&Range| range.1 <= old && count(&[**range]) <= FILL_WIDTH_MAX;
        // From behind the last go on, and round.
        let mut holes: Vec<Range> = seen.holes.iter().filter(narrow).copied().collect();
        let behind = holes.partition_point(|range| range.0 <= memory.fill_from);
        holes.rotate_left(behind);
        let mut ids = 0;
        let some = holes.iter().take_while(|range| {
            ids += count(&[**range]);
            ids <= FILL_AT_ONCE
        });
        let some = some.count();
        holes.truncate(some);
        memory.fill_from = holes.last().map_or(0, |range| range.0);
        holes
    }

    /// Where cleaning a shard begins.
    pub(super) fn clean_from(&self, shard: &ShardId) -> i64 {
        self.lock().entry(shard.clone()).or_default().clean_from.0
    }

    /// Where the next cleaning begins. Now and then at the first row, because a transaction that was open for long may have
    /// added one; but only calls that came to the end of what there was to do count, or a long way would never be gone.
    pub(super) fn set_clean_from(&self, shard: &ShardId, from: i64, at_end: bool) {
        let mut shards = self.lock();
        let (known, relied) = &mut shards.entry(shard.clone()).or_default().clean_from;
        *known = from;
        *relied += u32::from(at_end);
        if *relied >= CLEAN_RELIED_MAX {
            (*known, *relied) = (0, 0);
        }
    }

    pub(super) fn fillers_from(&self) -> &AtomicI64 {
        &self.fillers_from
    }
}

/// Whether another map of shards is asked for, and the version of this one, from 1.
fn map_of(lease: &ShardLease) -> String {
    let mut stream = String::from("CONVERT(x'");
    push_hex(&mut stream, lease.shard.stream.as_bytes());
    stream.push_str("' USING ascii)");
    format!(
        "SELECT -1 AS id, EXISTS (SELECT 1 FROM semel_outbox_reshard WHERE stream = {stream}) AS mine,
           COALESCE((SELECT map + 1 FROM semel_outbox_shard WHERE stream = {stream} AND shard = {}), 0) AS bytes",
        lease.shard.index
    )
}

/// The beginning of a statement that looks.
fn columns(lease: &ShardLease) -> String {
    let mut sql = String::from("SELECT o.id AS id, (o.stream = x'");
    push_hex(&mut sql, lease.shard.stream.as_bytes());
    let Slots { first, last } = lease.slots;
    sql.push_str(&format!(
        "' AND o.slot BETWEEN {first} AND {last}) AS mine, o.data_bytes AS bytes FROM semel_outbox o
         FORCE INDEX (PRIMARY)"
    ));
    sql
}

fn add_holes(sql: &mut Vec<String>, lease: &ShardLease, holes: &[Range]) {
    for holes in holes.chunks(RANGES) {
        sql.push(format!("{} WHERE {}", columns(lease), condition("o.id", holes)));
    }
}

/// Adds what was found to what is seen.
fn take(look: &mut Look, found: Vec<(i64, bool, u32)>) {
    let mut ids: Vec<i64> = found.iter().map(|row| row.0).collect();
    // Holes come in their own order.
    ids.sort_unstable();
    look.seen = look.seen.and(&ids);
    for (id, mine, bytes) in found {
        if mine {
            look.mine.push((id, bytes));
        } else {
            look.passed += 1;
        }
    }
}

impl Mysql {
    /// One look behind a mark.
    ///
    /// All of it is seen by one statement, so by one read view. But MariaDB makes a view by walking over the open transactions
    /// while they end: one that ended after another one can be in it without the other. So where rows were found and numbers
    /// are missing, those are looked at again, until a look that began after everything was seen finds nothing more: who
    /// ended before a row that was seen was written is seen, too.
    pub(super) async fn look_behind(&self, lease: &ShardLease, prev: &Mark) -> Result<Look, StoreError> {
        let before = Seen::parse(prev)?;
        let mut look = self.look_once(lease, &before).await?;
        if look.seen.holes.len() > before.holes.len() + HOLES_ASKED {
            // Read before the look that uses it: what was visible then and is not now is cleaned, and no hole.
            let gone = self.visible_to_others(lease).await?;
            look = self.look_once(lease, &before).await?;
            for visible in gone {
                look.seen.holes = subtract(&look.seen.holes, &visible);
            }
        }
        while !look.mine.is_empty() && !look.seen.holes.is_empty() {
            let mut sql = Vec::new();
            add_holes(&mut sql, lease, &look.seen.holes);
            let late = self.visible(sql.join(" UNION ALL ")).await?;
            if late.is_empty() {
                break;
            }
            take(&mut look, late);
        }
        look.mine.sort_unstable();
        self.fill_old_holes(lease, &look.seen);
        Ok(look)
    }

    async fn look_once(&self, lease: &ShardLease, before: &Seen) -> Result<Look, StoreError> {
        // The first row says whether the table is still the one that the marks speak of.
        let mut sql = vec![
            "SELECT 0 AS id, EXISTS (SELECT 1 FROM semel_outbox_home h JOIN semel_outbox o ON o.id = h.row_id
               WHERE h.one = 1 AND o.stream = '') AS mine, 0 AS bytes"
                .to_owned(),
            map_of(lease),
        ];
        add_holes(&mut sql, lease, &before.holes);
        // Every row of a look may bring a hole, and all of them go into one statement.
        let fit = self.packet_bytes / HOLE_BYTES;
        let (holes_max, rows) = (HOLES_MAX.min(fit / 2), LOOK_ROWS.min(fit / 4));
        if before.holes.len() < holes_max {
            sql.push(format!(
                "({} WHERE o.id > {} ORDER BY o.id LIMIT {rows})",
                columns(lease),
                before.high
            ));
        } else {
            tracing::warn!(
                shard = %lease.shard, holes = holes_max,
                "too many numbers are missing to look any further until they are filled: transactions that write to the \
                 outbox stay open, very many are rolled back, or sessions set auto_increment_increment above 1"
            );
        }
        let mut found = self.visible(sql.join(" UNION ALL ")).await?;
        let home = found.iter().position(|row| row.0 == 0);
        let home = home.is_some_and(|at| found.swap_remove(at).1);
        let map = found.iter().position(|row| row.0 == -1);
        let (changing, map) = map.map_or((false, 0), |at| {
            let (_, changing, map) = found.swap_remove(at);
            (changing, i64::from(map))
        });
        if !home {
            let text = format!(
                "the row that semel_outbox_home names is gone from semel_outbox: the table was emptied or replaced, and \
                 the cursor of {} means nothing for it; see the page of this error for how to go on",
                lease.shard
            );
            return Err(StoreError::new(ErrorKind::IdentityChanged, "open_batch", text));
        }
        let mut look = Look {
            seen: before.clone(),
            mine: Vec::new(),
            passed: 0,
            map: (map > 0).then(|| map - 1),
            changing,
        };
        take(&mut look, found);
        Ok(look)
    }

    /// Numbers, whose they are, and bytes of data.
    async fn visible(&self, sql: String) -> Result<Vec<(i64, bool, u32)>, StoreError> {
        let failed = |error| classify("open_batch", error);
        // Numbers and hexadecimal digits.
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        let rows = sql.fetch_all(&self.own).await.map_err(failed)?;
        let read = |row: &MySqlRow| -> Result<(i64, bool, u32), sqlx::Error> {
            let bytes: i64 = row.try_get_unchecked(2)?;
            let mine = row.try_get_unchecked::<i64, _>(1)? == 1;
            Ok((row.try_get_unchecked(0)?, mine, u32::try_from(bytes).unwrap_or(0)))
        };
        rows.iter().map(|row| read(row).map_err(failed)).collect()
    }

    /// What the marks of all shards say was visible.
    async fn visible_to_others(&self, lease: &ShardLease) -> Result<Vec<Vec<Range>>, StoreError> {
        let failed = |error| classify("open_batch", error);
        let rows = sqlx::query(
            "SELECT prev_mark, open_mark FROM semel_outbox_shard WHERE NOT (stream = ? AND shard = ?)",
        )
        .bind(&lease.shard.stream)
        .bind(lease.shard.index)
        .fetch_all(&self.own)
        .await
        .map_err(failed)?;
        let mut all = Vec::new();
        for row in &rows {
            for column in [0, 1] {
                let mark: Option<String> = row.try_get_unchecked(column).map_err(failed)?;
                if let Some(mark) = mark {
                    all.push(Seen::parse(&Mark::new(mark))?.visible());
                }
            }
        }
        Ok(all)
    }

    /// Fills what has been missing for long, so that a rollback is not remembered for ever; beside the relay, which does not
    /// wait for it. A failure is of no matter: the holes stay in the mark, and are tried again.
    fn fill_old_holes(&self, lease: &ShardLease, seen: &Seen) {
        if seen.holes.is_empty() || self.outbox.filling.swap(true, Ordering::AcqRel) {
            return;
        }
        let filling = Filling(Arc::clone(&self.outbox));
        let now = u64::try_from(SystemClock.monotonic().as_millis()).unwrap_or(u64::MAX);
        let holes = self.outbox.old_holes(&lease.shard, seen, now);
        if holes.is_empty() {
            return;
        }
        let (db, shard) = (self.clone(), lease.shard.clone());
        tokio::spawn(async move {
            let _filling = filling;
            match db.fill_holes(&holes).await {
                Ok(0) => {}
                Ok(filled) => tracing::debug!(%shard, filled, "numbers that nobody has were filled"),
                Err(error) => tracing::debug!(%shard, %error, "missing numbers are filled later"),
            }
        });
    }

    /// Writes a row of nobody's for every number in those of the ranges in which nobody is writing; returns how many. A
    /// relay does this by itself for numbers that were missing for ten seconds, so that a rollback is not remembered for ever.
    ///
    /// A number that was drawn and whose row is not written yet is then refused to its writer as a duplicate of the key
    /// `PRIMARY`. That is rare: who reserves several numbers mostly writes the first at once, and a range in which there is a
    /// row, committed or not, is left alone. A writer must not pass over that error (decision 0050).
    ///
    /// # Errors
    /// The store's. Some may have been filled. What a writer's lock is on is passed by.
    pub async fn fill_holes(&self, ranges: &[Range]) -> Result<u64, StoreError> {
        let mut filled = 0;
        let failed = |error| classify("fill", error);
        // Not used again: it waits for locks for less long than others.
        let mut writer = self.own.acquire().await.map_err(failed)?;
        writer.close_on_drop();
        sqlx::raw_sql(AssertSqlSafe(lock_wait(FILL_LOCK_WAIT)))
            .execute(&mut *writer)
            .await
            .map_err(failed)?;
        for ranges in ranges.chunks(RANGES) {
            // This one look sees rows whose transactions are open, and in the primary key, where they are written first. Its connection is not used again: another one's look must
            // never see them.
            let mut connection = self.own.acquire().await.map_err(failed)?;
            connection.close_on_drop();
            let sql = format!(
                "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED; \
                 SELECT id FROM semel_outbox FORCE INDEX (PRIMARY) WHERE {}",
                condition("id", ranges)
            );
            let rows = sqlx::raw_sql(AssertSqlSafe(sql))
                .fetch_all(&mut *connection)
                .await;
            drop(connection);
            let mut written = Vec::new();
            for row in rows.map_err(failed)? {
                written.push(row.try_get_unchecked::<i64, _>(0).map_err(failed)?);
            }
            written.sort_unstable();
            let free = ranges.iter().filter(|range| {
                let at = written.partition_point(|id| *id < range.0);
                written.get(at).is_none_or(|id| *id > range.1)
            });
            let ids: Vec<i64> = free.flat_map(|range| range.0..=range.1).collect();
            for ids in ids.chunks(RANGES) {
                let mut sql =
                    String::from("INSERT INTO semel_outbox (id, stream, event_id, topic, type) VALUES ");
                for (n, id) in ids.iter().enumerate() {
                    let comma = if n == 0 { "" } else { "," };
                    sql.push_str(&format!(
                        "{comma}({id}, '', x'73656d656c000000{id:016x}', '', '')"
                    ));
                }
                sql.push_str(" ON DUPLICATE KEY UPDATE stream = semel_outbox.stream");
                match sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *writer).await {
                    Ok(done) => filled += done.rows_affected(),
                    Err(error) if number(&error) == Some(LOCK_WAIT_TIMEOUT) => {}
                    Err(error) => return Err(autocommit_failed("fill", error)),
                }
            }
        }
        Ok(filled)
    }

    /// The rows of a batch behind `after`, read again where memory does not have them.
    pub(super) async fn batch_rows(
        &self,
        lease: &ShardLease,
        ranges: &[Range],
        after: i64,
    ) -> Result<Rows, StoreError> {
        let failed = |error| classify("read_page", error);
        let mut found = Vec::new();
        for ranges in above(ranges, after).chunks(RANGES) {
            let sql = format!(
                "SELECT id, data_bytes FROM semel_outbox WHERE {} AND stream = ? AND slot BETWEEN ? AND ?
                 ORDER BY id LIMIT ?",
                condition("id", ranges)
            );
            let left = LOOK_ROWS - found.len();
            let rows = sqlx::query(AssertSqlSafe(sql))
                .persistent(false)
                .bind(&lease.shard.stream)
                .bind(lease.slots.first)
                .bind(lease.slots.last)
                .bind(left as u64)
                .fetch_all(&self.own)
                .await
                .map_err(failed)?;
            for row in &rows {
                let id: i64 = row.try_get_unchecked(0).map_err(failed)?;
                let bytes: i64 = row.try_get_unchecked(1).map_err(failed)?;
                found.push((id, u32::try_from(bytes).unwrap_or(0)));
            }
            if found.len() == LOOK_ROWS {
                break;
            }
        }
        Ok(Rows {
            after,
            more: found.len() == LOOK_ROWS,
            rows: found.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However long the way is: cleaning begins again at the first row only when it has been at the end often.
    #[test]
    fn cleaning_goes_back_only_from_the_end() {
        let memory = OutboxMemory::default();
        let shard = ShardId {
            stream: "s".to_owned(),
            index: 0,
        };
        for call in 1..=200 {
            memory.set_clean_from(&shard, call, false);
            assert_eq!(memory.clean_from(&shard), call, "it is on its way");
        }
        let mut back = (201..=300).filter(|call| {
            memory.set_clean_from(&shard, *call, true);
            memory.clean_from(&shard) == 0
        });
        assert_eq!(back.next(), Some(200 + i64::from(CLEAN_RELIED_MAX)));
    }

    /// However many holes there are, and whichever of them cannot be filled: each has its turn.
    #[test]
    fn filling_goes_on_where_it_ended() {
        let memory = OutboxMemory::default();
        let shard = ShardId {
            stream: "s".to_owned(),
            index: 0,
        };
        let holes: Vec<Range> = (0..300_i64).map(|n| (n * 2_000 + 1, n * 2_000 + 1_000)).collect();
        let seen = Seen {
            high: 1_000_000,
            holes: holes.clone(),
        };
        assert!(memory.old_holes(&shard, &seen, 0).is_empty(), "they are new");
        assert!(
            memory.old_holes(&shard, &seen, 5_000).is_empty(),
            "they are young"
        );
        let first = memory.old_holes(&shard, &seen, 10_000);
        assert_eq!(first, holes[..200]);
        assert!(
            memory.old_holes(&shard, &seen, 15_000).is_empty(),
            "they were tried just now"
        );
        let second = memory.old_holes(&shard, &seen, 20_000);
        assert_eq!(second[..100], holes[200..]);
        assert_eq!(second[100..], holes[..100]);
    }
}
