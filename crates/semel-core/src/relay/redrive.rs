//! Sending again what was set aside, when a person has asked for it (rule O15).
//!
//! ```text
//!   Take ─► rows of asked lists, in order ─► Publish, one order per key ─► Settle ─► what is left of each list?
//!     ▲                                                                                   │ something
//!     └───────────────────────────────────────────────────────────────────────────────────┘
//!                                                                          nothing: the key goes on as all others
//! ```
//! A key's list may grow while it is sent: the machine goes on setting its new rows aside. Once the end of the list is in
//! memory the new rows *wait* in the window instead, so that the list comes to an end; the key is let go in the very step
//! that learns that its list is empty, and only if it waited, and nothing of it was still to be set aside, when that was
//! asked. A row that is refused again stops its list: it stands for its key, and what waited goes behind it.
//!
//! Replays are sent at a pace ([`RelayPolicy::replay_per_second`](super::RelayPolicy)): as many are taken at once as may be sent at
//! once, so that what is taken is soon settled.
//!
//! A row whose receiver is away is kept and tried again; what was done meanwhile is settled, and newer rows of its key are set
//! aside again after a while, so that it keeps no batch from its end.
//!
//! A mark is carried out once: a refusal, or too many owners that ended while they were at it, takes it away.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use super::command::{Command, PauseKind};
use super::machine::Machine;
use super::pace::Pace;
use super::settle::{HELD_BACK_MS, none_left};
use crate::store::{
    DeskRow, Guarded, OutboxRow, PageSize, RedriveSave, Refused, SinkError, SinkErrorClass, SinkOrder, Taken,
    Wish, replay_of,
};

/// Rows taken at once.
const TAKE_ROWS: u32 = 100;

/// Of a list whose receiver is away so often in a row the key's newer rows are set aside again; until then they wait for it.
const LIST_TRIES: u32 = 5;

/// Why nothing is sent again into a log: it would be there twice when the answer is lost.
const NOT_INTO_A_LOG: &str = "nothing is sent again in Kafka transactions; run this stream's relay with mode = \"idempotent\" \
     until it is sent, then bind the log anew (SEM0204); for events that were sent: semel outbox replay --ids fresh";

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// To be sent.
    Queued,
    /// On its way.
    Out,
    /// It goes from the exceptions: acknowledged or dropped.
    Gone,
    /// Refused: why.
    Failed(String),
    /// Stays as it is.
    Left,
}

#[derive(Debug)]
struct Item {
    row: Arc<OutboxRow>,
    attempts: u32,
    list: Option<Bytes>,
    /// Whether a replay sends it.
    replay: bool,
    state: State,
    aways: u32,
    not_before: u64,
}

impl Item {
    fn number(&self) -> i64 {
        self.row.row
    }
}

/// What is being sent again.
#[derive(Debug)]
pub(super) struct Redrive {
    items: Vec<Item>,
    /// What the first row that remains of a list is marked with, when the rows above it are gone.
    carry: BTreeMap<Bytes, Option<Wish>>,
    /// Calls to the sink, and their rows.
    calls: BTreeMap<u64, Vec<i64>>,
    /// A call on the store is out.
    out: bool,
    /// Whether there are more rows than those that were taken.
    more: bool,
    /// The lists that the settling that is out asks about, with their marks, and whether an empty one lets its key go.
    asking: BTreeMap<Bytes, (Option<Wish>, bool)>,
    /// Lists that were empty when something of them was still to be set aside: to be asked about again.
    again: BTreeMap<Bytes, Option<Wish>>,
    /// Keys whose new rows wait in the window until their lists are empty, and the last row read when that began: later
    /// ones are not set aside.
    pub(super) waiting: HashMap<Bytes, i64>,
    /// When to look, or to try the store again.
    look_at: u64,
    streak: u32,
    /// While half open, who may try next: it, or the batch.
    passed: bool,
    /// Of replays.
    pace: Pace,
}

