//! What the statements of keys answer, one row per item: see `sql/key_*.sql`.

use semel_core::claim::row::Row;
use semel_core::claim::{Record, Token};
use semel_core::{Key, Scope, StoreError, Timestamp};
use sqlx::postgres::PgRow;
use sqlx::{Error, Row as _};

use crate::error::classify;

/// The answer to one item of a batch.
pub(crate) struct Answer {
    /// The item's place among those sent, from 0.
    pub(crate) n: usize,
    /// The server's time when it answered.
    pub(crate) now: Timestamp,
    /// The transition was carried out.
    pub(crate) won: Option<Won>,
    /// The record before it, as the statement saw it; or why that cannot be read.
    pub(crate) seen: Result<Option<Record>, StoreError>,
}

/// What the database made when it carried out a transition.
pub(crate) struct Won {
    /// The token; of no meaning for a release.
    pub(crate) token: Token,
    /// The lease's or the retention's end.
    pub(crate) until: Option<Timestamp>,
    /// How many owners it has had.
    pub(crate) attempt: Option<u32>,
}

impl Answer {
    pub(crate) fn read(row: &PgRow) -> Result<Self, Error> {
        let n: i64 = row.try_get("n")?;
        let token: Option<i64> = row.try_get("won_token")?;
        let won = match token {
            None => None,
            Some(token) => Some(Won {
                token: Token(token),
                until: row.try_get::<Option<i64>, _>("won_until")?.map(Timestamp),
                attempt: row
                    .try_get::<Option<i32>, _>("won_attempt")?
                    .and_then(|it| u32::try_from(it).ok()),
            }),
        };
        let state: Option<String> = row.try_get("state")?;
        let seen = match state {
            None => Ok(None),
            Some(state) => Record::try_from(record(row, state)?).map(Some),
        };
        Ok(Self {
            // WITH ORDINALITY counts from 1.
            n: usize::try_from(n - 1).map_err(|_| Error::RowNotFound)?,
            now: Timestamp(row.try_get("now")?),
            won,
            seen,
        })
    }
}

/// A row of a page: the key, its record, and the server's time.
pub(crate) fn listed(row: &PgRow) -> Result<(Key, Record, Timestamp), StoreError> {
    let failed = |error| classify("list", error);
    let scope = Scope::new(row.try_get::<&[u8], _>("scope").map_err(failed)?)?;
    let key = Key::new(scope, row.try_get::<&[u8], _>("id").map_err(failed)?)?;
    let state = row.try_get("state").map_err(failed)?;
    let now = Timestamp(row.try_get("now").map_err(failed)?);
    Ok((key, record(row, state).map_err(failed)?.try_into()?, now))
}

fn record(row: &PgRow, state: String) -> Result<Row, Error> {
    Ok(Row {
        state,
        fingerprint: row.try_get("fingerprint")?,
        token: row.try_get("token")?,
        nonce: row.try_get("nonce")?,
        hold: row.try_get("hold")?,
        extended: row.try_get("extended")?,
        attempt: row.try_get("attempt")?,
        until: row.try_get("until")?,
        outcome_code: row.try_get("outcome_code")?,
        outcome: row.try_get("outcome")?,
        digest: row.try_get("digest")?,
        tombstone_until: row.try_get("tombstone_until")?,
        withdrawn: row.try_get("withdrawn")?,
        withdrawn_until: row.try_get("withdrawn_until")?,
        due_at: None,
    })
}
