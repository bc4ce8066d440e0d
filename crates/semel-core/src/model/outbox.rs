//! An outbox in memory.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use uuid::Uuid;

use super::outbox_limit::Limits;
use super::outbox_relays::Relays;
use crate::claim::Nonce;
use crate::error::StoreError;
use crate::event::Event;
use crate::host::{Clock, SystemClock, Timestamp};
use crate::relay::{Cursor, Epoch, LogCopy, Mark, OwnedShard, Roster, ShardId, ShardLease, Slots, Takeovers};
use crate::store::{
    Acquire, BACKLOG_ROWS_COUNTED_MAX, Backlog, Capabilities, CursorSave, DeskEntry, DeskRow, Due, Exception,
    Guarded, Measured, Opening, OutboxDesk, OutboxRow, OutboxStore, Page, PageRow, PageSize, Presence,
    RESHARD_HOLD_MS, RESHARD_REST_MS, ShardBacklog, StoredException, StreamLimit, check_stream,
    event_repeated,
};

/// An outbox in this process's memory: the specification, and a full backend for tests.
///
/// Transactions overlap as they do on PostgreSQL: a row's number is drawn when it is written, and it becomes visible
/// when its transaction commits. A mark is the number of commits so far.
pub struct MemoryOutbox {
    pub(super) clock: Arc<dyn Clock>,
    state: Mutex<Inner>,
}

#[derive(Default)]
pub(super) struct Inner {
    pub(super) last_id: i64,
    pub(super) commits: u64,
    /// By number: when it was committed, and the row.
    pub(super) rows: BTreeMap<i64, (u64, OutboxRow)>,
    pub(super) shards: BTreeMap<ShardId, Shard>,
    pub(super) exceptions: BTreeMap<i64, DeskRow>,
    pub(super) log: Vec<DeskEntry>,
    /// By time, then in the order of writing.
    delayed: BTreeMap<(Timestamp, u64), Event>,
    last_delayed: u64,
    /// By stream: the map that is wanted.
    pub(super) changes: BTreeMap<String, Change>,
    pub(super) limits: Limits,
    pub(super) relays: Relays,
}

/// Another number of shards that is asked for, and the commit up to which every shard is run.
pub(super) struct Change {
    shards: u16,
    mark: u64,
    pub(super) hold_until: Timestamp,
}

pub(super) struct Shard {
    pub(super) slots: Slots,
    pub(super) epoch: i64,
    pub(super) nonce: Option<Nonce>,
    pub(super) relay: Option<Nonce>,
    pub(super) owner: String,
    pub(super) until: Timestamp,
    takeovers: Takeovers,
    pub(super) cursor: Cursor,
    pub(super) note: Option<(String, Timestamp)>,
}

impl Shard {
    fn new(prev: Mark, epoch: i64, batch_no: i64, version: i64, log: Option<LogCopy>) -> Self {
        Self {
            slots: Slots::of_shard(0, 1),
            epoch,
            nonce: None,
            relay: None,
            owner: String::new(),
            until: Timestamp(i64::MIN),
            takeovers: Takeovers::default(),
            cursor: Cursor {
                prev,
                open: None,
                last_id: 0,
                batch_no,
                batch: Nonce([0; 16]),
                version,
                suspect: None,
                log,
            },
            note: None,
        }
    }
}

/// A transaction of [`MemoryOutbox`]. Dropping it rolls back.
pub struct MemoryTransaction {
    outbox: Arc<MemoryOutbox>,
    rows: Vec<OutboxRow>,
    delayed: Vec<(Timestamp, Event)>,
    cancelled: Vec<(Timestamp, u64)>,
}

impl Default for MemoryOutbox {
    fn default() -> Self {
        Self::new(Arc::new(SystemClock))
    }
}

pub(super) fn commit_of(mark: &Mark) -> u64 {
    mark.as_str().parse().unwrap_or(0)
}

