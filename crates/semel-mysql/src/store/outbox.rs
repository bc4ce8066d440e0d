//! The outbox on MariaDB and MySQL: a mark is a number and the holes below it.
//!
//! Numbers do not commit in order here, and there is no snapshot that could be named. But numbers are drawn one after the
//! other, so those that are missing below the largest visible one say what a snapshot would: they are rows of open
//! transactions, or nobody's. A batch is what fills a hole of the last mark, and what came behind it. Nothing is locked,
//! nothing is waited for, and no event is ever written to (decision 0049). What is missing for good is filled, so that a
//! mark stays small (decision 0050).
//!
//! # Guarantees
//! - **Order of a key.** Who writes after another one of the same key has ended draws a larger number, and one statement's
//!   read view that sees the later row sees the earlier one.
//! - **Durability gate.** The write that opens a batch is a commit behind everything that the look saw; the server flushes
//!   its log in order and, or else it is refused (SEM0220), with every commit.
//!
//! # Limits
//! A batch, a mark and the memory for both are bounded: a look goes over 20,000 rows at most. A single transaction of very
//! many events makes every look slower while it is open. With `auto_increment_increment` above 1 every number left out would be
//! a hole that has to be filled: no relay starts (SEM0221). Each shard reads for itself; cleaning is by bounded deletes.

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::relay::{Cursor, OwnedShard, Roster, ShardLease, Slots};
use semel_core::store::{
    Acquire, BACKLOG_ROWS_COUNTED_MAX, Backlog, Capabilities, CursorSave, Due, Guarded, KeyStore, Measured,
    Opening, OutboxDesk, OutboxStore, Page, PageSize, Presence, ShardBacklog, StoredException, StreamLimit,
    check_stream, exception_repeated,
};
use semel_core::{ErrorKind, Nonce, StoreError, Timestamp};
use sqlx::{AssertSqlSafe, Row as _, Transaction};

use super::key_rows::NOW;
use super::outbox_look::RANGES;
use super::outbox_mark::{Range, Seen, condition, subtract};
use super::outbox_page::cut;
use super::outbox_rows::{EVENT, SHARD, Shard, exception, shard};
use crate::db::Mysql;
use crate::error::{BAD_NULL, autocommit_failed, classify, number};
use crate::server::UNFIT;

/// Compares what every guarded write must compare (rules O11, S3).
pub(super) const MINE: &str = "stream = ? AND shard = ? AND epoch = ? AND nonce = ? AND version = ?";
/// How often a batch is looked for whose map of shards is replaced meanwhile.
const MAP_TRIES: usize = 5;

