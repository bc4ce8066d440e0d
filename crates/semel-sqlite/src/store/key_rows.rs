//! Rows of `semel_key`: read and written inside whatever transaction the caller holds.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::LazyLock;

use semel_core::claim::row::Row;
use semel_core::claim::{Record, StateName, Token};
use semel_core::key::hex;
use semel_core::store::{KeyQuery, Usage};
use semel_core::{ErrorKind, Key, Scope, StoreError, Timestamp};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Error, Row as _};

use crate::error::classify;

// Keys travel as JSON, in which bytes must be hexadecimal.
const LOAD: &str =
    "SELECT j.key, k.state, k.fingerprint, k.token, k.nonce, k.hold, k.extended, k.attempt, k.until,
  k.outcome_code, k.outcome, k.digest, k.tombstone_until, k.withdrawn, k.withdrawn_until, k.due_at
FROM json_each(?1) AS j
CROSS JOIN semel_key AS k ON k.scope = unhex(j.value ->> 0) AND k.id = unhex(j.value ->> 1)";

const DRAW: &str = "UPDATE semel_token SET token = token + ?2 WHERE one = 1 RETURNING token";

static LOAD_AND_DRAW: LazyLock<String> = LazyLock::new(|| format!("{DRAW};\n{LOAD}"));

const SAVE_INTO: &str =
    "INSERT INTO semel_key (scope, id, state, fingerprint, token, nonce, hold, extended, attempt,
  until, outcome_code, outcome, digest, tombstone_until, withdrawn, withdrawn_until, due_at)
VALUES ";
const SAVE_ROW: &str = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
const SAVE_OVER: &str = "
ON CONFLICT (scope, id) DO UPDATE SET state = excluded.state, fingerprint = excluded.fingerprint,
  token = excluded.token, nonce = excluded.nonce, hold = excluded.hold, extended = excluded.extended,
  attempt = excluded.attempt, until = excluded.until, outcome_code = excluded.outcome_code,
  outcome = excluded.outcome, digest = excluded.digest, tombstone_until = excluded.tombstone_until,
  withdrawn = excluded.withdrawn, withdrawn_until = excluded.withdrawn_until, due_at = excluded.due_at";

/// Statements that save so many records: each call to the driver is a message to its thread and back. 256 records of 17
/// columns are far below SQLite's 32 766 variables.
static SAVE: LazyLock<Vec<(usize, String)>> = LazyLock::new(|| {
    let statement = |count: usize| {
        let rows = vec![SAVE_ROW; count].join(", ");
        (count, format!("{SAVE_INTO}{rows}{SAVE_OVER}"))
    };
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]
        .map(statement)
        .into()
});

/// How many records the next statement saves of so many that are left. A statement that is a little too large saves the
/// last record several times, which does no harm and costs less than another message.
fn save_next(left: usize) -> Option<(usize, &'static str)> {
    let fits = |(count, _): &&(usize, String)| *count <= left + left / 8;
    let (count, statement) = SAVE.iter().rev().find(fits)?;
    Some((*count, statement.as_str()))
}

const DUE: &str = "SELECT k.* FROM semel_key AS k WHERE due_at <= ?1 ORDER BY due_at LIMIT ?2";

/// When a sweep looks again at a row that it could not read.
const UNREADABLE_AGAIN_MS: i64 = 3_600_000;

const PAGE: &str = "SELECT k.* FROM semel_key AS k
WHERE (?1 IS NULL OR k.scope = ?1) AND (?2 IS NULL OR (k.scope, k.id) > (?2, ?3))
  AND (?4 IS NULL OR k.state = ?4 OR (?4 = 'unknown' AND k.state = 'claimed') OR (?4 = 'tombstone' AND k.state = 'done'))
ORDER BY k.scope, k.id LIMIT ?5";

const USAGE: &str = "SELECT count(*) AS records, coalesce(sum(length(outcome)), 0) AS bytes
FROM (SELECT outcome FROM semel_key WHERE scope = ?1 LIMIT ?2)";

/// What is stored about some keys, or why that cannot be read.
pub(crate) type Records = HashMap<Key, Result<Record, StoreError>>;

/// Reads the records of these keys.
pub(crate) async fn load(
    db: &mut SqliteConnection,
    operation: &'static str,
    keys: &[&Key],
) -> Result<Records, StoreError> {
    let failed = |error| classify(operation, error);
    let rows = sqlx::query(LOAD)
        .bind(as_json(keys))
        .fetch_all(db)
        .await
        .map_err(failed)?;
    records(operation, keys, &rows)
}

