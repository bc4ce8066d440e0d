//! The machine of one shard: what to do next.
//!
//! This file decides (store work, saving, sending); `settle.rs` says what a result of the sink means.
//!
//! # Words
//! - *barred*: a row that can never be sent as it is; it is poison without a try.
//! - *excepted*: a row that goes to the exceptions instead of the sink. *Parked*: a key all of whose later rows do too.
//! - *held*: a key that waits until its skipped row is saved as an exception. (A row that a sink *held back* is another
//!   thing: it never left, and is queued again.)
//! - *streak*: pauses in a row without a send that went through. *Half open*: while it is above 0, after a pause one row at
//!   a time tries whether the trouble is over.
//! - *careful*: after too many deaths of owners on one place, so many rows go out one by one, each marked first.
//! - *suspect*: the marked row, as the cursor has it. *Inherited*: the suspect of the last owner, once the deaths are so
//!   many that the row itself is accused; before it is called poison, the receiver is probed.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;

use super::command::{Command, End, Input, Pause, PauseKind, StoreCall};
use super::counters::Counters;
use super::cursor::{Cursor, OwnedShard};
use super::policy::{Poison, RelayPolicy};
use super::redrive::Redrive;
use super::transaction::Log;
use super::window::{State, Window, behind};
use crate::host::Timestamp;
use crate::store::{CursorSave, Exception, ExceptionKind, Guarded, Opening, Page, SinkOrder};

/// A shard that waits so long between two looks looks together with others, in milliseconds: before it opens a batch it asks
/// once more, which nobody notices after such a wait.
const SHARED_FROM_MS: u64 = 16;

/// Getting rows from the store.
#[derive(Debug)]
struct Reading {
    /// An opening, a page or the cursor is being asked for.
    out: bool,
    /// The last row read of the open batch, and whether there are no more.
    to: i64,
    all: bool,
    /// When to look for the next batch, and how long to wait after that if there is none.
    open_at: u64,
    idle_ms: u64,
    /// The next look is one with the other idle shards.
    shared: bool,
    /// When the cursor was last moved while nothing was open.
    moved_at: u64,
}

/// Writing down how far it has come.
#[derive(Debug)]
struct Saving {
    /// A write is on its way, with so many of the exceptions.
    out: Option<usize>,
    /// When it was last written, or taken over.
    at: u64,
    /// The last row of the settled prefix, and the exceptions in it that are not saved yet.
    settled_to: i64,
    exceptions: Vec<Exception>,
    /// The batch is settled and no other was there to open: save that.
    finish: bool,
}

/// Finding a row that kills its relays (rule O22).
#[derive(Debug)]
pub(super) struct Careful {
    /// Rows still to be sent one by one, each marked first.
    pub(super) rows: usize,
    /// The marked row on which the last owner died; not sent again before it is known that the receiver is there.
    pub(super) inherited: Option<i64>,
    pub(super) probing: bool,
}

/// One shard's relay, for one term of ownership. See the [module](super).
#[derive(Debug)]
pub struct Machine {
    pub(super) policy: RelayPolicy,
    /// The policy as it is for one that shares with nobody.
    alone: RelayPolicy,
    pub(super) order: SinkOrder,
    pub(super) cursor: Cursor,
    pub(super) window: Window,
    pub(super) parked: HashSet<Bytes>,
    pub(super) calls: BTreeMap<u64, Vec<i64>>,
    pub(super) pause: Option<Pause>,
    /// Pauses in a row without a send that went through; above 0 one row at a time tries whether it is over.
    pub(super) streak: u32,
    pub(super) careful: Careful,
    pub(super) counters: Counters,
    /// Where a log holds the cursor.
    pub(super) log: Option<Log>,
    pub(super) redrive: Redrive,
    pub(super) lease_until: u64,
    pub(super) next_call: u64,
    pub(super) last_tried: i64,
    reading: Reading,
    saving: Saving,
    /// When to read the cursor back, after trouble with the store.
    pub(super) load_at: Option<u64>,
    store_streak: u32,
    /// A cursor that is not the one in memory: taken over when nothing of the old batch is on its way.
    pub(super) replace: Option<Cursor>,
    pub(super) stopping: bool,
    pub(super) ended: Option<End>,
    wake: Option<u64>,
}

