//! The outbox in partitions: made ahead, dropped when nobody wants a row of them.
//!
//! # Guarantees
//! - No row is destroyed that its shard's saved `prev` does not see, or that its stream wants kept (rule O4). What a partition
//!   holds is judged first without a lock, in one snapshot. Then it is locked against everybody, and only then, in a new
//!   statement, looked at again: a writer that was open before has ended, and its rows are not of that snapshot. It is
//!   emptied in that very transaction.
//! - Nobody waits for long: a lock is asked for when no old transaction stands in the way, and for `partition_lock_wait` at most.
//!   What stands in the way delays the drop alone.
//! - A crash anywhere leaves a partition that is whole or empty; the next turn goes on. Cleaners of several processes may
//!   meet: the second finds nothing to do.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use semel_core::store::{Hold, Partition, Partitions, Rotation};
use semel_core::{ErrorKind, StoreError, Timestamp};
use sqlx::postgres::PgRow;
use sqlx::postgres::types::Oid;
use sqlx::{AssertSqlSafe, Postgres as Driver, Row as _, Transaction};

use crate::db::Postgres;
use crate::error::classify;
use crate::gate::{query, query_scalar};

/// A transaction that is older than this is not waited for at all.
const OLD_MS: i64 = 1_000;
/// Of those who stand in the way, told at most.
const WAITS_MAX: i64 = 5;
/// A partition that could not be dropped is looked at again after this, twice as long each time.
const AGAIN_MS: i64 = 5_000;
/// And after this at the latest.
const AGAIN_MS_MAX: i64 = 600_000;
/// One that is kept on purpose is read again after this at the latest: a stream may want to keep for less long than it did.
const KEPT_MS_MAX: i64 = 6 * 3_600_000;
/// While the partition of odd ids is larger, none is made ahead: each time all of it is read, and its writers wait.
const OTHER_BYTES_MAX: i64 = 256 << 20;
/// The partition of the ids of no partition's time.
const OTHER: &str = "outbox_other";
/// A retention beyond it is as good as for ever.
const KEEP_MS_MAX: i64 = 1 << 50;

/// When partitions that could not be dropped are looked at again, by the server's clock: one that is kept for long is not
/// read at each turn.
#[derive(Clone, Default)]
pub(crate) struct Drops(Arc<Mutex<HashMap<String, Later>>>);

#[derive(Clone, Copy)]
struct Later {
    at_ms: i64,
    times: u32,
}

impl Drops {
    fn due(&self, name: &str, now_ms: i64) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(name).is_none_or(|later| later.at_ms <= now_ms)
    }

    /// Something was in the way.
    fn failed(&self, name: &str, now_ms: i64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let times = all.get(name).map_or(0, |later| later.times);
        let pause = (AGAIN_MS << times.min(10)).min(AGAIN_MS_MAX);
        let later = Later {
            at_ms: now_ms.saturating_add(pause),
            times: times + 1,
        };
        all.insert(name.to_owned(), later);
    }

    /// Nothing can be done before so much time.
    fn not_before(&self, name: &str, now_ms: i64, pause_ms: i64) {
        let later = Later {
            at_ms: now_ms.saturating_add(pause_ms.min(KEPT_MS_MAX)),
            times: 0,
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(name.to_owned(), later);
    }

    /// Forgets those that are gone.
    fn keep(&self, parts: &[Part]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|name, _| parts.iter().any(|part| part.name == *name));
    }
}

/// A partition, as the server names it.
#[derive(Debug, Clone)]
struct Part {
    name: String,
    first_ms: Option<i64>,
    past_ms: Option<i64>,
    bytes: i64,
}

/// The time for which a partition is, how many are made ahead, and the store's time, in milliseconds.
struct Width {
    ms: i64,
    ahead: i32,
    now: i64,
}

/// What a partition held in one snapshot.
pub(super) struct Seen {
    /// The very table: by the time of the lock one of its name may have come in its place.
    oid: Oid,
    snapshot: String,
    marks: (Vec<String>, Vec<i32>, Vec<i32>, Vec<String>),
    streams: Vec<String>,
    keeps: Vec<i64>,
    /// How long the look took.
    took_ms: i64,
    pub(super) verdict: Verdict,
}

