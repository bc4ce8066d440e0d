//! The operator's desk of the outbox on SQLite. One writer at a time: a change and a settling never meet.

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::TryStreamExt as _;
use semel_core::inbox::headers::encode_event;
use semel_core::relay::{DeskRefusal, ShardId, ShardLease, decide};
use semel_core::store::{
    DeskChange, DeskEntry, DeskQuery, DeskRequest, DeskRow, Guarded, Hold, KeptRow, KeptState, OutboxDesk,
    PageSize, REPLAY_MARK, REPLAY_REASON, RESCAN_ROWS_COUNTED_MAX, RedriveSave, Replay, Replayed, Rescan,
    ShardStanding, Standing, Taken, Taking, Wish,
};
use semel_core::{StoreError, Timestamp};
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row as _, Sqlite as Driver, Transaction};
use uuid::Uuid;

use super::outbox_rows::{EVENT, exception, page_row};
use crate::db::Sqlite;
use crate::error::classify;

/// The columns that [`desk_row`] reads.
const DESK: &str = "batch_no, shard, kind, attempts, reason, since, asked, edits, taken";
/// What a list is made of.
const LISTED: &str = "kind IN ('parked', 'behind') AND key IS NOT NULL";

type Tx = Transaction<'static, Driver>;

fn desk_row(row: &SqliteRow) -> Result<DeskRow, StoreError> {
    let stored = exception(row)?;
    let read = || -> Result<DeskRow, sqlx::Error> {
        let asked: Option<String> = row.try_get("asked")?;
        Ok(DeskRow {
            stored,
            asked: asked.as_deref().and_then(Wish::parse),
            edits: row.try_get("edits")?,
            taken: row.try_get("taken")?,
        })
    };
    read().map_err(|error| classify("desk", error))
}

fn entry(row: &SqliteRow) -> Result<DeskEntry, sqlx::Error> {
    let id: Vec<u8> = row.try_get("event_id")?;
    Ok(DeskEntry {
        entry: row.try_get("entry")?,
        at: Timestamp(row.try_get("at")?),
        by: row.try_get("by")?,
        why: row.try_get("why")?,
        action: row.try_get("action")?,
        stream: row.try_get("stream")?,
        row: row.try_get("row")?,
        event_id: Uuid::from_slice(&id).unwrap_or_default(),
        before: row.try_get("before")?,
    })
}

fn kept_row(row: &SqliteRow) -> Result<KeptRow, sqlx::Error> {
    let (id, state): (Vec<u8>, String) = (row.try_get("event_id")?, row.try_get("state")?);
    let data: Option<Vec<u8>> = row.try_get("data")?;
    Ok(KeptRow {
        row: row.try_get("id")?,
        event_id: Uuid::from_slice(&id).unwrap_or_default(),
        key: row.try_get::<Option<Vec<u8>>, _>("key")?.map(Bytes::from),
        topic: row.try_get("topic")?,
        sha256: KeptRow::hash(data.as_deref()),
        state: KeptState::parse(&state),
    })
}

impl Sqlite {
    async fn desk_find(tx: &mut Tx, row: i64) -> Result<Option<DeskRow>, StoreError> {
        let sql = format!("SELECT {DESK}, {EVENT} FROM semel_outbox_exception WHERE id = ?1");
        let found = sqlx::query(AssertSqlSafe(sql))
            .bind(row)
            .fetch_optional(&mut **tx)
            .await;
        found
            .map_err(|error| classify("desk", error))?
            .as_ref()
            .map(desk_row)
            .transpose()
    }

    /// The first row of a key's list, and what is asked of it.
    async fn desk_first(
        tx: &mut Tx,
        shard: &ShardId,
        key: &Bytes,
    ) -> Result<Option<(i64, Option<Wish>)>, StoreError> {
        let sql = format!(
            "SELECT id, asked FROM semel_outbox_exception
             WHERE stream = ?1 AND shard = ?2 AND key = ?3 AND {LISTED} ORDER BY id LIMIT 1"
        );
        let found: Option<(i64, Option<String>)> = sqlx::query_as(AssertSqlSafe(sql))
            .bind(&shard.stream)
            .bind(shard.index)
            .bind(&key[..])
            .fetch_optional(&mut **tx)
            .await
            .map_err(|error| classify("desk", error))?;
        Ok(found.map(|(id, asked)| (id, asked.as_deref().and_then(Wish::parse))))
    }

