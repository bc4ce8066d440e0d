//! The rows in memory: read, not all settled, in order.

use std::collections::{HashMap, HashSet, VecDeque, hash_map};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash as _, Hasher};
use std::sync::Arc;

use bytes::Bytes;

use crate::host::Timestamp;
use crate::store::{Exception, ExceptionKind, OutboxRow, PageRow};

/// What a row costs beside its data, roughly.
const ROW_BYTES: u64 = 256;

#[derive(Debug)]
pub(super) enum State {
    Queued,
    InFlight,
    Acked,
    Excepted(Exception),
    /// In the exceptions, and not passed by the log's place yet.
    Aside,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) row: Arc<OutboxRow>,
    pub(super) state: State,
    /// Attempts spent: refusals of this very row.
    pub(super) attempts: u32,
    /// How often the broker was away when this row was tried.
    pub(super) aways: u32,
    /// Of its ordering key.
    key_hash: Option<u64>,
    /// When the first attempt failed.
    pub(super) first_failed_at: Option<u64>,
    pub(super) not_before: u64,
    /// It can never be sent: why.
    pub(super) barred: Option<String>,
    /// Nothing after it may be sent ([`Poison::Block`](super::Poison::Block)): why.
    pub(super) blocking: Option<String>,
}

impl Entry {
    const fn settled(&self) -> bool {
        matches!(self.state, State::Acked | State::Excepted(_) | State::Aside)
    }

    /// Nothing is to be done with it before an answer comes, and it keeps nothing behind it but its key.
    const fn passed(&self) -> bool {
        self.settled() || (matches!(self.state, State::InFlight) && self.blocking.is_none())
    }

    fn bytes(&self) -> u64 {
        let event = &self.row.event;
        let headers: usize = event
            .headers
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum();
        let key = event.key.as_ref().map_or(0, Bytes::len);
        ROW_BYTES + (event.data.as_ref().map_or(0, Bytes::len) + headers + key) as u64
    }

    fn key(&self) -> Option<&Bytes> {
        self.row.event.key.as_ref()
    }
}

/// What the next transaction may hold: rows behind one another, none left out but those set aside.
#[derive(Debug, Default)]
pub(super) struct Prefix {
    pub(super) rows: Vec<i64>,
    /// The last row of it, set aside or not.
    pub(super) to: i64,
    /// Nothing in memory stands behind it.
    pub(super) all: bool,
    /// When the row at which it stops becomes due.
    pub(super) wake: Option<u64>,
}

/// What may be sent now.
#[derive(Debug, Default)]
pub(super) struct Picked {
    pub(super) rows: Vec<i64>,
    /// When a row becomes due that is not yet.
    pub(super) wake: Option<u64>,
}

fn hash(key: &Bytes) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

/// For what is a hash already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[derive(Debug, Default)]
pub(super) struct Window {
    /// In the order of their numbers; the front is the first that is not settled.
    entries: VecDeque<Entry>,
    bytes: u64,
    /// Keys that wait until a skipped row of theirs is saved as an exception: were one sent before, a crash could send
    /// the skipped row after it.
    held: HashSet<Bytes>,
    /// How many rows at the front are on their way or settled, at least: nothing is to be picked from them.
    passed: usize,
    /// Keys of rows that were picked and are on their way, by their hashes, and how many each has.
    flying: HashMap<u64, u32, BuildHasherDefault<AsItIs>>,
    /// Used while rows are picked, and kept for its room.
    busy: HashSet<u64, BuildHasherDefault<AsItIs>>,
}

impl Window {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn oldest(&self) -> Option<Timestamp> {
        self.entries.front().map(|entry| entry.row.created_at)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// What is known of rows from earlier attempts: the entries that say more than that a row is queued.
    pub(super) fn take_tried(&mut self) -> Vec<Entry> {
        let mut entries = Vec::from(std::mem::take(self).entries);
        entries.retain(|entry| match entry.state {
            State::Queued | State::InFlight => {
                entry.attempts > 0 || entry.aways > 0 || entry.blocking.is_some()
            }
            State::Excepted(_) => true,
            State::Acked | State::Aside => false,
        });
        entries
    }

    /// The row admitted last was tried before.
    pub(super) fn recall(&mut self, mut tried: Entry) {
        if let State::InFlight = tried.state {
            tried.state = State::Queued;
        }
        if let State::Excepted(it) = &tried.state
            && let (ExceptionKind::Skipped, Some(key)) = (it.kind, tried.key())
        {
            self.held.insert(key.clone());
        }
        if let Some(last) = self.entries.back_mut()
            && last.row.row == tried.row.row
        {
            *last = tried;
        }
    }