pub(super) enum Verdict {
    /// There is no row.
    Empty,
    /// No row is wanted any more.
    Free,
    /// Some are, for so many milliseconds at least.
    Kept(i64),
    /// Some wait to be sent, or nobody says how long they are kept.
    Waits(String),
}

/// Who holds a lock on a partition or the outbox: the old ones, the oldest first. Where all are asked for, also those whose age
/// this role may not see.
const HOLDERS: &str = "SELECT l.pid, l.relation::regclass::text AS held, l.mode, a.usename::text AS usename, a.application_name, a.state,
    (extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared)) * 1000)::bigint AS age_ms, p.gid
  FROM pg_locks l
  LEFT JOIN pg_stat_activity a ON a.pid = l.pid
  LEFT JOIN pg_prepared_xacts p ON l.pid IS NULL AND EXISTS (SELECT FROM pg_locks x WHERE x.pid IS NULL
    AND x.locktype = 'transactionid' AND x.transactionid = p.transaction AND x.virtualtransaction = l.virtualtransaction)
  WHERE l.locktype = 'relation' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.relation = to_regclass($1) AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
    AND (l.pid IS NULL OR coalesce(clock_timestamp() - a.xact_start > $2 * interval '1 ms', $2 = 0))
  ORDER BY coalesce(a.xact_start, p.prepared) LIMIT $3";

impl Postgres {
    pub(super) async fn rotate_partitions(&self, stream: &str, keep_ms: i64) -> Result<Rotation, StoreError> {
        let mut rotation = Rotation::default();
        let Some(Width {
            ms: width,
            ahead,
            now,
        }) = self.width().await?
        else {
            // Those that there are some day again may have the names of these.
            self.drops.keep(&[]);
            return Ok(rotation);
        };
        let shortest = self.say_keep(stream, keep_ms.min(KEEP_MS_MAX)).await?;
        let parts = self.parts().await?;
        self.drops.keep(&parts);
        let past = parts.iter().filter_map(|part| part.past_ms).max();
        let short = past.is_none_or(|past| past < now + i64::from(ahead) * width);
        let other = parts.iter().find(|part| part.past_ms.is_none());
        if let Some(large) = other.filter(|part| short && part.bytes > OTHER_BYTES_MAX) {
            rotation.waits.push(crowded(large));
        } else if short {
            match self.premake().await {
                Ok(made) => rotation.made = made,
                Err(error) if in_the_way(&error) => {
                    let waits = self.holders("outbox", "no partition is made ahead").await?;
                    rotation.waits.extend(waits);
                }
                Err(error) => return Err(lacks_rights("rotate", error)),
            }
        }
        for part in parts {
            let over = part
                .past_ms
                .is_some_and(|past| past.saturating_add(shortest) <= now);
            if over && self.drops.due(&part.name, now) {
                self.try_drop(&part.name, now, &mut rotation).await?;
            }
        }
        Ok(rotation)
    }

    /// `None` where the outbox is whole.
    async fn width(&self) -> Result<Option<Width>, StoreError> {
        let failed = |error| classify("partitions", error);
        let row = query("SELECT width_ms, ahead, semel.now_ms() AS now_ms FROM semel.outbox_partitioning")
            .fetch_optional(&self.gate)
            .await
            .map_err(failed)?;
        row.map(|row| {
            Ok(Width {
                ms: row.try_get("width_ms")?,
                ahead: row.try_get("ahead")?,
                now: row.try_get("now_ms")?,
            })
        })
        .transpose()
        .map_err(failed)
    }

    /// Says how long this stream's rows are kept; returns the shortest time of all streams.
    async fn say_keep(&self, stream: &str, keep_ms: i64) -> Result<i64, StoreError> {
        let failed = |error| classify("rotate", error);
        let said: Option<i64> = query_scalar("SELECT keep_ms FROM semel.outbox_keep WHERE stream = $1")
            .bind(stream)
            .fetch_optional(&self.gate)
            .await
            .map_err(failed)?;
        if said != Some(keep_ms) {
            query(
                "INSERT INTO semel.outbox_keep (stream, keep_ms) VALUES ($1, $2)
                 ON CONFLICT (stream) DO UPDATE SET keep_ms = excluded.keep_ms",
            )
            .bind(stream)
            .bind(keep_ms)
            .execute(&self.gate)
            .await
            .map_err(failed)?;
        }
        query_scalar("SELECT min(keep_ms) FROM semel.outbox_keep")
            .fetch_one(&self.gate)
            .await
            .map_err(failed)
    }