    async fn desk_write(&self, tx: &mut Tx, entry: &DeskEntry) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO semel_outbox_desk_log (at, \"by\", why, action, stream, \"row\", event_id, before)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )
        .bind(self.now().0)
        .bind(&entry.by)
        .bind(&entry.why)
        .bind(&entry.action)
        .bind(&entry.stream)
        .bind(entry.row)
        .bind(&entry.event_id.as_bytes()[..])
        .bind(&entry.before)
        .execute(&mut **tx)
        .await
        .map_err(|error| classify("desk", error))?;
        Ok(())
    }

    async fn desk_owned(tx: &mut Tx, lease: &ShardLease) -> Result<bool, StoreError> {
        sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM semel_outbox_shard
             WHERE stream = ?1 AND shard = ?2 AND epoch = ?3 AND nonce = ?4)",
        )
        .bind(&lease.shard.stream)
        .bind(lease.shard.index)
        .bind(lease.epoch.0)
        .bind(&lease.nonce.0[..])
        .fetch_one(&mut **tx)
        .await
        .map_err(|error| classify("desk", error))
    }
}

#[async_trait]
impl OutboxDesk for Sqlite {
    async fn desk_rows(&self, query: &DeskQuery) -> Result<Vec<DeskRow>, StoreError> {
        let sql = format!(
            "SELECT {DESK}, {EVENT} FROM semel_outbox_exception
             WHERE id > ?1 AND (?2 IS NULL OR stream = ?2) AND (?3 IS NULL OR key = ?3) AND (?4 IS NULL OR kind = ?4)
             ORDER BY id LIMIT ?5"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(query.after)
            .bind(&query.stream)
            .bind(query.key.as_deref())
            .bind(query.kind.map(|kind| kind.as_str()))
            .bind(query.limit)
            .fetch_all(&self.reader)
            .await
            .map_err(|error| classify("desk", error))?;
        rows.iter().map(desk_row).collect()
    }

    async fn desk_row(&self, row: i64) -> Result<Option<DeskRow>, StoreError> {
        let sql = format!("SELECT {DESK}, {EVENT} FROM semel_outbox_exception WHERE id = ?1");
        let found = sqlx::query(AssertSqlSafe(sql))
            .bind(row)
            .fetch_optional(&self.reader)
            .await;
        found
            .map_err(|error| classify("desk", error))?
            .as_ref()
            .map(desk_row)
            .transpose()
    }

    async fn change(&self, request: &DeskRequest) -> Result<Result<(), DeskRefusal>, StoreError> {
        let failed = |error| classify("desk", error);
        let mut tx = self.begin().await?;
        let found = Self::desk_find(&mut tx, request.row).await?;
        let first = match found
            .as_ref()
            .and_then(|row| Some((&row.stored.shard, row.list()?)))
        {
            Some((shard, key)) => Self::desk_first(&mut tx, shard, key).await?,
            None => None,
        };
        let decided = decide(found.as_ref(), first, &request.change);
        let (Ok(true), Some(row)) = (&decided, found) else {
            tx.rollback().await.map_err(failed)?;
            return Ok(decided.map(|_| ()));
        };
        let old = row.stored.row.row.event;
        match &request.change {
            DeskChange::Ask(wish) => {
                sqlx::query("UPDATE semel_outbox_exception SET asked = ?2, taken = 0 WHERE id = ?1")
                    .bind(request.row)
                    .bind(wish.as_str())
                    .execute(&mut *tx)
                    .await
                    .map_err(failed)?;
            }
            DeskChange::Edit { event, .. } => {
                sqlx::query(
                    "UPDATE semel_outbox_exception SET edits = edits + 1, topic = ?2, type = ?3, content_type = ?4,
                     headers = ?5, data = ?6, traceparent = ?7 WHERE id = ?1",
                )
                .bind(request.row)
                .bind(&event.topic)
                .bind(&event.kind)
                .bind(&event.content_type)
                .bind(encode_event(event).map(String::into_bytes))
                .bind(event.data.as_deref())
                .bind(&event.traceparent)
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            }
        }
        self.desk_write(&mut tx, &DeskEntry::of(request, &old)).await?;
        self.commit(tx).await?;
        Ok(Ok(()))
    }

    async fn desk_log(&self, after: i64, limit: u32) -> Result<Vec<DeskEntry>, StoreError> {
        let rows =
            sqlx::query("SELECT * FROM semel_outbox_desk_log WHERE entry > ?1 ORDER BY entry LIMIT ?2")
                .bind(after)
                .bind(limit)
                .fetch_all(&self.reader)
                .await
                .and_then(|rows| rows.iter().map(entry).collect());
        rows.map_err(|error| classify("desk", error))
    }

    async fn standing(&self) -> Result<Standing, StoreError> {
        let now = self.now();
        let rows = sqlx::query(
            "SELECT s.stream, s.shard, s.owner, s.nonce IS NOT NULL AS owned, s.until, s.note, s.noted_at, s.prev,
               (SELECT seq FROM sqlite_sequence WHERE name = 'semel_outbox') AS seq,
               (SELECT count(DISTINCT key) FROM semel_outbox_exception e
                WHERE e.stream = s.stream AND e.shard = s.shard AND kind IN ('parked', 'behind')) AS parked_keys,
               (SELECT count(*) FROM semel_outbox_exception e
                WHERE e.stream = s.stream AND e.shard = s.shard AND asked IS NOT NULL) AS asked,
               (SELECT min(since) FROM semel_outbox_exception e
                WHERE e.stream = s.stream AND e.shard = s.shard) AS oldest
             FROM semel_outbox_shard s ORDER BY s.stream, s.shard",
        )
        .fetch_all(&self.reader)
        .await
        .map_err(|error| classify("standing", error))?;
        let mut holds = Vec::new();
        let mut read = |row: &SqliteRow| -> Result<ShardStanding, sqlx::Error> {
            let shard = ShardId {
                stream: row.try_get("stream")?,
                index: row.try_get("shard")?,
            };
            let (prev, seq): (i64, Option<i64>) = (row.try_get("prev")?, row.try_get("seq")?);
            if seq.unwrap_or(0) < prev {
                holds.push(Hold {
                    kind: "identity_changed",
                    who: shard.to_string(),
                    age_ms: None,
                    detail: format!(
                        "the outbox has given out ids up to {}, the cursor stands at {prev}",
                        seq.unwrap_or(0)
                    ),
                    advice: "the file was restored or its table emptied: semel outbox rescan".to_owned(),
                });
            }
            let owned: bool = row.try_get("owned")?;
            let until = Timestamp(row.try_get("until")?);
            let (parked_keys, asked): (i64, i64) = (row.try_get("parked_keys")?, row.try_get("asked")?);
            Ok(ShardStanding {
                shard,
                owner: row.try_get("owner")?,
                until: owned.then_some(until),
                held: owned && until > now,
                note: row.try_get("note")?,
                noted_at: row.try_get::<Option<i64>, _>("noted_at")?.map(Timestamp),
                parked_keys: parked_keys.unsigned_abs(),
                asked: asked.unsigned_abs(),
                oldest_exception: row.try_get::<Option<i64>, _>("oldest")?.map(Timestamp),
            })
        };
        let shards: Result<Vec<_>, _> = rows.iter().map(&mut read).collect();
        Ok(Standing {
            now,
            shards: shards.map_err(|error| classify("standing", error))?,
            holds,
            hidden: vec!["SQLite does not tell which process holds the file".to_owned()],
        })
    }

    async fn take(&self, lease: &ShardLease, size: PageSize) -> Result<Guarded<Taken>, StoreError> {
        let failed = |error| classify("take", error);
        // Most looks find nothing asked; those take no lock.
        let (mine, any): (bool, bool) = sqlx::query_as(
            "SELECT EXISTS (SELECT 1 FROM semel_outbox_shard
                 WHERE stream = ?1 AND shard = ?2 AND epoch = ?3 AND nonce = ?4),
               EXISTS (SELECT 1 FROM semel_outbox_exception WHERE stream = ?1 AND shard = ?2 AND asked IS NOT NULL)",
        )
        .bind(&lease.shard.stream)
        .bind(lease.shard.index)
        .bind(lease.epoch.0)
        .bind(&lease.nonce.0[..])
        .fetch_one(&self.reader)
        .await
        .map_err(failed)?;
        if !mine {
            return Ok(Guarded::Lost);
        }
        if !any {
            return Ok(Guarded::Done(Taken::default()));
        }
        let mut tx = self.begin().await?;
        if !Self::desk_owned(&mut tx, lease).await? {
            tx.rollback().await.map_err(failed)?;
            return Ok(Guarded::Lost);
        }
        let sql = format!(
            "SELECT {DESK}, {EVENT} FROM semel_outbox_exception WHERE stream = ?1 AND shard = ?2
               AND (asked IS NOT NULL OR {LISTED} AND key IN (SELECT key FROM semel_outbox_exception
                 WHERE stream = ?1 AND shard = ?2 AND asked IN ('retry', 'release') AND {LISTED}))
             ORDER BY id LIMIT ?3"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(&lease.shard.stream)
            .bind(lease.shard.index)
            .bind(i64::from(size.rows) + 1)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed)?;
        let mut taking = Taking::new(size);
        for row in &rows {
            if !taking.add(desk_row(row)?) {
                break;
            }
        }
        let (taken, marked) = taking.done();
        for row in marked {
            sqlx::query("UPDATE semel_outbox_exception SET taken = taken + 1 WHERE id = ?1")
                .bind(row)
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
        }
        self.commit(tx).await?;
        Ok(Guarded::Done(taken))
    }