impl Inner {
    fn add_shards(&mut self, stream: &str, shards: u16, like: &Shard) {
        for index in 0..shards {
            let id = ShardId {
                stream: stream.to_owned(),
                index,
            };
            let slots = Slots::of_shard(index, shards);
            for it in self.exceptions.values_mut() {
                let slot = it.stored.row.row.event.slot();
                if it.stored.shard.stream == stream && slots.range().contains(&slot) {
                    it.stored.shard = id.clone();
                }
            }
            let cursor = like.cursor.clone();
            let owner = String::new();
            let shard = Shard {
                slots,
                owner,
                cursor,
                note: None,
                ..*like
            };
            self.shards.insert(id, shard);
        }
    }

    /// Replaces the map of a stream, if every shard has reached the mark; whether it did.
    fn switch(&mut self, stream: &str) -> bool {
        let Some(change) = self.changes.get(stream) else {
            return false;
        };
        let (shards, mark) = (change.shards, Mark::new(change.mark.to_string()));
        let of_stream = || self.shards.iter().filter(|(id, _)| id.stream == stream);
        if !of_stream().all(|(_, shard)| shard.cursor.prev == mark && shard.cursor.open.is_none()) {
            return false;
        }
        // What is being sent again may be on its way, and the new shards are free at once.
        let of_stream_set_aside = |row: &&DeskRow| row.stored.shard.stream == stream;
        let mut set_aside = self.exceptions.values().filter(of_stream_set_aside);
        if set_aside.any(|row| row.asked.is_some() && row.taken > 0) {
            return false;
        }
        let last = |of: fn(&Shard) -> i64| of_stream().map(|(_, shard)| of(shard)).max().unwrap_or(0);
        let (epoch, batch_no) = (last(|shard| shard.epoch), last(|shard| shard.cursor.batch_no));
        let version = last(|shard| shard.cursor.version) + 1;
        // All up to the mark is in the log, and the places in it are those of other shards.
        let log = of_stream()
            .any(|(_, shard)| shard.cursor.log.is_some())
            .then_some(LogCopy::Rebind);
        self.changes.remove(stream);
        self.shards.retain(|id, _| id.stream != stream);
        self.add_shards(stream, shards, &Shard::new(mark, epoch, batch_no, version, log));
        true
    }

    pub(super) fn owned<'a>(&'a mut self, lease: &ShardLease) -> Option<&'a mut Shard> {
        self.shards
            .get_mut(&lease.shard)
            .filter(|shard| shard.nonce == Some(lease.nonce) && shard.epoch == lease.epoch.0)
    }

    /// Rows of the shard that are not settled.
    pub(super) fn waiting<'a>(
        &'a self,
        id: &'a ShardId,
        shard: &'a Shard,
    ) -> impl Iterator<Item = &'a OutboxRow> {
        let last = if shard.cursor.open.is_some() {
            shard.cursor.last_id
        } else {
            i64::MAX
        };
        let open = shard.cursor.open.as_ref().map_or(0, commit_of);
        self.between(id, shard.slots, commit_of(&shard.cursor.prev), u64::MAX)
            .filter(move |row| row.row > last || self.rows[&row.row].0 > open)
    }
}

impl MemoryOutbox {
    /// An empty outbox that reads this clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            state: Mutex::default(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a transaction.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> MemoryTransaction {
        MemoryTransaction {
            outbox: Arc::clone(self),
            rows: Vec::new(),
            delayed: Vec::new(),
            cancelled: Vec::new(),
        }
    }
}

impl MemoryTransaction {
    /// Writes an event; returns its row number.
    ///
    /// # Errors
    /// [`Event::check`]; an id that is there already, in a transaction that has committed or in this one.
    pub fn enqueue(&mut self, event: Event) -> Result<i64, StoreError> {
        event.check()?;
        let now = self.outbox.clock.now();
        let mut inner = self.outbox.lock();
        inner.admit(&event.stream, now, &self.rows)?;
        let mut there = inner.rows.values().map(|(_, row)| row).chain(&self.rows);
        if there.any(|row| row.event.id == event.id) {
            return Err(event_repeated(event.id));
        }
        inner.last_id += 1;
        self.rows.push(OutboxRow {
            row: inner.last_id,
            created_at: self.outbox.clock.now(),
            batch_no: 0,
            event,
        });
        Ok(inner.last_id)
    }

