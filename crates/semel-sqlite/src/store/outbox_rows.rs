//! Rows of the outbox tables as values, and back.

use bytes::Bytes;
use rusqlite::types::ValueRef;
use semel_core::inbox::headers::decode_event;
use semel_core::relay::{Cursor, Epoch, LogCopy, Mark, ShardId, ShardLease, Slots, Takeovers};
use semel_core::store::{Exception, ExceptionKind, OutboxRow, PageRow, StoredException};
use semel_core::{ErrorKind, Event, Nonce, StoreError, Timestamp};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use crate::error::{classify, direct_failed};

/// The columns that [`page_row`] reads.
pub(super) const EVENT: &str =
    "id, stream, event_id, topic, type, source, key, content_type, headers, data, traceparent, created_at";
/// The same, each by its place.
const COLUMNS: [&str; 12] = [
    "id",
    "stream",
    "event_id",
    "topic",
    "type",
    "source",
    "key",
    "content_type",
    "headers",
    "data",
    "traceparent",
    "created_at",
];
/// The columns that [`shard`] reads.
pub(super) const SHARD: &str =
    "stream, shard, slot_first, slot_last, epoch, nonce, owner, until, prev, open, last_id,
  batch_no, batch, version, suspect, log, takeovers, seen_batch_no, seen_last_id";

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

pub(super) fn shard(row: &SqliteRow) -> Result<Shard, StoreError> {
    let read = || -> Result<Shard, sqlx::Error> {
        let (nonce, batch): (Option<Vec<u8>>, Option<Vec<u8>>) =
            (row.try_get("nonce")?, row.try_get("batch")?);
        let log: Option<String> = row.try_get("log")?;
        Ok(Shard {
            id: ShardId {
                stream: row.try_get("stream")?,
                index: row.try_get("shard")?,
            },
            slots: Slots {
                first: row.try_get("slot_first")?,
                last: row.try_get("slot_last")?,
            },
            epoch: row.try_get("epoch")?,
            nonce: nonce.and_then(|bytes| bytes.try_into().ok()).map(Nonce),
            owner: row.try_get("owner")?,
            until: Timestamp(row.try_get("until")?),
            cursor: Cursor {
                prev: mark(row.try_get("prev")?),
                open: row.try_get::<Option<i64>, _>("open")?.map(mark),
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
                count: row.try_get("takeovers")?,
                batch_no: row.try_get("seen_batch_no")?,
                last_id: row.try_get("seen_last_id")?,
            },
        })
    };
    read().map_err(|error| classify("read shard", error))
}

pub(super) fn mark(id: i64) -> Mark {
    Mark::new(id.to_string())
}

/// The row id that a mark of this store stands for.
pub(super) fn id_of(mark: &Mark) -> Result<i64, StoreError> {
    mark.as_str().parse().map_err(|_| {
        let text = format!("the mark {:?} was not made by SQLite", mark.as_str());
        StoreError::new(ErrorKind::Invalid, "read mark", text)
    })
}

fn log_copy(text: &str) -> Result<LogCopy, sqlx::Error> {
    LogCopy::parse(text)
        .ok_or_else(|| sqlx::Error::Decode(format!("column log cannot be read: {text:?}").into()))
}

/// The columns of [`EVENT`], by their places, whichever driver has read them.
pub(super) trait Columns {
    /// Text or bytes.
    fn bytes(&self, at: usize) -> Result<Option<Vec<u8>>, StoreError>;
    fn number(&self, at: usize) -> Result<i64, StoreError>;
}

/// By their names: others may stand beside them.
impl Columns for SqliteRow {
    fn bytes(&self, at: usize) -> Result<Option<Vec<u8>>, StoreError> {
        self.try_get_unchecked(COLUMNS[at])
            .map_err(|error| classify("read row", error))
    }

    fn number(&self, at: usize) -> Result<i64, StoreError> {
        self.try_get(COLUMNS[at])
            .map_err(|error| classify("read row", error))
    }
}

impl Columns for rusqlite::Row<'_> {
    fn bytes(&self, at: usize) -> Result<Option<Vec<u8>>, StoreError> {
        let failed = |error| direct_failed("read row", error);
        match self.get_ref(at).map_err(failed)? {
            ValueRef::Null => Ok(None),
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Ok(Some(bytes.to_vec())),
            value => Err(failed(rusqlite::Error::InvalidColumnType(
                at,
                COLUMNS[at].to_owned(),
                value.data_type(),
            ))),
        }
    }

    fn number(&self, at: usize) -> Result<i64, StoreError> {
        self.get(at).map_err(|error| direct_failed("read row", error))
    }
}

/// A row of the outbox or of the exceptions. What cannot be read makes this row barred, never the page.
pub(super) fn page_row(row: &impl Columns) -> Result<PageRow, StoreError> {
    let mut barred = None;
    let mut text = |at: usize| -> Result<Option<String>, StoreError> {
        // Other programs write here too, and SQLite does not check that text is UTF-8.
        Ok(row.bytes(at)?.map(|bytes| {
            String::from_utf8(bytes).unwrap_or_else(|error| {
                barred = Some(format!("column {} is not UTF-8", COLUMNS[at]));
                String::from_utf8_lossy(error.as_bytes()).into_owned()
            })
        }))
    };
    let (stream, topic, kind) = (text(1)?, text(3)?, text(4)?);
    let (source, content_type, traceparent) = (text(5)?, text(7)?, text(10)?);
    let id = Uuid::from_slice(&row.bytes(2)?.unwrap_or_default()).unwrap_or_else(|_| {
        barred = Some("event_id is not 16 bytes".to_owned());
        Uuid::nil()
    });
    let headers = decode_event(row.bytes(8)?.as_deref()).unwrap_or_else(|why| {
        barred = Some(why.to_owned());
        Vec::new()
    });
    let event = Event {
        id,
        stream: stream.unwrap_or_default(),
        topic: topic.unwrap_or_default(),
        kind: kind.unwrap_or_default(),
        source: source.unwrap_or_default(),
        key: row.bytes(6)?.map(Bytes::from),
        content_type,
        headers,
        data: row.bytes(9)?.map(Bytes::from),
        traceparent,
    };
    Ok(PageRow {
        row: OutboxRow {
            row: row.number(0)?,
            created_at: Timestamp(row.number(11)?),
            batch_no: 0,
            event,
        },
        barred,
    })
}

/// A row of the exceptions: [`EVENT`], and what is known of it there.
pub(super) fn exception(row: &SqliteRow) -> Result<StoredException, StoreError> {
    let mut page_row = page_row(row)?;
    let mut read = || -> Result<StoredException, sqlx::Error> {
        let kind: String = row.try_get("kind")?;
        page_row.row.batch_no = row.try_get("batch_no")?;
        Ok(StoredException {
            shard: ShardId {
                stream: page_row.row.event.stream.clone(),
                index: row.try_get("shard")?,
            },
            exception: Exception {
                row: page_row.row.row,
                event_id: page_row.row.event.id,
                kind: ExceptionKind::parse(&kind).unwrap_or(ExceptionKind::Parked),
                attempts: row.try_get("attempts")?,
                reason: row.try_get("reason")?,
            },
            since: Timestamp(row.try_get("since")?),
            row: page_row.clone(),
        })
    };
    read().map_err(|error| classify("exceptions", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_named_in_the_order_in_which_they_are_read() {
        assert_eq!(COLUMNS.join(", "), EVENT);
    }
}