/// The same, and so many tokens, in one message to the driver's thread: also the last token before them. Inside a writing
/// transaction nobody else draws one.
pub(crate) async fn load_and_draw(
    db: &mut SqliteConnection,
    operation: &'static str,
    keys: &[&Key],
    tokens: usize,
) -> Result<(Records, Token), StoreError> {
    let failed = |error| classify(operation, error);
    let tokens = i64::try_from(tokens).unwrap_or(i64::MAX);
    let rows = sqlx::query(LOAD_AND_DRAW.as_str())
        .bind(as_json(keys))
        .bind(tokens)
        .fetch_all(db)
        .await
        .map_err(failed)?;
    // A record has more columns: without its row the token must not be taken from one.
    let first = rows.split_first().filter(|(row, _)| row.len() == 1);
    let (token, rows) = first.ok_or_else(|| {
        let text = "the table semel_token has lost its row; put it back (one = 1) with a token above all that \
            were handed out";
        StoreError::new(ErrorKind::Schema, operation, text)
    })?;
    let last: i64 = token.try_get(0).map_err(failed)?;
    Ok((
        records(operation, keys, rows)?,
        Token(last.saturating_sub(tokens)),
    ))
}

fn as_json(keys: &[&Key]) -> String {
    let mut json = String::from("[");
    for (n, key) in keys.iter().enumerate() {
        let comma = if n == 0 { "" } else { "," };
        let (scope, id) = (hex(key.scope().as_bytes()), hex(key.id()));
        // Writing to a String cannot fail.
        let _ = write!(json, "{comma}[\"{scope}\",\"{id}\"]");
    }
    json.push(']');
    json
}

fn records(operation: &'static str, keys: &[&Key], rows: &[SqliteRow]) -> Result<Records, StoreError> {
    let failed = |error| classify(operation, error);
    rows.iter()
        .map(|row| {
            let n: i64 = row.try_get(0).map_err(failed)?;
            let key = usize::try_from(n).ok().and_then(|n| keys.get(n));
            let key = key.ok_or_else(|| failed(Error::RowNotFound))?;
            Ok(((*key).clone(), record(row, 1).map_err(failed)?.try_into()))
        })
        .collect()
}

/// Writes records, or removes them.
pub(crate) async fn save(
    db: &mut SqliteConnection,
    operation: &'static str,
    records: &[(Key, Option<Record>)],
) -> Result<(), StoreError> {
    let failed = |error| classify(operation, error);
    for (key, _) in records.iter().filter(|(_, record)| record.is_none()) {
        sqlx::query("DELETE FROM semel_key WHERE scope = ?1 AND id = ?2")
            .bind(key.scope().as_bytes())
            .bind(key.id())
            .execute(&mut *db)
            .await
            .map_err(failed)?;
    }
    let kept = records
        .iter()
        .filter_map(|(key, record)| Some((key, record.as_ref()?)));
    let mut rows: Vec<(&Key, Row)> = kept.map(|(key, record)| (key, Row::from(record))).collect();
    while let Some((count, statement)) = save_next(rows.len()) {
        if rows.len() < count
            && let Some(last) = rows.last().cloned()
        {
            rows.resize(count, last);
        }
        let mut query = sqlx::query(statement);
        for (key, row) in rows.drain(rows.len() - count..) {
            query = query
                .bind(key.scope().as_bytes())
                .bind(key.id())
                .bind(row.state)
                .bind(row.fingerprint)
                .bind(row.token)
                .bind(row.nonce)
                .bind(row.hold)
                .bind(row.extended)
                .bind(row.attempt)
                .bind(row.until)
                .bind(row.outcome_code)
                .bind(row.outcome)
                .bind(row.digest)
                .bind(row.tombstone_until)
                .bind(row.withdrawn)
                .bind(row.withdrawn_until)
                .bind(row.due_at);
        }
        query.execute(&mut *db).await.map_err(failed)?;
    }
    Ok(())
}

/// The token drawn last.
pub(crate) async fn last_token(
    db: &mut SqliteConnection,
    operation: &'static str,
) -> Result<Token, StoreError> {
    let token = sqlx::query_scalar("SELECT token FROM semel_token WHERE one = 1")
        .fetch_one(db)
        .await
        .map_err(|error| classify(operation, error))?;
    Ok(Token(token))
}

/// Draws so many tokens and says which was the last before them. Inside a writing transaction nobody else draws one.
pub(crate) async fn draw_tokens(
    db: &mut SqliteConnection,
    operation: &'static str,
    count: usize,
) -> Result<Token, StoreError> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let last: i64 =
        sqlx::query_scalar("UPDATE semel_token SET token = token + ?1 WHERE one = 1 RETURNING token")
            .bind(count)
            .fetch_one(db)
            .await
            .map_err(|error| classify(operation, error))?;
    Ok(Token(last.saturating_sub(count)))
}

