//! The machine where a log holds the cursor: rows go out as a prefix of the batch, in transactions, each with the place
//! behind it.
//!
//! # Words
//! - *stage*: how far the log and the outbox have been brought together. Rows go out only in [`Stage::Ready`].
//! - *planned*: the place behind the last transaction handed over.
//! - *aside*: rows in the exceptions that the log's place has not passed yet. The exception is written first, so that no
//!   place ever stands behind a row that is nowhere (rule O7).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::command::{Command, End, PauseKind};
use super::cursor::{Cursor, OwnedShard};
use super::log::{LogCopy, LogPlace, Onward, compare};
use super::machine::Machine;
use super::window::{Entry, State};
use crate::claim::Nonce;
use crate::store::{CursorSave, SinkError, SinkErrorClass, SinkOrder, TransactionEnd};

#[derive(Debug)]
pub(super) enum Stage {
    /// The log is to be asked.
    Ask,
    /// It is being asked.
    Asking,
    /// It has answered; the outbox's cursor is read again, for the lease may have been lost meanwhile: an owner from
    /// before that asks late fences the true one.
    Check(Option<LogPlace>),
    /// The outbox writes down that a binding begins.
    Announce,
    /// The log gets its first place.
    Bind,
    /// The outbox writes down that it is bound; until then nothing is sent.
    Confirm,
    Ready,
}

/// What the machine knows of its log.
#[derive(Debug)]
pub(super) struct Log {
    rows_max: usize,
    ahead: usize,
    linger_ms: u64,
    /// The nonce of a binding, should one be made.
    binding: Nonce,
    pub(super) stage: Stage,
    /// What the log is known to hold.
    place: Option<LogPlace>,
    planned_to: i64,
    planned_end: bool,
    calls: BTreeMap<u64, LogPlace>,
    /// One transaction has failed: those handed over after it fail too, and none is begun until all are back.
    failed: bool,
    /// All are back, and the log has to be told so.
    anew: bool,
    /// Rows found to be poison meanwhile: only when the later rows of their keys are back can they be moved with them.
    poison: Vec<(i64, String)>,
    aside: HashSet<i64>,
    /// What was known of the open batch's rows when the log was asked again: a refusal stays one, however often that is.
    pub(super) tried: BTreeMap<i64, Entry>,
    /// Rows whose exceptions are being written.
    saving: Vec<i64>,
    /// Since when rows wait for more.
    waiting: Option<u64>,
}

impl Log {
    pub(super) fn of(order: SinkOrder, owned: &OwnedShard) -> Option<Self> {
        let SinkOrder::Transactional {
            rows_max,
            ahead,
            linger_ms,
        } = order
        else {
            return None;
        };
        Some(Self {
            rows_max,
            ahead: ahead.max(1),
            linger_ms,
            binding: owned.lease.nonce,
            stage: Stage::Ask,
            place: None,
            planned_to: 0,
            planned_end: false,
            calls: BTreeMap::new(),
            failed: false,
            anew: false,
            poison: Vec::new(),
            aside: owned.excepted.iter().copied().collect(),
            tried: BTreeMap::new(),
            saving: Vec::new(),
            waiting: None,
        })
    }

    pub(super) const fn asking(&self) -> bool {
        matches!(self.stage, Stage::Asking)
    }

    pub(super) const fn ready(&self) -> bool {
        matches!(self.stage, Stage::Ready)
    }

    pub(super) fn copy(&self) -> Option<LogCopy> {
        self.place.map(LogCopy::Bound)
    }

    /// Whether the log has the end of this batch.
    pub(super) fn has_all(&self, cursor: &Cursor) -> bool {
        self.place
            .is_some_and(|place| place.batch_no == cursor.batch_no && place.finished)
    }

    pub(super) fn is_aside(&self, row: i64) -> bool {
        self.aside.contains(&row)
    }

    /// Another batch or another place in it.
    pub(super) fn begin_at(&mut self, last_id: i64, all: bool) {
        self.planned_to = last_id;
        self.planned_end = all;
        self.waiting = None;
        self.poison.clear();
    }
}

