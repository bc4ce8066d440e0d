//! Batches of keys that are written without a look: claims of keys that are most likely new, and ends of runs.
//!
//! A batch of claims is one plain `INSERT`, of which nothing is left when one of its keys is there; a batch of completions
//! is one statement that finishes exactly the runs it names, or nothing at all. Whatever is not as it was supposed to be,
//! a reply that got lost included, is asked again the long way, which tells each key what it is: a claim that was written
//! after all is granted again under its nonce (rule K3), a completion is repeated (rule K2). See decision 0071.

use std::fmt::Write as _;

use semel_core::claim::row::Row;
use semel_core::claim::{Claim, ClaimReply, Completion, Record, State, Token, Withdrawn, step};
use semel_core::{Key, StoreError, Timestamp};
use sqlx::MySql as Driver;
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::pool::PoolConnection;
use sqlx::{Error, Row as _};

use super::key_batch::{Ask, DECISION_US_MAX, Reply, STATEMENT_BYTES_MAX};
use super::key_rows::{self, Change, Literal, NOW, Way, push};
use crate::db::Mysql;
use crate::error::{BAD_NULL, DEADLOCK, DUPLICATE, LOCK_WAIT_TIMEOUT, classify, number};

/// Claims for which the server fills in the time itself: one round trip less, and more work for every row.
const RELATIVE_MAX: usize = 4;
/// Completions from which on a batch goes straight: a single one costs as much either way.
const COMPLETIONS_MIN: usize = 2;

/// Whether a batch of claims that was looked up was one of new keys alone; `None` where it was no batch of claims.
pub(super) fn all_new(asks: &[Ask<'_>], replies: &[Option<Result<Reply, StoreError>>]) -> Option<bool> {
    if asks.is_empty() || !asks.iter().all(|ask| matches!(ask, Ask::Claim(_))) {
        return None;
    }
    let granted = |reply: &Option<Result<Reply, StoreError>>| {
        matches!(reply, Some(Ok(Reply::Claim(ClaimReply::Granted { .. }))))
    };
    Some(replies.iter().all(granted))
}

/// What became of a batch that was written without a look.
pub(super) enum Straight {
    /// All of it is done: each item by its place.
    Done(Vec<(usize, Reply)>),
    /// Somebody holds one of its rows for too long.
    Blocked,
    /// There is no connection: nothing was done.
    Failed(StoreError),
    /// It must be looked up; what is written of it already will show.
    Look,
}

/// The server's time, and above which tokens begin.
#[derive(Clone, Copy)]
struct Moment {
    now: Timestamp,
    base: i64,
}

impl Moment {
    fn token(self, n: usize) -> Token {
        Token(self.base.saturating_add(i64::try_from(n).unwrap_or(i64::MAX)))
    }

    fn deadline(self) -> Timestamp {
        Timestamp(self.now.0.saturating_add(DECISION_US_MAX))
    }
}

/// A connection in the middle of something. Closed where that does not come to its end, for it may be in a transaction.
struct Open {
    connection: PoolConnection<Driver>,
    ended: bool,
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.ended {
            self.connection.close_on_drop();
        }
    }
}