/// Records that a sweep has something to do with, the longest due first; and whether rows that cannot be read were put off.
pub(crate) async fn due(
    db: &mut SqliteConnection,
    now: Timestamp,
    limit: u32,
) -> Result<(Vec<(Key, Record)>, bool), StoreError> {
    let failed = |error| classify("sweep", error);
    let rows = sqlx::query(DUE)
        .bind(now.0)
        .bind(limit)
        .fetch_all(&mut *db)
        .await
        .map_err(failed)?;
    let mut records = Vec::with_capacity(rows.len());
    let mut put_off = false;
    for row in &rows {
        let error = match keyed(row, "sweep") {
            Ok(record) => {
                records.push(record);
                continue;
            }
            Err(error) => error,
        };
        // One such row must not keep all others from being swept.
        tracing::warn!(%error, "a record cannot be read: the sweep passes it over for an hour");
        sqlx::query("UPDATE semel_key SET due_at = ?1 WHERE scope = ?2 AND id = ?3")
            .bind(now.plus_ms(UNREADABLE_AGAIN_MS).0)
            .bind(row.try_get::<&[u8], _>("scope").map_err(failed)?)
            .bind(row.try_get::<&[u8], _>("id").map_err(failed)?)
            .execute(&mut *db)
            .await
            .map_err(failed)?;
        put_off = true;
    }
    Ok((records, put_off))
}

/// Records in the order of their keys, behind `from`. Those of another state may be among them, where the state that is
/// stored does not tell what it reads as now.
pub(crate) async fn page(
    db: &mut SqliteConnection,
    query: &KeyQuery,
    from: Option<&Key>,
) -> Result<Vec<(Key, Record)>, StoreError> {
    let failed = |error| classify("list", error);
    let rows = sqlx::query(PAGE)
        .bind(query.scope.as_ref().map(Scope::as_bytes))
        .bind(from.map(|key| key.scope().as_bytes()))
        .bind(from.map(Key::id))
        .bind(query.state.map(StateName::as_str))
        .bind(query.limit)
        .fetch_all(db)
        .await
        .map_err(failed)?;
    rows.iter().map(|row| keyed(row, "list")).collect()
}

/// What a scope holds, counted up to `records_max`.
pub(crate) async fn usage(
    db: &mut SqliteConnection,
    scope: &Scope,
    records_max: u64,
) -> Result<Usage, StoreError> {
    let failed = |error| classify("usage", error);
    let row = sqlx::query(USAGE)
        .bind(scope.as_bytes())
        .bind(i64::try_from(records_max).unwrap_or(i64::MAX))
        .fetch_one(db)
        .await
        .map_err(failed)?;
    let count = |column| {
        let count: i64 = row.try_get(column).map_err(failed)?;
        Ok::<_, StoreError>(u64::try_from(count).unwrap_or(0))
    };
    Ok(Usage {
        records: count("records")?,
        bytes: count("bytes")?,
    })
}

fn keyed(row: &SqliteRow, operation: &'static str) -> Result<(Key, Record), StoreError> {
    let failed = |error| classify(operation, error);
    let scope = Scope::new(row.try_get::<&[u8], _>("scope").map_err(failed)?)?;
    let key = Key::new(scope, row.try_get::<&[u8], _>("id").map_err(failed)?)?;
    // `k.*` begins with scope and id.
    Ok((key, record(row, 2).map_err(failed)?.try_into()?))
}

/// The columns from `state` on, in the order of the table; `state` is the column of that number.
fn record(row: &SqliteRow, state: usize) -> Result<Row, Error> {
    Ok(Row {
        state: row.try_get(state)?,
        fingerprint: row.try_get(state + 1)?,
        token: row.try_get(state + 2)?,
        nonce: row.try_get(state + 3)?,
        hold: row.try_get(state + 4)?,
        extended: row.try_get(state + 5)?,
        attempt: row.try_get(state + 6)?,
        until: row.try_get(state + 7)?,
        outcome_code: row.try_get(state + 8)?,
        outcome: row.try_get(state + 9)?,
        digest: row.try_get(state + 10)?,
        tombstone_until: row.try_get(state + 11)?,
        withdrawn: row.try_get(state + 12)?,
        withdrawn_until: row.try_get(state + 13)?,
        due_at: row.try_get(state + 14)?,
    })
}
