//! The outbox on SQLite.
//!
//! One writer at a time, so row ids are in the order of commits: a mark is a row id, and an idle look is one descent of
//! the table's tree on a reading connection. Nothing is written while nothing happens, but for the lease.
//!
//! # Guarantees
//! - The write that opens a batch is a synchronous commit: the file is flushed up to here before the first send, whatever
//!   mode the writers of the rows use.
//! - Ids that have gone back (a table that was emptied together with its sequence) stop the relay with `IdentityChanged`.
//!
//! # Not guaranteed
//! That the relay sends while a transaction of yours holds the file: it can then neither renew its lease nor save its
//! cursor. It goes on afterwards, and nobody else can take over meanwhile.

use std::fmt::Write as _;

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::relay::{Cursor, OwnedShard, Roster, ShardLease, Slots};
use semel_core::store::{
    Acquire, BACKLOG_ROWS_COUNTED_MAX, Backlog, Capabilities, CursorSave, Due, Guarded, Measured, Opening,
    OutboxDesk, OutboxStore, Page, PageSize, Presence, RESHARD_REST_MS, ShardBacklog, StoredException,
    StreamLimit, check_stream, exception_repeated,
};
use semel_core::{ErrorKind, Nonce, StoreError, Timestamp};
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, SqliteConnection};

use super::outbox_rows::{EVENT, SHARD, Shard, exception, id_of, shard};
use crate::db::Sqlite;
use crate::error::classify;

/// Compares what every guarded write must compare (rules O11, S3).
const MINE: &str = "stream = ?1 AND shard = ?2 AND epoch = ?3 AND nonce = ?4 AND version = ?5";

/// How often a batch is looked for anew because the map of shards changed in between.
const MAP_TRIES: u32 = 5;

/// What one look finds: the newest id, the first row behind the cursor, the version of the map, and of a change that is
/// asked for its mark and until when it holds.
type Look = (i64, Option<i64>, Option<i64>, Option<i64>, Option<i64>);

