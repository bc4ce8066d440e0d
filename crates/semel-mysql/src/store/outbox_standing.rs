//! What holds events back on MariaDB and MySQL, for a person who asks why.
//!
//! The server does not tell which tables an open transaction has written to. But rows of `semel_outbox` that are written
//! and not committed can be counted, so it is known whether any open transaction holds events.

use semel_core::relay::note_text;
use semel_core::store::{Hold, ShardStanding, Standing};
use semel_core::{StoreError, Timestamp};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::key_rows::NOW;
use super::outbox_look::RANGES;
use super::outbox_mark::{Seen, condition};
use super::outbox_rows::{SHARD, Shard, number, shard, text};
use crate::db::Mysql;
use crate::error::{classify, number as error_number};

/// Younger transactions are not worth a word.
const AGE_S: i64 = 1;
/// Of each kind at most.
const HOLDS_MAX: i64 = 20;
/// Rows that are looked at for those that are not committed.
const UNCOMMITTED_LOOKED_AT_MAX: i64 = 100_000;
/// The user may not see what others do.
const NO_PROCESS: u16 = 1227;

/// The tables of InnoDB's transactions have the times of the server's own zone. They are renewed when nobody has read them
/// for a tenth of a second.
const SINCE: &str = "CONVERT_TZ(SYSDATE(), @@session.time_zone, 'SYSTEM')";

/// What is found out about the server, piece by piece.
struct Looking {
    standing: Standing,
    mariadb: bool,
}

impl Looking {
    fn add(&mut self, kind: &'static str, who: String, age_ms: Option<i64>, detail: &str, advice: &str) {
        self.standing.holds.push(Hold {
            kind,
            who,
            age_ms,
            detail: note_text(detail),
            advice: note_text(advice),
        });
    }
}

fn count(row: &MySqlRow, column: &str) -> Result<u64, sqlx::Error> {
    number(row, column).map(i64::unsigned_abs)
}

fn standing_of(found: Shard, row: &MySqlRow, now: Timestamp) -> Result<ShardStanding, sqlx::Error> {
    let at = |column| row.try_get_unchecked::<Option<i64>, _>(column);
    let owned = found.nonce.is_some();
    Ok(ShardStanding {
        shard: found.id,
        owner: found.owner,
        until: owned.then_some(found.until),
        held: owned && found.until > now,
        note: text(row, "note")?,
        noted_at: at("noted_us")?.map(Timestamp),
        parked_keys: count(row, "parked_keys")?,
        asked: count(row, "marked")?,
        oldest_exception: at("oldest_us")?.map(Timestamp),
    })
}

/// The user, where from, and what it does.
fn who(row: &MySqlRow) -> Result<String, sqlx::Error> {
    let part = |column| text(row, column).map(Option::unwrap_or_default);
    let (user, host, state, sql) = (part("user")?, part("host")?, part("command")?, part("statement")?);
    let state = if state == "Sleep" {
        "idle in its transaction".to_owned()
    } else {
        state
    };
    Ok(format!("{state}, {user}@{host}: {sql}"))
}

impl Mysql {
    pub(super) async fn outbox_standing(&self) -> Result<Standing, StoreError> {
        let failed = |error| classify("standing", error);
        let sql = format!(
            "SELECT {NOW} AS now_us, CAST(@@global.read_only AS SIGNED) AS read_only, CAST(@@version AS CHAR) AS version"
        );
        let server = sqlx::query(AssertSqlSafe(sql))
            .fetch_one(&self.pool)
            .await
            .map_err(failed)?;
        let version = text(&server, "version").map_err(failed)?.unwrap_or_default();
        let mut looking = Looking {
            standing: Standing {
                now: Timestamp(number(&server, "now_us").map_err(failed)?),
                shards: Vec::new(),
                holds: Vec::new(),
                hidden: Vec::new(),
            },
            mariadb: version.contains("MariaDB"),
        };
        if number(&server, "read_only").map_err(failed)? == 1 {
            let advice = "a relay works on the primary alone: connect there";
            looking.add(
                "standby",
                "this server".to_owned(),
                None,
                "it has read_only = 1",
                advice,
            );
        }
        let furthest = self.shards_stand(&mut looking).await?;
        self.identity_stands(&mut looking, furthest.as_ref()).await?;
        let seen = furthest.map(|(seen, _)| seen).unwrap_or_default();
        let uncommitted = self.uncommitted(&seen).await?;
        for piece in [
            self.transactions_stand(&mut looking, uncommitted).await,
            self.waits_stand(&mut looking).await,
        ] {
            match piece {
                Err(error) if error_number(&error) == Some(NO_PROCESS) => {
                    let text =
                        "open transactions and what they do: GRANT PROCESS ON *.* TO this user to see them";
                    if !looking.standing.hidden.iter().any(|it| it == text) {
                        looking.standing.hidden.push(text.to_owned());
                        self.unseen(&mut looking, uncommitted);
                    }
                }
                Err(error) => return Err(failed(error)),
                Ok(()) => {}
            }
        }
        self.prepared_stand(&mut looking).await;
        Ok(looking.standing)
    }