    async fn settle(
        &self,
        lease: &ShardLease,
        save: &RedriveSave,
    ) -> Result<Guarded<Vec<Bytes>>, StoreError> {
        let failed = |error| classify("settle", error);
        let mut tx = self.begin().await?;
        if !Self::desk_owned(&mut tx, lease).await? {
            tx.rollback().await.map_err(failed)?;
            return Ok(Guarded::Lost);
        }
        for row in &save.removed {
            sqlx::query("DELETE FROM semel_outbox_exception WHERE id = ?1")
                .bind(row)
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
        }
        for it in &save.failed {
            sqlx::query(
                "UPDATE semel_outbox_exception SET asked = NULL, taken = 0, attempts = attempts + 1, reason = ?3,
                   kind = CASE kind WHEN 'behind' THEN 'parked' ELSE kind END
                 WHERE id = ?1 AND attempts = ?2",
            )
            .bind(it.row)
            .bind(it.attempts)
            .bind(&it.reason)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        }
        let mut left = Vec::new();
        for (key, wish) in &save.next {
            let Some((first, _)) = Self::desk_first(&mut tx, &lease.shard, key).await? else {
                continue;
            };
            sqlx::query(
                "UPDATE semel_outbox_exception SET kind = 'parked', asked = coalesce(asked, ?2) WHERE id = ?1",
            )
            .bind(first)
            .bind(wish.map(Wish::as_str))
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
            left.push(key.clone());
        }
        self.commit(tx).await?;
        Ok(Guarded::Done(left))
    }