impl Machine {
    /// The log's answer to [`Command::Resume`].
    pub(super) fn resumed(&mut self, now: u64, answer: Result<Option<LogPlace>, SinkError>, dice: f64) {
        let Some(log) = &mut self.log else { return };
        match answer {
            Ok(place) => {
                log.stage = Stage::Check(place);
                self.load_at = Some(now);
            }
            Err(error) => {
                log.stage = Stage::Ask;
                self.paused_by(now, &error, dice);
            }
        }
    }

    fn paused_by(&mut self, now: u64, error: &SinkError, dice: f64) {
        let kind = match error.class {
            SinkErrorClass::Destination => PauseKind::Destination,
            SinkErrorClass::Away | SinkErrorClass::Message | SinkErrorClass::HeldBack => PauseKind::Away,
        };
        let row = self
            .window
            .first()
            .map_or(self.cursor.last_id, |entry| entry.row.row);
        self.paused(now, kind, error, row, dice);
    }

    /// The cursor was read: says whether it was taken care of here.
    pub(super) fn loaded_with_log(&mut self, now: u64, cursor: &Cursor, same: bool) -> bool {
        let Some(log) = &mut self.log else { return false };
        match log.stage {
            Stage::Check(place) => self.bring_together(now, cursor.clone(), place),
            Stage::Ready if same => self.cursor = cursor.clone(),
            Stage::Ready if self.calls.is_empty() => {
                let place = log.place;
                self.bring_together(now, cursor.clone(), place);
            }
            Stage::Ready => self.replace = Some(cursor.clone()),
            Stage::Ask | Stage::Asking => {}
            Stage::Announce | Stage::Bind | Stage::Confirm => log.stage = Stage::Ask,
        }
        true
    }

    /// What was loaded while transactions were on their way takes the place of what is in memory.
    pub(super) fn replace_with_log(&mut self, now: u64, cursor: Cursor) {
        if let Some(log) = &self.log
            && log.ready()
        {
            let place = log.place;
            self.bring_together(now, cursor, place);
        }
    }

    fn bring_together(&mut self, now: u64, cursor: Cursor, place: Option<LogPlace>) {
        let onward = compare(&cursor, place.as_ref());
        let same = cursor.batch_no == self.cursor.batch_no && cursor.batch == self.cursor.batch;
        let tried = self.window.take_tried();
        if let Some(log) = &mut self.log {
            if same {
                log.tried
                    .extend(tried.into_iter().map(|entry| (entry.row.row, entry)));
            } else {
                log.tried.clear();
            }
        }
        self.take_over(cursor, now);
        let Some(log) = &mut self.log else { return };
        match onward {
            Ok(Onward::Bind) => log.stage = Stage::Announce,
            Ok(Onward::From { last_id, finished }) => {
                log.stage = Stage::Ready;
                log.place = place;
                log.begin_at(last_id, finished);
                self.stands_at(last_id, finished);
            }
            Err(discord) => self.ended = Some(End::Refused(discord)),
        }
    }

    /// Brings log and outbox together; true when rows may go out.
    pub(super) fn decide_log(&mut self, now: u64, commands: &mut Vec<Command>) -> bool {
        let rest = self.calls.is_empty() && !self.store_is_busy();
        let Some(log) = &mut self.log else { return true };
        if log.ready() {
            return true;
        }
        if self.stopping || !rest {
            return false;
        }
        let binding = log.binding;
        match log.stage {
            Stage::Ask => {
                if let Some(pause) = &self.pause
                    && now < pause.until
                {
                    let until = pause.until;
                    self.wake_by(until);
                } else {
                    log.stage = Stage::Asking;
                    commands.push(Command::Resume);
                }
            }
            Stage::Announce => self.save_copy(LogCopy::Binding(binding), commands),
            Stage::Bind => {
                let place = LogPlace {
                    log: binding,
                    batch_no: self.cursor.batch_no,
                    batch: self.cursor.batch,
                    last_id: self.cursor.last_id,
                    finished: self.cursor.open.is_none(),
                };
                let deadline_ms = self.policy.send_timeout_ms;
                self.hand_over(Vec::new(), place, deadline_ms, commands);
            }
            Stage::Confirm => {
                if let Some(copy) = log.copy() {
                    self.save_copy(copy, commands);
                }
            }
            Stage::Asking | Stage::Check(_) | Stage::Ready => {}
        }
        false
    }

