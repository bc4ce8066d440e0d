//! Rows of sagas, read and written.

use semel_core::claim::Nonce;
use semel_core::key::hex;
use semel_core::saga::{Instance, LogEntry, LogRow, Op, SagaId, Status};
use semel_core::store::{ClaimDue, PendingRequest, SagaLookup, SagaRecord, SagaRequest, SagaSummary};
use semel_core::{ErrorKind, StoreError, Timestamp};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, Sqlite as Driver, SqliteExecutor, Transaction};

use crate::error::classify;

/// What stands under an id that is submitted again.
pub(super) struct Found {
    pub(super) definition: Vec<u8>,
    pub(super) fingerprint: Vec<u8>,
    pub(super) status: Status,
    pub(super) version: i64,
    pub(super) owner: Option<Vec<u8>>,
    pub(super) pruned: bool,
}

pub(super) fn failed(operation: &'static str) -> impl FnOnce(sqlx::Error) -> StoreError {
    move |error| classify(operation, error)
}

pub(super) fn json(instance: &Instance) -> Result<String, StoreError> {
    let failed =
        |error: serde_json::Error| StoreError::new(ErrorKind::Corrupt, "save_sagas", error.to_string());
    instance.to_json().map_err(failed)
}

pub(super) fn corrupt(what: &'static str) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, "read sagas", what)
}

pub(super) fn status(text: &str) -> Result<Status, StoreError> {
    Status::parse(text).ok_or_else(|| corrupt("a saga's status is none that this build knows"))
}

/// Ids of sagas to take, by the two-part rule S8: what this coordinator serves at once, the rest after its grace.
pub(super) async fn due<'e>(
    db: impl SqliteExecutor<'e>,
    claim: &ClaimDue,
    now: Timestamp,
) -> Result<Vec<String>, StoreError> {
    let unserved: Vec<String> = claim
        .unserved
        .iter()
        .map(|hash| format!("\"{}\"", hex(hash)))
        .collect();
    sqlx::query_scalar(
        "SELECT id FROM semel_saga
         WHERE due_at <= ?1 AND (lease_until IS NULL OR lease_until <= ?1)
           AND (due_at <= ?2 OR definition NOT IN (SELECT unhex(value) FROM json_each(?3)))
         ORDER BY due_at LIMIT ?4",
    )
    .bind(now.0)
    .bind(now.plus_ms(-claim.grace_ms).0)
    .bind(format!("[{}]", unserved.join(",")))
    .bind(claim.limit)
    .fetch_all(db)
    .await
    .map_err(failed("claim_sagas"))
}

pub(super) async fn load(tx: &mut Transaction<'_, Driver>, id: &str) -> Result<SagaLookup, StoreError> {
    let row = sqlx::query(
        "SELECT id, definition, input, state, status, version, epoch, owner, due_at, accepted_at, tombstone_until
         FROM semel_saga WHERE id = ?1",
    )
    .bind(id)
    .fetch_optional(&mut **tx)
    .await
    .map_err(failed("load_sagas"))?;
    let Some(row) = row else {
        return Ok(SagaLookup::Absent);
    };
    let state = status(row.get("status"))?;
    if row.get::<Option<i64>, _>("tombstone_until").is_some() {
        return Ok(SagaLookup::Ended(state));
    }
    let requests =
        sqlx::query("SELECT n, kind, by_whom, why FROM semel_saga_request WHERE saga = ?1 ORDER BY n")
            .bind(id)
            .fetch_all(&mut **tx)
            .await
            .map_err(failed("load_sagas"))?;
    let requests = requests.iter().map(request).collect::<Result<_, _>>()?;
    let owner: Option<Vec<u8>> = row.get("owner");
    Ok(SagaLookup::Found(Box::new(SagaRecord {
        id: saga_id(row.get("id"))?,
        definition: row
            .get::<Vec<u8>, _>("definition")
            .try_into()
            .map_err(|_| corrupt("a definition's hash is not 32 bytes"))?,
        input: row.get::<Vec<u8>, _>("input").into(),
        state: row.get("state"),
        status: state,
        version: row.get("version"),
        epoch: row.get("epoch"),
        owner: owner.and_then(|owner| owner.try_into().ok()).map(Nonce),
        due_at: row.get::<Option<i64>, _>("due_at").map(Timestamp),
        accepted_at: Timestamp(row.get("accepted_at")),
        requests,
    })))
}

fn saga_id(text: String) -> Result<SagaId, StoreError> {
    SagaId::new(text).map_err(|_| corrupt("a saga's id is none"))
}

fn request(row: &SqliteRow) -> Result<PendingRequest, StoreError> {
    let request = SagaRequest::from_parts(row.get("kind"), row.get("by_whom"), row.get("why"))
        .ok_or_else(|| corrupt("a request is of a kind that this build does not know"))?;
    Ok(PendingRequest {
        n: row.get("n"),
        request,
    })
}

pub(super) async fn add_request(
    tx: &mut Transaction<'static, Driver>,
    id: &SagaId,
    request: &SagaRequest,
    now: Timestamp,
) -> Result<(), StoreError> {
    let (kind, by, why) = request.parts();
    sqlx::query(
        "INSERT INTO semel_saga_request (saga, kind, by_whom, why, asked_at) VALUES (?1, ?2, ?3, ?4, ?5)",
    )
    .bind(id.as_str())
    .bind(kind)
    .bind(by)
    .bind(why)
    .bind(now.0)
    .execute(&mut **tx)
    .await
    .map_err(failed("request_saga"))?;
    sqlx::query("UPDATE semel_saga SET version = version + 1, due_at = ?2, updated_at = ?2 WHERE id = ?1")
        .bind(id.as_str())
        .bind(now.0)
        .execute(&mut **tx)
        .await
        .map_err(failed("request_saga"))?;
    Ok(())
}

pub(super) fn summary(row: &SqliteRow) -> Result<SagaSummary, StoreError> {
    Ok(SagaSummary {
        id: saga_id(row.get("id"))?,
        definition: row.get("name"),
        status: status(row.get("status"))?,
        why: row.get("why"),
        accepted_at: Timestamp(row.get("accepted_at")),
        updated_at: Timestamp(row.get("updated_at")),
    })
}

pub(super) fn log_row(row: &SqliteRow) -> Result<LogRow, StoreError> {
    let op: Option<&str> = row.get("op");
    Ok(LogRow {
        version: row.get("version"),
        at: Timestamp(row.get("at")),
        entry: LogEntry {
            step: row.get("step"),
            op: op.and_then(Op::parse),
            event: row.get("event"),
            text: row.get("text"),
        },
    })
}

pub(super) async fn log(
    tx: &mut Transaction<'static, Driver>,
    id: &SagaId,
    version: i64,
    now: Timestamp,
    entries: &[LogEntry],
) -> Result<(), StoreError> {
    for (n, entry) in entries.iter().enumerate() {
        sqlx::query(
            "INSERT INTO semel_saga_log (saga, version, n, at, step, op, event, text)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )
        .bind(id.as_str())
        .bind(version)
        .bind(n as i64)
        .bind(now.0)
        .bind(entry.step.as_deref())
        .bind(entry.op.map(Op::as_str))
        .bind(entry.event.as_str())
        .bind(entry.text.as_str())
        .execute(&mut **tx)
        .await
        .map_err(failed("save_sagas"))?;
    }
    Ok(())
}
