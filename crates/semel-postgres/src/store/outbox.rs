//! The outbox on PostgreSQL: the cursor is a snapshot, not a number.
//!
//! Ids do not commit in order, so a reader that remembers an id loses rows, and one that waits for every open
//! transaction stalls. A batch here is what is visible in a new snapshot and was not in the last one: rows of
//! transactions that began since, found by `xid >= xmax(prev)`, and rows of those that were open then, found by
//! `xid = ANY(xip(prev))`. Nothing is waited for and nothing is passed over.
//!
//! # Guarantees
//! - **Durability gate.** A row committed with `synchronous_commit = off` is visible before it is durable. The write that
//!   saves a batch's `open` mark is a synchronous commit made after the snapshot was taken: when it has succeeded, all
//!   that the snapshot saw lies before it in the log and is flushed (and with its synchronous standbys). No mark moves
//!   without that write, an empty batch's included (rules O2, O18).
//! - **Home.** The snapshot, the role of the server (no standby, rule O5) and the identity of the cluster are read in
//!   one statement that takes no transaction id (rule O6). Another cluster, or ids that have gone back, stop the relay
//!   with `IdentityChanged`, and the cleaner deletes nothing there. Every page is read together with the cursor's own
//!   row: a cursor from before a reconnect or fail-over is never used (rule O2).
//!
//! # Not yet
//! Each shard reads for itself: N shards are N reads.

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::relay::{Cursor, Mark, OwnedShard, Roster, ShardLease, Slots};
use semel_core::store::{
    Acquire, BACKLOG_ROWS_COUNTED_MAX, Backlog, Capabilities, CursorSave, Due, Guarded, Measured, Opening,
    OutboxDesk, OutboxStore, Page, PageSize, Partitions, Presence, RESHARD_REST_MS, Rotation, ShardBacklog,
    StoredException, StreamLimit, check_stream, exception_repeated,
};
use semel_core::{ErrorKind, Nonce, StoreError};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::outbox_reading::Reading;
use super::outbox_reshard::Change;
use super::outbox_rows::{EVENT, SHARD, Shard, exception, shard};
use crate::db::Postgres;
use crate::error::{autocommit_failed, classify};
use crate::gate::{query, query_as, query_scalar};

/// Compares what every guarded write must compare (rules O11, S3).
/// The commit is synchronous even where a statement of yours has changed the connection's setting.
pub(super) const MINE: &str =
    "s.stream = $1 AND s.shard = $2 AND s.epoch = $3 AND s.nonce = $4 AND s.version = $5
  AND set_config('synchronous_commit', 'on', true) = 'on'";
/// Rows that one look counts. A batch below it is read by its transactions, a larger one by the primary key.
pub(super) const LOOK_ROWS: i64 = 1_000;
/// How often a batch is looked for anew because the map of shards changed in between.
const MAP_TRIES: u32 = 5;

/// Rows of a shard that were not visible in `$1`: both halves by the index on xid, and of the transactions that were open
/// then only those that have ended since.
const NOT_IN_PREV: &str = "SELECT id, xid, created_at FROM semel.outbox
    WHERE xid >= pg_snapshot_xmax($1::text::pg_snapshot) AND xid < pg_snapshot_xmax(pg_current_snapshot())
      AND stream = $2 AND slot BETWEEN $3 AND $4
  UNION ALL
  SELECT o.id, o.xid, o.created_at
    FROM pg_snapshot_xip($1::text::pg_snapshot) x JOIN semel.outbox o ON o.xid BETWEEN x AND x
    WHERE pg_visible_in_snapshot(x, pg_current_snapshot()) AND o.stream = $2 AND o.slot BETWEEN $3 AND $4";

/// What one look finds.
pub(super) struct Look {
    pub(super) cur: String,
    pub(super) first: Option<i64>,
    pub(super) found: i64,
    /// The version of the map; `None` when the shard is not there any more.
    pub(super) map: Option<i64>,
    pub(super) change: Option<Change>,
}

#[async_trait]
impl OutboxStore for Postgres {
    fn capabilities(&self) -> Capabilities {
        semel_core::KeyStore::capabilities(self)
    }

    fn desk(&self) -> Option<&dyn OutboxDesk> {
        Some(self)
    }