    /// Appends a row with a number above all others.
    pub(super) fn admit(&mut self, page_row: PageRow) {
        let entry = Entry {
            key_hash: page_row.row.event.key.as_ref().map(hash),
            row: Arc::new(page_row.row),
            state: State::Queued,
            attempts: 0,
            aways: 0,
            first_failed_at: None,
            not_before: 0,
            barred: page_row.barred,
            blocking: None,
        };
        debug_assert!(
            self.entries
                .back()
                .is_none_or(|last| last.row.row < entry.row.row)
        );
        self.bytes += entry.bytes();
        self.entries.push_back(entry);
    }

    fn place(&self, row: i64) -> Option<usize> {
        // Numbers mostly follow one another, so its place is mostly known.
        let from_first = row.checked_sub(self.entries.front()?.row.row)?;
        let at = usize::try_from(from_first).ok()?;
        match self.entries.get(at) {
            Some(entry) if entry.row.row == row => Some(at),
            _ => self
                .entries
                .binary_search_by_key(&row, |entry| entry.row.row)
                .ok(),
        }
    }

    pub(super) fn get_mut(&mut self, row: i64) -> Option<&mut Entry> {
        let at = self.place(row)?;
        self.entries.get_mut(at)
    }

    /// A picked row goes on its way.
    pub(super) fn send(&mut self, row: i64) -> Option<Arc<OutboxRow>> {
        let at = self.place(row)?;
        let entry = self.entries.get_mut(at)?;
        entry.state = State::InFlight;
        if let Some(key) = entry.key_hash {
            *self.flying.entry(key).or_default() += 1;
        }
        Some(Arc::clone(&entry.row))
    }

    /// A row was delivered; whether it is still here.
    pub(super) fn acknowledge(&mut self, row: i64) -> bool {
        let Some(at) = self.place(row) else { return false };
        let entry = &mut self.entries[at];
        Self::landed(&mut self.flying, entry);
        entry.state = State::Acked;
        true
    }

    /// A row waits for its turn, again.
    pub(super) fn requeue(&mut self, row: i64) -> Option<&mut Entry> {
        let at = self.place(row)?;
        self.passed = self.passed.min(at);
        let entry = self.entries.get_mut(at)?;
        Self::landed(&mut self.flying, entry);
        entry.state = State::Queued;
        Some(entry)
    }

    fn landed(flying: &mut HashMap<u64, u32, BuildHasherDefault<AsItIs>>, entry: &Entry) {
        if let (State::InFlight, Some(key)) = (&entry.state, entry.key_hash)
            && let hash_map::Entry::Occupied(mut count) = flying.entry(key)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// The first row that is not settled.
    pub(super) fn first(&self) -> Option<&Entry> {
        self.entries.front()
    }

    /// Turns a row into an exception.
    pub(super) fn except(&mut self, row: i64, kind: ExceptionKind, reason: &str) {
        let Some(entry) = self.get_mut(row) else { return };
        entry.state = State::Excepted(Exception {
            row,
            event_id: entry.row.event.id,
            kind,
            attempts: entry.attempts,
            reason: reason.to_owned(),
        });
        let key = entry.key().cloned();
        if let (ExceptionKind::Skipped, Some(key)) = (kind, key) {
            self.held.insert(key);
        }
    }

    /// Turns every later queued row of `key` into an exception behind `first`.
    pub(super) fn except_behind(&mut self, key: &Bytes, first: i64) -> u64 {
        let mut count = 0;
        for entry in &mut self.entries {
            if entry.row.row > first && matches!(entry.state, State::Queued) && entry.key() == Some(key) {
                entry.state = State::Excepted(Exception {
                    row: entry.row.row,
                    event_id: entry.row.event.id,
                    kind: ExceptionKind::Behind,
                    attempts: 0,
                    reason: behind(first),
                });
                count += 1;
            }
        }
        count
    }

    /// Whether a row of this key here is to become an exception.
    pub(super) fn holds_exception_of(&self, key: &Bytes) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|entry| matches!(entry.state, State::Excepted(_)) && entry.key() == Some(key))
    }

    /// Removes the settled rows at the front; returns the last one's number, and the exceptions among them.
    pub(super) fn pop_settled(&mut self, exceptions: &mut Vec<Exception>) -> Option<i64> {
        let mut last = None;
        while self.entries.front().is_some_and(Entry::settled) {
            let Some(entry) = self.entries.pop_front() else {
                break;
            };
            last = Some(entry.row.row);
            self.passed = self.passed.saturating_sub(1);
            self.bytes -= entry.bytes();
            if let State::Excepted(exception) = entry.state {
                exceptions.push(exception);
            }
        }
        last
    }