#[async_trait]
impl OutboxStore for Mysql {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            // Epochs and nonces are compared, not drawn from a clock.
            token_survives_failover: true,
            ..KeyStore::capabilities(self)
        }
    }

    fn desk(&self) -> Option<&dyn OutboxDesk> {
        Some(self)
    }

    async fn register_stream(&self, stream: &str, shards: u16) -> Result<(), StoreError> {
        check_stream(stream, shards)?;
        let failed = |error| classify("register_stream", error);
        self.demand_step().await?;
        let count = "SELECT COUNT(*) FROM semel_outbox_shard WHERE stream = ?";
        let found: i64 = sqlx::query_scalar(count)
            .bind(stream)
            .fetch_one(&self.own)
            .await
            .map_err(failed)?;
        if found != 0 {
            return self.change_shards(stream, found, shards).await;
        }
        let mut tx = self.begin().await?;
        // One after the other; another process may have registered it meanwhile.
        sqlx::query("SELECT row_id FROM semel_outbox_home WHERE one = 1 FOR UPDATE")
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed)?;
        let found: i64 = sqlx::query_scalar(count)
            .bind(stream)
            .fetch_one(&mut *tx)
            .await
            .map_err(failed)?;
        if found != 0 {
            tx.rollback().await.map_err(failed)?;
            return self.change_shards(stream, found, shards).await;
        }
        for index in 0..shards {
            let slots = Slots::of_shard(index, shards);
            sqlx::query(
                "INSERT INTO semel_outbox_shard (stream, shard, slot_first, slot_last, prev_mark)
                 VALUES (?, ?, ?, ?, '0')",
            )
            .bind(stream)
            .bind(index)
            .bind(slots.first)
            .bind(slots.last)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        }
        self.commit(tx).await
    }

    async fn acquire(&self, wish: &Acquire) -> Result<Vec<OwnedShard>, StoreError> {
        let failed = |error| classify("acquire", error);
        let free = format!("s.stream = ? AND (s.until_us <= {NOW} OR s.nonce = ?)");
        // Looking takes no lock; most looks find nothing free.
        let sql = format!("SELECT EXISTS (SELECT 1 FROM semel_outbox_shard s WHERE {free}) AS any_free");
        let any: i64 = sqlx::query(AssertSqlSafe(sql))
            .bind(&wish.stream)
            .bind(&wish.nonce.0[..])
            .fetch_one(&self.own)
            .await
            .and_then(|row| row.try_get_unchecked(0))
            .map_err(failed)?;
        if any == 0 {
            return Ok(Vec::new());
        }
        let mut tx = self.begin().await?;
        let sql = format!(
            "SELECT {SHARD} FROM semel_outbox_shard s WHERE {free} ORDER BY COALESCE(s.nonce = ?, 0) DESC, s.shard LIMIT ?
               FOR UPDATE SKIP LOCKED"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(&wish.stream)
            .bind(&wish.nonce.0[..])
            .bind(&wish.nonce.0[..])
            .bind(wish.max)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed)?;
        let mut owned = Vec::with_capacity(rows.len());
        let next_id = self.next_id(&mut tx).await?;
        for row in &rows {
            let found = shard(row)?;
            reached(&found, next_id)?;
            let takeovers = found.takeovers.next(&found.cursor, found.nonce.is_none());
            let epoch = found.epoch + 1;
            let sql = format!(
                "UPDATE semel_outbox_shard SET epoch = ?, nonce = ?, relay = ?, owner = ?, until_us = {NOW} + ? * 1000,
                   takeovers = ?, seen_batch_no = ?, seen_last_id = ? WHERE stream = ? AND shard = ?"
            );
            sqlx::query(AssertSqlSafe(sql))
                .bind(epoch)
                .bind(&wish.nonce.0[..])
                .bind(&wish.relay.0[..])
                .bind(&wish.owner)
                .bind(wish.lease_ms)
                .bind(takeovers.count)
                .bind(takeovers.batch_no)
                .bind(takeovers.last_id)
                .bind(&found.id.stream)
                .bind(found.id.index)
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            let parked: Vec<Vec<u8>> = sqlx::query_scalar(
                "SELECT DISTINCT `key` FROM semel_outbox_exception
                 WHERE stream = ? AND shard = ? AND kind IN ('parked', 'behind') AND `key` IS NOT NULL",
            )
            .bind(&found.id.stream)
            .bind(found.id.index)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed)?;
            let excepted: Vec<i64> = if found.cursor.open.is_some() {
                sqlx::query_scalar(
                    "SELECT id FROM semel_outbox_exception WHERE stream = ? AND shard = ? AND id > ?",
                )
                .bind(&found.id.stream)
                .bind(found.id.index)
                .bind(found.cursor.last_id)
                .fetch_all(&mut *tx)
                .await
                .map_err(failed)?
            } else {
                Vec::new()
            };
            owned.push(OwnedShard {
                excepted,
                lease: found.lease(epoch, wish.nonce),
                takeovers: takeovers.count,
                cursor: found.cursor,
                parked: parked.into_iter().map(Bytes::from).collect(),
            });
        }
        self.commit(tx).await?;
        Ok(owned)
    }

    async fn renew(&self, leases: &[ShardLease], lease_ms: i64) -> Result<Vec<bool>, StoreError> {
        let set = format!("until_us = {NOW} + {lease_ms} * 1000");
        self.set_until(&set, leases, "renew").await
    }

    async fn release(&self, leases: &[ShardLease]) -> Result<(), StoreError> {
        let set = "until_us = 0, nonce = NULL, owner = ''";
        self.set_until(set, leases, "release").await.map(|_| ())
    }

    async fn attend(&self, presence: &Presence) -> Result<(), StoreError> {
        self.note_presence(presence).await
    }

    async fn leave(&self, stream: &str, relay: Nonce) -> Result<(), StoreError> {
        self.drop_presence(stream, relay).await
    }

    async fn roster(&self, stream: &str) -> Result<Roster, StoreError> {
        self.read_roster(stream).await
    }

    async fn load(&self, lease: &ShardLease) -> Result<Guarded<Cursor>, StoreError> {
        let found = self.find_shard(lease, "load").await?;
        Ok(match found.filter(|found| found.is_owned_by(lease)) {
            Some(found) => Guarded::Done(found.cursor),
            None => Guarded::Lost,
        })
    }

    async fn open_batch(
        &self,
        lease: &ShardLease,
        from: &Cursor,
        advance: bool,
        _: PageSize,
    ) -> Result<Guarded<Opening>, StoreError> {
        for _ in 0..MAP_TRIES {
            if let Some(reply) = self.try_open(lease, from, advance).await? {
                return Ok(reply);
            }
        }
        Err(StoreError::new(
            ErrorKind::NotApplied,
            "open_batch",
            "the map of shards changed again and again meanwhile",
        ))
    }

    async fn worth_opening(&self, idle: &[(ShardLease, Cursor)]) -> Result<Vec<bool>, StoreError> {
        self.look_at_all(idle).await
    }

    async fn read_page(
        &self,
        lease: &ShardLease,
        cursor: &Cursor,
        after: i64,
        size: PageSize,
    ) -> Result<Guarded<Page>, StoreError> {
        let Some(open) = &cursor.open else {
            return self.nothing(lease, cursor).await;
        };
        let mut after = after;
        loop {
            let rows = match self.outbox.batch(lease, cursor, after) {
                Some(rows) => rows,
                None => {
                    let ranges = Seen::parse(open)?.since(&Seen::parse(&cursor.prev)?);
                    let rows = self.batch_rows(lease, &ranges, after).await?;
                    self.outbox.set_batch(lease, cursor, rows.clone());
                    rows
                }
            };
            let (wanted, more) = cut(&rows, after, size);
            if wanted.is_empty() {
                return self.nothing(lease, cursor).await;
            }
            let found = self.rows(lease, cursor, wanted).await?;
            if let Some(last) = found.last() {
                debug_assert!(last.row.row > after);
                return Ok(Guarded::Done(Page { rows: found, more }));
            }
            // Either it is not ours, or somebody has deleted events by hand.
            match self.nothing(lease, cursor).await? {
                Guarded::Done(_) if more => after = wanted.last().map_or(i64::MAX, |row| row.0),
                other => return Ok(other),
            }
        }
    }

    async fn save_cursor(
        &self,
        lease: &ShardLease,
        save: &CursorSave,
    ) -> Result<Guarded<Cursor>, StoreError> {
        let next = save.apply();
        // The marks, which may be long, are written only where they change.
        let marks = if save.finished {
            "prev_mark = ?, open_mark = ?, "
        } else {
            ""
        };
        let sql = format!(
            "UPDATE semel_outbox_shard SET {marks}last_id = ?, version = ?, suspect = ?, log = ?
             WHERE {MINE} AND batch_no = ?"
        );
        let mut update = sqlx::query(AssertSqlSafe(sql));
        if save.finished {
            update = update
                .bind(next.prev.as_str())
                .bind(next.open.as_ref().map(|mark| mark.as_str()));
        }
        let update = update
            .bind(next.last_id)
            .bind(next.version)
            .bind(next.suspect)
            .bind(next.log.map(|log| log.to_string()))
            .bind(&lease.shard.stream)
            .bind(lease.shard.index)
            .bind(lease.epoch.0)
            .bind(&lease.nonce.0[..])
            .bind(save.from.version)
            .bind(next.batch_no);
        if save.exceptions.is_empty() {
            let done = update
                .execute(&self.own)
                .await
                .map_err(|error| autocommit_failed("save_cursor", error))?;
            return if done.rows_affected() == 1 {
                Ok(Guarded::Done(next))
            } else {
                self.not_mine(lease, "save_cursor").await
            };
        }
        let failed = |error| classify("save_cursor", error);
        let mut tx = self.begin().await?;
        if update.execute(&mut *tx).await.map_err(failed)?.rows_affected() != 1 {
            tx.rollback().await.map_err(failed)?;
            return self.not_mine(lease, "save_cursor").await;
        }
        for it in &save.exceptions {
            let sql = format!(
                "INSERT INTO semel_outbox_exception (id, shard, kind, attempts, reason, since_us, batch_no, stream, slot, event_id,
                   topic, type, source, `key`, content_type, headers, data, traceparent, created_at)
                 SELECT id, ?, ?, ?, ?, {NOW}, ?, stream, slot, event_id, topic, type, source, `key`, content_type,
                   headers, data, traceparent, created_at
                 FROM semel_outbox WHERE id = ? ON DUPLICATE KEY UPDATE shard =
                   IF(semel_outbox_exception.event_id = VALUES(event_id), semel_outbox_exception.shard, NULL),
                   batch_no = VALUES(batch_no)"
            );
            sqlx::query(AssertSqlSafe(sql))
                .bind(lease.shard.index)
                .bind(it.kind.as_str())
                .bind(it.attempts)
                .bind(&it.reason)
                .bind(save.from.batch_no)
                .bind(it.row)
                .execute(&mut *tx)
                .await
                .map_err(|error| match number(&error) {
                    Some(BAD_NULL) => exception_repeated(it).with_source(error),
                    _ => failed(error),
                })?;
        }
        self.commit(tx).await?;
        Ok(Guarded::Done(next))
    }

    async fn exceptions(
        &self,
        stream: &str,
        after: i64,
        limit: u32,
    ) -> Result<Vec<StoredException>, StoreError> {
        let sql = format!(
            "SELECT o.shard, o.kind, o.attempts, o.reason, o.batch_no, o.since_us, {EVENT} FROM semel_outbox_exception o
             WHERE o.stream = ? AND o.id > ? ORDER BY o.id LIMIT ?"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(stream)
            .bind(after)
            .bind(limit)
            .fetch_all(&self.own)
            .await
            .map_err(|error| classify("exceptions", error))?;
        rows.iter().map(exception).collect()
    }

    async fn move_due(&self, stream: &str, limit: u32) -> Result<Due, StoreError> {
        self.due(stream, limit).await
    }

    async fn clean(&self, stream: &str, keep_ms: i64, limit: u32) -> Result<u64, StoreError> {
        let shards = self.shards("clean").await?;
        let mut cleaned = 0;
        for found in shards.iter().filter(|found| found.id.stream == stream) {
            let left = u64::from(limit).saturating_sub(cleaned);
            if left == 0 {
                break;
            }
            cleaned += self.clean_shard(found, keep_ms, left).await?;
        }
        self.clean_fillers(&shards, limit).await?;
        Ok(cleaned)
    }

    async fn limit_stream(&self, stream: &str, limit: StreamLimit) -> Result<(), StoreError> {
        self.set_limit(stream, limit).await
    }

    async fn only_known_streams(&self, only: bool) -> Result<(), StoreError> {
        self.set_known_only(only).await
    }

    async fn measure(&self, stream: &str) -> Result<Option<Measured>, StoreError> {
        self.measure_stream(stream).await
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        let failed = |error| classify("backlog", error);
        let mut backlog = Backlog::default();
        for found in self.shards("backlog").await? {
            let waiting = waiting(&found.cursor)?;
            // A mark with more holes than that is one of a few seconds.
            let few = condition("id", &waiting[waiting.len().saturating_sub(RANGES)..]);
            let sql = format!(
                "SELECT CAST(COUNT(*) AS SIGNED), MIN(created_at),
                   (SELECT CAST(COUNT(*) AS SIGNED) FROM semel_outbox_exception WHERE stream = ? AND shard = ?), {NOW}
                 FROM (SELECT created_at FROM semel_outbox WHERE {few} AND stream = ? AND slot BETWEEN ? AND ?
                   ORDER BY id LIMIT ?) AS waiting"
            );
            let row = sqlx::query(AssertSqlSafe(sql))
                .persistent(false)
                .bind(&found.id.stream)
                .bind(found.id.index)
                .bind(&found.id.stream)
                .bind(found.slots.first)
                .bind(found.slots.last)
                .bind(BACKLOG_ROWS_COUNTED_MAX)
                .fetch_one(&self.own)
                .await
                .map_err(failed)?;
            let number = |column: usize| row.try_get_unchecked::<Option<i64>, _>(column).map_err(failed);
            let now = number(3)?.unwrap_or_default();
            let count = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok()).unwrap_or(0);
            backlog.shards.push(ShardBacklog {
                owner: (found.nonce.is_some() && found.until > Timestamp(now)).then_some(found.owner),
                shard: found.id,
                rows: count(number(0)?),
                oldest_ms: number(1)?.map(|at| (now.saturating_sub(at) / 1_000).max(0)),
                exceptions: count(number(2)?),
                batch_no: found.cursor.batch_no,
                takeovers: found.takeovers.count,
            });
        }
        // The oldest rows are enough: those of an unknown stream are never cleaned, so they gather there.
        let orphans = sqlx::query(
            "SELECT DISTINCT o.stream FROM (SELECT stream FROM semel_outbox ORDER BY id LIMIT ?) AS o
             WHERE o.stream <> '' AND o.stream NOT IN (SELECT stream FROM semel_outbox_shard) ORDER BY o.stream",
        )
        .bind(BACKLOG_ROWS_COUNTED_MAX)
        .fetch_all(&self.own)
        .await
        .map_err(failed)?;
        for row in &orphans {
            backlog
                .orphan_streams
                .push(row.try_get_unchecked(0).map_err(failed)?);
        }
        Ok(backlog)
    }
}