    async fn parts(&self) -> Result<Vec<Part>, StoreError> {
        let failed = |error| classify("partitions", error);
        let rows = query(
            "SELECT name, first_ms, past_ms, coalesce(pg_total_relation_size(oid), 0) AS bytes
             FROM semel.outbox_partitions()",
        )
        .fetch_all(&self.gate)
        .await
        .map_err(failed)?;
        let part = |row: &PgRow| {
            Ok(Part {
                name: row.try_get("name")?,
                first_ms: row.try_get("first_ms")?,
                past_ms: row.try_get("past_ms")?,
                bytes: row.try_get("bytes")?,
            })
        };
        rows.iter()
            .map(part)
            .collect::<Result<_, sqlx::Error>>()
            .map_err(failed)
    }

    async fn premake(&self) -> Result<u32, sqlx::Error> {
        let made: i32 = query_scalar("SELECT semel.outbox_premake()")
            .fetch_one(&self.gate)
            .await?;
        Ok(made.unsigned_abs())
    }

    /// Empties a partition of which nobody wants a row, and drops it.
    async fn try_drop(&self, name: &str, now: i64, rotation: &mut Rotation) -> Result<(), StoreError> {
        match self.unsent(name).await {
            Ok(None) => {}
            Ok(Some(stream)) => {
                self.drops.failed(name, now);
                let why = format!("events of stream {stream} in it are not sent");
                rotation.waits.push(waits(name, why));
                return Ok(());
            }
            Err(error) if gone(&error) => return Ok(()),
            Err(error) => return Err(classify("rotate", error)),
        }
        let seen = match self.seen(name).await {
            Ok(Some(seen)) => seen,
            // Another cleaner was faster.
            Ok(None) => return Ok(()),
            Err(error) => return Err(error),
        };
        // However often it is looked at, that is a small part of the server's time.
        let pause = AGAIN_MS.max(seen.took_ms.saturating_mul(20));
        match &seen.verdict {
            Verdict::Empty => {}
            Verdict::Free => {
                let done = self.empty(name, &seen).await;
                if !self.went(name, name, now, done, rotation).await? {
                    return Ok(());
                }
                semel_core::crash_point("outbox.partition_emptied");
            }
            Verdict::Kept(left) => {
                self.drops.not_before(name, now, pause.max(*left));
                return Ok(());
            }
            Verdict::Waits(why) => {
                self.drops.failed(name, now);
                rotation.waits.push(waits(name, why.clone()));
                return Ok(());
            }
        }
        let done = self.drop_empty(name).await;
        if self.went(name, "outbox", now, done, rotation).await? {
            rotation.dropped.push(name.to_owned());
        }
        Ok(())
    }

    /// Whether it was done; where it was not, who holds the table for which it waited.
    async fn went(
        &self,
        name: &str,
        table: &str,
        now: i64,
        done: Result<bool, sqlx::Error>,
        rotation: &mut Rotation,
    ) -> Result<bool, StoreError> {
        let detail = format!("the drop of {name}");
        match done {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(error) if in_the_way(&error) => {}
            Err(error) if gone(&error) => return Ok(false),
            Err(error) => return Err(lacks_rights("rotate", error)),
        }
        self.drops.failed(name, now);
        rotation.waits.extend(self.holders(table, &detail).await?);
        Ok(false)
    }

    /// A stream with events in the partition that are not sent.
    async fn unsent(&self, name: &str) -> Result<Option<String>, sqlx::Error> {
        let sql = include_str!("../sql/outbox_part_waits.sql").replace("{table}", name);
        query_scalar(AssertSqlSafe(sql)).fetch_optional(&self.gate).await
    }