    /// Every shard; returns what the cursor that is furthest has seen, and whose it is.
    async fn shards_stand(&self, looking: &mut Looking) -> Result<Option<(Seen, String)>, StoreError> {
        let failed = |error| classify("standing", error);
        let sql = format!(
            "SELECT {SHARD}, s.note, s.noted_us,
               (SELECT CAST(COUNT(DISTINCT e.`key`) AS SIGNED) FROM semel_outbox_exception e
                WHERE e.stream = s.stream AND e.shard = s.shard AND e.kind IN ('parked', 'behind')) AS parked_keys,
               (SELECT CAST(COUNT(*) AS SIGNED) FROM semel_outbox_exception e
                WHERE e.stream = s.stream AND e.shard = s.shard AND e.asked IS NOT NULL) AS marked,
               (SELECT MIN(e.since_us) FROM semel_outbox_exception e
                WHERE e.stream = s.stream AND e.shard = s.shard) AS oldest_us
             FROM semel_outbox_shard s ORDER BY s.stream, s.shard"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .fetch_all(&self.pool)
            .await
            .map_err(failed)?;
        let mut furthest: Option<(Seen, String)> = None;
        for row in &rows {
            let found = shard(row)?;
            let mark = found.cursor.open.as_ref().unwrap_or(&found.cursor.prev);
            let seen = Seen::parse(mark)?;
            if furthest
                .as_ref()
                .is_none_or(|(before, _)| before.high < seen.high)
            {
                furthest = Some((seen, found.id.to_string()));
            }
            let now = looking.standing.now;
            let standing = standing_of(found, row, now).map_err(failed)?;
            looking.standing.shards.push(standing);
        }
        Ok(furthest)
    }

    /// Whether the table of events is the one that the cursors speak of.
    async fn identity_stands(
        &self,
        looking: &mut Looking,
        furthest: Option<&(Seen, String)>,
    ) -> Result<(), StoreError> {
        let Some((seen, shard)) = furthest else {
            return Ok(());
        };
        let high = seen.high;
        let mut tx = self.begin().await?;
        let home = self.has_home(&mut tx).await?;
        let next = self.next_id(&mut tx).await?;
        tx.rollback().await.map_err(|error| classify("standing", error))?;
        let advice = "the table was emptied, replaced, copied or restored: semel outbox rescan";
        if !home {
            let detail = "the row that semel_outbox_home names is gone from semel_outbox";
            looking.add("identity_changed", "all shards".to_owned(), None, detail, advice);
        } else if let Some(next) = next.filter(|next| *next <= high) {
            let detail = format!("the cursor stands at {high}, the next event would get number {next}");
            looking.add("identity_changed", shard.clone(), None, &detail, advice);
        }
        Ok(())
    }

    /// Events that are written and not committed, as far as they were looked at.
    async fn uncommitted(&self, seen: &Seen) -> Result<u64, StoreError> {
        let failed = |error| classify("standing", error);
        let rest = seen.rest();
        let wanted = condition("id", &rest[rest.len().saturating_sub(RANGES)..]);
        // Its connection is not used again: another one's look must never see what is not committed.
        let mut connection = self.pool.acquire().await.map_err(failed)?;
        connection.close_on_drop();
        let sql = format!(
            "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED;
             SELECT CAST(COUNT(*) AS SIGNED) AS n, MAX(id) AS last FROM (SELECT id FROM semel_outbox FORCE INDEX (PRIMARY)
               WHERE {wanted} ORDER BY id LIMIT {UNCOMMITTED_LOOKED_AT_MAX}) t"
        );
        let written = sqlx::raw_sql(AssertSqlSafe(sql))
            .fetch_one(&mut *connection)
            .await
            .map_err(failed)?;
        drop(connection);
        let last: Option<i64> = written.try_get_unchecked("last").map_err(failed)?;
        // Looked at later: what was committed in between is not counted.
        let sql = format!(
            "SELECT CAST(COUNT(*) AS SIGNED) AS n FROM semel_outbox FORCE INDEX (PRIMARY) WHERE id <= {} AND {wanted}",
            last.unwrap_or(0)
        );
        let committed = sqlx::raw_sql(AssertSqlSafe(sql))
            .fetch_one(&self.pool)
            .await
            .map_err(failed)?;
        let count = |row| count(row, "n").map_err(failed);
        Ok(count(&written)?.saturating_sub(count(&committed)?))
    }

    async fn transactions_stand(&self, looking: &mut Looking, uncommitted: u64) -> Result<(), sqlx::Error> {
        let sql = format!(
            "SELECT CAST(t.trx_mysql_thread_id AS SIGNED) AS id, CAST(t.trx_rows_modified AS SIGNED) AS modified,
               TIMESTAMPDIFF(SECOND, t.trx_started, {SINCE}) AS age_s,
               p.user AS user, p.host AS host, p.command AS command, p.info AS statement
             FROM information_schema.innodb_trx t
             JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
             WHERE p.id <> CONNECTION_ID() AND (p.db IS NULL OR p.db = DATABASE())
               AND TIMESTAMPDIFF(SECOND, t.trx_started, {SINCE}) >= {AGE_S}
             ORDER BY t.trx_started LIMIT {HOLDS_MAX}"
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&self.pool).await?;
        for row in &rows {
            let (id, age_s) = (number(row, "id")?, number(row, "age_s")?);
            let modified = count(row, "modified")?;
            let who = who(row)?;
            let (kind, detail, advice) = if modified > 0 && uncommitted > 0 {
                (
                    "open_transaction",
                    format!(
                        "it has changed {modified} rows; {uncommitted} events are written and not committed, by it or by \
                         another one; {who}"
                    ),
                    format!(
                        "its events are sent when it commits; nothing else waits for it, but writers of the same keys: \
                         find out why it is open, or KILL {id}"
                    ),
                )
            } else {
                (
                    "held_snapshot",
                    format!("it has changed {modified} rows, and no event is waiting for a commit; {who}"),
                    format!(
                        "holds no event back; it keeps old versions of rows from being purged: end it, or KILL {id}"
                    ),
                )
            };
            let age_ms = Some(age_s.max(0).saturating_mul(1_000));
            looking.add(kind, format!("connection {id}"), age_ms, &detail, &advice);
        }
        Ok(())
    }

    /// What is known without the right to see who.
    fn unseen(&self, looking: &mut Looking, uncommitted: u64) {
        if uncommitted > 0 {
            let detail = format!("{uncommitted} events are written and not committed");
            let advice = "they are sent when they are committed; nothing else waits for them";
            looking.add("open_transaction", "somebody".to_owned(), None, &detail, advice);
        }
    }

    /// Statements of relays and of the desk that wait for a lock.
    async fn waits_stand(&self, looking: &mut Looking) -> Result<(), sqlx::Error> {
        let (waits, requesting, blocking) = if looking.mariadb {
            (
                "information_schema.innodb_lock_waits",
                "requesting_trx_id",
                "blocking_trx_id",
            )
        } else {
            (
                "performance_schema.data_lock_waits",
                "requesting_engine_transaction_id",
                "blocking_engine_transaction_id",
            )
        };
        let sql = format!(
            "SELECT DISTINCT CAST(r.trx_mysql_thread_id AS SIGNED) AS id, CAST(b.trx_mysql_thread_id AS SIGNED) AS holder,
               TIMESTAMPDIFF(SECOND, r.trx_wait_started, {SINCE}) AS age_s, r.trx_query AS statement,
               p.user AS user, p.host AS host, p.command AS command
             FROM {waits} w
             JOIN information_schema.innodb_trx r ON r.trx_id = w.{requesting}
             JOIN information_schema.innodb_trx b ON b.trx_id = w.{blocking}
             JOIN information_schema.processlist p ON p.id = r.trx_mysql_thread_id
             WHERE p.db = DATABASE() AND (r.trx_query LIKE '%semel\\_outbox\\_shard%'
               OR r.trx_query LIKE '%semel\\_outbox\\_exception%') LIMIT {HOLDS_MAX}"
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&self.pool).await?;
        for row in &rows {
            let (id, holder) = (number(row, "id")?, number(row, "holder")?);
            let age_s: Option<i64> = row.try_get_unchecked("age_s")?;
            let advice = format!(
                "Semel waits for a lock that connection {holder} holds: end that transaction, or KILL {holder}"
            );
            let age_ms = age_s.map(|age| age.max(0).saturating_mul(1_000));
            looking.add(
                "relay_waits",
                format!("connection {id}"),
                age_ms,
                &who(row)?,
                &advice,
            );
        }
        Ok(())
    }

    /// Transactions of two phases that are prepared. Where the right to see them is missing, that is said.
    async fn prepared_stand(&self, looking: &mut Looking) {
        let sql = if looking.mariadb {
            "XA RECOVER FORMAT='SQL'"
        } else {
            "XA RECOVER CONVERT XID"
        };
        let rows = sqlx::raw_sql(sql).fetch_all(&self.pool).await;
        let Ok(rows) = rows else {
            let text = "prepared transactions of two phases: GRANT XA_RECOVER_ADMIN ON *.* TO this user";
            looking.standing.hidden.push(text.to_owned());
            return;
        };
        for row in rows.iter().take(usize::try_from(HOLDS_MAX).unwrap_or(20)) {
            let xid: String = row.try_get_unchecked::<String, _>(3).unwrap_or_default();
            let advice = format!(
                "events that it has written are sent when it is committed; nothing else waits for it: XA COMMIT {xid} or \
                 XA ROLLBACK {xid}"
            );
            let detail = "prepared, on this server; which database it is of is not told";
            looking.add("prepared_transaction", note_text(&xid), None, detail, &advice);
        }
    }
}
