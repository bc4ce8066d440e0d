//! Sending again: a rescan, a replay, and which rows that are kept were sent.

use bytes::Bytes;
use semel_core::inbox::headers::encode_event;
use semel_core::relay::Slots;
use semel_core::store::{
    DeskEntry, KeptRow, KeptState, REPLAY_MARK, REPLAY_REASON, RESCAN_ROWS_COUNTED_MAX, Replay, Replayed,
    Rescan,
};
use semel_core::{ErrorKind, StoreError, SystemClock, Timestamp};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use super::key_rows::NOW;
use super::outbox_desk::{Tx, write};
use super::outbox_mark::{Range, Seen, holds};
use super::outbox_rows::{EVENT, SHARD, Shard, bytes, number, page_row, shard, small, text};
use crate::db::Mysql;
use crate::error::{DUPLICATE, classify, number as error_number};
use crate::tx::enqueue_many;

/// How often an adoption is tried that a writer's number gets in the way of.
const ADOPTIONS_MAX: usize = 5;

/// What the marks of a stream's shards say is settled.
struct Settled(Vec<(Slots, Vec<Range>)>);

impl Settled {
    fn of(shards: &[Shard]) -> Result<Self, StoreError> {
        let visible = |found: &Shard| Ok((found.slots, Seen::parse(&found.cursor.prev)?.visible()));
        shards.iter().map(visible).collect::<Result<_, _>>().map(Self)
    }

    fn has(&self, id: i64, slot: u16) -> bool {
        let mut shards = self.0.iter();
        shards.any(|(slots, ranges)| slots.range().contains(&slot) && holds(ranges, id))
    }

    /// The largest number that is settled anywhere.
    fn last(&self) -> i64 {
        let ends = self.0.iter().filter_map(|(_, ranges)| ranges.last());
        ends.map(|range| range.1).max().unwrap_or(0)
    }
}

impl Mysql {
    /// See [`OutboxDesk::rescan`](semel_core::store::OutboxDesk::rescan).
    pub(super) async fn rescan_outbox(
        &self,
        stream: Option<&str>,
        by: &str,
        why: &str,
        dry_run: bool,
    ) -> Result<Rescan, StoreError> {
        let mut tries = 1;
        loop {
            match self.rescan_once(stream, by, why, dry_run).await {
                // A writer has just taken the number that the adoption was to have.
                Err(error) if error.kind() == ErrorKind::NotApplied && tries < ADOPTIONS_MAX => tries += 1,
                done => return done,
            }
        }
    }

