//! Rows of the outbox tables as values, and back.

use bytes::Bytes;
use semel_core::inbox::headers::decode_event;
use semel_core::relay::{Cursor, Epoch, LogCopy, Mark, ShardId, ShardLease, Slots, Takeovers};
use semel_core::store::{Exception, ExceptionKind, OutboxRow, PageRow, StoredException};
use semel_core::{ErrorKind, Event, Nonce, StoreError, Timestamp};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::error::classify;

/// The columns that [`page_row`] reads: the first ones of a row, in this order.
pub(super) const EVENT: &str =
    "id, stream, event_id, topic, type, source, key, content_type, headers, data, traceparent, created_at";
/// How many they are.
pub(super) const EVENT_COLUMNS: usize = 12;
/// The columns that [`shard`] reads, of the table `s`.
pub(super) const SHARD: &str = "s.stream, s.shard, s.slot_first, s.slot_last, s.epoch, s.nonce, s.owner,
  s.until > clock_timestamp() AS held, s.prev::text AS prev, s.open::text AS open, s.last_id, s.batch_no, s.version,
  s.suspect, s.batch, s.log, s.takeovers";

/// One row of `semel.outbox_shard`.
pub(super) struct Shard {
    pub(super) id: ShardId,
    pub(super) slots: Slots,
    pub(super) epoch: i64,
    pub(super) nonce: Option<Nonce>,
    pub(super) owner: String,
    pub(super) held: bool,
    pub(super) cursor: Cursor,
    pub(super) takeovers: Takeovers,
}

impl Shard {
    pub(super) fn is_owned_by(&self, lease: &ShardLease) -> bool {
        self.epoch == lease.epoch.0 && self.nonce == Some(lease.nonce)
    }

    pub(super) fn lease(&self, nonce: Nonce) -> ShardLease {
        ShardLease {
            shard: self.id.clone(),
            slots: self.slots,
            epoch: Epoch(self.epoch),
            nonce,
        }
    }
}

pub(super) fn shard(row: &PgRow) -> Result<Shard, StoreError> {
    let small = |column: &'static str| -> Result<u16, sqlx::Error> {
        let value: i32 = row.try_get(column)?;
        u16::try_from(value).map_err(|error| sqlx::Error::Decode(error.into()))
    };
    let read = || -> Result<Shard, sqlx::Error> {
        let (nonce, batch): (Option<Vec<u8>>, Option<Vec<u8>>) =
            (row.try_get("nonce")?, row.try_get("batch")?);
        let log: Option<String> = row.try_get("log")?;
        let takeovers: i32 = row.try_get("takeovers")?;
        Ok(Shard {
            id: ShardId {
                stream: row.try_get("stream")?,
                index: small("shard")?,
            },
            slots: Slots {
                first: small("slot_first")?,
                last: small("slot_last")?,
            },
            epoch: row.try_get("epoch")?,
            nonce: nonce.and_then(|bytes| bytes.try_into().ok()).map(Nonce),
            owner: row.try_get("owner")?,
            held: row.try_get("held")?,
            cursor: Cursor {
                prev: Mark::new(row.try_get::<String, _>("prev")?),
                open: row.try_get::<Option<String>, _>("open")?.map(Mark::new),
                last_id: row.try_get("last_id")?,
                batch_no: row.try_get("batch_no")?,
                version: row.try_get("version")?,
                suspect: row.try_get("suspect")?,
                batch: batch
                    .and_then(|bytes| bytes.try_into().ok())
                    .map_or(Nonce([0; 16]), Nonce),
                log: log.as_deref().map(log_copy).transpose()?,
            },
            takeovers: Takeovers {
                count: u32::try_from(takeovers).unwrap_or(0),
                ..Takeovers::default()
            },
        })
    };
    read().map_err(|error| {
        StoreError::new(
            ErrorKind::Corrupt,
            "read shard",
            "a row of semel.outbox_shard cannot be read",
        )
        .with_source(error)
    })
}

fn log_copy(text: &str) -> Result<LogCopy, sqlx::Error> {
    LogCopy::parse(text)
        .ok_or_else(|| sqlx::Error::Decode(format!("column log cannot be read: {text:?}").into()))
}

/// A row of the outbox or of the exceptions, whose first columns are [`EVENT`]. By their places: a look-up by name for each
/// column of each row costs more than the rest. What cannot be read makes this row barred, never the page.
pub(super) fn page_row(row: &PgRow) -> Result<PageRow, StoreError> {
    let read = || -> Result<PageRow, sqlx::Error> {
        let bytes = |column: usize| {
            row.try_get::<Option<Vec<u8>>, _>(column)
                .map(|value| value.map(Bytes::from))
        };
        let mut barred = None;
        let stored = row.try_get::<Option<&str>, _>(8)?;
        let headers = decode_event(stored.map(str::as_bytes)).unwrap_or_else(|why| {
            barred = Some(why.to_owned());
            Vec::new()
        });
        let event = Event {
            stream: row.try_get(1)?,
            id: row.try_get(2)?,
            topic: row.try_get(3)?,
            kind: row.try_get(4)?,
            source: row.try_get(5)?,
            key: bytes(6)?,
            content_type: row.try_get(7)?,
            headers,
            data: bytes(9)?,
            traceparent: row.try_get(10)?,
        };
        Ok(PageRow {
            row: OutboxRow {
                row: row.try_get(0)?,
                created_at: created_at(row)?,
                batch_no: 0,
                event,
            },
            barred,
        })
    };
    read().map_err(|error| classify("read row", error))
}

/// The time of a row: microseconds since 2000 in eight bytes. A time that only a table without its constraint can hold
/// (infinity, a year beyond 9999) is the nearest one that can be sent, so that no row stops a relay.
fn created_at(row: &PgRow) -> Result<Timestamp, sqlx::Error> {
    /// From 1970 to 2000.
    const POSTGRES_US: i64 = 946_684_800_000_000;
    /// The last microsecond of the year 9999, since 1970.
    const LAST_US: i64 = 253_402_300_799_999_999;
    let bytes: [u8; 8] = row
        .try_get_raw(EVENT_COLUMNS - 1)?
        .as_bytes()
        .map_err(sqlx::Error::Decode)?
        .try_into()
        .map_err(|_| sqlx::Error::Decode("created_at is not eight bytes long".into()))?;
    let us = i64::from_be_bytes(bytes).saturating_add(POSTGRES_US);
    Ok(Timestamp(us.clamp(0, LAST_US)))
}

/// A row of the exceptions: [`EVENT`], and what is known of it there.
pub(super) fn exception(row: &PgRow) -> Result<StoredException, StoreError> {
    let mut page_row = page_row(row)?;
    let mut read = || -> Result<StoredException, sqlx::Error> {
        let kind: String = row.try_get("kind")?;
        let (index, attempts): (i32, i64) = (row.try_get("shard")?, row.try_get("attempts")?);
        page_row.row.batch_no = row.try_get("batch_no")?;
        Ok(StoredException {
            shard: ShardId {
                stream: page_row.row.event.stream.clone(),
                index: u16::try_from(index).map_err(|error| sqlx::Error::Decode(error.into()))?,
            },
            exception: Exception {
                row: page_row.row.row,
                event_id: page_row.row.event.id,
                kind: ExceptionKind::parse(&kind).unwrap_or(ExceptionKind::Parked),
                attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
                reason: row.try_get("reason")?,
            },
            since: Timestamp(row.try_get("since_us")?),
            row: page_row.clone(),
        })
    };
    read().map_err(|error| classify("exceptions", error))
}