    /// Writes an event that enters the outbox so many milliseconds from now.
    ///
    /// # Errors
    /// As [`MemoryTransaction::enqueue`]; an id that waits already.
    pub fn enqueue_in(&mut self, event: Event, ms: i64) -> Result<(), StoreError> {
        event.check()?;
        let inner = self.outbox.lock();
        inner.admit_stream(&event.stream)?;
        let mut there = inner
            .rows
            .values()
            .map(|(_, row)| &row.event)
            .chain(self.rows.iter().map(|row| &row.event))
            .chain(inner.delayed.values())
            .chain(self.delayed.iter().map(|(_, event)| event));
        if there.any(|other| other.id == event.id) {
            return Err(event_repeated(event.id));
        }
        self.delayed.push((self.outbox.clock.now().plus_ms(ms), event));
        Ok(())
    }

    /// Takes a delayed event back; whether it still waited.
    pub fn cancel(&mut self, id: Uuid) -> bool {
        let inner = self.outbox.lock();
        let found = inner.delayed.iter().find(|(_, event)| event.id == id);
        self.cancelled.extend(found.map(|(key, _)| *key));
        found.is_some()
    }

    /// Makes what was written visible.
    pub fn commit(self) {
        let mut inner = self.outbox.lock();
        for key in &self.cancelled {
            inner.delayed.remove(key);
        }
        for (due, event) in self.delayed {
            inner.last_delayed += 1;
            let key = (due, inner.last_delayed);
            inner.delayed.insert(key, event);
        }
        inner.commits += 1;
        let commit = inner.commits;
        inner
            .rows
            .extend(self.rows.into_iter().map(|row| (row.row, (commit, row))));
    }
}