    async fn register_stream(&self, stream: &str, shards: u16) -> Result<(), StoreError> {
        check_stream(stream, shards)?;
        let count = || query_scalar("SELECT count(*) FROM semel.outbox_shard WHERE stream = $1").bind(stream);
        let failed = |error| classify("register_stream", error);
        let found: i64 = count().fetch_one(&self.gate).await.map_err(failed)?;
        if found == i64::from(shards) {
            return self.keep_shards(stream).await;
        }
        if found != 0 {
            return self.change_shards(stream, shards).await;
        }
        let mut tx = self.begin().await?;
        query("LOCK TABLE semel.outbox_shard IN SHARE ROW EXCLUSIVE MODE")
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        // Another process may have registered it meanwhile.
        let found: i64 = count().fetch_one(&mut *tx).await.map_err(failed)?;
        if found == i64::from(shards) {
            return Ok(());
        }
        if found != 0 {
            tx.rollback().await.map_err(failed)?;
            return self.change_shards(stream, shards).await;
        }
        for index in 0..shards {
            let slots = Slots::of_shard(index, shards);
            query(
                "INSERT INTO semel.outbox_shard (stream, shard, slot_first, slot_last) VALUES ($1, $2, $3, $4)",
            )
            .bind(stream)
            .bind(i32::from(index))
            .bind(i32::from(slots.first))
            .bind(i32::from(slots.last))
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        }
        self.commit(tx).await
    }

