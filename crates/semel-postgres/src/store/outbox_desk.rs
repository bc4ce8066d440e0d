//! The operator's desk of the outbox on PostgreSQL. A change and a settling lock the shard's row first and read the list
//! second (rule O15); so does every save of the cursor, which is what adds to a list.

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::inbox::headers::encode_event;
use semel_core::relay::{DeskRefusal, ShardId, ShardLease, decide};
use semel_core::store::{
    DeskChange, DeskEntry, DeskQuery, DeskRequest, DeskRow, Guarded, KeptRow, KeptState, OutboxDesk,
    PageSize, REPLAY_MARK, REPLAY_REASON, RESCAN_ROWS_COUNTED_MAX, RedriveSave, Replay, Replayed, Rescan,
    Standing, Taken, Taking, Wish,
};
use semel_core::{ErrorKind, Event, StoreError, SystemClock, Timestamp};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Postgres as Driver, Row as _, Transaction};

use super::outbox_rows::{EVENT, exception, page_row};
use crate::db::Postgres;
use crate::error::{autocommit_failed, classify};
use crate::gate::{query, query_as, query_scalar};

/// The columns that [`desk_row`] reads.
const DESK: &str =
    "batch_no, shard, kind, attempts, reason, semel.us(since) AS since_us, asked, edits, taken";
/// What a list is made of.
const LISTED: &str = "kind IN ('parked', 'behind') AND key IS NOT NULL";
/// How long a rescan waits for writers before it gives up: those that come after it wait behind it.
const RESCAN_LOCK_WAIT: &str = "SET LOCAL lock_timeout = '5s'";

type Tx = Transaction<'static, Driver>;

fn desk_row(row: &PgRow) -> Result<DeskRow, StoreError> {
    let stored = exception(row)?;
    let read = || -> Result<DeskRow, sqlx::Error> {
        let asked: Option<String> = row.try_get("asked")?;
        let (edits, taken): (i32, i32) = (row.try_get("edits")?, row.try_get("taken")?);
        Ok(DeskRow {
            stored,
            asked: asked.as_deref().and_then(Wish::parse),
            edits: edits.unsigned_abs(),
            taken: taken.unsigned_abs(),
        })
    };
    read().map_err(|error| classify("desk", error))
}

fn entry(row: &PgRow) -> Result<DeskEntry, sqlx::Error> {
    Ok(DeskEntry {
        entry: row.try_get("entry")?,
        at: Timestamp(row.try_get("at_us")?),
        by: row.try_get("by")?,
        why: row.try_get("why")?,
        action: row.try_get("action")?,
        stream: row.try_get("stream")?,
        row: row.try_get("row")?,
        event_id: row.try_get("event_id")?,
        before: row.try_get("before")?,
    })
}

fn kept_row(row: &PgRow) -> Result<KeptRow, sqlx::Error> {
    let (state, hash): (String, Vec<u8>) = (row.try_get("state")?, row.try_get("sha256")?);
    Ok(KeptRow {
        row: row.try_get("id")?,
        event_id: row.try_get("event_id")?,
        key: row.try_get::<Option<Vec<u8>>, _>("key")?.map(Bytes::from),
        topic: row.try_get("topic")?,
        sha256: hash
            .try_into()
            .map_err(|_| sqlx::Error::Decode("sha256 is not 32 bytes".into()))?,
        state: KeptState::parse(&state),
    })
}

