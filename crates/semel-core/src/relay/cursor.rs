//! How far a shard has got, and who may say so.

use std::fmt;
use std::ops::RangeInclusive;

use bytes::Bytes;

use super::log::LogCopy;
use crate::claim::Nonce;
use crate::event::SLOTS;
use crate::host::Timestamp;

/// A set of rows that were visible at one moment, in the store's own words: a snapshot on PostgreSQL, a row number on
/// SQLite. Only the store that made it can read it; nobody else compares marks but for equality.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Mark(Box<str>);

impl Mark {
    /// A mark of this text.
    #[must_use]
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A snapshot names every open transaction; a thousand of them help nobody in a log.
        let shown: String = self.0.chars().take(64).collect();
        let dots = if shown.len() < self.0.len() { "…" } else { "" };
        write!(f, "Mark({shown}{dots})")
    }
}

/// How far a shard has got (rule O1).
///
/// A *batch* is the rows visible in `open` and not in `prev`, in the order of their numbers. `last_id` counts only
/// inside that batch: a row that commits later with a smaller number belongs to a later batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// Every row visible in it is settled.
    pub prev: Mark,
    /// The upper end of the batch being sent. Saved before the batch's first send.
    pub open: Option<Mark>,
    /// Rows of the open batch up to this number are settled.
    pub last_id: i64,
    /// Grows with every batch opened, and never goes back.
    pub batch_no: i64,
    /// 128 random bits of that batch, drawn when it was opened: where the outbox was restored to an earlier time, the same
    /// number comes back, and they do not (rule O3). Zero before the first.
    pub batch: Nonce,
    /// Grows with every write of this cursor: what a write was decided on must still be so when it arrives (rule S3).
    pub version: i64,
    /// The row that was about to be sent by a relay that took care because its forerunners died (rule O22).
    pub suspect: Option<i64>,
    /// What is known here of the log that holds the cursor itself, where events are published in its transactions (rule
    /// O20).
    pub log: Option<LogCopy>,
}

impl Cursor {
    /// This cursor with the next batch opened: what is visible in `cur` and was not settled by this one, which a batch that is still
    /// open counts as. `first` is the number of its first row. The nonce is a fresh one.
    #[must_use]
    pub fn opened(&self, cur: Mark, first: i64) -> Self {
        Self {
            prev: self.open.as_ref().unwrap_or(&self.prev).clone(),
            open: Some(cur),
            last_id: first - 1,
            batch_no: self.batch_no + 1,
            batch: Nonce::random(),
            version: self.version + 1,
            suspect: None,
            log: self.log,
        }
    }

    /// This cursor moved on to `cur`, where nothing is to be sent.
    #[must_use]
    pub fn moved(&self, cur: Mark) -> Self {
        Self {
            prev: cur,
            open: None,
            last_id: 0,
            version: self.version + 1,
            suspect: None,
            ..self.clone()
        }
    }
}

/// The [`Cursor::batch_no`] of a cursor that is put back to the beginning, because its store was restored or copied: above
/// all that the store gave out before it was (rule O16). A counter never gets as far as the time in microseconds, and the next
/// restore comes later.
#[must_use]
pub fn after_restore(batch_no: i64, now: Timestamp) -> i64 {
    batch_no.saturating_add(1).max(now.0)
}

/// One shard of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId {
    /// The stream.
    pub stream: String,
    /// Its number in the stream, from 0.
    pub index: u16,
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.stream, self.index)
    }
}

/// A range of slots, both ends included (rule O12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slots {
    /// The first slot.
    pub first: u16,
    /// The last slot.
    pub last: u16,
}

impl Slots {
    /// The slots of shard `index` of `shards`: ranges that differ by one slot at most and cover all.
    #[must_use]
    pub fn of_shard(index: u16, shards: u16) -> Self {
        let edge = |n: u16| (u32::from(n) * u32::from(SLOTS) / u32::from(shards.max(1))) as u16;
        Self {
            first: edge(index),
            last: edge(index + 1).saturating_sub(1),
        }
    }

    /// As a range.
    #[must_use]
    pub const fn range(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }
}

/// Counts the owners of a shard; only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub i64);