#[async_trait]
impl OutboxStore for Sqlite {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "sqlite",
            joins_user_transaction: true,
            fences: true,
            token_survives_failover: true,
            shared_by_machines: false,
            durable: true,
            counts_scopes: false,
        }
    }

    fn desk(&self) -> Option<&dyn OutboxDesk> {
        Some(self)
    }

    async fn register_stream(&self, stream: &str, shards: u16) -> Result<(), StoreError> {
        check_stream(stream, shards)?;
        let failed = |error| classify("register_stream", error);
        let mut tx = self.begin().await?;
        let found: i64 = sqlx::query_scalar("SELECT count(*) FROM semel_outbox_shard WHERE stream = ?1")
            .bind(stream)
            .fetch_one(&mut *tx)
            .await
            .map_err(failed)?;
        if found == i64::from(shards) {
            sqlx::query("DELETE FROM semel_outbox_reshard WHERE stream = ?1")
                .bind(stream)
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            return self.commit(tx).await;
        }
        if found != 0 {
            self.change_shards(&mut tx, stream, shards).await?;
            return self.commit(tx).await;
        }
        for index in 0..shards {
            let slots = Slots::of_shard(index, shards);
            sqlx::query(
                "INSERT INTO semel_outbox_shard (stream, shard, slot_first, slot_last) VALUES (?1, ?2, ?3, ?4)",
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
        // Looking costs no lock; most looks find nothing free.
        let mut reader = self.reader.acquire().await.map_err(failed)?;
        if self.free(&mut reader, wish).await?.is_empty() {
            return Ok(Vec::new());
        }
        drop(reader);
        let mut tx = self.begin().await?;
        let until = self.now().plus_ms(wish.lease_ms);
        let rows = self.free(&mut tx, wish).await?;
        let mut owned = Vec::with_capacity(rows.len());
        for row in &rows {
            let found = shard(row)?;
            let takeovers = found.takeovers.next(&found.cursor, found.nonce.is_none());
            let epoch = found.epoch + 1;
            sqlx::query(
                "UPDATE semel_outbox_shard SET epoch = ?3, nonce = ?4, owner = ?5, until = ?6, takeovers = ?7,
                 seen_batch_no = ?8, seen_last_id = ?9, relay = ?10 WHERE stream = ?1 AND shard = ?2",
            )
            .bind(&found.id.stream)
            .bind(found.id.index)
            .bind(epoch)
            .bind(&wish.nonce.0[..])
            .bind(&wish.owner)
            .bind(until.0)
            .bind(takeovers.count)
            .bind(takeovers.batch_no)
            .bind(takeovers.last_id)
            .bind(&wish.relay.0[..])
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
            let parked: Vec<Vec<u8>> = sqlx::query_scalar(
                "SELECT DISTINCT key FROM semel_outbox_exception
                 WHERE stream = ?1 AND shard = ?2 AND kind IN ('parked', 'behind') AND key IS NOT NULL",
            )
            .bind(&found.id.stream)
            .bind(found.id.index)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed)?;
            let excepted: Vec<i64> = if found.cursor.open.is_some() {
                sqlx::query_scalar(
                    "SELECT id FROM semel_outbox_exception WHERE stream = ?1 AND shard = ?2 AND id > ?3",
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
                cursor: found.cursor,
                takeovers: takeovers.count,
                parked: parked.into_iter().map(Bytes::from).collect(),
            });
        }
        self.commit(tx).await?;
        Ok(owned)
    }

    async fn renew(&self, leases: &[ShardLease], lease_ms: i64) -> Result<Vec<bool>, StoreError> {
        let until = self.now().plus_ms(lease_ms);
        self.set_until(leases, until.0, true, "renew").await
    }

    async fn release(&self, leases: &[ShardLease]) -> Result<(), StoreError> {
        self.set_until(leases, 0, false, "release").await.map(|_| ())
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
        let found = self.find(lease, "load").await?;
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
        self.page(lease, cursor, after, size).await
    }

    async fn save_cursor(
        &self,
        lease: &ShardLease,
        save: &CursorSave,
    ) -> Result<Guarded<Cursor>, StoreError> {
        let failed = |error| classify("save_cursor", error);
        let next = save.apply();
        let sql = format!(
            "UPDATE semel_outbox_shard SET prev = ?7, open = ?8, last_id = ?9, version = ?10, suspect = ?11,
             log = ?12
             WHERE {MINE} AND batch_no = ?6"
        );
        let update = sqlx::query(AssertSqlSafe(sql))
            .bind(&lease.shard.stream)
            .bind(lease.shard.index)
            .bind(lease.epoch.0)
            .bind(&lease.nonce.0[..])
            .bind(save.from.version)
            .bind(next.batch_no)
            .bind(id_of(&next.prev)?)
            .bind(next.open.as_ref().map(id_of).transpose()?)
            .bind(next.last_id)
            .bind(next.version)
            .bind(next.suspect)
            .bind(next.log.map(|log| log.to_string()));
        if save.exceptions.is_empty() {
            let turn = self.turn("save_cursor").await?;
            let done = update.execute(&self.writer).await.map_err(failed)?;
            drop(turn);
            return if done.rows_affected() == 1 {
                Ok(Guarded::Done(next))
            } else {
                self.refused(lease, "save_cursor").await
            };
        }
        let mut tx = self.begin().await?;
        if update.execute(&mut *tx).await.map_err(failed)?.rows_affected() != 1 {
            tx.rollback().await.map_err(failed)?;
            return self.refused(lease, "save_cursor").await;
        }
        let now = self.now().0;
        for it in &save.exceptions {
            let done = sqlx::query(
                "INSERT INTO semel_outbox_exception (id, shard, kind, attempts, reason, since, batch_no, stream, slot, event_id,
                   topic, type, source, key, content_type, headers, data, traceparent, created_at)
                 SELECT id, ?2, ?3, ?4, ?5, ?6, ?7, stream, slot, event_id, topic, type, source, key, content_type,
                   headers, data, traceparent, created_at
                 FROM semel_outbox WHERE id = ?1 ON CONFLICT (id) DO UPDATE SET batch_no = excluded.batch_no
                 WHERE semel_outbox_exception.event_id = excluded.event_id",
            )
            .bind(it.row)
            .bind(lease.shard.index)
            .bind(it.kind.as_str())
            .bind(it.attempts)
            .bind(&it.reason)
            .bind(now)
            .bind(save.from.batch_no)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
            if done.rows_affected() == 0 {
                let other: Option<i64> = sqlx::query_scalar(
                    "SELECT 1 FROM semel_outbox_exception WHERE id = ?1
                       AND event_id NOT IN (SELECT event_id FROM semel_outbox WHERE id = ?1)",
                )
                .bind(it.row)
                .fetch_optional(&mut *tx)
                .await
                .map_err(failed)?;
                if other.is_some() {
                    tx.rollback().await.map_err(failed)?;
                    return Err(exception_repeated(it));
                }
            }
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
            "SELECT shard, kind, attempts, reason, batch_no, since, {EVENT} FROM semel_outbox_exception
             WHERE stream = ?1 AND id > ?2 ORDER BY id LIMIT ?3"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(stream)
            .bind(after)
            .bind(limit)
            .fetch_all(&self.reader)
            .await
            .map_err(|error| classify("exceptions", error))?;
        rows.iter().map(exception).collect()
    }

    async fn move_due(&self, stream: &str, limit: u32) -> Result<Due, StoreError> {
        self.due(stream, limit).await
    }

    async fn clean(&self, stream: &str, keep_ms: i64, limit: u32) -> Result<u64, StoreError> {
        self.clean_stream(stream, keep_ms, limit).await
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
        let now = self.now();
        let sql = format!("SELECT {SHARD} FROM semel_outbox_shard ORDER BY stream, shard");
        let rows = sqlx::query(AssertSqlSafe(sql))
            .fetch_all(&self.reader)
            .await
            .map_err(failed)?;
        let mut backlog = Backlog::default();
        for row in &rows {
            let found = shard(row)?;
            let settled = id_of(&found.cursor.prev)?.max(found.cursor.last_id);
            let (rows, oldest): (i64, Option<i64>) = sqlx::query_as(
                "SELECT count(*), min(created_at) FROM (SELECT created_at FROM semel_outbox
                 WHERE id > ?1 AND stream = ?2 AND slot BETWEEN ?3 AND ?4 ORDER BY id LIMIT ?5)",
            )
            .bind(settled)
            .bind(&found.id.stream)
            .bind(found.slots.first)
            .bind(found.slots.last)
            .bind(i64::try_from(BACKLOG_ROWS_COUNTED_MAX).unwrap_or(i64::MAX))
            .fetch_one(&self.reader)
            .await
            .map_err(failed)?;
            let exceptions: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM semel_outbox_exception WHERE stream = ?1 AND shard = ?2",
            )
            .bind(&found.id.stream)
            .bind(found.id.index)
            .fetch_one(&self.reader)
            .await
            .map_err(failed)?;
            backlog.shards.push(ShardBacklog {
                owner: (found.nonce.is_some() && found.until > now).then_some(found.owner),
                shard: found.id,
                rows: rows.unsigned_abs(),
                oldest_ms: oldest.map(|at| (now.0 - at) / 1_000),
                exceptions: exceptions.unsigned_abs(),
                batch_no: found.cursor.batch_no,
                takeovers: found.takeovers.count,
            });
        }
        // The oldest rows are enough: those of an unknown stream are never cleaned, so they gather there.
        backlog.orphan_streams = sqlx::query_scalar(
            "SELECT DISTINCT stream FROM (SELECT stream FROM semel_outbox ORDER BY id LIMIT ?1)
             WHERE stream NOT IN (SELECT stream FROM semel_outbox_shard) ORDER BY stream",
        )
        .bind(i64::try_from(BACKLOG_ROWS_COUNTED_MAX).unwrap_or(i64::MAX))
        .fetch_all(&self.reader)
        .await
        .map_err(failed)?;
        Ok(backlog)
    }
}

