//! What the statements of keys answer, one row per item: see `sql/key_*.sql`.

use semel_core::claim::row::Row;
use semel_core::claim::{Record, Token};
use semel_core::{Key, Scope, StoreError, Timestamp};
use sqlx::postgres::PgRow;
use sqlx::{Error, Row as _, ValueRef as _};

use crate::error::classify;

/// The answer to one item of a batch.
pub(crate) struct Answer {
    /// The item's place among those sent, from 0.
    pub(crate) n: usize,
    /// The server's time when it answered.
    pub(crate) now: Timestamp,
    /// The transition was carried out.
    pub(crate) won: Option<Won>,
    /// The record before it, as a statement saw it; or why that cannot be read.
    pub(crate) seen: Result<Option<Record>, StoreError>,
}

/// What the database made when it carried out a transition.
pub(crate) struct Won {
    /// The token, where one was drawn.
    pub(crate) token: Option<Token>,
    /// The lease's or the retention's end.
    pub(crate) until: Option<Timestamp>,
    /// How many owners it has had.
    pub(crate) attempt: Option<u32>,
    /// Somebody wants to be told.
    pub(crate) waited: bool,
}

impl Answer {
    /// A row of a statement that shows every item: carried out where it names a token, else as it was seen.
    pub(crate) fn seen(row: &PgRow) -> Result<Self, Error> {
        let n = place(row)?;
        Ok(Self {
            n,
            ..Self::only(row)?
        })
    }

    /// Such a row of a statement about one key.
    pub(crate) fn only(row: &PgRow) -> Result<Self, Error> {
        let token: Option<i64> = row.try_get("won_token")?;
        let won = match token {
            None => None,
            Some(token) => Some(Won {
                token: Some(Token(token)),
                until: time(row, "won_until")?,
                attempt: row
                    .try_get::<Option<i32>, _>("won_attempt")?
                    .and_then(|it| u32::try_from(it).ok()),
                waited: false,
            }),
        };
        Ok(Self {
            n: 0,
            now: now(row)?,
            won,
            seen: before(row)?,
        })
    }

    /// A row of a statement that only reads.
    pub(crate) fn read(row: &PgRow) -> Result<Self, Error> {
        Ok(Self {
            n: place(row)?,
            now: now(row)?,
            won: None,
            seen: before(row)?,
        })
    }

    /// A row of a statement that shows only what it has carried out.
    pub(crate) fn won(row: &PgRow) -> Result<Self, Error> {
        let won = Won {
            token: None,
            until: time(row, "won_until")?,
            attempt: None,
            waited: row.try_get::<Option<bool>, _>("waited")?.unwrap_or(false),
        };
        Ok(Self {
            n: place(row)?,
            now: now(row)?,
            won: Some(won),
            seen: Ok(None),
        })
    }
}

/// A row of a statement that shows only what it has granted, by its key. `n` is where it is looked for first: rows mostly
/// come in the order in which items were sent, sorted by key.
pub(crate) fn won_new<T>(row: &PgRow, sent: &[&T], key: fn(&T) -> &Key, n: usize) -> Result<Answer, Error> {
    let (scope, id): (&[u8], &[u8]) = (row.try_get("scope")?, row.try_get("id")?);
    let order = |item: &T| (key(item).scope().as_bytes(), key(item).id()).cmp(&(scope, id));
    let n = match sent.get(n) {
        Some(item) if order(item).is_eq() => n,
        _ => sent
            .binary_search_by(|item| order(item))
            .map_err(|_| Error::RowNotFound)?,
    };
    let won = Won {
        token: Some(Token(row.try_get("won_token")?)),
        until: time(row, "won_until")?,
        attempt: None,
        waited: false,
    };
    Ok(Answer {
        n,
        now: now(row)?,
        won: Some(won),
        seen: Ok(None),
    })
}

/// WITH ORDINALITY counts from 1.
fn place(row: &PgRow) -> Result<usize, Error> {
    let n: i64 = row.try_get("n")?;
    usize::try_from(n - 1).map_err(|_| Error::RowNotFound)
}

fn now(row: &PgRow) -> Result<Timestamp, Error> {
    time(row, "now")?.ok_or(Error::RowNotFound)
}

fn before(row: &PgRow) -> Result<Result<Option<Record>, StoreError>, Error> {
    let state: Option<String> = row.try_get("state")?;
    Ok(match state {
        None => Ok(None),
        Some(state) => Record::try_from(record(row, state)?).map(Some),
    })
}

/// A row of a page: the key, its record, and the server's time.
pub(crate) fn listed(row: &PgRow) -> Result<(Key, Record, Timestamp), StoreError> {
    let failed = |error| classify("list", error);
    let scope = Scope::new(row.try_get::<&[u8], _>("scope").map_err(failed)?)?;
    let key = Key::new(scope, row.try_get::<&[u8], _>("id").map_err(failed)?)?;
    let state = row.try_get("state").map_err(failed)?;
    let now = now(row).map_err(failed)?;
    Ok((key, record(row, state).map_err(failed)?.try_into()?, now))
}

fn record(row: &PgRow, state: String) -> Result<Row, Error> {
    let micros = |column| Ok::<_, Error>(time(row, column)?.map(|it| it.0));
    Ok(Row {
        state,
        fingerprint: row.try_get("fingerprint")?,
        token: row.try_get("token")?,
        nonce: row.try_get("nonce")?,
        hold: row.try_get("hold")?,
        extended: row.try_get("extended")?,
        attempt: row.try_get("attempt")?,
        until: micros("until")?,
        outcome_code: row.try_get("outcome_code")?,
        outcome: row.try_get("outcome")?,
        digest: row.try_get("digest")?,
        tombstone_until: micros("tombstone_until")?,
        withdrawn: row.try_get("withdrawn")?,
        withdrawn_until: micros("withdrawn_until")?,
        due_at: None,
    })
}

/// Microseconds from 1970 to 2000, where PostgreSQL's own count begins.
const EPOCH_US: i64 = 946_684_800_000_000;

/// A `timestamptz` as the server sends it: converting it in the statement costs more than all that is around it.
fn time(row: &PgRow, column: &'static str) -> Result<Option<Timestamp>, Error> {
    let raw = row.try_get_raw(column)?;
    if raw.is_null() {
        return Ok(None);
    }
    let bytes = raw.as_bytes().map_err(Error::Decode)?;
    let bytes = bytes.try_into().map_err(|_| Error::ColumnDecode {
        index: column.into(),
        source: "not eight bytes".into(),
    })?;
    Ok(Some(Timestamp(
        i64::from_be_bytes(bytes).saturating_add(EPOCH_US),
    )))
}