impl Redrive {
    pub(super) fn new(replay_per_second: u32) -> Self {
        Self {
            items: Vec::new(),
            carry: BTreeMap::new(),
            calls: BTreeMap::new(),
            out: false,
            more: false,
            asking: BTreeMap::new(),
            again: BTreeMap::new(),
            waiting: HashMap::new(),
            look_at: 0,
            streak: 0,
            passed: false,
            pace: Pace::new(replay_per_second),
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.calls.values().map(Vec::len).sum()
    }

    pub(super) fn at_rest(&self) -> bool {
        self.calls.is_empty() && !self.out && self.items.is_empty()
    }

    fn item(&mut self, row: i64) -> Option<&mut Item> {
        self.items.iter_mut().find(|item| item.number() == row)
    }
}

impl Machine {
    /// Rows that were taken.
    pub(super) fn taken(&mut self, now: u64, reply: Guarded<Taken>) {
        self.redrive.out = false;
        self.redrive.look_at = now.saturating_add(self.policy.redrive_look_ms);
        let Some(taken) = self.guard(now, reply) else {
            return;
        };
        self.redrive.streak = 0;
        let takes_max = self.policy.takeovers_max.saturating_mul(2).max(1);
        let mut stopped = HashSet::new();
        for row in taken.rows {
            self.plan(row, takes_max, &mut stopped);
        }
        self.redrive.more = taken.more;
        if taken.more {
            return;
        }
        let lists: HashSet<Bytes> = self
            .redrive
            .items
            .iter()
            .filter_map(|item| item.list.clone())
            .collect();
        let to = self.reading_to();
        for key in &lists {
            if self.redrive.carry.get(key) == Some(&Some(Wish::Retry)) {
                self.redrive.waiting.entry(key.clone()).or_insert(to);
            }
        }
        // A list that was to be finished and is not there any more: somebody has changed the table by hand.
        for key in self.redrive.waiting.keys().filter(|key| !lists.contains(*key)) {
            self.redrive.again.entry(key.clone()).or_insert(None);
        }
    }

    /// What is to become of one row that was taken.
    fn plan(&mut self, row: DeskRow, takes_max: u32, stopped: &mut HashSet<Bytes>) {
        let list = row.list().cloned();
        let carried = list
            .as_ref()
            .and_then(|key| self.redrive.carry.get(key).copied().flatten());
        let mut next = carried;
        let mut state = match row.asked.or(carried) {
            Some(Wish::Drop) => State::Gone,
            Some(Wish::Release) => {
                next = Some(Wish::Retry);
                State::Gone
            }
            Some(Wish::Retry) => {
                next = Some(Wish::Retry);
                match row.stored.row.barred {
                    _ if self.log.is_some() => State::Failed(NOT_INTO_A_LOG.to_owned()),
                    Some(why) => State::Failed(why),
                    None if row.asked.is_some() && row.taken > takes_max => State::Failed(format!(
                        "{} relays in a row ended while they sent it again",
                        row.taken - 1
                    )),
                    None => State::Queued,
                }
            }
            None => State::Left,
        };
        let number = row.stored.row.row.row;
        if self.log.as_ref().is_some_and(|log| log.is_aside(number)) {
            // The log's place has to pass it first: the next owner knows by the exception that it is not to be sent.
            state = State::Left;
            stopped.extend(list.clone());
        }
        if let Some(key) = &list {
            if stopped.contains(key) {
                state = State::Left;
            } else {
                if let State::Failed(_) = state {
                    stopped.insert(key.clone());
                }
                self.redrive.carry.insert(key.clone(), next);
            }
        }
        self.redrive.items.push(Item {
            replay: replay_of(&row.stored.row.row.event).is_some(),
            row: Arc::new(row.stored.row.row),
            attempts: row.stored.exception.attempts,
            list,
            state,
            aways: 0,
            not_before: 0,
        });
    }