/// The right to send a shard's rows and to move its cursor. Both epoch and nonce are compared at every write: after an
/// asynchronous fail-over two owners can have equal epochs, never equal nonces (rule O11).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardLease {
    /// Which shard.
    pub shard: ShardId,
    /// Its slots.
    pub slots: Slots,
    /// Which owner in a row this is.
    pub epoch: Epoch,
    /// 128 random bits of this owner.
    pub nonce: Nonce,
}

/// A shard just acquired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedShard {
    /// The right.
    pub lease: ShardLease,
    /// How far the shard has got.
    pub cursor: Cursor,
    /// How many owners in a row died on the same place of an open batch (rule O22).
    pub takeovers: u32,
    /// Keys whose rows go to the exceptions instead of the sink.
    pub parked: Vec<Bytes>,
    /// Rows of the open batch that are in the exceptions though the cursor has not passed them: where a log holds the
    /// cursor, the exception is written first (rule O7). Others may be among them.
    pub excepted: Vec<i64>,
}

/// Where the last take-over found the cursor, and how many in a row found it there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Takeovers {
    /// How many.
    pub count: u32,
    /// The batch.
    pub batch_no: i64,
    /// The row.
    pub last_id: i64,
}

impl Takeovers {
    /// Counts a take-over of `cursor`. `released` says that the last owner gave the shard back by itself, which is
    /// no sign of trouble; nor is a death between two batches.
    #[must_use]
    pub fn next(self, cursor: &Cursor, released: bool) -> Self {
        let same = self.batch_no == cursor.batch_no && self.last_id == cursor.last_id;
        let count = match (released || cursor.open.is_none(), same) {
            (true, _) => 0,
            (false, true) => self.count.saturating_add(1),
            (false, false) => 1,
        };
        Self {
            count,
            batch_no: cursor.batch_no,
            last_id: cursor.last_id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_cover_every_slot_once() {
        for shards in [1, 2, 3, 7, 64, 4_096] {
            let mut next = 0;
            for index in 0..shards {
                let slots = Slots::of_shard(index, shards);
                assert_eq!(slots.first, next);
                assert!(slots.last >= slots.first);
                next = slots.last + 1;
            }
            assert_eq!(next, SLOTS);
        }
    }

    #[test]
    fn the_next_batch_begins_where_the_last_one_ends_settled_or_open() {
        let cursor = Cursor {
            prev: Mark::new("1"),
            open: Some(Mark::new("5")),
            last_id: 4,
            batch_no: 2,
            batch: Nonce([3; 16]),
            version: 7,
            suspect: Some(4),
            log: None,
        };
        let next = cursor.opened(Mark::new("9"), 30);
        assert_eq!(
            (next.prev.as_str(), next.open.as_ref().map(Mark::as_str)),
            ("5", Some("9"))
        );
        assert_eq!(
            (next.last_id, next.batch_no, next.version, next.suspect),
            (29, 3, 8, None)
        );
        assert_ne!(next.batch, cursor.batch);
        let moved = next.moved(Mark::new("12"));
        assert_eq!(
            (moved.prev.as_str(), &moved.open, moved.last_id),
            ("12", &None, 0)
        );
        assert_eq!((moved.batch_no, moved.batch, moved.version), (3, next.batch, 9));
        assert_eq!(moved.opened(Mark::new("15"), 1).prev.as_str(), "12");
    }

    #[test]
    fn only_deaths_on_the_same_place_of_an_open_batch_count() {
        let cursor = Cursor {
            prev: Mark::new("1"),
            open: Some(Mark::new("9")),
            last_id: 4,
            batch_no: 2,
            batch: Nonce([3; 16]),
            version: 7,
            suspect: None,
            log: None,
        };
        let first = Takeovers::default().next(&cursor, false);
        assert_eq!(first.count, 1);
        assert_eq!(first.next(&cursor, false).count, 2);
        let moved = Cursor {
            last_id: 5,
            ..cursor.clone()
        };
        assert_eq!(first.next(&moved, false).count, 1);
        assert_eq!(first.next(&cursor, true).count, 0);
        assert_eq!(first.next(&Cursor { open: None, ..cursor }, false).count, 0);
    }
}