    /// A skipped row of this key is saved: the key goes on.
    pub(super) fn unhold_all(&mut self, still: &[Exception]) {
        // Skipped rows further back in the window still hold their keys; they are few.
        if self.held.is_empty() || !still.is_empty() {
            return;
        }
        let waiting: HashSet<Bytes> = self
            .entries
            .iter()
            .filter(|entry| matches!(&entry.state, State::Excepted(it) if it.kind == ExceptionKind::Skipped))
            .filter_map(|entry| entry.key().cloned())
            .collect();
        self.held = waiting;
    }

    /// Removes the rows up to `last_id`.
    pub(super) fn pop_to(&mut self, last_id: i64) {
        while let Some(entry) = self.entries.front()
            && entry.row.row <= last_id
        {
            self.bytes -= entry.bytes();
            self.passed = self.passed.saturating_sub(1);
            self.entries.pop_front();
        }
    }

    pub(super) fn has_unsaved(&self) -> bool {
        self.entries
            .iter()
            .any(|entry| matches!(entry.state, State::Excepted(_)))
    }

    /// Exceptions that are not in the store yet.
    pub(super) fn unsaved(&self) -> Vec<Exception> {
        let exception = |entry: &Entry| match &entry.state {
            State::Excepted(exception) => Some(exception.clone()),
            _ => None,
        };
        self.entries.iter().filter_map(exception).collect()
    }

    /// The rows behind `after` that can go out together now, `max` at most; it ends at a key that is `waiting`.
    pub(super) fn prefix(&self, after: i64, now: u64, max: usize, waiting: &HashMap<Bytes, i64>) -> Prefix {
        let from = self.entries.partition_point(|entry| entry.row.row <= after);
        let mut prefix = Prefix {
            to: after,
            ..Prefix::default()
        };
        for entry in self.entries.range(from..) {
            match entry.state {
                State::Aside => {}
                State::Queued if prefix.rows.len() >= max => return prefix,
                State::Queued if entry.key().is_some_and(|key| waiting.contains_key(key)) => return prefix,
                State::Queued if entry.not_before <= now => prefix.rows.push(entry.row.row),
                State::Queued => {
                    prefix.wake = Some(entry.not_before).filter(|at| *at < u64::MAX);
                    return prefix;
                }
                State::InFlight | State::Acked | State::Excepted(_) => return prefix,
            }
            prefix.to = entry.row.row;
            if entry.blocking.is_some() {
                return prefix;
            }
        }
        prefix.all = true;
        prefix
    }

    /// Rows that may be sent now, `max` at most, in order. With `one_per_key` no two of a key; else several, if
    /// nothing of the key before them waits. Keys that are `waiting` are passed over.
    pub(super) fn pick(
        &mut self,
        now: u64,
        max: usize,
        one_per_key: bool,
        waiting: &HashMap<Bytes, i64>,
    ) -> Picked {
        let mut picked = Picked::default();
        while self.entries.get(self.passed).is_some_and(Entry::passed) {
            self.passed += 1;
        }
        debug_assert!(self.entries.range(..self.passed).all(Entry::passed));
        // By their hashes: two keys with one hash wait for each other, that is all.
        let busy = &mut self.busy;
        busy.clear();
        busy.extend(self.held.iter().chain(waiting.keys()).map(hash));
        for entry in self.entries.range(self.passed..) {
            if picked.rows.len() >= max {
                break;
            }
            if entry.passed() {
                continue;
            }
            let in_flight = matches!(entry.state, State::InFlight);
            let waits_behind = |key: u64| busy.contains(&key) || self.flying.contains_key(&key);
            if !in_flight && entry.key_hash.is_some_and(waits_behind) {
                continue;
            }
            let due = !in_flight && entry.not_before <= now;
            if due {
                picked.rows.push(entry.row.row);
            } else if !in_flight && entry.not_before < u64::MAX {
                picked.wake = Some(
                    picked
                        .wake
                        .map_or(entry.not_before, |at| at.min(entry.not_before)),
                );
            }
            if let Some(key) = entry.key_hash
                && (one_per_key || !due)
            {
                busy.insert(key);
            }
            if entry.blocking.is_some() {
                break;
            }
        }
        picked
    }
}

/// The reason of a row behind a parked one; 0 where that one is not known any more.
pub(super) fn behind(first: i64) -> String {
    if first == 0 {
        "its key is parked".to_owned()
    } else {
        format!("its key was parked by row {first}")
    }
}
