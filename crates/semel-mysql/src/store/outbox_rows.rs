//! Rows of the outbox tables as values, and back.

use bytes::Bytes;
use semel_core::inbox::headers::decode_event;
use semel_core::relay::{Cursor, Epoch, LogCopy, Mark, ShardId, ShardLease, Slots, Takeovers};
use semel_core::store::{Exception, ExceptionKind, OutboxRow, PageRow, StoredException};
use semel_core::{ErrorKind, Event, Nonce, StoreError, Timestamp};
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::error::classify;

/// The columns that [`page_row`] reads, of the table `o`.
pub(super) const EVENT: &str =
    "o.id, o.stream, o.event_id, o.topic, o.type, o.source, o.`key`, o.content_type,
  o.headers, o.data, o.traceparent, o.created_at";
/// The columns that [`shard`] reads, of the table `s`.
pub(super) const SHARD: &str = "s.stream, s.shard, s.slot_first, s.slot_last, s.epoch, s.nonce, s.owner, s.until_us,
  s.prev_mark, s.open_mark, s.last_id, s.batch_no, s.batch, s.version, s.suspect, s.log, s.takeovers, s.seen_batch_no, s.seen_last_id";

/// One row of `semel_outbox_shard`.
pub(super) struct Shard {
    pub(super) id: ShardId,
    pub(super) slots: Slots,
    pub(super) epoch: i64,
    pub(super) nonce: Option<Nonce>,
    pub(super) owner: String,
    pub(super) until: Timestamp,
    pub(super) cursor: Cursor,
    pub(super) takeovers: Takeovers,
}

impl Shard {
    pub(super) fn is_owned_by(&self, lease: &ShardLease) -> bool {
        self.epoch == lease.epoch.0 && self.nonce == Some(lease.nonce)
    }

    pub(super) fn lease(&self, epoch: i64, nonce: Nonce) -> ShardLease {
        ShardLease {
            shard: self.id.clone(),
            slots: self.slots,
            epoch: Epoch(epoch),
            nonce,
        }
    }
}

/// The driver asks for the collation's name before it gives bytes as text; these columns are what they are declared to be.
pub(super) fn text(row: &MySqlRow, column: &str) -> Result<Option<String>, sqlx::Error> {
    row.try_get_unchecked(column)
}

pub(super) fn bytes(row: &MySqlRow, column: &str) -> Result<Option<Vec<u8>>, sqlx::Error> {
    row.try_get_unchecked(column)
}

pub(super) fn number(row: &MySqlRow, column: &str) -> Result<i64, sqlx::Error> {
    row.try_get_unchecked(column)
}

pub(super) fn small(row: &MySqlRow, column: &str) -> Result<u16, sqlx::Error> {
    u16::try_from(number(row, column)?).map_err(|error| sqlx::Error::Decode(error.into()))
}

pub(super) fn shard(row: &MySqlRow) -> Result<Shard, StoreError> {
    let mark = |column| Ok::<_, sqlx::Error>(text(row, column)?.map(Mark::new));
    let read = || -> Result<Shard, sqlx::Error> {
        Ok(Shard {
            id: ShardId {
                stream: text(row, "stream")?.unwrap_or_default(),
                index: small(row, "shard")?,
            },
            slots: Slots {
                first: small(row, "slot_first")?,
                last: small(row, "slot_last")?,
            },
            epoch: number(row, "epoch")?,
            nonce: bytes(row, "nonce")?
                .and_then(|bytes| bytes.try_into().ok())
                .map(Nonce),
            owner: text(row, "owner")?.unwrap_or_default(),
            until: Timestamp(number(row, "until_us")?),
            cursor: Cursor {
                prev: mark("prev_mark")?.unwrap_or_else(|| Mark::new("")),
                open: mark("open_mark")?,
                last_id: number(row, "last_id")?,
                batch_no: number(row, "batch_no")?,
                version: number(row, "version")?,
                suspect: row.try_get_unchecked("suspect")?,
                batch: bytes(row, "batch")?
                    .and_then(|bytes| bytes.try_into().ok())
                    .map_or(Nonce([0; 16]), Nonce),
                log: text(row, "log")?.as_deref().map(log_copy).transpose()?,
            },
            takeovers: Takeovers {
                count: u32::try_from(number(row, "takeovers")?).unwrap_or(0),
                batch_no: number(row, "seen_batch_no")?,
                last_id: number(row, "seen_last_id")?,
            },
        })
    };
    read().map_err(|error| {
        let text = "a row of semel_outbox_shard cannot be read";
        StoreError::new(ErrorKind::Corrupt, "read shard", text).with_source(error)
    })
}

fn log_copy(text: &str) -> Result<LogCopy, sqlx::Error> {
    LogCopy::parse(text)
        .ok_or_else(|| sqlx::Error::Decode(format!("column log cannot be read: {text:?}").into()))
}

/// A row of the outbox or of the exceptions. What cannot be read makes this row barred, never the page.
pub(super) fn page_row(row: &MySqlRow) -> Result<PageRow, StoreError> {
    let mut barred = None;
    let read = || -> Result<PageRow, sqlx::Error> {
        let id = bytes(row, "event_id")?.unwrap_or_default();
        // Only a table without its constraints can hold such rows.
        let id = Uuid::from_slice(&id).unwrap_or_else(|_| {
            barred = Some("event_id is not 16 bytes".to_owned());
            Uuid::nil()
        });
        let headers = decode_event(bytes(row, "headers")?.as_deref()).unwrap_or_else(|why| {
            barred = Some(why.to_owned());
            Vec::new()
        });
        let event = Event {
            id,
            stream: text(row, "stream")?.unwrap_or_default(),
            topic: text(row, "topic")?.unwrap_or_default(),
            kind: text(row, "type")?.unwrap_or_default(),
            source: text(row, "source")?.unwrap_or_default(),
            key: bytes(row, "key")?.map(Bytes::from),
            content_type: text(row, "content_type")?,
            headers,
            data: bytes(row, "data")?.map(Bytes::from),
            traceparent: text(row, "traceparent")?,
        };
        Ok(PageRow {
            row: OutboxRow {
                row: number(row, "id")?,
                created_at: Timestamp(number(row, "created_at")?),
                batch_no: 0,
                event,
            },
            barred,
        })
    };
    read().map_err(|error| classify("read row", error))
}

/// A row of the exceptions: [`EVENT`], and what is known of it there.
pub(super) fn exception(row: &MySqlRow) -> Result<StoredException, StoreError> {
    let mut page_row = page_row(row)?;
    let mut read = || -> Result<StoredException, sqlx::Error> {
        let kind = text(row, "kind")?.unwrap_or_default();
        page_row.row.batch_no = number(row, "batch_no")?;
        Ok(StoredException {
            shard: ShardId {
                stream: page_row.row.event.stream.clone(),
                index: small(row, "shard")?,
            },
            exception: Exception {
                row: page_row.row.row,
                event_id: page_row.row.event.id,
                kind: ExceptionKind::parse(&kind).unwrap_or(ExceptionKind::Parked),
                attempts: u32::try_from(number(row, "attempts")?).unwrap_or(u32::MAX),
                reason: text(row, "reason")?.unwrap_or_default(),
            },
            since: Timestamp(number(row, "since_us")?),
            row: page_row.clone(),
        })
    };
    read().map_err(|error| classify("exceptions", error))
}