/// Numbers that are not settled.
pub(super) fn waiting(cursor: &Cursor) -> Result<Vec<Range>, StoreError> {
    let rest = Seen::parse(&cursor.prev)?.rest();
    let Some(open) = &cursor.open else {
        return Ok(rest);
    };
    let settled = subtract(
        &Seen::parse(open)?.visible(),
        &[(cursor.last_id.saturating_add(1), i64::MAX)],
    );
    Ok(subtract(&rest, &settled))
}

/// Refuses a shard whose marks speak of numbers that the table will give out again: it was copied or restored without its
/// counter.
fn reached(found: &Shard, next_id: Option<i64>) -> Result<(), StoreError> {
    let mark = found.cursor.open.as_ref().unwrap_or(&found.cursor.prev);
    let high = Seen::parse(mark)?.high;
    if next_id.is_none_or(|next| next > high) {
        return Ok(());
    }
    let text = format!(
        "the cursor of {} stands at {high}, and semel_outbox would give out smaller numbers (its AUTO_INCREMENT is {}): the \
         table was copied or restored without its counter; see the page of this error for how to go on",
        found.id,
        next_id.unwrap_or_default()
    );
    Err(StoreError::new(ErrorKind::IdentityChanged, "acquire", text))
}

impl Mysql {
    /// Refuses to relay where every number that a step leaves out would be a hole to be filled.
    async fn demand_step(&self) -> Result<(), StoreError> {
        let step: i64 = sqlx::query_scalar("SELECT CAST(@@global.auto_increment_increment AS SIGNED)")
            .fetch_one(&self.own)
            .await
            .map_err(|error| classify("register_stream", error))?;
        if step <= 1 {
            return Ok(());
        }
        let text = format!(
            "the server has auto_increment_increment = {step}; set it to 1, and in the server's configuration (on Galera \
             wsrep_auto_increment_control = OFF, all writers on one node): every number left out would have to be filled"
        );
        Err(StoreError::new(ErrorKind::Invalid, "register_stream", text).with_code(UNFIT))
    }