impl Sqlite {
    /// Looks and opens; `None` when the map of shards changed in between.
    async fn try_open(
        &self,
        lease: &ShardLease,
        from: &Cursor,
        mut advance: bool,
    ) -> Result<Option<Guarded<Opening>>, StoreError> {
        let failed = |error| classify("open_batch", error);
        let prev = id_of(from.open.as_ref().unwrap_or(&from.prev))?;
        let look: Look = sqlx::query_as(
            "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'semel_outbox'), 0),
               (SELECT id FROM semel_outbox WHERE id > ?1 AND stream = ?2 AND slot BETWEEN ?3 AND ?4
                ORDER BY id LIMIT 1),
               (SELECT map FROM semel_outbox_shard WHERE stream = ?2 AND shard = ?5),
               (SELECT mark FROM semel_outbox_reshard WHERE stream = ?2),
               (SELECT hold_until FROM semel_outbox_reshard WHERE stream = ?2)",
        )
        .bind(prev)
        .bind(&lease.shard.stream)
        .bind(lease.slots.first)
        .bind(lease.slots.last)
        .bind(lease.shard.index)
        .fetch_one(&self.reader)
        .await
        .map_err(failed)?;
        let (mut cur, mut first, map, mark, hold_until) = look;
        let Some(map) = map else {
            return Ok(Some(Guarded::Lost));
        };
        if cur < prev {
            let text = format!(
                "the outbox has given out ids up to {cur}, the cursor of {} stands at {prev}: the table was emptied \
                 or replaced; semel outbox rescan sends every row still kept again, with the same event ids",
                lease.shard
            );
            return Err(StoreError::new(ErrorKind::IdentityChanged, "open_batch", text));
        }
        if let (Some(mark), Some(hold_until)) = (mark, hold_until) {
            let now = self.now();
            if now >= Timestamp(hold_until).plus_ms(RESHARD_REST_MS) {
                let mut tx = self.begin().await?;
                self.set_mark(&mut tx, &lease.shard.stream).await?;
                self.commit(tx).await?;
                return Ok(None);
            }
            if now.0 < hold_until {
                if prev == mark {
                    if from.open.is_none() && self.switch_map(&lease.shard.stream).await? {
                        return Ok(Some(Guarded::Lost));
                    }
                    return Ok(Some(Guarded::Done(Opening::Empty)));
                }
                (cur, advance) = (mark, true);
                first = first.filter(|first| *first <= mark);
            }
        }
        if first.is_none() && !(advance && cur > prev) {
            return Ok(Some(Guarded::Done(Opening::Empty)));
        }
        // This commit is also the durability gate.
        let sql = format!(
            "UPDATE semel_outbox_shard SET prev = ?6, open = ?7, last_id = ?8, batch_no = ?9, version = version + 1,
             suspect = NULL, batch = coalesce(?11, batch) WHERE {MINE} AND map = ?10 RETURNING {SHARD}"
        );
        let (prev, open, last_id, batch_no) = match first {
            Some(first) => (prev, Some(cur), first - 1, from.batch_no + 1),
            None => (cur, None, 0, from.batch_no),
        };
        let turn = self.turn("open_batch").await?;
        let row = sqlx::query(AssertSqlSafe(sql))
            .bind(&lease.shard.stream)
            .bind(lease.shard.index)
            .bind(lease.epoch.0)
            .bind(&lease.nonce.0[..])
            .bind(from.version)
            .bind(prev)
            .bind(open)
            .bind(last_id)
            .bind(batch_no)
            .bind(map)
            .bind(open.map(|_| Nonce::random().0.to_vec()))
            .fetch_optional(&self.writer)
            .await
            .map_err(failed)?;
        drop(turn);
        let Some(row) = row else {
            let found = self.find(lease, "open_batch").await?;
            return Ok(match found.filter(|found| found.is_owned_by(lease)) {
                None => Some(Guarded::Lost),
                Some(found) if found.cursor.version != from.version => Some(Guarded::Reload),
                Some(_) => None,
            });
        };
        let cursor = shard(&row)?.cursor;
        Ok(Some(Guarded::Done(if open.is_some() {
            Opening::Opened(cursor, None)
        } else {
            Opening::Moved(cursor)
        })))
    }