#[async_trait]
impl OutboxStore for MemoryOutbox {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "memory",
            joins_user_transaction: false,
            fences: true,
            token_survives_failover: false,
            shared_by_machines: false,
            durable: false,
            counts_scopes: false,
        }
    }

    fn desk(&self) -> Option<&dyn OutboxDesk> {
        Some(self)
    }

    async fn register_stream(&self, stream: &str, shards: u16) -> Result<(), StoreError> {
        check_stream(stream, shards)?;
        let now = self.clock.now();
        let mut inner = self.lock();
        let found = inner.shards.keys().filter(|id| id.stream == stream).count();
        if found == 0 {
            inner.add_shards(stream, shards, &Shard::new(Mark::new("0"), 0, 0, 0, None));
        } else if found == usize::from(shards) {
            inner.changes.remove(stream);
        } else if inner.changes.get(stream).is_none_or(|it| it.shards != shards) {
            let change = Change {
                shards,
                mark: inner.commits,
                hold_until: now.plus_ms(RESHARD_HOLD_MS),
            };
            inner.changes.insert(stream.to_owned(), change);
        }
        Ok(())
    }

    async fn acquire(&self, wish: &Acquire) -> Result<Vec<OwnedShard>, StoreError> {
        let now = self.clock.now();
        let mut inner = self.lock();
        let parked: BTreeSet<(ShardId, Bytes)> = inner
            .exceptions
            .values()
            .filter_map(|it| Some((it.stored.shard.clone(), it.list()?.clone())))
            .collect();
        let excepted: Vec<(ShardId, i64)> = inner
            .exceptions
            .iter()
            .map(|(row, it)| (it.stored.shard.clone(), *row))
            .collect();
        let free = inner.shards.iter_mut().filter(|(id, shard)| {
            id.stream == wish.stream && (shard.until <= now || shard.nonce == Some(wish.nonce))
        });
        // What an answer that was lost had granted comes first.
        let mut free: Vec<_> = free.collect();
        free.sort_by_key(|(_, shard)| shard.nonce != Some(wish.nonce));
        Ok(free
            .into_iter()
            .take(usize::from(wish.max))
            .map(|(id, shard)| {
                shard.takeovers = shard.takeovers.next(&shard.cursor, shard.nonce.is_none());
                shard.epoch += 1;
                shard.nonce = Some(wish.nonce);
                shard.relay = Some(wish.relay);
                shard.owner.clone_from(&wish.owner);
                shard.until = now.plus_ms(wish.lease_ms);
                OwnedShard {
                    lease: ShardLease {
                        shard: id.clone(),
                        slots: shard.slots,
                        epoch: Epoch(shard.epoch),
                        nonce: wish.nonce,
                    },
                    cursor: shard.cursor.clone(),
                    takeovers: shard.takeovers.count,
                    parked: parked
                        .iter()
                        .filter(|(of, _)| of == id)
                        .map(|(_, key)| key.clone())
                        .collect(),
                    excepted: excepted
                        .iter()
                        .filter(|(of, row)| {
                            of == id && shard.cursor.open.is_some() && *row > shard.cursor.last_id
                        })
                        .map(|(_, row)| *row)
                        .collect(),
                }
            })
            .collect())
    }

    async fn renew(&self, leases: &[ShardLease], lease_ms: i64) -> Result<Vec<bool>, StoreError> {
        let until = self.clock.now().plus_ms(lease_ms);
        let mut inner = self.lock();
        Ok(leases
            .iter()
            .map(|lease| inner.owned(lease).map(|shard| shard.until = until).is_some())
            .collect())
    }

    async fn release(&self, leases: &[ShardLease]) -> Result<(), StoreError> {
        let mut inner = self.lock();
        for lease in leases {
            if let Some(shard) = inner.owned(lease) {
                shard.nonce = None;
                shard.until = Timestamp(i64::MIN);
            }
        }
        Ok(())
    }

    async fn attend(&self, presence: &Presence) -> Result<(), StoreError> {
        self.note_presence(presence);
        Ok(())
    }

    async fn leave(&self, stream: &str, relay: Nonce) -> Result<(), StoreError> {
        self.drop_presence(stream, relay);
        Ok(())
    }

    async fn roster(&self, stream: &str) -> Result<Roster, StoreError> {
        Ok(self.read_roster(stream))
    }

    async fn load(&self, lease: &ShardLease) -> Result<Guarded<Cursor>, StoreError> {
        let mut inner = self.lock();
        Ok(inner
            .owned(lease)
            .map_or(Guarded::Lost, |shard| Guarded::Done(shard.cursor.clone())))
    }

    async fn open_batch(
        &self,
        lease: &ShardLease,
        from: &Cursor,
        advance: bool,
        size: PageSize,
    ) -> Result<Guarded<Opening>, StoreError> {
        let now = self.clock.now();
        let mut inner = self.lock();
        if inner.owned(lease).is_none() {
            return Ok(Guarded::Lost);
        }
        let prev = from.open.as_ref().unwrap_or(&from.prev);
        let (low, mut high, mut advance) = (commit_of(prev), inner.commits, advance);
        let commits = inner.commits;
        if let Some(change) = inner.changes.get_mut(&lease.shard.stream) {
            if now >= change.hold_until.plus_ms(RESHARD_REST_MS) {
                change.mark = commits;
                change.hold_until = now.plus_ms(RESHARD_HOLD_MS);
            }
            if now < change.hold_until {
                (high, advance) = (change.mark, true);
                if low == high {
                    return Ok(if from.open.is_none() && inner.switch(&lease.shard.stream) {
                        Guarded::Lost
                    } else {
                        Guarded::Done(Opening::Empty)
                    });
                }
            }
        }
        let cur = Mark::new(high.to_string());
        let first = inner
            .between(&lease.shard, lease.slots, low, high)
            .next()
            .map(|row| row.row);
        let Some(shard) = inner.owned(lease) else {
            return Ok(Guarded::Lost);
        };
        if shard.cursor.version != from.version {
            return Ok(Guarded::Reload);
        }
        let opening = match first {
            Some(first) => {
                shard.cursor = from.opened(cur, first);
                let cursor = shard.cursor.clone();
                // A store may bring the first page or leave it to be asked for.
                let page = (cursor.batch_no % 2 == 0).then(|| inner.page(lease, &cursor, first - 1, size));
                Opening::Opened(cursor, page)
            }
            None if advance => {
                shard.cursor = from.moved(cur);
                Opening::Moved(shard.cursor.clone())
            }
            None => Opening::Empty,
        };
        Ok(Guarded::Done(opening))
    }

    async fn worth_opening(&self, idle: &[(ShardLease, Cursor)]) -> Result<Vec<bool>, StoreError> {
        let inner = self.lock();
        let worth = |(lease, from): &(ShardLease, Cursor)| {
            let known = inner.shards.get(&lease.shard);
            let (low, high) = (commit_of(&from.prev), inner.commits);
            known.is_none_or(|shard| shard.cursor.version != from.version)
                || inner.changes.contains_key(&lease.shard.stream)
                || inner
                    .between(&lease.shard, lease.slots, low, high)
                    .next()
                    .is_some()
        };
        Ok(idle.iter().map(worth).collect())
    }

    async fn read_page(
        &self,
        lease: &ShardLease,
        cursor: &Cursor,
        after: i64,
        size: PageSize,
    ) -> Result<Guarded<Page>, StoreError> {
        let mut inner = self.lock();
        let Some(shard) = inner.owned(lease) else {
            return Ok(Guarded::Lost);
        };
        if shard.cursor.batch_no != cursor.batch_no || shard.cursor.open != cursor.open {
            return Ok(Guarded::Reload);
        }
        Ok(Guarded::Done(inner.page(lease, cursor, after, size)))
    }

    async fn save_cursor(
        &self,
        lease: &ShardLease,
        save: &CursorSave,
    ) -> Result<Guarded<Cursor>, StoreError> {
        let now = self.clock.now();
        let mut inner = self.lock();
        let copies: Vec<(Exception, OutboxRow)> = save
            .exceptions
            .iter()
            .filter_map(|it| Some((it.clone(), inner.rows.get(&it.row)?.1.clone())))
            .collect();
        let Some(shard) = inner.owned(lease) else {
            return Ok(Guarded::Lost);
        };
        if shard.cursor.version != save.from.version || shard.cursor.batch_no != save.from.batch_no {
            return Ok(Guarded::Reload);
        }
        shard.cursor = save.apply();
        let cursor = shard.cursor.clone();
        for (exception, row) in copies {
            let kept = inner.exceptions.entry(exception.row).or_insert_with(|| DeskRow {
                stored: StoredException {
                    shard: lease.shard.clone(),
                    exception,
                    since: now,
                    row: PageRow { row, barred: None },
                },
                asked: None,
                edits: 0,
                taken: 0,
            });
            // Read once more after a rescan, its place is behind those of its key that were sent again.
            kept.stored.row.row.batch_no = save.from.batch_no;
        }
        Ok(Guarded::Done(cursor))
    }

    async fn exceptions(
        &self,
        stream: &str,
        after: i64,
        limit: u32,
    ) -> Result<Vec<StoredException>, StoreError> {
        let inner = self.lock();
        Ok(inner
            .exceptions
            .range(after.saturating_add(1)..)
            .map(|(_, it)| &it.stored)
            .filter(|it| it.shard.stream == stream)
            .take(limit as usize)
            .cloned()
            .collect())
    }

    async fn move_due(&self, stream: &str, limit: u32) -> Result<Due, StoreError> {
        let now = self.clock.now();
        let mut inner = self.lock();
        let mut waiting = inner.delayed.iter().filter(|(_, event)| event.stream == stream);
        let due: Vec<(Timestamp, u64)> = waiting
            .by_ref()
            .map(|(key, _)| *key)
            .take_while(|(due, _)| *due <= now)
            .take(limit as usize)
            .collect();
        let mut moved = Due::default();
        if !due.is_empty() {
            inner.commits += 1;
        }
        for key in due {
            let Some(event) = inner.delayed.remove(&key) else {
                continue;
            };
            if inner.rows.values().any(|(_, row)| row.event.id == event.id) {
                moved.repeated.push(event.id);
                continue;
            }
            inner.last_id += 1;
            let (row, commit) = (inner.last_id, inner.commits);
            let created_at = now;
            let row_of = OutboxRow {
                row,
                created_at,
                batch_no: 0,
                event,
            };
            inner.rows.insert(row, (commit, row_of));
            moved.moved += 1;
        }
        let mut left = inner.delayed.iter().filter(|(_, event)| event.stream == stream);
        moved.next_ms = left.next().map(|((due, _), _)| due.ms_since(now).max(0));
        Ok(moved)
    }

    async fn clean(&self, stream: &str, keep_ms: i64, limit: u32) -> Result<u64, StoreError> {
        let before = self.clock.now().plus_ms(-keep_ms);
        let mut inner = self.lock();
        let settled = |commit: u64, row: &OutboxRow| {
            inner.shards.iter().any(|(id, shard)| {
                id.stream == row.event.stream
                    && shard.slots.range().contains(&row.event.slot())
                    && commit <= commit_of(&shard.cursor.prev)
            })
        };
        let doomed: Vec<i64> = inner
            .rows
            .iter()
            .filter(|(_, (_, row))| row.event.stream == stream && row.created_at < before)
            .filter(|(_, (commit, row))| settled(*commit, row))
            .map(|(id, _)| *id)
            .take(limit as usize)
            .collect();
        for id in &doomed {
            inner.rows.remove(id);
        }
        Ok(doomed.len() as u64)
    }

    async fn limit_stream(&self, stream: &str, limit: StreamLimit) -> Result<(), StoreError> {
        self.set_limit(stream, limit)
    }

    async fn only_known_streams(&self, only: bool) -> Result<(), StoreError> {
        self.lock().limits.known_only = only;
        Ok(())
    }

    async fn measure(&self, stream: &str) -> Result<Option<Measured>, StoreError> {
        let now = self.clock.now();
        Ok(self.lock().measure(stream, now))
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        let now = self.clock.now();
        let inner = self.lock();
        let shards = inner
            .shards
            .iter()
            .map(|(id, shard)| {
                let waiting = || inner.waiting(id, shard);
                ShardBacklog {
                    shard: id.clone(),
                    owner: (shard.nonce.is_some() && shard.until > now).then(|| shard.owner.clone()),
                    rows: (waiting().count() as u64).min(BACKLOG_ROWS_COUNTED_MAX),
                    oldest_ms: waiting().map(|row| now.ms_since(row.created_at)).max(),
                    exceptions: inner
                        .exceptions
                        .values()
                        .filter(|it| it.stored.shard == *id)
                        .count() as u64,
                    batch_no: shard.cursor.batch_no,
                    takeovers: shard.takeovers.count,
                }
            })
            .collect();
        let known: HashSet<&str> = inner.shards.keys().map(|id| id.stream.as_str()).collect();
        let mut orphan_streams: Vec<String> = inner
            .rows
            .values()
            .map(|(_, row)| row.event.stream.clone())
            .filter(|stream| !known.contains(stream.as_str()))
            .collect();
        orphan_streams.sort();
        orphan_streams.dedup();
        Ok(Backlog {
            shards,
            orphan_streams,
        })
    }
}
