//! The operator's desk of the outbox on MariaDB and MySQL. A change and a settling lock the shard's row first and read the
//! list second (rule O15); so does every save of the cursor, which is what adds to a list. Each statement sees what is
//! committed, so what is read behind the lock is what counts.

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::TryStreamExt as _;
use semel_core::inbox::headers::encode_event;
use semel_core::relay::{DeskRefusal, ShardId, ShardLease, decide};
use semel_core::store::{
    DeskChange, DeskEntry, DeskQuery, DeskRequest, DeskRow, Guarded, KeptRow, OutboxDesk, PageSize,
    RedriveSave, Replay, Replayed, Rescan, Standing, Taken, Taking, Wish,
};
use semel_core::{StoreError, Timestamp};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySql as Driver, Transaction};
use uuid::Uuid;

use super::key_rows::NOW;
use super::outbox_mark::{Range, condition};
use super::outbox_rows::{EVENT, bytes, exception, number, text};
use crate::db::Mysql;
use crate::error::{autocommit_failed, classify};

/// The columns that [`desk_row`] reads, of the table `o`.
const DESK: &str = "o.batch_no, o.shard, o.kind, o.attempts, o.reason, o.since_us, o.asked, o.edits, o.taken";
/// What a list is made of.
const LISTED: &str = "kind IN ('parked', 'behind') AND `key` IS NOT NULL";
/// How often a change looks again for the shard of its row, which may be given another one meanwhile.
const MOVES_MAX: usize = 5;
/// Rows of a list that one statement names at most.
const ROWS_AT_ONCE: usize = 500;

pub(super) type Tx = Transaction<'static, Driver>;

fn desk_row(row: &MySqlRow) -> Result<DeskRow, StoreError> {
    let stored = exception(row)?;
    let count = |column| number(row, column).map(|it| u32::try_from(it).unwrap_or(u32::MAX));
    let read = || -> Result<DeskRow, sqlx::Error> {
        Ok(DeskRow {
            stored,
            asked: text(row, "asked")?.as_deref().and_then(Wish::parse),
            edits: count("edits")?,
            taken: count("taken")?,
        })
    };
    read().map_err(|error| classify("desk", error))
}

fn entry(row: &MySqlRow) -> Result<DeskEntry, sqlx::Error> {
    let id = bytes(row, "event_id")?.unwrap_or_default();
    Ok(DeskEntry {
        entry: number(row, "entry")?,
        at: Timestamp(number(row, "at_us")?),
        by: text(row, "by")?.unwrap_or_default(),
        why: text(row, "why")?.unwrap_or_default(),
        action: text(row, "action")?.unwrap_or_default(),
        stream: text(row, "stream")?.unwrap_or_default(),
        row: number(row, "row")?,
        event_id: Uuid::from_slice(&id).unwrap_or_default(),
        before: text(row, "before")?,
    })
}