    async fn rescan_once(
        &self,
        stream: Option<&str>,
        by: &str,
        why: &str,
        dry_run: bool,
    ) -> Result<Rescan, StoreError> {
        let failed = |error| classify("rescan", error);
        let mut tx = self.begin().await?;
        // Behind this lock no shards of a new stream, or others of an old one, come.
        let lock = if dry_run { "" } else { " FOR UPDATE" };
        let sql = format!("SELECT row_id FROM semel_outbox_home WHERE one = 1{lock}");
        sqlx::query(AssertSqlSafe(sql))
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed)?;
        let sql = format!(
            "SELECT {SHARD}, {NOW} AS now_us FROM semel_outbox_shard s WHERE ? IS NULL OR s.stream = ?
             ORDER BY s.stream, s.shard{lock}"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(stream)
            .bind(stream)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed)?;
        let mut rescan = Rescan {
            shards: rows.len() as u64,
            ..Rescan::default()
        };
        for row in &rows {
            let (found, now) = (shard(row)?, number(row, "now_us").map_err(failed)?);
            if found.nonce.is_some() && found.until > Timestamp(now) {
                rescan.owned.push((found.id, found.owner));
            }
        }
        let kept: i64 = sqlx::query_scalar(
            "SELECT COUNT(*) FROM (SELECT 1 FROM semel_outbox WHERE stream <> '' AND (? IS NULL OR stream = ?) LIMIT ?) t",
        )
        .bind(stream)
        .bind(stream)
        .bind(RESCAN_ROWS_COUNTED_MAX)
        .fetch_one(&mut *tx)
        .await
        .map_err(failed)?;
        rescan.rows = kept.unsigned_abs();
        if dry_run {
            tx.rollback().await.map_err(failed)?;
            return Ok(rescan);
        }
        if !self.is_home(&mut tx).await? {
            if stream.is_some() {
                let text = "the table of events is another one than the cursors were made on: only a rescan of all \
                            streams makes it their home (leave out --stream)";
                return Err(StoreError::new(ErrorKind::IdentityChanged, "rescan", text));
            }
            adopt(&mut tx).await?;
        }
        sqlx::query(
            "UPDATE semel_outbox_shard SET prev_mark = '0', open_mark = NULL, last_id = 0,
               batch_no = GREATEST(batch_no + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))),
               version = version + 1, epoch = epoch + 1, nonce = NULL, owner = '', until_us = 0, suspect = NULL,
               log = IF(log IS NULL, NULL, 'rebind')
             WHERE ? IS NULL OR stream = ?",
        )
        .bind(stream)
        .bind(stream)
        .execute(&mut *tx)
        .await
        .map_err(failed)?;
        // A mark may be of a table that was replaced: the next one is set.
        sqlx::query("UPDATE semel_outbox_reshard SET hold_until_us = 0 WHERE ? IS NULL OR stream = ?")
            .bind(stream)
            .bind(stream)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        let line = DeskEntry::about(stream.unwrap_or("*"), "rescan", by, why);
        write(&mut tx, &line).await?;
        self.commit(tx).await?;
        Ok(rescan)
    }

    /// Whether the table of events is the one that all marks speak of.
    async fn is_home(&self, tx: &mut Tx) -> Result<bool, StoreError> {
        let failed = |error| classify("rescan", error);
        let home = self.has_home(tx).await?;
        let high: Option<i64> = sqlx::query(
            "SELECT MAX(CAST(SUBSTRING_INDEX(COALESCE(open_mark, prev_mark), ':', 1) AS SIGNED)) AS high
             FROM semel_outbox_shard",
        )
        .fetch_one(&mut **tx)
        .await
        .and_then(|row| row.try_get_unchecked("high"))
        .map_err(failed)?;
        let next = self.next_id(tx).await?;
        Ok(home && next.zip(high).is_none_or(|(next, high)| next > high))
    }

    /// Whether the row that is never removed is there.
    pub(super) async fn has_home(&self, tx: &mut Tx) -> Result<bool, StoreError> {
        let failed = |error| classify("home", error);
        let row = sqlx::query(
            "SELECT EXISTS (SELECT 1 FROM semel_outbox_home h JOIN semel_outbox o ON o.id = h.row_id
               WHERE h.one = 1 AND o.stream = '') AS home",
        )
        .fetch_one(&mut **tx)
        .await
        .map_err(failed)?;
        Ok(number(&row, "home").map_err(failed)? == 1)
    }

    /// See [`OutboxDesk::replay`](semel_core::store::OutboxDesk::replay).
    pub(super) async fn replay_outbox(&self, replay: &Replay) -> Result<Replayed, StoreError> {
        let failed = |error| classify("replay", error);
        let mut tx = self.begin().await?;
        let settled = settled_in(&mut tx, &replay.stream, "").await?;
        let sql = format!(
            "SELECT {EVENT}, o.slot FROM semel_outbox o FORCE INDEX (PRIMARY)
             WHERE o.id > ? AND o.id <= ? AND o.stream = ? AND o.created_at >= ? AND o.created_at < ?
               AND (? IS NULL OR o.`key` = ?) AND (? IS NULL OR o.topic = ?)
               AND (o.headers IS NULL OR INSTR(o.headers, ?) = 0)
               AND NOT EXISTS (SELECT 1 FROM semel_outbox_exception e WHERE e.id = o.id)
               AND NOT EXISTS (SELECT 1 FROM semel_outbox_desk_log l WHERE l.`row` = o.id AND l.`before` IS NOT NULL)
             ORDER BY o.id LIMIT ?"
        );
        let wanted = replay.rows_max() + 1;
        let (mut found, mut places, mut after) = (Vec::new(), Vec::new(), replay.after);
        while found.len() < wanted {
            let left = wanted - found.len();
            let rows = sqlx::query(AssertSqlSafe(sql.clone()))
                .bind(after)
                .bind(replay.upto.min(settled.last()))
                .bind(&replay.stream)
                .bind(replay.from.map_or(i64::MIN, |from| from.0))
                .bind(replay.to.map_or(i64::MAX, |to| to.0))
                .bind(replay.key.as_deref())
                .bind(replay.key.as_deref())
                .bind(&replay.topic)
                .bind(&replay.topic)
                .bind(REPLAY_MARK)
                .bind(left as u64)
                .fetch_all(&mut *tx)
                .await
                .map_err(failed)?;
            for row in &rows {
                let (id, slot) = (number(row, "id"), small(row, "slot"));
                after = id.map_err(failed)?;
                let slot = slot.map_err(failed)?;
                if settled.has(after, slot) {
                    found.push(page_row(row)?);
                    places.push((after, slot));
                }
            }
            if rows.len() < left {
                break;
            }
        }
        let (replayed, copies) = replay.copies(found, &SystemClock)?;
        if copies.is_empty() {
            tx.rollback().await.map_err(failed)?;
            return Ok(replayed);
        }
        // The shards that copies are given to stay until they are written. Locked only now: owners write to these rows,
        // and the search may take longer than their leases.
        let settled = settled_in(&mut tx, &replay.stream, " LOCK IN SHARE MODE").await?;
        if !places.iter().all(|(row, slot)| settled.has(*row, *slot)) {
            tx.rollback().await.map_err(failed)?;
            let text = "the outbox was rescanned meanwhile, so that these events are sent again anyway; repeat the command";
            return Err(StoreError::new(ErrorKind::NotApplied, "replay", text));
        }
        if replay.fresh_ids {
            let copies: Vec<_> = copies.into_iter().map(|(_, copy)| copy).collect();
            enqueue_many(&mut tx, &copies).await?;
        } else {
            let sql = format!(
                "INSERT INTO semel_outbox_exception (id, shard, kind, attempts, reason, since_us, stream, slot, event_id,
                   topic, type, source, `key`, content_type, headers, data, traceparent, created_at, asked)
                 SELECT o.id, s.shard, 'skipped', 0, ?, {NOW}, o.stream, o.slot, o.event_id, o.topic, o.type, o.source,
                   o.`key`, o.content_type, ?, o.data, o.traceparent, o.created_at, 'retry'
                 FROM semel_outbox o JOIN semel_outbox_shard s
                   ON s.stream = o.stream AND o.slot BETWEEN s.slot_first AND s.slot_last
                 WHERE o.id = ?"
            );
            for (row, copy) in &copies {
                sqlx::query(AssertSqlSafe(sql.clone()))
                    .bind(REPLAY_REASON)
                    .bind(encode_event(copy))
                    .bind(row)
                    .execute(&mut *tx)
                    .await
                    .map_err(failed)?;
            }
        }
        self.commit(tx).await?;
        Ok(replayed)
    }

    /// See [`OutboxDesk::kept`](semel_core::store::OutboxDesk::kept).
    pub(super) async fn kept_rows(
        &self,
        stream: &str,
        after: i64,
        limit: u32,
    ) -> Result<Vec<KeptRow>, StoreError> {
        let failed = |error| classify("kept", error);
        // Read before the rows: what was settled then was sent, or is set aside by now.
        let sql = format!("SELECT {SHARD} FROM semel_outbox_shard s WHERE s.stream = ?");
        let shards = sqlx::query(AssertSqlSafe(sql))
            .bind(stream)
            .fetch_all(&self.pool)
            .await
            .map_err(failed)?;
        let shards = shards.iter().map(shard).collect::<Result<Vec<_>, _>>()?;
        let settled = Settled::of(&shards)?;
        let rows = sqlx::query(
            "SELECT o.id, o.event_id, o.`key`, o.topic, o.slot, UNHEX(SHA2(COALESCE(o.data, ''), 256)) AS sha256,
               CASE WHEN EXISTS (SELECT 1 FROM semel_outbox_exception e WHERE e.id = o.id) THEN 'set_aside'
                 WHEN EXISTS (SELECT 1 FROM semel_outbox_desk_log l
                   WHERE l.`row` = o.id AND l.action IN ('drop', 'release')) THEN 'dropped'
                 WHEN EXISTS (SELECT 1 FROM semel_outbox_desk_log l
                   WHERE l.`row` = o.id AND l.action = 'edit') THEN 'edited'
                 ELSE '' END AS state
             FROM semel_outbox o FORCE INDEX (PRIMARY) WHERE o.stream = ? AND o.id > ? ORDER BY o.id LIMIT ?",
        )
        .bind(stream)
        .bind(after)
        .bind(limit)
        .fetch_all(&self.pool)
        .await
        .map_err(failed)?;
        let read = |row: &MySqlRow| kept_row(row, &settled);
        rows.iter().map(read).collect::<Result<_, _>>().map_err(failed)
    }
}