    /// The number that the next event would get, as far as the server says.
    pub(super) async fn next_id(
        &self,
        tx: &mut Transaction<'_, sqlx::MySql>,
    ) -> Result<Option<i64>, StoreError> {
        let failed = |error| classify("acquire", error);
        // MySQL 8 would tell what it knew a day ago; MariaDB does not know the setting.
        sqlx::raw_sql("SET @semel_ask = 0 /*!80000 , @@session.information_schema_stats_expiry = 0 */")
            .execute(&mut **tx)
            .await
            .map_err(failed)?;
        let row = sqlx::query(
            "SELECT CAST(auto_increment AS SIGNED) FROM information_schema.tables
             WHERE table_schema = DATABASE() AND table_name = 'semel_outbox'",
        )
        .fetch_optional(&mut **tx)
        .await
        .map_err(failed)?;
        row.map_or(Ok(None), |row| row.try_get_unchecked(0).map_err(failed))
    }

    /// An empty page, if the batch is this owner's.
    async fn nothing(&self, lease: &ShardLease, cursor: &Cursor) -> Result<Guarded<Page>, StoreError> {
        let found = self.find_shard(lease, "read_page").await?;
        Ok(match found.filter(|found| found.is_owned_by(lease)) {
            None => Guarded::Lost,
            Some(found) if found.cursor.batch_no == cursor.batch_no && found.cursor.open == cursor.open => {
                Guarded::Done(Page::default())
            }
            Some(_) => Guarded::Reload,
        })
    }