async fn find(tx: &mut Tx, row: i64) -> Result<Option<DeskRow>, StoreError> {
    let sql = format!("SELECT {DESK}, {EVENT} FROM semel_outbox_exception o WHERE o.id = ?");
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
async fn first(tx: &mut Tx, shard: &ShardId, key: &Bytes) -> Result<Option<(i64, Option<Wish>)>, StoreError> {
    let failed = |error| classify("desk", error);
    let sql = format!(
        "SELECT id, asked FROM semel_outbox_exception
         WHERE stream = ? AND shard = ? AND `key` = ? AND {LISTED} ORDER BY id LIMIT 1"
    );
    let found = sqlx::query(AssertSqlSafe(sql))
        .bind(&shard.stream)
        .bind(shard.index)
        .bind(&key[..])
        .fetch_optional(&mut **tx)
        .await
        .map_err(failed)?;
    let read = |row: MySqlRow| -> Result<(i64, Option<Wish>), sqlx::Error> {
        let asked = text(&row, "asked")?;
        Ok((number(&row, "id")?, asked.as_deref().and_then(Wish::parse)))
    };
    found.map(read).transpose().map_err(failed)
}

pub(super) async fn write(tx: &mut Tx, entry: &DeskEntry) -> Result<(), StoreError> {
    let sql = format!(
        "INSERT INTO semel_outbox_desk_log (at_us, `by`, why, action, stream, `row`, event_id, `before`)
         VALUES ({NOW}, ?, ?, ?, ?, ?, ?, ?)"
    );
    sqlx::query(AssertSqlSafe(sql))
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

/// Locks the shard's row, if it is still this owner's.
async fn lock_owned(tx: &mut Tx, lease: &ShardLease) -> Result<bool, StoreError> {
    let found = sqlx::query(
        "SELECT shard FROM semel_outbox_shard WHERE stream = ? AND shard = ? AND epoch = ? AND nonce = ? FOR UPDATE",
    )
    .bind(&lease.shard.stream)
    .bind(lease.shard.index)
    .bind(lease.epoch.0)
    .bind(&lease.nonce.0[..])
    .fetch_optional(&mut **tx)
    .await
    .map_err(|error| classify("desk", error))?;
    Ok(found.is_some())
}

/// Reads an exception behind the lock of its shard's row.
async fn lock_and_find(tx: &mut Tx, row: i64) -> Result<Option<DeskRow>, StoreError> {
    for _ in 0..MOVES_MAX {
        let Some(before) = find(tx, row).await? else {
            return Ok(None);
        };
        let shard = &before.stored.shard;
        let locked =
            sqlx::query("SELECT shard FROM semel_outbox_shard WHERE stream = ? AND shard = ? FOR UPDATE")
                .bind(&shard.stream)
                .bind(shard.index)
                .fetch_optional(&mut **tx)
                .await
                .map_err(|error| classify("desk", error))?;
        let found = find(tx, row).await?;
        match &found {
            // The shards of its stream were just replaced.
            Some(found) if locked.is_none() || found.stored.shard != *shard => {}
            _ => return Ok(found),
        }
    }
    Ok(None)
}

/// A condition on the number of rows.
fn numbered(rows: &[i64]) -> String {
    let ranges: Vec<Range> = rows.iter().map(|row| (*row, *row)).collect();
    condition("id", &ranges)
}

#[async_trait]
impl OutboxDesk for Mysql {
    async fn desk_rows(&self, wanted: &DeskQuery) -> Result<Vec<DeskRow>, StoreError> {
        let sql = format!(
            "SELECT {DESK}, {EVENT} FROM semel_outbox_exception o
             WHERE o.id > ? AND (? IS NULL OR o.stream = ?) AND (? IS NULL OR o.`key` = ?) AND (? IS NULL OR o.kind = ?)
             ORDER BY o.id LIMIT ?"
        );
        let kind = wanted.kind.map(|kind| kind.as_str());
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(wanted.after)
            .bind(&wanted.stream)
            .bind(&wanted.stream)
            .bind(wanted.key.as_deref())
            .bind(wanted.key.as_deref())
            .bind(kind)
            .bind(kind)
            .bind(wanted.limit)
            .fetch_all(&self.pool)
            .await
            .map_err(|error| classify("desk", error))?;
        rows.iter().map(desk_row).collect()
    }

    async fn desk_row(&self, row: i64) -> Result<Option<DeskRow>, StoreError> {
        let sql = format!("SELECT {DESK}, {EVENT} FROM semel_outbox_exception o WHERE o.id = ?");
        let found = sqlx::query(AssertSqlSafe(sql))
            .bind(row)
            .fetch_optional(&self.pool)
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
        let found = lock_and_find(&mut tx, request.row).await?;
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
        match &request.change {
            DeskChange::Ask(wish) => {
                sqlx::query("UPDATE semel_outbox_exception SET asked = ?, taken = 0 WHERE id = ?")
                    .bind(wish.as_str())
                    .bind(request.row)
                    .execute(&mut *tx)
                    .await
                    .map_err(failed)?;
            }
            DeskChange::Edit { event, .. } => {
                sqlx::query(
                    "UPDATE semel_outbox_exception SET edits = edits + 1, topic = ?, type = ?, content_type = ?,
                     headers = ?, data = ?, traceparent = ? WHERE id = ?",
                )
                .bind(&event.topic)
                .bind(&event.kind)
                .bind(&event.content_type)
                .bind(encode_event(event))
                .bind(event.data.as_deref())
                .bind(&event.traceparent)
                .bind(request.row)
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            }
        }
        let line = DeskEntry::of(request, &row.stored.row.row.event);
        write(&mut tx, &line).await?;
        self.commit(tx).await?;
        Ok(Ok(()))
    }

    async fn desk_log(&self, after: i64, limit: u32) -> Result<Vec<DeskEntry>, StoreError> {
        let sql = "SELECT * FROM semel_outbox_desk_log WHERE entry > ? ORDER BY entry LIMIT ?";
        let rows = sqlx::query(sql)
            .bind(after)
            .bind(limit)
            .fetch_all(&self.pool)
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
        let look = sqlx::query(
            "SELECT EXISTS (SELECT 1 FROM semel_outbox_shard
                 WHERE stream = ? AND shard = ? AND epoch = ? AND nonce = ?) AS mine,
               EXISTS (SELECT 1 FROM semel_outbox_exception
                 WHERE stream = ? AND shard = ? AND asked IS NOT NULL) AS any_asked",
        )
        .bind(&lease.shard.stream)
        .bind(lease.shard.index)
        .bind(lease.epoch.0)
        .bind(&lease.nonce.0[..])
        .bind(&lease.shard.stream)
        .bind(lease.shard.index)
        .fetch_one(&self.own)
        .await
        .map_err(failed)?;
        if number(&look, "mine").map_err(failed)? == 0 {
            return Ok(Guarded::Lost);
        }
        if number(&look, "any_asked").map_err(failed)? == 0 {
            return Ok(Guarded::Done(Taken::default()));
        }
        let mut tx = self.begin().await?;
        if !lock_owned(&mut tx, lease).await? {
            tx.rollback().await.map_err(failed)?;
            return Ok(Guarded::Lost);
        }
        let sql = format!(
            "SELECT {DESK}, {EVENT} FROM semel_outbox_exception o WHERE o.stream = ? AND o.shard = ?
               AND (o.asked IS NOT NULL OR o.kind IN ('parked', 'behind') AND o.`key` IS NOT NULL
                 AND o.`key` IN (SELECT `key` FROM semel_outbox_exception
                   WHERE stream = ? AND shard = ? AND asked IN ('retry', 'release') AND {LISTED}))
             ORDER BY o.id LIMIT ?"
        );
        let mut taking = Taking::new(size);
        let mut rows = sqlx::query(AssertSqlSafe(sql))
            .bind(&lease.shard.stream)
            .bind(lease.shard.index)
            .bind(&lease.shard.stream)
            .bind(lease.shard.index)
            .bind(i64::from(size.rows) + 1)
            .fetch(&mut *tx);
        while let Some(row) = rows.try_next().await.map_err(failed)? {
            if !taking.add(desk_row(&row)?) {
                break;
            }
        }
        drop(rows);
        let (taken, marked) = taking.done();
        for marked in marked.chunks(ROWS_AT_ONCE) {
            let sql = format!(
                "UPDATE semel_outbox_exception SET taken = taken + 1 WHERE {}",
                numbered(marked)
            );
            let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await;
            done.map_err(failed)?;
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
        if !lock_owned(&mut tx, lease).await? {
            tx.rollback().await.map_err(failed)?;
            return Ok(Guarded::Lost);
        }
        for removed in save.removed.chunks(ROWS_AT_ONCE) {
            let sql = format!("DELETE FROM semel_outbox_exception WHERE {}", numbered(removed));
            let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await;
            done.map_err(failed)?;
        }
        for it in &save.failed {
            // `attempts` comes last: here an assignment sees those before it.
            sqlx::query(
                "UPDATE semel_outbox_exception SET asked = NULL, taken = 0, reason = ?,
                   kind = CASE kind WHEN 'behind' THEN 'parked' ELSE kind END, attempts = attempts + 1
                 WHERE id = ? AND attempts = ?",
            )
            .bind(&it.reason)
            .bind(it.row)
            .bind(it.attempts)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        }
        let mut left = Vec::new();
        for (key, wish) in &save.next {
            let Some((head, _)) = first(&mut tx, &lease.shard, key).await? else {
                continue;
            };
            sqlx::query(
                "UPDATE semel_outbox_exception SET kind = 'parked', asked = COALESCE(asked, ?) WHERE id = ?",
            )
            .bind(wish.map(Wish::as_str))
            .bind(head)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
            left.push(key.clone());
        }
        self.commit(tx).await?;
        Ok(Guarded::Done(left))
    }

    async fn note(&self, lease: &ShardLease, note: Option<&str>) -> Result<Guarded<()>, StoreError> {
        let sql = format!(
            "UPDATE semel_outbox_shard SET note = ?, noted_us = IF(note IS NULL, NULL, {NOW})
             WHERE stream = ? AND shard = ? AND epoch = ? AND nonce = ?"
        );
        let done = sqlx::query(AssertSqlSafe(sql))
            .bind(note)
            .bind(&lease.shard.stream)
            .bind(lease.shard.index)
            .bind(lease.epoch.0)
            .bind(&lease.nonce.0[..])
            .execute(&self.own)
            .await
            .map_err(|error| autocommit_failed("note", error))?;
        // The driver asks for matched rows.
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
        self.rescan_outbox(stream, by, why, dry_run).await
    }

    async fn replay(&self, replay: &Replay) -> Result<Replayed, StoreError> {
        self.replay_outbox(replay).await
    }

    async fn kept(&self, stream: &str, after: i64, limit: u32) -> Result<Vec<KeptRow>, StoreError> {
        self.kept_rows(stream, after, limit).await
    }

    async fn last_row(&self) -> Result<i64, StoreError> {
        sqlx::query_scalar("SELECT COALESCE(MAX(id), 0) FROM semel_outbox")
            .fetch_one(&self.pool)
            .await
            .map_err(|error| classify("last_row", error))
    }

    async fn log_about(&self, stream: &str, action: &str, by: &str, why: &str) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        write(&mut tx, &DeskEntry::about(stream, action, by, why)).await?;
        self.commit(tx).await
    }
}