    async fn note(&self, lease: &ShardLease, note: Option<&str>) -> Result<Guarded<()>, StoreError> {
        let done = sqlx::query(
            "UPDATE semel_outbox_shard SET note = ?5, noted_at = ?6
             WHERE stream = ?1 AND shard = ?2 AND epoch = ?3 AND nonce = ?4",
        )
        .bind(&lease.shard.stream)
        .bind(lease.shard.index)
        .bind(lease.epoch.0)
        .bind(&lease.nonce.0[..])
        .bind(note)
        .bind(note.map(|_| self.now().0))
        .execute(&self.writer)
        .await
        .map_err(|error| classify("note", error))?;
        Ok(if done.rows_affected() == 1 {
            Guarded::Done(())
        } else {
            Guarded::Lost
        })
    }

    async fn rescan(
        &self,
        stream: Option<&str>,
        by: &str,
        why: &str,
        dry_run: bool,
    ) -> Result<Rescan, StoreError> {
        let failed = |error| classify("rescan", error);
        let now = self.now();
        let mut tx = self.begin().await?;
        let shards: Vec<(String, u16, String, bool, i64)> = sqlx::query_as(
            "SELECT stream, shard, owner, nonce IS NOT NULL, until FROM semel_outbox_shard
             WHERE ?1 IS NULL OR stream = ?1 ORDER BY stream, shard",
        )
        .bind(stream)
        .fetch_all(&mut *tx)
        .await
        .map_err(failed)?;
        let rows: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM (SELECT 1 FROM semel_outbox WHERE ?1 IS NULL OR stream = ?1 LIMIT ?2)",
        )
        .bind(stream)
        .bind(i64::try_from(RESCAN_ROWS_COUNTED_MAX).unwrap_or(i64::MAX))
        .fetch_one(&mut *tx)
        .await
        .map_err(failed)?;
        let owned = shards
            .iter()
            .filter(|(.., owned, until)| *owned && *until > now.0);
        let owned = owned.map(|(stream, index, owner, ..)| {
            let shard = ShardId {
                stream: stream.clone(),
                index: *index,
            };
            (shard, owner.clone())
        });
        let rescan = Rescan {
            rows: rows.unsigned_abs(),
            shards: shards.len() as u64,
            owned: owned.collect(),
        };
        if dry_run {
            tx.rollback().await.map_err(failed)?;
            return Ok(rescan);
        }
        // New ids are above all that a mark or what is set aside still speaks of, see ADOPT_OUTBOX.
        for statement in crate::ADOPT_OUTBOX
            .split_inclusive(';')
            .filter(|it| it.contains("sqlite_sequence"))
        {
            sqlx::query(statement).execute(&mut *tx).await.map_err(failed)?;
        }
        sqlx::query(
            "UPDATE semel_outbox_shard SET prev = 0, open = NULL, last_id = 0, batch_no = max(batch_no + 1, ?2),
               version = version + 1, epoch = epoch + 1, nonce = NULL, owner = '', until = 0, suspect = NULL,
               log = CASE WHEN log IS NULL THEN NULL ELSE 'rebind' END
             WHERE ?1 IS NULL OR stream = ?1",
        )
        .bind(stream)
        .bind(now.0)
        .execute(&mut *tx)
        .await
        .map_err(failed)?;
        // A mark may be of an outbox that was replaced: the next one is set when this one has rested.
        sqlx::query(
            "UPDATE semel_outbox_reshard SET hold_until = min(hold_until, ?2) WHERE ?1 IS NULL OR stream = ?1",
        )
        .bind(stream)
        .bind(now.0)
        .execute(&mut *tx)
        .await
        .map_err(failed)?;
        self.desk_write(
            &mut tx,
            &DeskEntry::about(stream.unwrap_or("*"), "rescan", by, why),
        )
        .await?;
        self.commit(tx).await?;
        Ok(rescan)
    }

    async fn replay(&self, replay: &Replay) -> Result<Replayed, StoreError> {
        let failed = |error| classify("replay", error);
        let sql = format!(
            "SELECT {EVENT} FROM semel_outbox o
             WHERE o.id > ?1 AND o.id <= ?2 AND o.stream = ?3 AND o.created_at >= ?4 AND o.created_at < ?5
               AND (?6 IS NULL OR o.key = ?6) AND (?7 IS NULL OR o.topic = ?7)
               AND coalesce(instr(o.headers, CAST(?8 AS BLOB)) = 0, 1)
               AND EXISTS (SELECT 1 FROM semel_outbox_shard s WHERE s.stream = o.stream
                 AND o.slot BETWEEN s.slot_first AND s.slot_last AND o.id <= s.prev)
               AND NOT EXISTS (SELECT 1 FROM semel_outbox_exception e WHERE e.id = o.id)
               AND NOT EXISTS (SELECT 1 FROM semel_outbox_desk_log l WHERE l.\"row\" = o.id AND l.before IS NOT NULL)
             ORDER BY o.id LIMIT ?9"
        );
        let mut tx = self.begin().await?;
        let found = sqlx::query(AssertSqlSafe(sql))
            .bind(replay.after)
            .bind(replay.upto)
            .bind(&replay.stream)
            .bind(replay.from.map_or(i64::MIN, |from| from.0))
            .bind(replay.to.map_or(i64::MAX, |to| to.0))
            .bind(replay.key.as_deref())
            .bind(&replay.topic)
            .bind(REPLAY_MARK.as_bytes())
            .bind(replay.rows_max() as i64 + 1)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed)?;
        let found = found.iter().map(page_row).collect::<Result<Vec<_>, _>>()?;
        let (replayed, copies) = replay.copies(found, &*self.clock)?;
        for (row, copy) in &copies {
            if replay.fresh_ids {
                crate::tx::enqueue(&mut tx, copy).await?;
                continue;
            }
            sqlx::query(
                "INSERT INTO semel_outbox_exception (id, shard, kind, attempts, reason, since, stream, slot, event_id,
                   topic, type, source, key, content_type, headers, data, traceparent, created_at, asked)
                 SELECT o.id, s.shard, 'skipped', 0, ?2, ?3, o.stream, o.slot, o.event_id, o.topic, o.type, o.source,
                   o.key, o.content_type, ?4, o.data, o.traceparent, o.created_at, 'retry'
                 FROM semel_outbox o JOIN semel_outbox_shard s
                   ON s.stream = o.stream AND o.slot BETWEEN s.slot_first AND s.slot_last
                 WHERE o.id = ?1",
            )
            .bind(row)
            .bind(REPLAY_REASON)
            .bind(self.now().0)
            .bind(encode_event(copy).map(String::into_bytes))
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        }
        if replay.dry_run {
            tx.rollback().await.map_err(failed)?;
        } else {
            self.commit(tx).await?;
        }
        Ok(replayed)
    }

    async fn kept(&self, stream: &str, after: i64, limit: u32) -> Result<Vec<KeptRow>, StoreError> {
        let failed = |error| classify("kept", error);
        let mut rows = sqlx::query(
            r#"SELECT o.id, o.event_id, o.key, o.topic, o.data,
               CASE WHEN EXISTS (SELECT 1 FROM semel_outbox_exception e WHERE e.id = o.id) THEN 'set_aside'
                 WHEN EXISTS (SELECT 1 FROM semel_outbox_desk_log l WHERE l."row" = o.id AND l.action IN ('drop', 'release')) THEN 'dropped'
                 WHEN EXISTS (SELECT 1 FROM semel_outbox_desk_log l WHERE l."row" = o.id AND l.action = 'edit') THEN 'edited'
                 WHEN EXISTS (SELECT 1 FROM semel_outbox_shard s WHERE s.stream = o.stream
                   AND o.slot BETWEEN s.slot_first AND s.slot_last AND o.id <= s.prev) THEN 'sent'
                 ELSE 'waiting' END AS state
             FROM semel_outbox o WHERE o.stream = ?1 AND o.id > ?2 ORDER BY o.id LIMIT ?3"#,
        )
        .bind(stream)
        .bind(after)
        .bind(limit)
        .fetch(&self.reader);
        let mut kept = Vec::new();
        while let Some(row) = rows.try_next().await.map_err(failed)? {
            kept.push(kept_row(&row).map_err(failed)?);
        }
        Ok(kept)
    }

    async fn last_row(&self) -> Result<i64, StoreError> {
        let last: Option<i64> =
            sqlx::query_scalar("SELECT seq FROM sqlite_sequence WHERE name = 'semel_outbox'")
                .fetch_optional(&self.reader)
                .await
                .map_err(|error| classify("last_row", error))?;
        Ok(last.unwrap_or(0))
    }

    async fn log_about(&self, stream: &str, action: &str, by: &str, why: &str) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        self.desk_write(&mut tx, &DeskEntry::about(stream, action, by, why))
            .await?;
        self.commit(tx).await
    }
}