impl Mysql {
    /// Writes a batch of claims alone or of completions alone, of different keys, without looking first.
    pub(super) async fn straight(&self, asks: &[Ask<'_>], which: &[usize]) -> Straight {
        let mut order = which.to_vec();
        order.sort_unstable_by(|a, b| asks[*a].key().cmp(asks[*b].key()));
        let different = order
            .windows(2)
            .all(|pair| asks[pair[0]].key() != asks[pair[1]].key());
        if !different {
            return Straight::Look;
        }
        let claims: Option<Vec<&Claim>> = order.iter().map(|n| asks[*n].as_claim()).collect();
        let ends: Option<Vec<&Completion>> = order.iter().map(|n| asks[*n].as_completion()).collect();
        let claims = claims.filter(|claims| !claims.is_empty() && !self.replays.look_first(None));
        let ends = ends.filter(|ends| ends.len() >= COMPLETIONS_MIN);
        if claims.is_none() && ends.is_none() {
            return Straight::Look;
        }
        let connection = match self.own.acquire().await {
            Ok(connection) => connection,
            Err(error) => return Straight::Failed(classify(asks[order[0]].operation(), error)),
        };
        let mut open = Open {
            connection,
            ended: false,
        };
        let written = match (claims, ends) {
            (Some(claims), _) => {
                let written = self.claim_new(&mut open, &claims).await;
                // One statement, refused: the connection is as it was.
                open.ended |= matches!(&written, Err(error) if number(error).is_some());
                written
            }
            (_, Some(ends)) => self.complete_claimed(&mut open, &ends).await,
            (None, None) => Ok(None),
        };
        match written {
            Ok(Some(replies)) => Straight::Done(order.into_iter().zip(replies).collect()),
            Ok(None) => Straight::Look,
            Err(error) => match number(&error) {
                Some(LOCK_WAIT_TIMEOUT) => Straight::Blocked,
                Some(DUPLICATE | BAD_NULL | DEADLOCK) => Straight::Look,
                _ => {
                    tracing::debug!(%error, "a batch is asked again, one look first");
                    Straight::Look
                }
            },
        }
    }

    /// Claims keys of which none is there.
    async fn claim_new(&self, open: &mut Open, claims: &[&Claim]) -> Result<Option<Vec<Reply>>, Error> {
        let relative = claims.len() <= RELATIVE_MAX;
        let zero = Moment {
            now: Timestamp(0),
            base: 0,
        };
        let moment = if relative {
            zero
        } else {
            match moment(&mut open.connection, &ask_moment("")).await? {
                Some(moment) => moment,
                None => return Ok(None),
            }
        };
        let changes: Vec<Change> = (0..)
            .zip(claims)
            .filter_map(|(n, claim)| {
                let (record, _) = step::claim(None, claim, moment.now, moment.token(n));
                Some(Change {
                    key: claim.key.clone(),
                    record: record?,
                    token_last: moment.token(n).0,
                    replaces: 0,
                })
            })
            .collect();
        if self.too_long(changes.iter().map(key_rows::text_bytes)) {
            open.ended = true;
            return Ok(None);
        }
        let way = if relative {
            Way::NewByServersTime
        } else {
            Way::New { base: moment.base }
        };
        let insert = key_rows::write(&changes, key_rows::version(), moment.deadline(), way);
        let moment = if relative {
            let all = format!("{};{insert};{ASK_AGAIN}", ask_moment(INTO));
            match self::moment(&mut open.connection, &all).await? {
                Some(moment) => moment,
                None => return Ok(None),
            }
        } else {
            run(&mut open.connection, insert).await?;
            moment
        };
        open.ended = true;
        self.replays.note(false);
        let reply = |(n, claim): (usize, &&Claim)| {
            let (_, reply) = step::claim(None, claim, moment.now, moment.token(n));
            Reply::Claim(reply)
        };
        Ok(Some(claims.iter().enumerate().map(reply).collect()))
    }

    /// Finishes runs that are under way, or whose owner was lost.
    async fn complete_claimed(
        &self,
        open: &mut Open,
        ends: &[&Completion],
    ) -> Result<Option<Vec<Reply>>, Error> {
        if self.too_long(
            ends.iter()
                .map(|end| key_rows::row_bytes(end.outcome.bytes().len())),
        ) {
            open.ended = true;
            return Ok(None);
        }
        let Some(moment) = moment(&mut open.connection, &ask_moment("")).await? else {
            return Ok(None);
        };
        let mut replies = Vec::with_capacity(ends.len());
        let mut rows = Vec::with_capacity(ends.len());
        for end in ends {
            // Of a run the end says all that it changes.
            let run = Record {
                fingerprint: None,
                state: State::Unknown {
                    lease: end.lease,
                    attempt: 0,
                },
                withdrawn: Withdrawn::default(),
            };
            let (Some(record), reply) = step::complete(Some(run), end, moment.now) else {
                return Ok(None);
            };
            rows.push((&end.key, Row::from(&record)));
            replies.push(Reply::Lease(reply));
        }
        let statement = complete(&rows, key_rows::version(), moment.deadline());
        run(&mut open.connection, statement).await?;
        open.ended = true;
        Ok(Some(replies))
    }

    fn too_long(&self, bytes: impl Iterator<Item = usize>) -> bool {
        bytes.fold(0, usize::saturating_add) > self.packet_bytes.min(STATEMENT_BYTES_MAX)
    }
}

/// Kept in the session for the statement that comes next.
const INTO: &str = " INTO @semel_now, @semel_base";
const ASK_AGAIN: &str = "SELECT @semel_now AS now_us, @semel_base AS base";

/// Asks for the time and for the first token: above those of all rows that are gone.
fn ask_moment(into: &str) -> String {
    format!("SELECT {NOW} AS now_us, GREATEST({NOW}, token + 1) AS base{into} FROM semel_token WHERE one = 1")
}

/// Runs statements of which the last that shows a row shows a [`Moment`].
async fn moment(db: &mut MySqlConnection, statements: &str) -> Result<Option<Moment>, Error> {
    // Hexadecimal digits and nothing else that came from outside.
    let rows: Vec<MySqlRow> = sqlx::raw_sql(sqlx::AssertSqlSafe(statements.to_owned()))
        .fetch_all(db)
        .await?;
    let Some(row) = rows.last() else { return Ok(None) };
    let now: Option<i64> = row.try_get_unchecked("now_us")?;
    let base: Option<i64> = row.try_get_unchecked("base")?;
    Ok(now.zip(base).map(|(now, base)| Moment {
        now: Timestamp(now),
        base,
    }))
}

async fn run(db: &mut MySqlConnection, statement: String) -> Result<(), Error> {
    // Hexadecimal digits and nothing else that came from outside.
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(db).await?;
    Ok(())
}

/// A run that is there, under way or lost, is finished; any other row, and any that is not there, makes the transaction fail
/// as a whole: the state may not be null, nor may the id that is noted where a row was inserted (one counts for one, a
/// changed one for two).
fn complete(rows: &[(&Key, Row)], version: i64, deadline: Timestamp) -> String {
    let outcomes = rows
        .iter()
        .map(|(_, row)| row.outcome.as_ref().map_or(0, Vec::len));
    let mut sql = String::with_capacity(1_024 + outcomes.map(key_rows::row_bytes).sum::<usize>() / 2);
    sql.push_str(
        "START TRANSACTION;INSERT INTO semel_key (key_bytes, state, token_last, version, replaces, token, nonce, until_us, \
         tombstone_us, due_us, outcome_code, outcome, digest) VALUES ",
    );
    for (n, (key, row)) in rows.iter().enumerate() {
        sql.push_str(if n == 0 { "(" } else { ",(" });
        push(&mut sql, &Literal::Bytes(&key.to_bytes()));
        // By the last one all rows before it have been waited for.
        if n + 1 < rows.len() {
            sql.push_str(",'done'");
        } else {
            let _ = write!(sql, ",IF({NOW}<{},'done',NULL)", deadline.0);
        }
        for literal in [
            Literal::of_number(row.token),
            Literal::Number(version),
            Literal::Number(0),
            Literal::of_number(row.token),
            Literal::of_bytes(row.nonce.as_deref()),
            Literal::of_number(row.until),
            Literal::of_number(row.tombstone_until),
            Literal::of_number(row.due_at),
            Literal::of_bytes(row.outcome_code.as_deref().map(str::as_bytes)),
            Literal::of_bytes(row.outcome.as_deref()),
            Literal::of_bytes(row.digest.as_deref()),
        ] {
            sql.push(',');
            push(&mut sql, &literal);
        }
        sql.push(')');
    }
    let _ = write!(
        sql,
        " ON DUPLICATE KEY UPDATE state = IF(token = VALUES(token) AND nonce = VALUES(nonce) AND \
         state IN ('claimed', 'unknown'), VALUES(state), NULL), hold = NULL, extended = NULL, attempt = NULL, \
         until_us = VALUES(until_us), tombstone_us = VALUES(tombstone_us), due_us = VALUES(due_us), \
         outcome_code = VALUES(outcome_code), outcome = VALUES(outcome), digest = VALUES(digest), replaces = version, \
         version = VALUES(version);\
         INSERT INTO semel_commit (id) SELECT NULL FROM semel_token WHERE one = 1 AND ROW_COUNT() <> {};COMMIT",
        2 * rows.len()
    );
    sql
}