impl Machine {
    /// A machine for a shard just acquired. `lease_until` as in [`Input::LeaseUntil`].
    #[must_use]
    pub fn new(
        owned: &OwnedShard,
        order: SinkOrder,
        policy: RelayPolicy,
        now: u64,
        lease_until: u64,
    ) -> Self {
        let rows = if owned.takeovers >= policy.takeovers_max {
            policy.window_rows
        } else {
            0
        };
        let mut machine = Self {
            order,
            cursor: owned.cursor.clone(),
            window: Window::default(),
            parked: owned.parked.iter().cloned().collect(),
            calls: BTreeMap::new(),
            pause: None,
            streak: 0,
            careful: Careful {
                rows,
                // A process can die for many reasons; a row is accused only after as many deaths once more, all of them
                // with this row alone on its way.
                inherited: owned
                    .cursor
                    .suspect
                    .filter(|_| owned.takeovers >= policy.takeovers_max.saturating_mul(2)),
                probing: false,
            },
            counters: Counters::default(),
            log: Log::of(order, owned),
            redrive: Redrive::new(policy.replay_per_second),
            lease_until,
            next_call: 0,
            last_tried: 0,
            reading: Reading {
                out: false,
                to: 0,
                all: false,
                open_at: now,
                idle_ms: policy.idle_min_ms,
                shared: false,
                moved_at: now,
            },
            saving: Saving {
                out: None,
                at: now,
                settled_to: 0,
                exceptions: Vec::new(),
                finish: false,
            },
            load_at: None,
            store_streak: 0,
            replace: None,
            stopping: false,
            ended: None,
            wake: None,
            alone: policy.clone(),
            policy,
        };
        machine.take_over(owned.cursor.clone(), now);
        machine
    }

    /// Takes one input and says what to do. `now` is the local monotonic clock in milliseconds, `dice` uniform in 0..1.
    pub fn step(&mut self, now: u64, input: Input, dice: f64) -> Vec<Command> {
        self.steps(now, [(input, dice)])
    }

    /// Takes inputs that came at the same time, in this order, each with dice of its own, and says what to do then. The same
    /// as one after the other, but that it decides once.
    pub fn steps(&mut self, now: u64, inputs: impl IntoIterator<Item = (Input, f64)>) -> Vec<Command> {
        if self.ended.is_some() {
            return Vec::new();
        }
        for (input, dice) in inputs {
            if self.ended.is_none() {
                self.take(now, input, dice);
            }
        }
        let mut commands = Vec::new();
        self.decide(now, &mut commands);
        commands
    }

    /// When to send [`Input::Tick`], if nothing else comes before.
    #[must_use]
    pub const fn wake_at(&self) -> Option<u64> {
        self.wake
    }

    /// Why nothing is being sent, if so.
    #[must_use]
    pub fn pause(&self) -> Option<Pause> {
        self.pause.clone().or_else(|| {
            let first = self.window.first()?;
            Some(Pause {
                kind: PauseKind::Poison,
                reason: first.blocking.clone()?,
                row: first.row.row,
                until: first.not_before,
                since: first.first_failed_at.unwrap_or(0),
            })
        })
    }

    /// What it has done.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// The cursor as last saved.
    #[must_use]
    pub const fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// When the oldest row in memory was written.
    #[must_use]
    pub fn oldest(&self) -> Option<Timestamp> {
        self.window.oldest()
    }

    /// Rows in memory.
    #[must_use]
    pub fn in_memory(&self) -> usize {
        self.window.len()
    }