    /// Results of a call to the sink; `false` when it was none of these.
    pub(super) fn redriven(
        &mut self,
        now: u64,
        call: u64,
        results: &[Result<(), SinkError>],
        dice: f64,
    ) -> bool {
        let Some(rows) = self.redrive.calls.remove(&call) else {
            return false;
        };
        let silent = Err(SinkError::new(
            SinkErrorClass::Away,
            "the sink gave no result for this row",
        ));
        let none_left = none_left(results, rows.len());
        for (at, row) in rows.into_iter().enumerate() {
            self.redriven_row(now, row, results.get(at).unwrap_or(&silent), dice);
            if none_left && let Some(item) = self.redrive.item(row) {
                item.not_before = item.not_before.max(now.saturating_add(HELD_BACK_MS));
            }
        }
        true
    }

    fn redriven_row(&mut self, now: u64, row: i64, result: &Result<(), SinkError>, dice: f64) {
        let Err(error) = result else {
            self.reached(now);
            self.counters.published += 1;
            self.set_item(row, State::Gone);
            return;
        };
        self.counters.failed(error.class);
        match error.class {
            SinkErrorClass::HeldBack => self.set_item(row, State::Queued),
            SinkErrorClass::Away | SinkErrorClass::Destination => {
                let policy = self.policy.away;
                if let Some(item) = self.redrive.item(row) {
                    item.state = State::Queued;
                    item.aways = item.aways.saturating_add(1);
                    let wait = policy.delay_ms(item.aways, 0, dice).unwrap_or(policy.cap_ms);
                    item.not_before = now.saturating_add(wait);
                }
                let kind = match error.class {
                    SinkErrorClass::Destination => PauseKind::Destination,
                    _ => PauseKind::Away,
                };
                self.paused(now, kind, error, row, dice);
            }
            SinkErrorClass::Message => {
                self.reached(now);
                self.set_item(row, State::Failed(error.message.clone()));
            }
        }
        self.stop_lists_behind_failures();
    }

    fn set_item(&mut self, row: i64, state: State) {
        if let Some(item) = self.redrive.item(row) {
            item.state = state;
        }
    }

    /// What is behind a refused row of its list is not sent.
    fn stop_lists_behind_failures(&mut self) {
        let mut failed = HashSet::new();
        for item in &mut self.redrive.items {
            let Some(key) = &item.list else { continue };
            if matches!(item.state, State::Failed(_)) {
                failed.insert(key.clone());
            } else if failed.contains(key) && item.state == State::Queued {
                item.state = State::Left;
            }
        }
    }

    /// The answer to a settling: the lists that are not empty.
    pub(super) fn redrive_settled(&mut self, now: u64, reply: Guarded<Vec<Bytes>>) {
        self.redrive.out = false;
        let Some(left) = self.guard(now, reply) else {
            return;
        };
        self.redrive.streak = 0;
        let (kept, items): (Vec<Item>, Vec<Item>) = std::mem::take(&mut self.redrive.items)
            .into_iter()
            .partition(|item| item.state == State::Queued && !self.stopping);
        let of_kept = |key: &Bytes| kept.iter().any(|item| item.list.as_ref() == Some(key));
        self.redrive.carry.retain(|key, _| of_kept(key));
        self.redrive.items = kept;
        for item in &items {
            if let (Some(key), State::Failed(_)) = (&item.list, &item.state) {
                self.let_wait_no_more(key, item.number());
            }
        }
        for (key, (wish, clean)) in std::mem::take(&mut self.redrive.asking) {
            if left.contains(&key) {
                if wish != Some(Wish::Retry) {
                    self.let_wait_no_more(&key, 0);
                }
            } else if clean {
                // Nothing of the key is set aside, nor was to be when that was asked: it goes on as all others.
                self.redrive.waiting.remove(&key);
                self.parked.remove(&key);
            } else {
                self.redrive.again.insert(key, wish);
            }
        }
        self.redrive.look_at = now;
    }

    /// The store did not answer.
    pub(super) fn redrive_failed(&mut self, now: u64, dice: f64) {
        self.redrive.out = false;
        self.redrive.streak = self.redrive.streak.saturating_add(1);
        let policy = self.policy.away;
        let wait = policy
            .delay_ms(self.redrive.streak, 0, dice)
            .unwrap_or(policy.cap_ms);
        self.redrive.look_at = now.saturating_add(wait);
        if self.stopping {
            // What was sent and could not be settled is sent again by the next owner, with the same ids.
            self.redrive.items.clear();
        }
    }