    fn save_copy(&mut self, copy: LogCopy, commands: &mut Vec<Command>) {
        self.save_began(0);
        commands.push(Command::Save(CursorSave {
            from: self.cursor.clone(),
            last_id: self.cursor.last_id,
            finished: false,
            suspect: self.cursor.suspect,
            exceptions: Vec::new(),
            log: Some(copy),
        }));
    }

    /// A write of the cursor is durable.
    pub(super) fn saved_with_log(&mut self) {
        let Some(log) = &mut self.log else { return };
        for row in log.saving.drain(..) {
            log.aside.insert(row);
            if let Some(entry) = self.window.get_mut(row) {
                entry.state = State::Aside;
            }
        }
        match log.stage {
            Stage::Announce => log.stage = Stage::Bind,
            Stage::Confirm => {
                log.stage = Stage::Ready;
                log.begin_at(self.cursor.last_id, self.cursor.open.is_none());
            }
            _ => {}
        }
    }

    /// The exceptions that a write of the cursor takes along.
    pub(super) fn exceptions_to_save(&mut self) -> Vec<crate::store::Exception> {
        match &mut self.log {
            None => self.unsaved_prefix(),
            Some(log) => {
                let unsaved = self.window.unsaved();
                log.saving = unsaved.iter().map(|it| it.row).collect();
                unsaved
            }
        }
    }

    fn hand_over(&mut self, rows: Vec<i64>, place: LogPlace, deadline_ms: u64, commands: &mut Vec<Command>) {
        let mut handed = Vec::with_capacity(rows.len());
        for row in &rows {
            if let Some(entry) = self.window.get_mut(*row) {
                entry.state = State::InFlight;
                handed.push(Arc::clone(&entry.row));
            }
        }
        let call = self.new_call(rows);
        let mut anew = false;
        if let Some(log) = &mut self.log {
            anew = std::mem::take(&mut log.anew);
            log.calls.insert(call, place);
            log.planned_to = place.last_id;
            log.planned_end = place.finished;
            log.waiting = None;
        }
        commands.push(Command::Commit {
            call,
            rows: handed,
            place,
            deadline_ms,
            anew,
        });
    }

    /// Hands transactions to the log; returns the row that must be marked in the store before it is sent.
    pub(super) fn decide_transactions(&mut self, now: u64, commands: &mut Vec<Command>) -> Option<i64> {
        loop {
            if self.stopping || self.careful.probing || self.cursor.open.is_none() {
                return None;
            }
            if let Some(pause) = &self.pause
                && now < pause.until
            {
                let until = pause.until;
                self.wake_by(until);
                return None;
            }
            let deadline_ms = self.time_to_send(now)?;
            let one_by_one = self.in_half_open() || self.careful.rows > 0;
            let half = (self.policy.window_rows / 2).max(1);
            let log = self.log.as_ref()?;
            let place = log.place?;
            let (room, ahead) = if one_by_one {
                (1, 1)
            } else {
                (log.rows_max.clamp(1, half), log.ahead)
            };
            if log.failed || self.calls.len() >= ahead {
                return None;
            }
            let (planned_to, planned_end) = (log.planned_to, log.planned_end);
            let (linger_ms, waiting) = (log.linger_ms, log.waiting);
            let prefix = self.window.prefix(planned_to, now, room, &self.redrive.waiting);
            if let Some(at) = prefix.wake {
                self.wake_by(at);
            }
            let finished = self.reading_all() && prefix.all;
            let first = prefix.rows.first().copied();
            if first.is_none() {
                // Nothing to send, but something to pass: rows set aside, or the batch's end.
                let to_pass = prefix.to > planned_to || (finished && !planned_end);
                if !(to_pass && self.calls.is_empty()) {
                    return None;
                }
            } else if prefix.all && !finished && prefix.rows.len() < room {
                let until = waiting.unwrap_or(now).saturating_add(linger_ms);
                if now < until {
                    if let Some(log) = &mut self.log {
                        log.waiting.get_or_insert(now);
                    }
                    self.wake_by(until);
                    return None;
                }
            }
            if let Some(first) = first
                && self.careful.rows > 0
            {
                if self.careful.inherited == Some(first) {
                    self.careful.probing = true;
                    commands.push(Command::Probe);
                    return None;
                }
                if self.cursor.suspect != Some(first) {
                    return Some(first);
                }
            }
            let next = LogPlace {
                batch_no: self.cursor.batch_no,
                batch: self.cursor.batch,
                last_id: prefix.to,
                finished,
                ..place
            };
            self.hand_over(prefix.rows, next, deadline_ms, commands);
        }
    }

