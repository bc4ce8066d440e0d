//! What holds events back on PostgreSQL, for a person who asks why.

use semel_core::relay::{ShardId, note_text};
use semel_core::store::{Hold, ShardStanding, Standing};
use semel_core::{StoreError, Timestamp};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::db::Postgres;
use crate::error::classify;
use crate::gate::query;

/// What PostgreSQL shows in place of other users' statements to a role that may not see them.
const HIDDEN: &str = "<insufficient privilege>";
/// Younger transactions are not worth a word.
const AGE_MS: i64 = 1_000;
/// Of each kind at most.
const HOLDS_MAX: i64 = 20;

const SHARDS: &str = "SELECT s.stream, s.shard, s.owner, s.nonce IS NOT NULL AS owned,
    CASE WHEN isfinite(s.until) THEN semel.us(s.until) END AS until_us, s.until > clock_timestamp() AS held,
    s.note, semel.us(s.noted_at) AS noted_us,
    (SELECT count(DISTINCT key) FROM semel.outbox_exception e
     WHERE e.stream = s.stream AND e.shard = s.shard AND kind IN ('parked', 'behind')) AS parked_keys,
    (SELECT count(*) FROM semel.outbox_exception e
     WHERE e.stream = s.stream AND e.shard = s.shard AND asked IS NOT NULL) AS asked,
    (SELECT semel.us(min(since)) FROM semel.outbox_exception e
     WHERE e.stream = s.stream AND e.shard = s.shard) AS oldest_us,
    pg_snapshot_xmax(s.prev) > pg_snapshot_xmax(pg_current_snapshot()) AS ahead
  FROM semel.outbox_shard s ORDER BY s.stream, s.shard";

const SERVER: &str = "SELECT semel.us(clock_timestamp()) AS now_us, pg_is_in_recovery() AS standby,
    (SELECT system_identifier FROM pg_control_system()) AS here,
    (SELECT system_id FROM semel.outbox_incarnation) AS home";

/// Sessions that hold a lock on the outbox as writers do, and those that wait for one (who waits for a row holds a lock of
/// its place, and waits for the transaction that wrote it); whose commits wait for a standby; and what keeps deleted rows:
/// the oldest snapshots and transactions. `backend_xid` and `query` of others are hidden without pg_monitor (or
/// pg_read_all_stats).
const SESSIONS: &str = "SELECT a.pid, a.usename::text AS usename, a.application_name, a.state, a.query,
    coalesce(a.wait_event_type = 'Lock', false) AS waits, coalesce(a.wait_event = 'SyncRep', false) AS sync,
    pg_blocking_pids(a.pid) AS blockers,
    (extract(epoch FROM clock_timestamp() - a.xact_start) * 1000)::bigint AS age_ms,
    EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.relation = 'semel.outbox'::regclass AND l.granted
      AND l.mode <> 'AccessShareLock' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())) AS writer,
    EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND NOT l.granted)
      AND EXISTS (SELECT FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
        WHERE l.pid = a.pid AND (NOT l.granted OR l.locktype = 'tuple') AND c.relnamespace = 'semel'::regnamespace
          AND c.relname LIKE 'outbox%'
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())) AS queued,
    coalesce(a.backend_xmin, a.backend_xid) IS NOT NULL AS keeps
  FROM pg_stat_activity a
  WHERE a.pid <> pg_backend_pid() AND a.datname = current_database() AND a.xact_start IS NOT NULL
    AND clock_timestamp() - a.xact_start > $1 * interval '1 ms'
  ORDER BY a.xact_start LIMIT $2";

/// All locks of a prepared transaction have one virtual number: that of its session, or one of its own after a restart. Only
/// the lock of its transaction number says whose they are.
const PREPARED: &str = "SELECT p.gid, p.owner::text AS owner,
    (extract(epoch FROM clock_timestamp() - p.prepared) * 1000)::bigint AS age_ms,
    EXISTS (SELECT FROM pg_locks x JOIN pg_locks l ON l.virtualtransaction = x.virtualtransaction AND l.pid IS NULL
      WHERE x.locktype = 'transactionid' AND x.transactionid = p.transaction AND x.pid IS NULL
        AND l.relation = 'semel.outbox'::regclass AND l.mode <> 'AccessShareLock'
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())) AS writer
  FROM pg_prepared_xacts p WHERE p.database = current_database() ORDER BY p.prepared LIMIT $1";

fn shard(row: &PgRow) -> Result<(ShardStanding, bool), sqlx::Error> {
    let index: i32 = row.try_get("shard")?;
    let owned: bool = row.try_get("owned")?;
    let (parked_keys, asked): (i64, i64) = (row.try_get("parked_keys")?, row.try_get("asked")?);
    let at = |column| row.try_get::<Option<i64>, _>(column).map(|at| at.map(Timestamp));
    let standing = ShardStanding {
        shard: ShardId {
            stream: row.try_get("stream")?,
            index: u16::try_from(index).map_err(|error| sqlx::Error::Decode(error.into()))?,
        },
        owner: row.try_get("owner")?,
        until: at("until_us")?.filter(|_| owned),
        held: owned && row.try_get("held")?,
        note: row.try_get("note")?,
        noted_at: at("noted_us")?,
        parked_keys: parked_keys.unsigned_abs(),
        asked: asked.unsigned_abs(),
        oldest_exception: at("oldest_us")?,
    };
    Ok((standing, row.try_get("ahead")?))
}