fn kept_row(row: &MySqlRow, settled: &Settled) -> Result<KeptRow, sqlx::Error> {
    let id = number(row, "id")?;
    let (event_id, hash) = (bytes(row, "event_id")?, bytes(row, "sha256")?);
    let state = text(row, "state")?.unwrap_or_default();
    let sent = state.is_empty() && settled.has(id, small(row, "slot")?);
    Ok(KeptRow {
        row: id,
        event_id: Uuid::from_slice(&event_id.unwrap_or_default()).unwrap_or_default(),
        key: bytes(row, "key")?.map(Bytes::from),
        topic: text(row, "topic")?.unwrap_or_default(),
        sha256: hash
            .and_then(|hash| hash.try_into().ok())
            .ok_or_else(|| sqlx::Error::Decode("sha256 is not 32 bytes".into()))?,
        state: if sent {
            KeptState::Sent
        } else {
            KeptState::parse(&state)
        },
    })
}

/// Makes the table of events the one that marks may speak of: new numbers are above all that is known.
async fn adopt(tx: &mut Tx) -> Result<(), StoreError> {
    let statements = crate::ADOPT_OUTBOX.split_inclusive(';');
    for statement in statements.filter(|it| it.contains("semel_outbox_home")) {
        let done = sqlx::raw_sql(statement).execute(&mut **tx).await;
        done.map_err(|error| match error_number(&error) {
            Some(DUPLICATE) => {
                let text = "a writer took the number that was to be the first; repeat it";
                StoreError::new(ErrorKind::NotApplied, "rescan", text).with_source(error)
            }
            _ => classify("rescan", error),
        })?;
    }
    Ok(())
}

/// What every shard of a stream has passed, its rows locked as `lock` says.
async fn settled_in(tx: &mut Tx, stream: &str, lock: &'static str) -> Result<Settled, StoreError> {
    let sql = format!("SELECT {SHARD} FROM semel_outbox_shard s WHERE s.stream = ? ORDER BY s.shard{lock}");
    let shards = sqlx::query(AssertSqlSafe(sql))
        .bind(stream)
        .fetch_all(&mut **tx)
        .await
        .map_err(|error| classify("replay", error))?;
    Settled::of(&shards.iter().map(shard).collect::<Result<Vec<_>, _>>()?)
}