    /// New rows of this key are set aside again.
    pub(super) fn let_wait_no_more(&mut self, key: &Bytes, first: i64) {
        if self.redrive.waiting.remove(key).is_some() {
            self.counters.excepted += self.window.except_behind(key, first);
            self.advance_prefix();
        }
    }

    /// Whether nothing of a key that waits is still to be set aside.
    fn clean(&self, key: &Bytes) -> bool {
        let upto = self.redrive.waiting.get(key);
        upto.is_some_and(|upto| !self.unsaved_up_to(*upto)) && !self.window.holds_exception_of(key)
    }

    pub(super) fn decide_redrive(&mut self, now: u64, commands: &mut Vec<Command>) {
        if self.redrive.out {
            return;
        }
        if self.redrive.items.is_empty() {
            self.redrive.carry.clear();
            if self.stopping {
                return;
            }
            if self.redrive.again.keys().any(|key| self.clean(key)) {
                self.settle_redrive(commands);
            } else if self.redrive.look_at <= now {
                self.redrive.out = true;
                commands.push(Command::Take {
                    size: PageSize {
                        rows: TAKE_ROWS.min(self.redrive.pace.at_once()),
                        bytes: self.policy.page_bytes,
                    },
                });
            } else {
                self.wake_by(self.redrive.look_at);
            }
            return;
        }
        let queued = self.redrive.items.iter().any(|item| item.state == State::Queued);
        let waits = queued && !self.stopping && self.only_waits(now);
        let done = self.redrive.calls.is_empty() && (!queued || self.stopping || waits);
        if !done {
            if queued && !self.stopping {
                self.decide_redrive_sends(now, commands);
            }
            return;
        }
        if self.redrive.look_at > now && self.redrive.streak > 0 && !self.stopping {
            self.wake_by(self.redrive.look_at);
            return;
        }
        self.settle_redrive(commands);
    }

    /// Whether something is done, and all that is still to be sent waits for receivers that are away: it may do so for long, and
    /// what is done would be sent again after a crash.
    fn only_waits(&mut self, now: u64) -> bool {
        let waits = |item: &Item| item.aways > 0 && item.not_before > now;
        let items = &self.redrive.items;
        let of_lists = |item: &Item| {
            (item.state == State::Queued && item.aways >= LIST_TRIES)
                .then(|| Some((item.list.clone()?, item.number())))
        };
        let lists: Vec<(Bytes, i64)> = items.iter().filter_map(of_lists).flatten().collect();
        let only = items
            .iter()
            .all(|item| item.state != State::Queued || waits(item))
            && items
                .iter()
                .any(|item| matches!(item.state, State::Gone | State::Failed(_)));
        for (key, row) in lists {
            self.let_wait_no_more(&key, row);
        }
        only
    }

    /// Whether the batch takes the turn it is given: what only waits would keep it for ever, and nothing would wake the machine.
    fn batch_could_try(&mut self, now: u64) -> bool {
        !self.calls.is_empty()
            || !self
                .window
                .pick(now, 1, true, &self.redrive.waiting)
                .rows
                .is_empty()
    }