    /// Rows on their way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.calls.values().map(Vec::len).sum::<usize>() + self.redrive.in_flight()
    }

    fn take(&mut self, now: u64, input: Input, dice: f64) {
        match input {
            Input::Tick => {}
            Input::Hint => {
                self.reading.idle_ms = self.policy.idle_min_ms;
                self.reading.open_at = self.reading.open_at.min(now);
                self.reading.shared = false;
            }
            // A transaction is collected in the window.
            Input::Share(_) if self.log.is_some() => {}
            Input::Share(shards) => self.policy = self.alone.shared_by(shards),
            Input::LeaseUntil(until) => self.lease_until = until,
            Input::LeaseLost => self.ended = Some(End::Lost),
            Input::Stop => self.stopping = true,
            Input::Published { call, results } => {
                if !self.redriven(now, call, &results, dice) {
                    self.published(now, call, results, dice);
                }
            }
            Input::Resumed(answer) => self.resumed(now, answer, dice),
            Input::Committed { call, end } => self.committed(now, call, end, dice),
            Input::Taken(reply) => self.taken(now, reply),
            Input::Settled(reply) => self.redrive_settled(now, reply),
            Input::StoreFailed(StoreCall::Desk) => self.redrive_failed(now, dice),
            Input::Probed(result) => self.probed(now, result, dice),
            Input::StoreFailed(call) => {
                match call {
                    StoreCall::Read => self.reading.out = false,
                    StoreCall::Save => self.saving.out = None,
                    StoreCall::Desk => {}
                }
                self.store_streak = self.store_streak.saturating_add(1);
                let wait = self
                    .policy
                    .away
                    .delay_ms(self.store_streak, 0, dice)
                    .unwrap_or(self.policy.away.cap_ms);
                self.load_at = Some(now.saturating_add(wait));
            }
            Input::Opened(reply) => {
                self.reading.out = false;
                if let Some(opening) = self.guard(now, reply) {
                    self.opened(now, opening);
                }
            }
            Input::Looked(found) => {
                self.reading.out = false;
                if found {
                    (self.reading.open_at, self.reading.shared) = (now, false);
                } else {
                    self.store_streak = 0;
                    self.wait_for_rows(now);
                }
            }
            Input::Read(reply) => {
                self.reading.out = false;
                if let Some(page) = self.guard(now, reply) {
                    self.admit(page);
                }
            }
            Input::Saved(reply) => {
                let written = self.saving.out.take().unwrap_or(0);
                if let Some(cursor) = self.guard(now, reply) {
                    self.counters.saves += 1;
                    self.saving
                        .exceptions
                        .drain(..written.min(self.saving.exceptions.len()));
                    self.window.unhold_all(&self.saving.exceptions);
                    if cursor.open.is_none() {
                        self.reading.moved_at = now;
                    }
                    self.saving.finish = false;
                    self.saving.at = now;
                    self.cursor = cursor;
                    self.saved_with_log();
                }
            }
            Input::Loaded(reply) => {
                self.reading.out = false;
                // A server that only reads answers this, and nothing else: the waits go on growing.
                let streak = self.store_streak;
                if let Some(cursor) = self.guard(now, reply) {
                    self.store_streak = streak;
                    self.load_at = None;
                    self.loaded(now, cursor);
                }
            }
        }
    }

    /// Sorts out what only an owner with the right cursor is told.
    pub(super) fn guard<T>(&mut self, now: u64, reply: Guarded<T>) -> Option<T> {
        match reply {
            Guarded::Done(value) => {
                self.store_streak = 0;
                Some(value)
            }
            Guarded::Lost => {
                self.ended = Some(End::Lost);
                None
            }
            Guarded::Reload => {
                self.load_at = Some(now);
                None
            }
        }
    }

    fn opened(&mut self, now: u64, opening: Opening) {
        match opening {
            Opening::Opened(cursor, first) => {
                self.counters.batches += 1;
                self.reading.idle_ms = self.policy.idle_min_ms;
                self.take_over(cursor, now);
                if let Some(page) = first {
                    self.admit(page);
                }
            }
            Opening::Moved(cursor) => {
                self.cursor = cursor;
                self.reading.moved_at = now;
                self.wait_for_rows(now);
            }
            Opening::Empty => {
                self.saving.finish = self.cursor.open.is_some();
                self.wait_for_rows(now);
            }
        }
    }

    /// Short waits are each shard's own; long ones end for all shards of a process at once, so that one look serves all.
    fn wait_for_rows(&mut self, now: u64) {
        let wait = self.reading.idle_ms;
        self.reading.shared = wait >= SHARED_FROM_MS;
        self.reading.open_at = if self.reading.shared {
            (now / wait).saturating_add(1).saturating_mul(wait)
        } else {
            now.saturating_add(wait)
        };
        self.reading.idle_ms = (self.reading.idle_ms * 2).min(self.policy.idle_max_ms);
    }

    /// The cursor that was read back after trouble. Where it names the batch in memory, what is known of its rows
    /// still holds: the write whose reply was lost has been done or has not.
    fn loaded(&mut self, now: u64, cursor: Cursor) {
        let same = self.cursor.batch_no == cursor.batch_no
            && self.cursor.open == cursor.open
            && self.cursor.prev == cursor.prev;
        if self.loaded_with_log(now, &cursor, same) {
            return;
        }
        if same {
            self.saving.exceptions.retain(|it| it.row > cursor.last_id);
            self.window.unhold_all(&self.saving.exceptions);
            self.cursor = cursor;
        } else if self.calls.is_empty() {
            self.take_over(cursor, now);
        } else {
            self.replace = Some(cursor);
        }
    }

    /// Begins with this cursor: its open batch, if there is one.
    pub(super) fn take_over(&mut self, cursor: Cursor, now: u64) {
        if let Some(log) = &mut self.log {
            log.begin_at(cursor.last_id, cursor.open.is_none());
        }
        self.window.clear();
        self.saving.exceptions.clear();
        self.saving.settled_to = cursor.last_id;
        self.reading.to = cursor.last_id;
        self.reading.all = cursor.open.is_none();
        self.saving.finish = false;
        self.reading.open_at = now;
        self.saving.at = now;
        self.last_tried = 0;
        self.cursor = cursor;
    }

    fn admit(&mut self, page: Page) {
        self.reading.all = !page.more;
        for mut page_row in page.rows {
            page_row.row.batch_no = self.cursor.batch_no;
            let row = page_row.row.row;
            let key = page_row.row.event.key.as_ref();
            let parked =
                key.is_some_and(|key| self.parked.contains(key) && !self.redrive.waiting.contains_key(key));
            let barred = page_row.barred.clone();
            self.reading.to = row;
            self.window.admit(page_row);
            let tried = self.log.as_mut().and_then(|log| log.tried.remove(&row));
            let excepted = tried
                .as_ref()
                .is_some_and(|it| matches!(it.state, State::Excepted(_)));
            if let Some(tried) = tried {
                self.window.recall(tried);
            }
            if self.log.as_ref().is_some_and(|log| log.is_aside(row)) {
                if let Some(entry) = self.window.get_mut(row) {
                    entry.state = State::Aside;
                }
            } else if excepted {
                // Decided before the log was asked again, and not written yet.
            } else if parked {
                self.window.except(row, ExceptionKind::Behind, &behind(0));
                self.counters.excepted += 1;
            } else if let Some(why) = barred {
                self.poison(row, &why);
            }
        }
        self.advance_prefix();
    }

    pub(super) fn advance_prefix(&mut self) {
        if self.log.is_some() {
            return;
        }
        let before = self.window.len();
        if let Some(row) = self.window.pop_settled(&mut self.saving.exceptions) {
            self.saving.settled_to = row;
            self.careful.rows = self.careful.rows.saturating_sub(before - self.window.len());
        }
    }

    pub(super) fn in_half_open(&self) -> bool {
        self.streak > 0
    }

    fn decide(&mut self, now: u64, commands: &mut Vec<Command>) {
        self.wake = None;
        if self.calls.is_empty()
            && let Some(cursor) = self.replace.take()
        {
            if self.log.is_some() {
                self.replace_with_log(now, cursor);
            } else {
                self.take_over(cursor, now);
            }
        }
        if let Some(end) = self.ended {
            commands.push(Command::End(end));
            return;
        }
        if self.load_at.is_some() || self.replace.is_some() {
            self.decide_load(now, commands);
            return;
        }
        self.decide_redrive(now, commands);
        if self.log.is_none() {
            let marked = self.decide_sends(now, commands);
            self.decide_store(now, marked, commands);
        } else if self.decide_log(now, commands) {
            let marked = self.decide_transactions(now, commands);
            self.decide_store(now, marked, commands);
        }
        if self.stopping && self.at_rest() {
            self.ended = Some(End::Stopped);
            commands.push(Command::End(End::Stopped));
        }
    }

    fn at_rest(&self) -> bool {
        let asking = self.log.as_ref().is_some_and(Log::asking);
        self.calls.is_empty()
            && !self.store_is_busy()
            && !self.careful.probing
            && !asking
            && self.redrive.at_rest()
    }

    pub(super) const fn store_is_busy(&self) -> bool {
        self.reading.out || self.saving.out.is_some()
    }

    pub(super) const fn save_began(&mut self, exceptions: usize) {
        self.saving.out = Some(exceptions);
    }

    pub(super) const fn reading_all(&self) -> bool {
        self.reading.all
    }

    pub(super) const fn settled_to(&self) -> i64 {
        self.saving.settled_to
    }

    pub(super) fn settle_to(&mut self, row: i64) {
        self.saving.settled_to = self.saving.settled_to.max(row);
    }

    /// The batch goes on behind this row; with `all` nothing of it is left.
    pub(super) const fn stands_at(&mut self, row: i64, all: bool) {
        self.saving.settled_to = row;
        self.reading.to = row;
        self.reading.all = self.reading.all || all;
    }

    pub(super) fn unsaved_prefix(&self) -> Vec<Exception> {
        self.saving.exceptions.clone()
    }

    /// Whether a row up to this number is settled as an exception and not saved yet.
    pub(super) fn unsaved_up_to(&self, row: i64) -> bool {
        self.saving.exceptions.iter().any(|it| it.row <= row)
    }

    pub(super) const fn reading_to(&self) -> i64 {
        self.reading.to
    }

    /// After trouble with the store nothing new is sent until the cursor was read back.
    fn decide_load(&mut self, now: u64, commands: &mut Vec<Command>) {
        let Some(at) = self.load_at else { return };
        if self.reading.out || self.saving.out.is_some() {
            return;
        }
        if self.stopping && self.in_flight() == 0 {
            self.ended = Some(End::Stopped);
            commands.push(Command::End(End::Stopped));
        } else if at <= now {
            self.reading.out = true;
            commands.push(Command::Load);
        } else {
            self.wake_by(at);
        }
    }

    pub(super) fn wake_by(&mut self, at: u64) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    fn decide_store(&mut self, now: u64, marked: Option<i64>, commands: &mut Vec<Command>) {
        let complete = self.reading.all
            && self.window.is_empty()
            && self.calls.is_empty()
            && self.log.as_ref().is_none_or(|log| log.has_all(&self.cursor));
        let unsaved = match &self.log {
            None => !self.saving.exceptions.is_empty(),
            Some(_) => self.counters.excepted > 0 && self.window.has_unsaved(),
        };
        let progress = self.cursor.open.is_some() && self.saving.settled_to > self.cursor.last_id;
        if self.saving.out.is_none() && self.cursor.open.is_some() {
            let finished = complete && (self.saving.finish || unsaved || self.stopping);
            let save_at = self.saving.at.saturating_add(self.policy.save_every_ms);
            let stopped = self.stopping && self.calls.is_empty();
            let due = progress && (save_at <= now || stopped);
            let mark = marked.is_some() && marked != self.cursor.suspect;
            // A batch that is complete ends with the opening of the next one, in one write.
            if finished || unsaved || mark || (due && (!complete || stopped)) {
                if !(finished && self.reading.out) {
                    self.save(finished, marked, commands);
                }
            } else if progress && !complete {
                self.wake_by(save_at);
            }
        }
        if self.reading.out || self.stopping {
            return;
        }
        if self.cursor.open.is_some() && !self.reading.all {
            let room = self.policy.window_rows.saturating_sub(self.window.len());
            let size = self.policy.page_size();
            if room >= size.rows as usize && self.window.bytes() < self.policy.window_bytes {
                self.reading.out = true;
                commands.push(Command::ReadPage {
                    cursor: self.cursor.clone(),
                    after: self.reading.to,
                    size,
                });
            }
        } else if complete && self.saving.out.is_none() && !self.saving.finish {
            if self.cursor.open.is_some() || self.reading.open_at <= now {
                self.reading.out = true;
                let from = self.cursor.clone();
                let idle = now.saturating_sub(self.reading.moved_at) >= self.policy.idle_save_ms;
                let advance = from.open.is_none() && idle;
                commands.push(if self.reading.shared && from.open.is_none() && !advance {
                    Command::Look { from }
                } else {
                    Command::OpenBatch {
                        from,
                        advance,
                        first: self.policy.page_size(),
                    }
                });
            } else {
                self.wake_by(self.reading.open_at);
            }
        }
    }

    fn save(&mut self, finished: bool, marked: Option<i64>, commands: &mut Vec<Command>) {
        let suspect = if self.careful.rows > 0 && !finished {
            marked.or(self.cursor.suspect)
        } else {
            None
        };
        let exceptions = self.exceptions_to_save();
        self.saving.out = Some(exceptions.len());
        commands.push(Command::Save(CursorSave {
            from: self.cursor.clone(),
            last_id: self.saving.settled_to,
            finished,
            suspect,
            exceptions,
            log: self.log.as_ref().and_then(Log::copy),
        }));
    }

    /// A row that will not go through, whatever is tried.
    pub(super) fn poison(&mut self, row: i64, why: &str) {
        let full = self.parked.len() >= self.policy.parked_keys_max;
        let Some(entry) = self.window.get_mut(row) else {
            return;
        };
        let key = entry.row.event.key.clone();
        match self.policy.poison {
            Poison::Skip => self.window.except(row, ExceptionKind::Skipped, why),
            Poison::ParkKey if !(full && key.is_some()) => {
                self.window.except(row, ExceptionKind::Parked, why);
                if let Some(key) = key {
                    self.counters.excepted += self.window.except_behind(&key, row);
                    self.redrive.waiting.remove(&key);
                    self.parked.insert(key);
                }
            }
            Poison::ParkKey | Poison::Block => {
                if entry.barred.is_some() {
                    entry.not_before = u64::MAX;
                }
                let limit = format!(
                    "{why} (parked_keys_max = {} is reached)",
                    self.policy.parked_keys_max
                );
                entry.blocking = Some(if full { limit } else { why.to_owned() });
                return;
            }
        }
        self.counters.excepted += 1;
    }

    pub(super) fn end_probe(&mut self) -> Option<i64> {
        self.careful.probing = false;
        self.careful.inherited
    }
}
