//! Rows of sagas as values, and back.

use std::collections::HashSet;

use semel_core::claim::Nonce;
use semel_core::saga::{Instance, LogEntry, LogRow, Op, SagaId, Status};
use semel_core::store::{PendingRequest, SagaLookup, SagaRecord, SagaRequest, SagaSummary, Save, SaveState};
use semel_core::{ErrorKind, Retry, StoreError, Timestamp};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::error::classify;

/// Bytes of inputs and states in one statement; a message to the server ends at a gibibyte.
const ROUND_BYTES_MAX: usize = 64 << 20;
/// The end of the year 9999: what is later is written as that.
const TIME_MAX: Timestamp = Timestamp(253_402_300_799_000_000);

pub(super) fn failed(operation: &'static str) -> impl Fn(sqlx::Error) -> StoreError {
    move |error| classify(operation, error)
}

pub(super) fn corrupt(what: &'static str) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, "read sagas", what)
}

pub(super) fn status(text: &str) -> Result<Status, StoreError> {
    Status::parse(text).ok_or_else(|| corrupt("a saga's status is none that this build knows"))
}

pub(super) fn json(instance: &Instance) -> Result<String, StoreError> {
    let failed =
        |error: serde_json::Error| StoreError::new(ErrorKind::Corrupt, "save_sagas", error.to_string());
    instance.to_json().map_err(failed)
}

/// A text for people; PostgreSQL cannot store NUL.
pub(super) fn plain(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

pub(super) fn micros(at: Timestamp) -> i64 {
    at.clamp(Timestamp(0), TIME_MAX).0
}

pub(super) fn column<T, V>(items: &[T], value: impl Fn(&T) -> V) -> Vec<V> {
    items.iter().map(value).collect()
}

/// The items of the next statement: without an answer yet, sorted by id, no id twice (the next one of the same saga is
/// decided after the first), and not more bytes than a message may have.
pub(super) fn round<'a, R>(
    replies: &[Option<R>],
    id: impl Fn(usize) -> &'a SagaId,
    bytes: impl Fn(usize) -> usize,
) -> Vec<usize> {
    let mut ids = HashSet::new();
    let mut sum = 0;
    let mut round = Vec::new();
    for (n, reply) in replies.iter().enumerate() {
        if reply.is_some() || !ids.insert(id(n)) {
            continue;
        }
        sum += bytes(n);
        if sum > ROUND_BYTES_MAX && !round.is_empty() {
            break;
        }
        round.push(n);
    }
    round.sort_unstable_by_key(|n| id(*n));
    round
}

/// An error of a later statement of one call, where an earlier one was carried out.
pub(super) fn partly<R>(error: StoreError, replies: &[Option<R>]) -> StoreError {
    if error.retry() == Retry::OutcomeUnknown || replies.iter().all(Option::is_none) {
        return error;
    }
    StoreError::new(
        ErrorKind::ReplyLost,
        "sagas",
        "a part of the batch is done, the rest is not: send it again",
    )
    .with_source(error)
}

/// The changing part of a row.
pub(super) struct SaveRow {
    /// `None`: as it is.
    pub(super) state: Option<String>,
    pub(super) why: Option<String>,
}