    pub(super) async fn shards(&self, operation: &'static str) -> Result<Vec<Shard>, StoreError> {
        let sql = format!("SELECT {SHARD} FROM semel_outbox_shard s ORDER BY s.stream, s.shard");
        let rows = sqlx::query(AssertSqlSafe(sql))
            .fetch_all(&self.own)
            .await
            .map_err(|error| classify(operation, error))?;
        rows.iter().map(shard).collect()
    }

    pub(super) async fn find_shard(
        &self,
        lease: &ShardLease,
        operation: &'static str,
    ) -> Result<Option<Shard>, StoreError> {
        let sql = format!("SELECT {SHARD} FROM semel_outbox_shard s WHERE s.stream = ? AND s.shard = ?");
        let row = sqlx::query(AssertSqlSafe(sql))
            .bind(&lease.shard.stream)
            .bind(lease.shard.index)
            .fetch_optional(&self.own)
            .await
            .map_err(|error| classify(operation, error))?;
        row.as_ref().map(shard).transpose()
    }

    /// Why a guarded write matched no row.
    async fn not_mine<T>(
        &self,
        lease: &ShardLease,
        operation: &'static str,
    ) -> Result<Guarded<T>, StoreError> {
        let found = self.find_shard(lease, operation).await?;
        Ok(if found.is_some_and(|found| found.is_owned_by(lease)) {
            Guarded::Reload
        } else {
            Guarded::Lost
        })
    }