/// What one session holds, if it holds anything worth a word.
fn session(row: &PgRow) -> Result<(Option<Hold>, bool), sqlx::Error> {
    let pid: i32 = row.try_get("pid")?;
    let text = |column| -> Result<String, sqlx::Error> {
        Ok(row.try_get::<Option<String>, _>(column)?.unwrap_or_default())
    };
    let statement = text("query")?;
    let hidden = statement == HIDDEN;
    let (state, user, application) = (text("state")?, text("usename")?, text("application_name")?);
    let detail = note_text(&format!(
        "{state}, user {user}, application {application:?}: {statement}"
    ));
    let blockers: Vec<i32> = row.try_get("blockers")?;
    let (writer, waits, queued): (bool, bool, bool) = (
        row.try_get("writer")?,
        row.try_get("waits")?,
        row.try_get("queued")?,
    );
    let (kind, advice) = if row.try_get("sync")? {
        (
            "standby_behind",
            "its commit waits for a synchronous standby, and so does the relay's: look at pg_stat_replication".to_owned(),
        )
    } else if waits && queued && application == "semel" {
        let by = blockers.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
        (
            "relay_waits",
            format!("Semel waits for a lock that pid {by} holds: end that transaction"),
        )
    } else if writer {
        (
            "open_transaction",
            format!(
                "its events are sent when it commits; nothing else waits for it, but writers of the same keys: find out \
                 why it is open, or SELECT pg_terminate_backend({pid})"
            ),
        )
    } else if row.try_get("keeps")? {
        (
            "held_snapshot",
            format!(
                "holds no event back; it keeps deleted rows from being vacuumed: end it, or SELECT pg_terminate_backend({pid})"
            ),
        )
    } else {
        return Ok((None, hidden));
    };
    let hold = Hold {
        kind,
        who: format!("pid {pid}"),
        age_ms: row.try_get("age_ms")?,
        detail,
        advice,
    };
    Ok((Some(hold), hidden))
}

fn prepared(row: &PgRow) -> Result<Hold, sqlx::Error> {
    let gid: String = row.try_get("gid")?;
    let writer: bool = row.try_get("writer")?;
    let owner: String = row.try_get("owner")?;
    let what = if writer {
        "it has written events"
    } else {
        "it has written no event"
    };
    let quoted = gid.replace('\'', "''");
    Ok(Hold {
        kind: "prepared_transaction",
        who: note_text(&gid),
        age_ms: row.try_get("age_ms")?,
        detail: note_text(&format!("prepared by {owner}; {what}")),
        advice: note_text(&format!(
            "its events are sent when it is committed; nothing else waits for it: COMMIT PREPARED '{quoted}' or ROLLBACK \
             PREPARED '{quoted}'"
        )),
    })
}

impl Postgres {
    pub(super) async fn outbox_standing(&self) -> Result<Standing, StoreError> {
        let failed = |error| classify("standing", error);
        let server = query(SERVER).fetch_one(&self.gate).await.map_err(failed)?;
        let head = || -> Result<(i64, bool, Option<i64>, Option<i64>), sqlx::Error> {
            Ok((
                server.try_get("now_us")?,
                server.try_get("standby")?,
                server.try_get("here")?,
                server.try_get("home")?,
            ))
        };
        let (now, standby, here, home) = head().map_err(failed)?;
        let mut standing = Standing {
            now: Timestamp(now),
            shards: Vec::new(),
            holds: Vec::new(),
            hidden: Vec::new(),
        };
        let mut whole = |kind, who: String, detail: String, advice: &str| {
            standing.holds.push(Hold {
                kind,
                who,
                age_ms: None,
                detail,
                advice: advice.to_owned(),
            });
        };
        if standby {
            let advice = "a relay works on the primary alone: connect there";
            whole(
                "standby",
                "this server".to_owned(),
                "it is a standby".to_owned(),
                advice,
            );
        }
        let rescan = "a copy, a restore or an upgrade: semel outbox rescan";
        if here != home {
            let show = |id: Option<i64>| id.map_or_else(|| "nothing".to_owned(), |id| id.to_string());
            let detail = format!(
                "the outbox belongs to the cluster {}, this is {}",
                show(home),
                show(here)
            );
            whole("identity_changed", "all shards".to_owned(), detail, rescan);
        }
        let rows = query(SHARDS).fetch_all(&self.gate).await.map_err(failed)?;
        for row in &rows {
            let (shard, ahead) = shard(row).map_err(failed)?;
            if ahead && !standby {
                let detail = "its cursor is ahead of the server's transaction numbers".to_owned();
                whole("identity_changed", shard.shard.to_string(), detail, rescan);
            }
            standing.shards.push(shard);
        }
        let sessions = query(SESSIONS)
            .bind(AGE_MS as f64)
            .bind(HOLDS_MAX)
            .fetch_all(&self.gate);
        let mut hidden = false;
        for row in &sessions.await.map_err(failed)? {
            let (hold, secret) = session(row).map_err(failed)?;
            hidden |= secret;
            standing.holds.extend(hold);
        }
        if hidden {
            let text =
                "statements and transactions of other users: GRANT pg_monitor TO this role to see them";
            standing.hidden.push(text.to_owned());
        }
        let rows = query(PREPARED)
            .bind(HOLDS_MAX)
            .fetch_all(&self.gate)
            .await
            .map_err(failed)?;
        for row in &rows {
            standing.holds.push(prepared(row).map_err(failed)?);
        }
        Ok(standing)
    }
}