    /// What the partition holds now; `None` when it is gone.
    pub(super) async fn seen(&self, name: &str) -> Result<Option<Seen>, StoreError> {
        let failed = |error| classify("rotate", error);
        let sql = include_str!("../sql/outbox_part_seen.sql").replace("{table}", name);
        let rows = match query(AssertSqlSafe(sql)).fetch_all(&self.gate).await {
            Ok(rows) => rows,
            Err(error) if gone(&error) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        judged(&rows).map_err(failed)
    }

    /// Begins a transaction that waits for no lock for long.
    async fn begin_short(&self) -> Result<Transaction<'static, Driver>, sqlx::Error> {
        let mut tx = self.gate.begin().await?;
        let ms = self.partition_lock_wait.as_millis().max(1);
        // And reads by the index what was written lately, while others wait.
        let sql = format!(
            "SET LOCAL lock_timeout = {ms}; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off"
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await?;
        Ok(tx)
    }

    /// Rule O4: the lock, then the look, then the end of the rows. Whether it was done.
    pub(super) async fn empty(&self, name: &str, seen: &Seen) -> Result<bool, sqlx::Error> {
        if self.is_held(name).await? {
            return Ok(false);
        }
        let mut tx = self.begin_short().await?;
        let lock = format!("LOCK TABLE semel.{name} IN ACCESS EXCLUSIVE MODE");
        query(AssertSqlSafe(lock)).execute(&mut *tx).await?;
        let sql = include_str!("../sql/outbox_part_free.sql").replace("{table}", name);
        let free: bool = query_scalar(AssertSqlSafe(sql))
            .bind(&seen.snapshot)
            .bind(&seen.marks.0)
            .bind(&seen.marks.1)
            .bind(&seen.marks.2)
            .bind(&seen.marks.3)
            .bind(&seen.streams)
            .bind(&seen.keeps)
            .bind(seen.oid)
            .fetch_one(&mut *tx)
            .await?;
        if !free {
            tx.rollback().await?;
            return Ok(false);
        }
        let truncate = format!("TRUNCATE semel.{name}");
        query(AssertSqlSafe(truncate)).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Drops a partition that has no rows. This is what takes the outbox's own lock; until it goes through, the empty
    /// partition costs next to nothing.
    async fn drop_empty(&self, name: &str) -> Result<bool, sqlx::Error> {
        if self.is_held("outbox").await? {
            return Ok(false);
        }
        let mut tx = self.begin_short().await?;
        let locks = "LOCK TABLE ONLY semel.outbox IN ACCESS EXCLUSIVE MODE";
        query(locks).execute(&mut *tx).await?;
        let locks = format!("LOCK TABLE semel.{name} IN ACCESS EXCLUSIVE MODE");
        query(AssertSqlSafe(locks)).execute(&mut *tx).await?;
        let any: bool = query_scalar(AssertSqlSafe(format!("SELECT EXISTS (SELECT FROM semel.{name})")))
            .fetch_one(&mut *tx)
            .await?;
        if any {
            tx.rollback().await?;
            return Ok(false);
        }
        query(AssertSqlSafe(format!("DROP TABLE semel.{name}")))
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Whether an old transaction holds a lock on this table.
    async fn is_held(&self, table: &str) -> Result<bool, sqlx::Error> {
        let holders = query(HOLDERS)
            .bind(format!("semel.{table}"))
            .bind(OLD_MS as f64)
            .bind(1_i64)
            .fetch_optional(&self.gate)
            .await?;
        Ok(holders.is_some())
    }

    /// Who holds a lock on this table, and has for a while.
    async fn holders(&self, table: &str, what: &str) -> Result<Vec<Hold>, StoreError> {
        self.holders_for(table, what, OLD_MS).await
    }

    /// Who holds a lock on this table, and has begun so long ago.
    pub(super) async fn holders_for(
        &self,
        table: &str,
        what: &str,
        old_ms: i64,
    ) -> Result<Vec<Hold>, StoreError> {
        let failed = |error| classify("partitions", error);
        let rows = query(HOLDERS)
            .bind(format!("semel.{table}"))
            .bind(old_ms as f64)
            .bind(WAITS_MAX)
            .fetch_all(&self.gate)
            .await
            .map_err(failed)?;
        rows.iter()
            .map(|row| holder(row, what))
            .collect::<Result<_, _>>()
            .map_err(failed)
    }

    /// The partitions that a stream's cleaner deletes from: that of odd ids, and those that should be gone for a whole width
    /// already, because another stream keeps theirs for longer. `None` where there are no partitions. A retention below
    /// nothing asks for all that is settled, whatever becomes of its partition.
    pub(super) async fn clean_in(&self, keep_ms: i64) -> Result<Option<Vec<String>>, StoreError> {
        let names: Vec<String> = query_scalar(
            "SELECT p.name FROM semel.outbox_partitioning w CROSS JOIN semel.outbox_partitions() p
             WHERE $1 < 0 OR p.past_ms IS NULL OR p.past_ms + $1 + w.width_ms < semel.now_ms()",
        )
        .bind(keep_ms.min(KEEP_MS_MAX))
        .fetch_all(&self.gate)
        .await
        .map_err(|error| classify("clean", error))?;
        // The one of odd ids is always there.
        Ok((!names.is_empty()).then_some(names))
    }

    pub(super) async fn clean_parts(
        &self,
        parts: &[String],
        stream: &str,
        keep_ms: i64,
        limit: u32,
    ) -> Result<u64, StoreError> {
        let mut deleted = 0;
        for part in parts {
            let left = limit.saturating_sub(u32::try_from(deleted).unwrap_or(u32::MAX));
            if left == 0 {
                break;
            }
            match self.clean_table(part, part == OTHER, stream, keep_ms, left).await {
                Ok(rows) => deleted += rows,
                Err(error) if error.kind() == ErrorKind::Schema => {} // dropped meanwhile
                Err(error) => return Err(error),
            }
        }
        Ok(deleted)
    }

    pub(super) async fn outbox_partitions(&self) -> Result<Option<Partitions>, StoreError> {
        let Some(width) = self.width().await? else {
            return Ok(None);
        };
        let parts = self.parts().await?;
        let longest: i64 = query_scalar("SELECT coalesce(max(keep_ms), 0) FROM semel.outbox_keep")
            .fetch_one(&self.gate)
            .await
            .map_err(|error| classify("partitions", error))?;
        let late = |part: &&Part| {
            part.past_ms
                .is_some_and(|past| past.saturating_add(longest) < width.now)
        };
        let mut waits: Vec<Hold> = Vec::new();
        let mut any = false;
        for part in parts.iter().filter(late) {
            any = true;
            waits.extend(
                self.holders(&part.name, &format!("the drop of {}", part.name))
                    .await?,
            );
        }
        if any {
            waits.extend(
                self.holders("outbox", "the drop of partitions that are empty")
                    .await?,
            );
        }
        let at = |ms: i64| Timestamp(ms.saturating_mul(1_000));
        Ok(Some(Partitions {
            now: at(width.now),
            width_ms: width.ms,
            premake: width.ahead.unsigned_abs(),
            parts: parts
                .into_iter()
                .map(|part| Partition {
                    name: part.name,
                    first: part.first_ms.map(at),
                    past: part.past_ms.map(at),
                    bytes: part.bytes.unsigned_abs(),
                })
                .collect(),
            waits,
        }))
    }
}

/// What one partition holds, by the rows about its streams.
fn judged(rows: &[PgRow]) -> Result<Option<Seen>, sqlx::Error> {
    let Some(first) = rows.first() else {
        return Ok(None);
    };
    let mut seen = Seen {
        oid: first.try_get("oid")?,
        snapshot: first.try_get("seen")?,
        marks: (
            first.try_get("streams")?,
            first.try_get("firsts")?,
            first.try_get("lasts")?,
            first.try_get("prevs")?,
        ),
        streams: Vec::new(),
        keeps: Vec::new(),
        took_ms: first.try_get("took_ms")?,
        verdict: Verdict::Empty,
    };
    let (mut left, mut waits) = (0, None);
    for row in rows {
        let Some(stream) = row.try_get::<Option<String>, _>("stream")? else {
            continue;
        };
        let (all, waiting): (i64, i64) = (row.try_get("rows")?, row.try_get("waiting")?);
        if waiting > 0 {
            waits = Some(format!(
                "{waiting} of its {all} events of stream {stream} are not sent"
            ));
        }
        match row.try_get::<Option<i64>, _>("keep_ms")? {
            Some(keep) => {
                let (newest, now): (i64, i64) = (row.try_get("newest_us")?, row.try_get("now_us")?);
                let until = newest.saturating_add(keep.saturating_mul(1_000));
                left = left.max(until.saturating_sub(now));
                seen.keeps.push(keep);
            }
            None => {
                let why = format!("no relay has said how long events of stream {stream} are kept");
                waits = waits.or(Some(why));
                seen.keeps.push(0);
            }
        }
        seen.streams.push(stream);
    }
    if !first.try_get::<bool, _>("home")? {
        waits = Some("the cursors were made on another server: semel outbox rescan".to_owned());
    }
    seen.verdict = match waits {
        Some(why) => Verdict::Waits(why),
        None if seen.streams.is_empty() => Verdict::Empty,
        None if left > 0 => Verdict::Kept(left / 1_000 + 1),
        None => Verdict::Free,
    };
    Ok(Some(seen))
}

fn holder(row: &PgRow, what: &str) -> Result<Hold, sqlx::Error> {
    let text = |column| -> Result<String, sqlx::Error> {
        Ok(row.try_get::<Option<String>, _>(column)?.unwrap_or_default())
    };
    let pid: Option<i32> = row.try_get("pid")?;
    let (who, advice) = match pid {
        Some(pid) => (
            format!("pid {pid}"),
            format!("events and relays do not wait for it: end it, or SELECT pg_terminate_backend({pid})"),
        ),
        None => (
            semel_core::relay::note_text(&text("gid")?),
            "events and relays do not wait for it: COMMIT PREPARED or ROLLBACK PREPARED".to_owned(),
        ),
    };
    let (mode, held) = (text("mode")?, text("held")?);
    let (state, user, application) = (text("state")?, text("usename")?, text("application_name")?);
    Ok(Hold {
        kind: "partition_waits",
        who,
        age_ms: row.try_get("age_ms")?,
        detail: semel_core::relay::note_text(&format!(
            "{what} waits: it holds {mode} on {held}; {state}, user {user}, application {application:?}"
        )),
        advice,
    })
}

/// Its own events hold a partition.
fn waits(name: &str, detail: String) -> Hold {
    Hold {
        kind: "partition_waits",
        who: name.to_owned(),
        age_ms: None,
        detail,
        advice: "semel outbox why says what holds them".to_owned(),
    }
}

/// Too many events are of no partition's time.
fn crowded(part: &Part) -> Hold {
    Hold {
        kind: "partition_waits",
        who: part.name.clone(),
        age_ms: None,
        detail: format!(
            "no partition is made ahead: {} has {} bytes, more than {OTHER_BYTES_MAX}",
            part.name, part.bytes
        ),
        advice: "its events are deleted one by one, then it goes on; where event ids are your own and no UUIDv7, partitions \
                 are of no use"
            .to_owned(),
    }
}

fn state(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

/// Somebody held a lock for too long.
pub(super) fn in_the_way(error: &sqlx::Error) -> bool {
    matches!(state(error).as_deref(), Some("55P03" | "40P01"))
}

/// The partition is not there any more.
fn gone(error: &sqlx::Error) -> bool {
    state(error).as_deref() == Some("42P01")
}

/// A role that may not make or drop tables is told which one may.
pub(super) fn lacks_rights(operation: &'static str, error: sqlx::Error) -> StoreError {
    if state(&error).as_deref() != Some("42501") {
        return classify(operation, error);
    }
    let text = "partitions are made and dropped by the owner of semel.outbox alone: let the relay that deletes (keep_ms) \
                connect as that role or as a member of it, and GRANT CREATE ON SCHEMA semel to it";
    StoreError::new(ErrorKind::Invalid, operation, text)
        .with_code("SEM0281")
        .with_source(error)
}