    async fn set_until(
        &self,
        set: &str,
        leases: &[ShardLease],
        operation: &'static str,
    ) -> Result<Vec<bool>, StoreError> {
        let mut done = Vec::with_capacity(leases.len());
        let sql = format!(
            "UPDATE semel_outbox_shard SET {set} WHERE stream = ? AND shard = ? AND epoch = ? AND nonce = ?"
        );
        // Each a transaction of its own: none waits for another one's row while it holds one.
        for lease in leases {
            let result = sqlx::query(AssertSqlSafe(sql.clone()))
                .persistent(false)
                .bind(&lease.shard.stream)
                .bind(lease.shard.index)
                .bind(lease.epoch.0)
                .bind(&lease.nonce.0[..])
                .execute(&self.own)
                .await
                .map_err(|error| autocommit_failed(operation, error))?;
            done.push(result.rows_affected() == 1);
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use semel_core::relay::Mark;

    use super::*;

    #[test]
    fn what_waits_is_what_no_mark_has_settled() {
        let cursor = Cursor {
            prev: Mark::new("10:3,5"),
            open: Some(Mark::new("20:5,15")),
            last_id: 12,
            batch_no: 1,
            batch: Nonce([0; 16]),
            version: 1,
            suspect: None,
            log: None,
        };
        assert_eq!(waiting(&cursor).unwrap(), [(5, 5), (13, i64::MAX)]);
        let idle = Cursor { open: None, ..cursor };
        assert_eq!(waiting(&idle).unwrap(), [(3, 3), (5, 5), (11, i64::MAX)]);
    }
}
