//! An outbox in partitions: what it consists of, and what a turn of rotation did.

use super::Hold;
use crate::host::Timestamp;

/// One partition of an outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its name in the store.
    pub name: String,
    /// The time of the ids that it begins with; `None` where it has no beginning.
    pub first: Option<Timestamp>,
    /// The time of the ids that it ends before; `None` for the one that has all ids of no other partition.
    pub past: Option<Timestamp>,
    /// What it takes on disk, its indexes included.
    pub bytes: u64,
}

/// The partitions of an outbox that has some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partitions {
    /// The store's time.
    pub now: Timestamp,
    /// The time that a new partition is for, in milliseconds.
    pub width_ms: i64,
    /// How many a turn of rotation makes for the time ahead.
    pub premake: u32,
    /// All, in the order of their times; the one without an end last.
    pub parts: Vec<Partition>,
    /// What delays the drop of a partition, and who.
    pub waits: Vec<Hold>,
}

impl Partitions {
    /// Partitions whose time has not begun yet: made ahead.
    #[must_use]
    pub fn ahead(&self) -> usize {
        let ahead = |part: &&Partition| part.first.is_some_and(|first| first > self.now);
        self.parts.iter().filter(ahead).count()
    }

    /// For how long the time of the oldest partition is over, in milliseconds; 0 when none has ended.
    #[must_use]
    pub fn oldest_ms(&self) -> i64 {
        let ended = self.parts.iter().filter_map(|part| part.past).min();
        ended.map_or(0, |past| self.now.ms_since(past).max(0))
    }

    /// What ids of no partition's time take on disk.
    #[must_use]
    pub fn other_bytes(&self) -> u64 {
        let other = self.parts.iter().find(|part| part.past.is_none());
        other.map_or(0, |part| part.bytes)
    }
}

/// What one turn of [`OutboxStore::rotate`](super::OutboxStore::rotate) did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rotation {
    /// Partitions made ahead.
    pub made: u32,
    /// Partitions dropped, with all that was in them.
    pub dropped: Vec<String>,
    /// What would have been done and has to wait, and for whom.
    pub waits: Vec<Hold>,
}
