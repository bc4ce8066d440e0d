//! Rows of `semel_key`: read and written inside whatever transaction the caller holds.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::LazyLock;

use semel_core::claim::{Record, StateName, Token};
use semel_core::key::hex;
use semel_core::store::{KeyQuery, Usage};
use semel_core::{ErrorKind, Key, Scope, StoreError, Timestamp};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Error, Row as _};

use super::key_record;
use crate::error::classify;

// Keys travel as JSON, in which bytes must be hexadecimal.
const LOAD: &str = "SELECT j.key, k.state, k.record, k.outcome FROM json_each(?1) AS j
CROSS JOIN semel_key AS k ON k.scope = unhex(j.value ->> 0) AND k.id = unhex(j.value ->> 1)";

const SAVE_INTO: &str = "INSERT INTO semel_key (scope, id, state, due_at, record, outcome) VALUES ";
const SAVE_ROW: &str = "(?, ?, ?, ?, ?, ?)";
const SAVE_OVER: &str = "
ON CONFLICT (scope, id) DO UPDATE SET state = excluded.state, due_at = excluded.due_at, record = excluded.record,
  outcome = excluded.outcome";

/// Statements that save so many records: each call to the driver is a message to its thread and back. 256 records of 6
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
            Ok(((*key).clone(), record(row).map_err(failed)?))
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
    let mut rows: Vec<(&Key, &Record)> = kept.collect();
    while let Some((count, statement)) = save_next(rows.len()) {
        if rows.len() < count
            && let Some(last) = rows.last().copied()
        {
            rows.resize(count, last);
        }
        let mut query = sqlx::query(statement);
        for (key, record) in rows.drain(rows.len() - count..) {
            query = query
                .bind(key.scope().as_bytes())
                .bind(key.id())
                .bind(key_record::state(record))
                .bind(record.due().map(|due| due.0))
                .bind(key_record::pack(record))
                .bind(key_record::outcome(record));
        }
        query.execute(&mut *db).await.map_err(failed)?;
    }
    Ok(())
}

/// The file says no longer which tokens were handed out.
pub(super) fn token_is_lost(operation: &'static str) -> StoreError {
    let text = "the table semel_token has lost its row; put it back (one = 1) with a token above all that \
        were handed out";
    StoreError::new(ErrorKind::Schema, operation, text)
}

/// The token drawn last, or the time where that is more: a file that was put back from a copy has forgotten tokens, all of which were
/// drawn before now, and less than one of them in a microsecond (decision 0070).
pub(super) fn raised(last: i64, now: Timestamp) -> Token {
    Token(last.max(now.0))
}

/// The token drawn last, [`raised`].
pub(crate) async fn last_token(
    db: &mut SqliteConnection,
    operation: &'static str,
    now: Timestamp,
) -> Result<Token, StoreError> {
    let token = sqlx::query_scalar("SELECT token FROM semel_token WHERE one = 1")
        .fetch_one(db)
        .await
        .map_err(|error| classify(operation, error))?;
    Ok(raised(token, now))
}

/// Remembers that this token was drawn. Inside a writing transaction nobody else draws one.
pub(crate) async fn set_token(
    db: &mut SqliteConnection,
    operation: &'static str,
    token: Token,
) -> Result<(), StoreError> {
    sqlx::query("UPDATE semel_token SET token = ?1 WHERE one = 1")
        .bind(token.0)
        .execute(db)
        .await
        .map_err(|error| classify(operation, error))?;
    Ok(())
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
    Ok((key, record(row).map_err(failed)??))
}

fn record(row: &SqliteRow) -> Result<Result<Record, StoreError>, Error> {
    let state = row.try_get("state")?;
    let outcome: Option<&[u8]> = row.try_get("outcome")?;
    Ok(key_record::unpack(state, row.try_get("record")?, outcome))
}