    fn settle_redrive(&mut self, commands: &mut Vec<Command>) {
        let mut save = RedriveSave::default();
        let (mut touched, mut stopped) = (BTreeSet::new(), HashSet::new());
        for item in &self.redrive.items {
            match &item.state {
                State::Gone => {
                    save.removed.push(item.number());
                    touched.extend(item.list.clone());
                }
                State::Failed(why) => {
                    save.failed.push(Refused {
                        row: item.number(),
                        attempts: item.attempts,
                        reason: why.clone(),
                    });
                    stopped.extend(item.list.clone());
                }
                State::Queued | State::Out | State::Left => {}
            }
        }
        let mut asking = BTreeMap::new();
        for key in touched.into_iter().filter(|key| !stopped.contains(key)) {
            let wish = self.redrive.carry.get(&key).copied().flatten();
            // Of a long list another part comes first.
            let all = !self.redrive.more || wish != Some(Wish::Retry);
            if all {
                let to = self.reading_to();
                self.redrive.waiting.entry(key.clone()).or_insert(to);
            }
            asking.insert(key.clone(), (wish, all && self.clean(&key)));
        }
        for (key, wish) in std::mem::take(&mut self.redrive.again) {
            if self.clean(&key) && !stopped.contains(&key) {
                asking.entry(key).or_insert((wish, true));
            } else {
                self.redrive.again.insert(key, wish);
            }
        }
        save.next = asking
            .iter()
            .map(|(key, (wish, _))| (key.clone(), *wish))
            .collect();
        if save == RedriveSave::default() {
            self.redrive.items.clear();
            return;
        }
        self.redrive.asking = asking;
        self.redrive.out = true;
        commands.push(Command::Settle(save));
    }

    fn decide_redrive_sends(&mut self, now: u64, commands: &mut Vec<Command>) {
        if let Some(pause) = &self.pause
            && now < pause.until
        {
            self.wake_by(pause.until);
            return;
        }
        let Some(deadline_ms) = self.time_to_send(now) else {
            return;
        };
        let one_by_one = self.one_by_one();
        if one_by_one {
            // Who tries while nobody knows whether the trouble is over takes turns with the batch.
            self.redrive.passed = !self.redrive.passed;
            if self.redrive.passed && self.batch_could_try(now) {
                return;
            }
        }
        let (one_per_key, max) = match self.order {
            SinkOrder::OnePerKey { in_flight_max } => (true, in_flight_max.saturating_sub(self.in_flight())),
            SinkOrder::Pipelined { in_flight_max } if self.redrive.calls.is_empty() => {
                (false, in_flight_max.saturating_sub(self.in_flight()))
            }
            SinkOrder::Pipelined { .. } | SinkOrder::Transactional { .. } => return,
        };
        let max = if one_by_one {
            usize::from(self.in_flight() == 0)
        } else {
            max.max(usize::from(self.in_flight() == 0))
        };
        let mut picked = Vec::new();
        let mut busy: HashSet<&Bytes> = HashSet::new();
        let (replays_max, mut replays) = (self.redrive.pace.free(now), 0);
        let mut wake = None;
        for item in &self.redrive.items {
            let key = item.row.event.key.as_ref();
            let free = key.is_none_or(|key| !busy.contains(key));
            let not_before = if item.replay && replays == replays_max {
                item.not_before.max(self.redrive.pace.due_ms()).max(now + 1)
            } else {
                item.not_before
            };
            let due = item.state == State::Queued && not_before <= now;
            if due && free && picked.len() < max {
                replays += u32::from(item.replay);
                picked.push((item.number(), Arc::clone(&item.row)));
            } else if free && item.state == State::Queued && not_before > now {
                wake = Some(wake.map_or(not_before, |at: u64| at.min(not_before)));
            }
            // Of a list nothing goes behind a refused row: the rest of it is left.
            let over = matches!(item.state, State::Gone | State::Left | State::Failed(_));
            if let Some(key) = key
                && !over
                && (one_per_key || !due)
            {
                busy.insert(key);
            }
        }
        if replays > 0 {
            self.redrive.pace.done(now, replays);
        }
        if let Some(at) = wake {
            self.wake_by(at);
        }
        let calls = if one_per_key { 1 } else { picked.len().max(1) };
        for rows in picked.chunks(calls) {
            let numbers: Vec<i64> = rows.iter().map(|(row, _)| *row).collect();
            for row in &numbers {
                self.set_item(*row, State::Out);
            }
            let call = self.next_call();
            self.redrive.calls.insert(call, numbers);
            commands.push(Command::Publish {
                call,
                rows: rows.iter().map(|(_, row)| Arc::clone(row)).collect(),
                deadline_ms,
            });
        }
    }
}