    /// A transaction has ended.
    pub(super) fn committed(&mut self, now: u64, call: u64, end: TransactionEnd, dice: f64) {
        let Some(rows) = self.calls.remove(&call) else {
            return;
        };
        let Some(log) = &mut self.log else { return };
        let Some(place) = log.calls.remove(&call) else {
            return;
        };
        match end {
            TransactionEnd::Committed => {
                let known = log
                    .place
                    .map_or((i64::MIN, i64::MIN), |it| (it.batch_no, it.last_id));
                // The answers of two transactions may come in either order; they ended in one.
                if known <= (place.batch_no, place.last_id) {
                    log.place = Some(place);
                }
                self.counters.published += rows.len() as u64;
                if matches!(log.stage, Stage::Bind) {
                    log.place = Some(place);
                    log.stage = Stage::Confirm;
                } else {
                    self.reached(now);
                    self.passed(place.last_id);
                }
            }
            TransactionEnd::Aborted(errors) if log.ready() || !rows.is_empty() => {
                log.failed = true;
                self.aborted(now, &rows, errors, dice);
            }
            TransactionEnd::Aborted(_) => log.stage = Stage::Ask,
            TransactionEnd::Unknown(error) => {
                log.failed = true;
                log.stage = Stage::Ask;
                self.counters.retries += rows.len() as u64;
                for row in rows {
                    self.requeue(row);
                }
                self.paused_by(now, &error, dice);
            }
        }
        self.all_back();
    }

    fn aborted(&mut self, now: u64, rows: &[i64], errors: Vec<SinkError>, dice: f64) {
        let none_left = errors.iter().all(|error| error.class == SinkErrorClass::HeldBack);
        let mut errors = errors.into_iter();
        for row in rows {
            self.requeue(*row);
            if none_left {
                self.hold_off(now, *row);
            }
            let Some(error) = errors.next() else { continue };
            if error.class == SinkErrorClass::Message {
                self.counters.retries += 1;
                self.reached(now);
                if let Some(why) = self.refused(now, *row, &error, dice)
                    && let Some(log) = &mut self.log
                {
                    log.poison.push((*row, why));
                }
            }
        }
    }

    /// After a failure all is planned anew, once nothing is on its way.
    fn all_back(&mut self) {
        let Some(log) = &mut self.log else { return };
        if !log.failed || !self.calls.is_empty() {
            return;
        }
        log.failed = false;
        log.anew = true;
        let poison = std::mem::take(&mut log.poison);
        let settled_to = self.settled_to();
        if let Some(log) = &mut self.log {
            log.begin_at(settled_to, false);
        }
        for (row, why) in poison {
            self.poison(row, &why);
        }
    }

    /// The log's place has passed these rows.
    fn passed(&mut self, last_id: i64) {
        let before = self.window.len();
        self.window.pop_to(last_id);
        self.careful.rows = self.careful.rows.saturating_sub(before - self.window.len());
        if let Some(log) = &mut self.log
            && !log.aside.is_empty()
        {
            log.aside.retain(|row| *row > last_id);
        }
        if let Some(log) = &mut self.log
            && !log.tried.is_empty()
        {
            log.tried.retain(|row, _| *row > last_id);
        }
        self.settle_to(last_id);
    }
}