async fn find(tx: &mut Tx, row: i64) -> Result<Option<DeskRow>, StoreError> {
    let sql = format!("SELECT {EVENT}, {DESK} FROM semel.outbox_exception WHERE id = $1");
    let found = query(AssertSqlSafe(sql))
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
async fn first(tx: &mut Tx, shard: &ShardId, key: &Bytes) -> Result<Option<(i64, Option<Wish>)>, StoreError> {
    let sql = format!(
        "SELECT id, asked FROM semel.outbox_exception
         WHERE stream = $1 AND shard = $2 AND key = $3 AND {LISTED} ORDER BY id LIMIT 1"
    );
    let found: Option<(i64, Option<String>)> = query_as(AssertSqlSafe(sql))
        .bind(&shard.stream)
        .bind(i32::from(shard.index))
        .bind(&key[..])
        .fetch_optional(&mut **tx)
        .await
        .map_err(|error| classify("desk", error))?;
    Ok(found.map(|(id, asked)| (id, asked.as_deref().and_then(Wish::parse))))
}

pub(super) async fn write(tx: &mut Tx, entry: &DeskEntry) -> Result<(), StoreError> {
    query(
        "INSERT INTO semel.outbox_desk_log (\"by\", why, action, stream, \"row\", event_id, before)
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(&entry.by)
    .bind(&entry.why)
    .bind(&entry.action)
    .bind(&entry.stream)
    .bind(entry.row)
    .bind(entry.event_id)
    .bind(&entry.before)
    .execute(&mut **tx)
    .await
    .map_err(|error| classify("desk", error))?;
    Ok(())
}

/// Locks the shard's row, if it is still this owner's.
async fn lock_owned(tx: &mut Tx, lease: &ShardLease) -> Result<bool, StoreError> {
    let found: Option<i32> = query_scalar(
        "SELECT shard FROM semel.outbox_shard WHERE stream = $1 AND shard = $2 AND epoch = $3 AND nonce = $4
         FOR NO KEY UPDATE",
    )
    .bind(&lease.shard.stream)
    .bind(i32::from(lease.shard.index))
    .bind(lease.epoch.0)
    .bind(&lease.nonce.0[..])
    .fetch_optional(&mut **tx)
    .await
    .map_err(|error| classify("desk", error))?;
    Ok(found.is_some())
}

#[async_trait]
impl OutboxDesk for Postgres {
    async fn desk_rows(&self, wanted: &DeskQuery) -> Result<Vec<DeskRow>, StoreError> {
        let sql = format!(
            "SELECT {EVENT}, {DESK} FROM semel.outbox_exception
             WHERE id > $1 AND ($2::text IS NULL OR stream = $2) AND ($3::bytea IS NULL OR key = $3)
               AND ($4::text IS NULL OR kind = $4)
             ORDER BY id LIMIT $5"
        );
        let rows = query(AssertSqlSafe(sql))
            .bind(wanted.after)
            .bind(&wanted.stream)
            .bind(wanted.key.as_deref())
            .bind(wanted.kind.map(|kind| kind.as_str()))
            .bind(i64::from(wanted.limit))
            .fetch_all(&self.gate)
            .await
            .map_err(|error| classify("desk", error))?;
        rows.iter().map(desk_row).collect()
    }

    async fn desk_row(&self, row: i64) -> Result<Option<DeskRow>, StoreError> {
        let sql = format!("SELECT {EVENT}, {DESK} FROM semel.outbox_exception WHERE id = $1");
        let found = query(AssertSqlSafe(sql))
            .bind(row)
            .fetch_optional(&self.gate)
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
        let shard: Option<i32> = query_scalar(
            "SELECT s.shard FROM semel.outbox_exception e
             JOIN semel.outbox_shard s ON s.stream = e.stream AND s.shard = e.shard
             WHERE e.id = $1 FOR NO KEY UPDATE OF s",
        )
        .bind(request.row)
        .fetch_optional(&mut *tx)
        .await
        .map_err(failed)?;
        // What is read now, behind the lock, is what counts.
        let found = match shard {
            Some(_) => find(&mut tx, request.row).await?,
            None => None,
        };
        let head = match found
            .as_ref()
            .and_then(|row| Some((&row.stored.shard, row.list()?)))
        {
            Some((shard, key)) => first(&mut tx, shard, key).await?,
            None => None,
        };
        let decided = decide(found.as_ref(), head, &request.change);
        let (Ok(true), Some(row)) = (&decided, found) else {
            tx.rollback().await.map_err(failed)?;
            return Ok(decided.map(|_| ()));
        };
        let old = row.stored.row.row.event;
        match &request.change {
            DeskChange::Ask(wish) => {
                query("UPDATE semel.outbox_exception SET asked = $2, taken = 0 WHERE id = $1")
                    .bind(request.row)
                    .bind(wish.as_str())
                    .execute(&mut *tx)
                    .await
                    .map_err(failed)?;
            }
            DeskChange::Edit { event, .. } => {
                query(
                    "UPDATE semel.outbox_exception SET edits = edits + 1, topic = $2, type = $3, content_type = $4,
                     headers = $5, data = $6, traceparent = $7 WHERE id = $1",
                )
                .bind(request.row)
                .bind(&event.topic)
                .bind(&event.kind)
                .bind(&event.content_type)
                .bind(encode_event(event))
                .bind(event.data.as_deref())
                .bind(&event.traceparent)
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            }
        }
        write(&mut tx, &DeskEntry::of(request, &old)).await?;
        self.commit(tx).await?;
        Ok(Ok(()))
    }

    async fn desk_log(&self, after: i64, limit: u32) -> Result<Vec<DeskEntry>, StoreError> {
        let rows = query(
            "SELECT *, semel.us(at) AS at_us FROM semel.outbox_desk_log WHERE entry > $1 ORDER BY entry LIMIT $2",
        )
        .bind(after)
        .bind(i64::from(limit))
        .fetch_all(&self.gate)
        .await
        .and_then(|rows| rows.iter().map(entry).collect());
        rows.map_err(|error| classify("desk", error))
    }

    async fn standing(&self) -> Result<Standing, StoreError> {
        self.outbox_standing().await
    }

    async fn take(&self, lease: &ShardLease, size: PageSize) -> Result<Guarded<Taken>, StoreError> {
        let failed = |error| classify("take", error);
        // Most looks find nothing asked; those take no lock.
        let (mine, any): (bool, bool) = query_as(
            "SELECT EXISTS (SELECT FROM semel.outbox_shard
                 WHERE stream = $1 AND shard = $2 AND epoch = $3 AND nonce = $4),
               EXISTS (SELECT FROM semel.outbox_exception WHERE stream = $1 AND shard = $2 AND asked IS NOT NULL)",
        )
        .bind(&lease.shard.stream)
        .bind(i32::from(lease.shard.index))
        .bind(lease.epoch.0)
        .bind(&lease.nonce.0[..])
        .fetch_one(&self.own)
        .await
        .map_err(failed)?;
        if !mine {
            return Ok(Guarded::Lost);
        }
        if !any {
            return Ok(Guarded::Done(Taken::default()));
        }
        let mut tx = self.begin().await?;
        if !lock_owned(&mut tx, lease).await? {
            tx.rollback().await.map_err(failed)?;
            return Ok(Guarded::Lost);
        }
        let sql = format!(
            "SELECT {EVENT}, {DESK} FROM semel.outbox_exception WHERE stream = $1 AND shard = $2
               AND (asked IS NOT NULL OR {LISTED} AND key IN (SELECT key FROM semel.outbox_exception
                 WHERE stream = $1 AND shard = $2 AND asked IN ('retry', 'release') AND {LISTED}))
             ORDER BY id LIMIT $3"
        );
        let rows = query(AssertSqlSafe(sql))
            .bind(&lease.shard.stream)
            .bind(i32::from(lease.shard.index))
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
        query("UPDATE semel.outbox_exception SET taken = taken + 1 WHERE id = ANY($1)")
            .bind(marked)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
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
        if !lock_owned(&mut tx, lease).await? {
            tx.rollback().await.map_err(failed)?;
            return Ok(Guarded::Lost);
        }
        query("DELETE FROM semel.outbox_exception WHERE id = ANY($1)")
            .bind(&save.removed)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        for it in &save.failed {
            query(
                "UPDATE semel.outbox_exception SET asked = NULL, taken = 0, attempts = attempts + 1, reason = $3,
                   kind = CASE kind WHEN 'behind' THEN 'parked' ELSE kind END
                 WHERE id = $1 AND attempts = $2",
            )
            .bind(it.row)
            .bind(i64::from(it.attempts))
            .bind(&it.reason)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        }
        let mut left = Vec::new();
        for (key, wish) in &save.next {
            let Some((head, _)) = first(&mut tx, &lease.shard, key).await? else {
                continue;
            };
            query("UPDATE semel.outbox_exception SET kind = 'parked', asked = coalesce(asked, $2) WHERE id = $1")
                .bind(head)
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
        let done = query(
            "UPDATE semel.outbox_shard SET note = $5, noted_at = CASE WHEN $5::text IS NOT NULL THEN clock_timestamp() END
             WHERE stream = $1 AND shard = $2 AND epoch = $3 AND nonce = $4",
        )
        .bind(&lease.shard.stream)
        .bind(i32::from(lease.shard.index))
        .bind(lease.epoch.0)
        .bind(&lease.nonce.0[..])
        // What PostgreSQL's text cannot hold is not worth losing the rest for.
        .bind(note.map(|note| note.replace('\0', " ")))
        .execute(&self.own)
        .await
        .map_err(|error| autocommit_failed("note", error))?;
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
        let mut tx = self.begin().await?;
        let shards: Vec<(String, i32, String, bool)> = query_as(
            "SELECT stream, shard, owner, nonce IS NOT NULL AND until > clock_timestamp() FROM semel.outbox_shard
             WHERE $1::text IS NULL OR stream = $1 ORDER BY stream, shard",
        )
        .bind(stream)
        .fetch_all(&mut *tx)
        .await
        .map_err(failed)?;
        let owned = shards
            .iter()
            .filter(|(.., owned)| *owned)
            .map(|(stream, index, owner, _)| {
                let shard = ShardId {
                    stream: stream.clone(),
                    index: u16::try_from(*index).unwrap_or(u16::MAX),
                };
                (shard, owner.clone())
            });
        let mut rescan = Rescan {
            rows: 0,
            shards: shards.len() as u64,
            owned: owned.collect(),
        };
        let all = stream.is_none() && !dry_run;
        let rows: i64 = if all {
            query(RESCAN_LOCK_WAIT).execute(&mut *tx).await.map_err(failed)?;
            query_scalar("SELECT semel.adopt_outbox()")
                .fetch_one(&mut *tx)
                .await
                .map_err(failed)?
        } else {
            query_scalar(
                "SELECT count(*) FROM (SELECT FROM semel.outbox WHERE $1::text IS NULL OR stream = $1 LIMIT $2) t",
            )
            .bind(stream)
            .bind(i64::try_from(RESCAN_ROWS_COUNTED_MAX).unwrap_or(i64::MAX))
            .fetch_one(&mut *tx)
            .await
            .map_err(failed)?
        };
        rescan.rows = rows.unsigned_abs();
        if dry_run {
            tx.rollback().await.map_err(failed)?;
            return Ok(rescan);
        }
        if !all {
            // A map that is just being replaced is waited for: its new shards are meant, too.
            query(RESCAN_LOCK_WAIT).execute(&mut *tx).await.map_err(failed)?;
            query("LOCK TABLE semel.outbox_shard IN EXCLUSIVE MODE")
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            let home: bool = query_scalar(
                "SELECT coalesce((SELECT system_identifier FROM pg_control_system())
                   = (SELECT system_id FROM semel.outbox_incarnation), false)
                   AND NOT EXISTS (SELECT FROM semel.outbox_shard
                     WHERE pg_snapshot_xmax(prev) > pg_snapshot_xmax(pg_current_snapshot()))",
            )
            .fetch_one(&mut *tx)
            .await
            .map_err(failed)?;
            if !home {
                let text = "this database is another one than the cursors were made on: only a rescan of all streams \
                            makes it their home (leave out --stream)";
                return Err(StoreError::new(ErrorKind::IdentityChanged, "rescan", text));
            }
            query(
                "UPDATE semel.outbox_shard SET prev = '1:1:', open = NULL, last_id = 0,
                   batch_no = greatest(batch_no + 1, semel.created_us(clock_timestamp())),
                   version = version + 1, epoch = epoch + 1, nonce = NULL, owner = '', until = '-infinity', suspect = NULL,
                   log = CASE WHEN log IS NULL THEN NULL ELSE 'rebind' END
                 WHERE stream = $1",
            )
            .bind(stream)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        }
        write(
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
            "SELECT {EVENT} FROM semel.outbox o
             WHERE o.id > $1 AND o.id <= $2 AND o.stream = $3
               AND ($4::bigint IS NULL OR semel.created_us(o.created_at) >= $4)
               AND ($5::bigint IS NULL OR semel.created_us(o.created_at) < $5)
               AND ($6::bytea IS NULL OR o.key = $6) AND ($7::text IS NULL OR o.topic = $7)
               AND coalesce(position($8 IN o.headers) = 0, true)
               AND EXISTS (SELECT FROM semel.outbox_shard s WHERE s.stream = o.stream
                 AND o.slot BETWEEN s.slot_first AND s.slot_last AND pg_visible_in_snapshot(o.xid, s.prev))
               AND NOT EXISTS (SELECT FROM semel.outbox_exception e WHERE e.id = o.id)
               AND NOT EXISTS (SELECT FROM semel.outbox_desk_log l WHERE l.\"row\" = o.id AND l.before IS NOT NULL)
             ORDER BY o.id LIMIT $9"
        );
        let mut tx = self.begin().await?;
        let found = query(AssertSqlSafe(sql))
            .bind(replay.after)
            .bind(replay.upto)
            .bind(&replay.stream)
            .bind(replay.from.map(|from| from.0))
            .bind(replay.to.map(|to| to.0))
            .bind(replay.key.as_deref())
            .bind(&replay.topic)
            .bind(REPLAY_MARK)
            .bind(replay.rows_max() as i64 + 1)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed)?;
        let found = found.iter().map(page_row).collect::<Result<Vec<_>, _>>()?;
        let (replayed, copies) = replay.copies(found, &SystemClock)?;
        if copies.is_empty() {
            tx.rollback().await.map_err(failed)?;
        } else {
            if replay.fresh_ids {
                let copies: Vec<Event> = copies.into_iter().map(|(_, copy)| copy).collect();
                crate::tx::enqueue_many(&mut tx, &copies).await?;
            } else {
                query(
                    "INSERT INTO semel.outbox_exception (id, shard, kind, attempts, reason, stream, slot, event_id,
                       topic, type, source, key, content_type, headers, data, traceparent, created_at, asked)
                     SELECT o.id, s.shard, 'skipped', 0, $3, o.stream, o.slot, o.event_id, o.topic, o.type, o.source,
                       o.key, o.content_type, r.headers, o.data, o.traceparent, o.created_at, 'retry'
                     FROM unnest($1::bigint[], $2::text[]) AS r(id, headers)
                     JOIN semel.outbox o ON o.id = r.id
                     JOIN semel.outbox_shard s ON s.stream = o.stream AND o.slot BETWEEN s.slot_first AND s.slot_last",
                )
                .bind(copies.iter().map(|(row, _)| *row).collect::<Vec<_>>())
                .bind(copies.iter().map(|(_, copy)| encode_event(copy)).collect::<Vec<_>>())
                .bind(REPLAY_REASON)
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            }
            self.commit(tx).await?;
        }
        Ok(replayed)
    }

    async fn kept(&self, stream: &str, after: i64, limit: u32) -> Result<Vec<KeptRow>, StoreError> {
        let rows = query(
            r#"SELECT o.id, o.event_id, o.key, o.topic, sha256(coalesce(o.data, ''::bytea)) AS sha256,
               CASE WHEN EXISTS (SELECT FROM semel.outbox_exception e WHERE e.id = o.id) THEN 'set_aside'
                 WHEN EXISTS (SELECT FROM semel.outbox_desk_log l WHERE l."row" = o.id AND l.action IN ('drop', 'release')) THEN 'dropped'
                 WHEN EXISTS (SELECT FROM semel.outbox_desk_log l WHERE l."row" = o.id AND l.action = 'edit') THEN 'edited'
                 WHEN EXISTS (SELECT FROM semel.outbox_shard s WHERE s.stream = o.stream
                   AND o.slot BETWEEN s.slot_first AND s.slot_last AND pg_visible_in_snapshot(o.xid, s.prev)) THEN 'sent'
                 ELSE 'waiting' END AS state
             FROM semel.outbox o WHERE o.stream = $1 AND o.id > $2 ORDER BY o.id LIMIT $3"#,
        )
        .bind(stream)
        .bind(after)
        .bind(i64::from(limit))
        .fetch_all(&self.gate)
        .await
        .and_then(|rows| rows.iter().map(kept_row).collect());
        rows.map_err(|error| classify("kept", error))
    }

    async fn last_row(&self) -> Result<i64, StoreError> {
        query_scalar("SELECT coalesce(max(id), 0) FROM semel.outbox")
            .fetch_one(&self.gate)
            .await
            .map_err(|error| classify("last_row", error))
    }

    async fn log_about(&self, stream: &str, action: &str, by: &str, why: &str) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        write(&mut tx, &DeskEntry::about(stream, action, by, why)).await?;
        self.commit(tx).await
    }
}