    async fn free(&self, conn: &mut SqliteConnection, wish: &Acquire) -> Result<Vec<SqliteRow>, StoreError> {
        let sql = format!(
            "SELECT {SHARD} FROM semel_outbox_shard WHERE stream = ?1 AND (until <= ?2 OR nonce = ?3)
             ORDER BY coalesce(nonce = ?3, 0) DESC, shard LIMIT ?4"
        );
        sqlx::query(AssertSqlSafe(sql))
            .bind(&wish.stream)
            .bind(self.now().0)
            .bind(&wish.nonce.0[..])
            .bind(wish.max)
            .fetch_all(conn)
            .await
            .map_err(|error| classify("acquire", error))
    }

    async fn find(&self, lease: &ShardLease, operation: &'static str) -> Result<Option<Shard>, StoreError> {
        let sql = format!("SELECT {SHARD} FROM semel_outbox_shard WHERE stream = ?1 AND shard = ?2");
        let row: Option<SqliteRow> = sqlx::query(AssertSqlSafe(sql))
            .bind(&lease.shard.stream)
            .bind(lease.shard.index)
            .fetch_optional(&self.reader)
            .await
            .map_err(|error| classify(operation, error))?;
        row.as_ref().map(shard).transpose()
    }

    /// Why a guarded write matched no row.
    async fn refused<T>(
        &self,
        lease: &ShardLease,
        operation: &'static str,
    ) -> Result<Guarded<T>, StoreError> {
        let found = self.find(lease, operation).await?;
        Ok(if found.is_some_and(|found| found.is_owned_by(lease)) {
            Guarded::Reload
        } else {
            Guarded::Lost
        })
    }

    async fn set_until(
        &self,
        leases: &[ShardLease],
        until: i64,
        keep: bool,
        operation: &'static str,
    ) -> Result<Vec<bool>, StoreError> {
        let mut tx = self.begin().await?;
        let mut done = Vec::with_capacity(leases.len());
        for lease in leases {
            let mut sql = String::from("UPDATE semel_outbox_shard SET until = ?5");
            if !keep {
                sql.push_str(", nonce = NULL, owner = ''");
            }
            let _ = write!(
                sql,
                " WHERE stream = ?1 AND shard = ?2 AND epoch = ?3 AND nonce = ?4"
            );
            let result = sqlx::query(AssertSqlSafe(sql))
                .bind(&lease.shard.stream)
                .bind(lease.shard.index)
                .bind(lease.epoch.0)
                .bind(&lease.nonce.0[..])
                .bind(until)
                .execute(&mut *tx)
                .await
                .map_err(|error| classify(operation, error))?;
            done.push(result.rows_affected() == 1);
        }
        self.commit(tx).await?;
        Ok(done)
    }
}