    async fn acquire(&self, wish: &Acquire) -> Result<Vec<OwnedShard>, StoreError> {
        let failed = |error| classify("acquire", error);
        // Looking takes no lock and no transaction id; most looks find nothing free.
        let free = "stream = $1 AND (until <= clock_timestamp() OR nonce = $2)";
        let sql = format!("SELECT EXISTS (SELECT FROM semel.outbox_shard WHERE {free})");
        let any: bool = query_scalar(AssertSqlSafe(sql))
            .bind(&wish.stream)
            .bind(&wish.nonce.0[..])
            .fetch_one(&self.own)
            .await
            .map_err(failed)?;
        if !any {
            return Ok(Vec::new());
        }
        let sql = format!(
            "WITH free AS (SELECT stream, shard FROM semel.outbox_shard WHERE {free}
               ORDER BY coalesce(nonce = $2, false) DESC, shard LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED)
             UPDATE semel.outbox_shard s SET epoch = s.epoch + 1, nonce = $2, relay = $6, owner = $4,
               until = clock_timestamp() + $5::float8 * interval '1 ms',
               takeovers = CASE WHEN s.nonce = $2 THEN s.takeovers
                 WHEN s.nonce IS NULL OR s.open IS NULL THEN 0
                 WHEN s.seen_batch_no = s.batch_no AND s.seen_last_id = s.last_id THEN s.takeovers + 1 ELSE 1 END,
               seen_batch_no = s.batch_no, seen_last_id = s.last_id
             FROM free WHERE s.stream = free.stream AND s.shard = free.shard RETURNING {SHARD}"
        );
        let mut tx = self.begin().await?;
        let rows = query(AssertSqlSafe(sql))
            .bind(&wish.stream)
            .bind(&wish.nonce.0[..])
            .bind(i64::from(wish.max))
            .bind(&wish.owner)
            .bind(wish.lease_ms as f64)
            .bind(&wish.relay.0[..])
            .fetch_all(&mut *tx)
            .await
            .map_err(failed)?;
        let mut owned = Vec::with_capacity(rows.len());
        for row in &rows {
            let found = shard(row)?;
            let parked: Vec<Vec<u8>> = query_scalar(
                "SELECT DISTINCT key FROM semel.outbox_exception
                 WHERE stream = $1 AND shard = $2 AND kind IN ('parked', 'behind') AND key IS NOT NULL",
            )
            .bind(&found.id.stream)
            .bind(i32::from(found.id.index))
            .fetch_all(&mut *tx)
            .await
            .map_err(failed)?;
            let excepted: Vec<i64> = if found.cursor.open.is_some() {
                query_scalar(
                    "SELECT id FROM semel.outbox_exception WHERE stream = $1 AND shard = $2 AND id > $3",
                )
                .bind(&found.id.stream)
                .bind(i32::from(found.id.index))
                .bind(found.cursor.last_id)
                .fetch_all(&mut *tx)
                .await
                .map_err(failed)?
            } else {
                Vec::new()
            };
            owned.push(OwnedShard {
                excepted,
                lease: found.lease(wish.nonce),
                takeovers: found.takeovers.count,
                cursor: found.cursor,
                parked: parked.into_iter().map(Bytes::from).collect(),
            });
        }
        self.commit(tx).await?;
        owned.sort_by(|a, b| a.lease.shard.cmp(&b.lease.shard));
        Ok(owned)
    }

    async fn renew(&self, leases: &[ShardLease], lease_ms: i64) -> Result<Vec<bool>, StoreError> {
        self.set_until(
            "until = clock_timestamp() + $5::float8 * interval '1 ms'",
            leases,
            lease_ms,
            "renew",
        )
        .await
    }

    async fn release(&self, leases: &[ShardLease]) -> Result<(), StoreError> {
        let set = "until = '-infinity', nonce = NULL, owner = ''";
        self.set_until(set, leases, 0, "release").await.map(|_| ())
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
        first: PageSize,
    ) -> Result<Guarded<Opening>, StoreError> {
        for _ in 0..MAP_TRIES {
            if let Some(reply) = self.try_open(lease, from, advance, first).await? {
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
        let failed = |error| classify("read_page", error);
        let Some(open) = &cursor.open else {
            return Ok(Guarded::Done(Page::default()));
        };
        let (small, rows_max) = self.pages.hint(&lease.shard, cursor.batch_no, size);
        let sql = if small {
            include_str!("../sql/outbox_small_page.sql")
        } else {
            include_str!("../sql/outbox_page.sql")
        };
        let query = query(sql)
            .bind(&lease.shard.stream)
            .bind(i32::from(lease.shard.index))
            .bind(lease.epoch.0)
            .bind(&lease.nonce.0[..])
            .bind(cursor.batch_no)
            .bind(cursor.prev.as_str())
            .bind(open.as_str())
            .bind(i32::from(lease.slots.first))
            .bind(i32::from(lease.slots.last))
            .bind(after)
            .bind(i64::from(rows_max));
        let mut reading = Reading::after(after, size);
        self.own
            .take_rows(query, |row| reading.take(row))
            .await
            .map_err(failed)?;
        let (mine, bytes, mut page) = reading.end()?;
        if !mine {
            return self.not_mine(lease, "read_page").await;
        }
        page.more |= page.rows.len() >= rows_max as usize;
        self.pages.read(&lease.shard, rows_max, page.rows.len(), bytes);
        Ok(Guarded::Done(page))
    }

    async fn save_cursor(
        &self,
        lease: &ShardLease,
        save: &CursorSave,
    ) -> Result<Guarded<Cursor>, StoreError> {
        let next = save.apply();
        let sql = format!(
            "UPDATE semel.outbox_shard s SET prev = $7::text::pg_snapshot, open = $8::text::pg_snapshot, last_id = $9,
               version = $10, suspect = $11, log = $12 WHERE {MINE} AND s.batch_no = $6"
        );
        let update = query(AssertSqlSafe(sql))
            .bind(&lease.shard.stream)
            .bind(i32::from(lease.shard.index))
            .bind(lease.epoch.0)
            .bind(&lease.nonce.0[..])
            .bind(save.from.version)
            .bind(next.batch_no)
            .bind(next.prev.as_str())
            .bind(next.open.as_ref().map(Mark::as_str))
            .bind(next.last_id)
            .bind(next.version)
            .bind(next.suspect)
            .bind(next.log.map(|log| log.to_string()));
        if save.exceptions.is_empty() {
            let done = update
                .execute(&self.own)
                .await
                .map_err(|e| autocommit_failed("save_cursor", e))?;
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
            let done = query(
                "INSERT INTO semel.outbox_exception (id, shard, kind, attempts, reason, batch_no, stream, slot, event_id,
                   topic, type, source, key, content_type, headers, data, traceparent, created_at)
                 SELECT id, $2, $3, $4, $5, $6, stream, slot, event_id, topic, type, source, key, content_type,
                   headers, data, traceparent, created_at
                 FROM semel.outbox WHERE id = $1 ON CONFLICT (id) DO UPDATE SET batch_no = EXCLUDED.batch_no
                 WHERE outbox_exception.event_id = EXCLUDED.event_id",
            )
            .bind(it.row)
            .bind(i32::from(lease.shard.index))
            .bind(it.kind.as_str())
            .bind(i64::from(it.attempts))
            .bind(&it.reason)
            .bind(save.from.batch_no)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
            if done.rows_affected() == 0 {
                let other: Option<i32> = query_scalar(
                    "SELECT 1 FROM semel.outbox_exception WHERE id = $1
                       AND event_id NOT IN (SELECT event_id FROM semel.outbox WHERE id = $1)",
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
            "SELECT {EVENT}, shard, kind, attempts, reason, batch_no, semel.us(since) AS since_us FROM semel.outbox_exception
             WHERE stream = $1 AND id > $2 ORDER BY id LIMIT $3"
        );
        let rows = query(AssertSqlSafe(sql))
            .bind(stream)
            .bind(after)
            .bind(i64::from(limit))
            .fetch_all(&self.gate)
            .await
            .map_err(|error| classify("exceptions", error))?;
        rows.iter().map(exception).collect()
    }

    async fn move_due(&self, stream: &str, limit: u32) -> Result<Due, StoreError> {
        self.due(stream, limit).await
    }

    async fn clean(&self, stream: &str, keep_ms: i64, limit: u32) -> Result<u64, StoreError> {
        if let Some(parts) = self.clean_in(keep_ms).await? {
            return self.clean_parts(&parts, stream, keep_ms, limit).await;
        }
        self.clean_table("outbox", true, stream, keep_ms, limit).await
    }

    async fn rotate(&self, stream: &str, keep_ms: i64) -> Result<Rotation, StoreError> {
        self.rotate_partitions(stream, keep_ms).await
    }

    async fn partitions(&self) -> Result<Option<Partitions>, StoreError> {
        self.outbox_partitions().await
    }

    async fn limit_stream(&self, stream: &str, limit: StreamLimit) -> Result<(), StoreError> {
        self.set_limit(stream, limit).await
    }

    async fn only_known_streams(&self, only: bool) -> Result<(), StoreError> {
        self.set_known_only(only).await
    }

    async fn measure(&self, stream: &str) -> Result<Option<Measured>, StoreError> {
        self.measure_stream(stream, false).await
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        let failed = |error| classify("backlog", error);
        let sql = format!("SELECT {SHARD} FROM semel.outbox_shard s ORDER BY s.stream, s.shard");
        let rows = query(AssertSqlSafe(sql))
            .fetch_all(&self.gate)
            .await
            .map_err(failed)?;
        let mut backlog = Backlog::default();
        for row in &rows {
            let found = shard(row)?;
            let sql = format!(
                "SELECT count(*) AS rows,
                   (extract(epoch FROM clock_timestamp() - min(created_at) FILTER (WHERE isfinite(created_at))) * 1000::numeric)::bigint AS oldest_ms,
                   (SELECT count(*) FROM semel.outbox_exception WHERE stream = $2 AND shard = $8) AS exceptions
                 FROM (SELECT created_at FROM ({NOT_IN_PREV}) b
                   WHERE NOT ($5::text IS NOT NULL AND id <= $6
                     AND pg_visible_in_snapshot(xid, $5::text::pg_snapshot)) LIMIT $7) t"
            );
            let row = query(AssertSqlSafe(sql))
                .bind(found.cursor.prev.as_str())
                .bind(&found.id.stream)
                .bind(i32::from(found.slots.first))
                .bind(i32::from(found.slots.last))
                .bind(found.cursor.open.as_ref().map(Mark::as_str))
                .bind(found.cursor.last_id)
                .bind(i64::try_from(BACKLOG_ROWS_COUNTED_MAX).unwrap_or(i64::MAX))
                .bind(i32::from(found.id.index))
                .fetch_one(&self.gate)
                .await
                .map_err(failed)?;
            let (rows, oldest, exceptions) = numbers(&row).map_err(failed)?;
            backlog.shards.push(ShardBacklog {
                owner: (found.held && found.nonce.is_some()).then_some(found.owner),
                shard: found.id,
                rows,
                oldest_ms: oldest.map(|ms| ms.max(0)),
                exceptions,
                batch_no: found.cursor.batch_no,
                takeovers: found.takeovers.count,
            });
        }
        backlog.orphan_streams = query_scalar(
            "SELECT DISTINCT stream FROM (SELECT stream FROM semel.outbox ORDER BY id LIMIT $1) o
             WHERE stream NOT IN (SELECT stream FROM semel.outbox_shard) ORDER BY stream",
        )
        .bind(i64::try_from(BACKLOG_ROWS_COUNTED_MAX).unwrap_or(i64::MAX))
        .fetch_all(&self.gate)
        .await
        .map_err(failed)?;
        Ok(backlog)
    }
}

fn numbers(row: &PgRow) -> Result<(u64, Option<i64>, u64), sqlx::Error> {
    let (rows, exceptions): (i64, i64) = (row.try_get("rows")?, row.try_get("exceptions")?);
    Ok((
        u64::try_from(rows).unwrap_or(0),
        row.try_get("oldest_ms")?,
        u64::try_from(exceptions).unwrap_or(0),
    ))
}

impl Postgres {
    /// One statement: what is visible to it is what is visible in the snapshot that it returns.
    pub(super) async fn look(&self, lease: &ShardLease, prev: &Mark) -> Result<Look, StoreError> {
        let failed = |error| classify("open_batch", error);
        let row = query(include_str!("../sql/outbox_look.sql"))
            .bind(prev.as_str())
            .bind(&lease.shard.stream)
            .bind(i32::from(lease.slots.first))
            .bind(i32::from(lease.slots.last))
            .bind(LOOK_ROWS)
            .bind(i32::from(lease.shard.index))
            .bind(RESHARD_REST_MS as f64)
            .fetch_one(&self.own)
            .await
            .map_err(failed)?;
        let read = || -> Result<(Look, bool, bool, bool), sqlx::Error> {
            let look = Look {
                cur: row.try_get("cur")?,
                first: row.try_get("first")?,
                found: row.try_get("found")?,
                map: row.try_get("map")?,
                change: match row.try_get("mark")? {
                    Some(mark) => Some(Change {
                        mark,
                        held: row.try_get("held")?,
                        rested: row.try_get("rested")?,
                    }),
                    None => None,
                },
            };
            Ok((
                look,
                row.try_get("standby")?,
                row.try_get("home")?,
                row.try_get("forward")?,
            ))
        };
        let (look, standby, home, forward) = read().map_err(failed)?;
        if standby {
            let text =
                "this server is a standby, whose snapshots do not say what is open; connect to the primary";
            return Err(StoreError::new(ErrorKind::Unavailable, "open_batch", text));
        }
        if !home || !forward {
            let text = format!(
                "the cursor of {} was made on another server or at a later time than this one has reached (a restore, a \
                 copy, an upgrade): stop the relays, then semel outbox rescan (or SELECT semel.adopt_outbox()), which sends every row still kept \
                 again with the same event ids",
                lease.shard
            );
            return Err(StoreError::new(ErrorKind::IdentityChanged, "open_batch", text));
        }
        Ok(look)
    }

    /// The lowest number of a batch too large for one look. A new stream begins at the beginning, without looking.
    pub(super) async fn first(&self, prev: &Mark, cur: &str) -> Result<Option<i64>, StoreError> {
        if prev.as_str().starts_with("1:1:") {
            return Ok(Some(1));
        }
        query_scalar(include_str!("../sql/outbox_first.sql"))
            .bind(prev.as_str())
            .bind(cur)
            .fetch_one(&self.own)
            .await
            .map_err(|error| classify("open_batch", error))
    }

    pub(super) async fn find_shard(
        &self,
        lease: &ShardLease,
        operation: &'static str,
    ) -> Result<Option<Shard>, StoreError> {
        let sql = format!("SELECT {SHARD} FROM semel.outbox_shard s WHERE s.stream = $1 AND s.shard = $2");
        let row: Option<PgRow> = query(AssertSqlSafe(sql))
            .bind(&lease.shard.stream)
            .bind(i32::from(lease.shard.index))
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
        set: &'static str,
        leases: &[ShardLease],
        ms: i64,
        operation: &'static str,
    ) -> Result<Vec<bool>, StoreError> {
        let sql = format!(
            "UPDATE semel.outbox_shard s SET {set}
             FROM unnest($1::text[], $2::integer[], $3::bigint[], $4::bytea[]) AS l(stream, shard, epoch, nonce)
             WHERE s.stream = l.stream AND s.shard = l.shard AND s.epoch = l.epoch AND s.nonce = l.nonce
             RETURNING s.stream, s.shard"
        );
        let rows: Vec<(String, i32)> = query_as(AssertSqlSafe(sql))
            .bind(
                leases
                    .iter()
                    .map(|lease| lease.shard.stream.as_str())
                    .collect::<Vec<_>>(),
            )
            .bind(
                leases
                    .iter()
                    .map(|lease| i32::from(lease.shard.index))
                    .collect::<Vec<_>>(),
            )
            .bind(leases.iter().map(|lease| lease.epoch.0).collect::<Vec<_>>())
            .bind(leases.iter().map(|lease| &lease.nonce.0[..]).collect::<Vec<_>>())
            .bind(ms as f64)
            .fetch_all(&self.own)
            .await
            .map_err(|error| autocommit_failed(operation, error))?;
        let mine = |lease: &ShardLease| {
            rows.iter().any(|(stream, shard)| {
                *stream == lease.shard.stream && *shard == i32::from(lease.shard.index)
            })
        };
        Ok(leases.iter().map(mine).collect())
    }
}