impl SaveRow {
    pub(super) fn of(save: &Save) -> Result<Self, StoreError> {
        Ok(match &save.state {
            SaveState::Instance(instance) => {
                let reasons = instance.reasons();
                Self {
                    state: Some(json(instance)?),
                    why: (!reasons.is_empty()).then(|| plain(&reasons.join("; "))),
                }
            }
            SaveState::Unreadable(why) => Self {
                state: None,
                why: Some(plain(why)),
            },
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.state.as_ref().map_or(0, String::len)
    }
}

/// Log entries of many sagas.
#[derive(Default)]
pub(super) struct LogColumns {
    pub(super) sagas: Vec<String>,
    pub(super) versions: Vec<i64>,
    pub(super) ns: Vec<i32>,
    pub(super) steps: Vec<Option<String>>,
    pub(super) ops: Vec<Option<&'static str>>,
    pub(super) events: Vec<String>,
    pub(super) texts: Vec<String>,
}

impl LogColumns {
    pub(super) fn add(&mut self, saga: &SagaId, version: i64, entries: &[LogEntry]) {
        for (n, entry) in (0..).zip(entries) {
            self.sagas.push(saga.as_str().to_owned());
            self.versions.push(version);
            self.ns.push(n);
            self.steps.push(entry.step.as_deref().map(plain));
            self.ops.push(entry.op.map(Op::as_str));
            self.events.push(plain(&entry.event));
            self.texts.push(plain(&entry.text));
        }
    }
}

/// A row of `semel.saga_record`.
pub(super) fn lookup(row: &PgRow) -> Result<SagaLookup, StoreError> {
    let failed = failed("load_sagas");
    let text = |column| row.try_get::<String, _>(column).map_err(&failed);
    let status = status(&text("status")?)?;
    if row.try_get("pruned").map_err(&failed)? {
        return Ok(SagaLookup::Ended(status));
    }
    let read = || -> Result<_, sqlx::Error> {
        let owner: Option<Vec<u8>> = row.try_get("owner")?;
        Ok((
            row.try_get::<Vec<u8>, _>("definition")?,
            row.try_get::<Vec<u8>, _>("input")?,
            row.try_get("version")?,
            row.try_get("epoch")?,
            owner.and_then(|owner| owner.try_into().ok()).map(Nonce),
            row.try_get::<Option<i64>, _>("due_us")?.map(Timestamp),
            Timestamp(row.try_get("accepted_us")?),
        ))
    };
    let (definition, input, version, epoch, owner, due_at, accepted_at) = read().map_err(&failed)?;
    Ok(SagaLookup::Found(Box::new(SagaRecord {
        id: saga_id(text("id")?)?,
        definition: definition
            .try_into()
            .map_err(|_| corrupt("a definition's hash is not 32 bytes"))?,
        input: input.into(),
        state: text("state")?,
        status,
        version,
        epoch,
        owner,
        due_at,
        accepted_at,
        requests: requests(row)?,
    })))
}

fn requests(row: &PgRow) -> Result<Vec<PendingRequest>, StoreError> {
    let read = || -> Result<_, sqlx::Error> {
        let texts = |column| {
            row.try_get::<Option<Vec<String>>, _>(column)
                .map(Option::unwrap_or_default)
        };
        let ns: Option<Vec<i64>> = row.try_get("request_ns")?;
        Ok((
            ns.unwrap_or_default(),
            texts("request_kinds")?,
            texts("request_bys")?,
            texts("request_whys")?,
        ))
    };
    let (ns, kinds, bys, whys) = read().map_err(failed("load_sagas"))?;
    let each = ns.into_iter().zip(kinds).zip(bys.into_iter().zip(whys));
    each.map(|((n, kind), (by, why))| {
        let request = SagaRequest::from_parts(&kind, by, why)
            .ok_or_else(|| corrupt("a request is of a kind that this build does not know"))?;
        Ok(PendingRequest { n, request })
    })
    .collect()
}

fn saga_id(text: String) -> Result<SagaId, StoreError> {
    SagaId::new(text).map_err(|_| corrupt("a saga's id is none"))
}

pub(super) fn summary(row: &PgRow) -> Result<SagaSummary, StoreError> {
    let read = || -> Result<_, sqlx::Error> {
        Ok((
            (row.try_get("id")?, row.try_get::<String, _>("status")?),
            (row.try_get("name")?, row.try_get("why")?),
            (row.try_get("accepted_us")?, row.try_get("updated_us")?),
        ))
    };
    let ((id, stored), (definition, why), (accepted, updated)) = read().map_err(failed("list_sagas"))?;
    Ok(SagaSummary {
        id: saga_id(id)?,
        definition,
        status: status(&stored)?,
        why,
        accepted_at: Timestamp(accepted),
        updated_at: Timestamp(updated),
    })
}

pub(super) fn log_row(row: &PgRow) -> Result<LogRow, StoreError> {
    let read = || -> Result<LogRow, sqlx::Error> {
        let op: Option<String> = row.try_get("op")?;
        Ok(LogRow {
            version: row.try_get("version")?,
            at: Timestamp(row.try_get("at_us")?),
            entry: LogEntry {
                step: row.try_get("step")?,
                op: op.as_deref().and_then(Op::parse),
                event: row.try_get("event")?,
                text: row.try_get("text")?,
            },
        })
    };
    read().map_err(failed("saga_log"))
}
