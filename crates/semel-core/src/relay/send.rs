//! Handing rows to a sink that takes each for itself.

use super::command::Command;
use super::machine::Machine;
use crate::store::SinkOrder;

/// Calls of a pipelined sink at once. While one is answered the next is on its way; no key is in two of them.
const CALLS_MAX: usize = 4;
/// Rows that may always go in one call. Beyond it a call takes its share of what may be on its way: were all of it one call,
/// nothing would be on its way when that ends.
const CALL_ROWS: usize = 250;

impl Machine {
    /// Hands rows to the sink; returns the row that must be marked in the store before it is sent.
    pub(super) fn decide_sends(&mut self, now: u64, commands: &mut Vec<Command>) -> Option<i64> {
        if self.stopping || self.careful.probing || self.window.is_empty() {
            return None;
        }
        if let Some(pause) = &self.pause
            && now < pause.until
        {
            self.wake_by(pause.until);
            return None;
        }
        let deadline_ms = self.time_to_send(now)?;
        // The other half of the window is read while this one is sent.
        let half = (self.policy.window_rows / 2).max(1);
        match self.order {
            SinkOrder::OnePerKey { in_flight_max } => {
                let room = self.room(in_flight_max.min(half));
                self.send_some(now, true, room, deadline_ms, commands)
            }
            SinkOrder::Pipelined { in_flight_max } => {
                let most = in_flight_max.min(half);
                let share = most.div_ceil(CALLS_MAX).max(CALL_ROWS);
                while self.calls.len() < CALLS_MAX {
                    let (calls, room) = (self.calls.len(), self.room(most).min(share));
                    let marked = self.send_some(now, false, room, deadline_ms, commands);
                    if marked.is_some() || self.calls.len() == calls {
                        return marked;
                    }
                }
                None
            }
            // Those go out by `decide_transactions`.
            SinkOrder::Transactional { .. } => None,
        }
    }

    /// How many rows more may be on their way.
    fn room(&self, most: usize) -> usize {
        let in_flight = self.in_flight();
        let room = if self.one_by_one() {
            1
        } else {
            most.max(usize::from(in_flight == 0))
        };
        room.saturating_sub(in_flight)
    }

    fn send_some(
        &mut self,
        now: u64,
        one_per_key: bool,
        room: usize,
        deadline_ms: u64,
        commands: &mut Vec<Command>,
    ) -> Option<i64> {
        if room == 0 {
            return None;
        }
        let rotate = self.in_half_open() && self.careful.rows == 0;
        let mut picked = self.window.pick(
            now,
            if rotate { usize::MAX } else { room },
            one_per_key || rotate,
            &self.redrive.waiting,
        );
        if let Some(at) = picked.wake {
            self.wake_by(at);
        }
        if rotate {
            // Another row each time, of those that are the first of their keys: one that never goes through must not keep
            // the others from trying.
            let next = picked.rows.iter().copied().find(|row| *row > self.last_tried);
            let next = next.or_else(|| picked.rows.first().copied());
            picked.rows = next.into_iter().collect();
        }
        let first = *picked.rows.first()?;
        self.last_tried = first;
        if self.careful.rows > 0 {
            if self.careful.inherited == Some(first) {
                self.careful.probing = true;
                commands.push(Command::Probe);
                return None;
            }
            if self.cursor.suspect != Some(first) {
                return Some(first);
            }
        }
        if one_per_key {
            for row in picked.rows {
                self.publish(vec![row], deadline_ms, commands);
            }
        } else {
            self.publish(picked.rows, deadline_ms, commands);
        }
        None
    }

    /// How long a send that begins now may last. A shorter time than a quarter of it is not worth beginning; the next
    /// renewal brings more (rule O17).
    pub(super) fn time_to_send(&self, now: u64) -> Option<u64> {
        let left = self.lease_until.saturating_sub(now);
        (left >= (self.policy.send_timeout_ms / 4).max(1)).then(|| self.policy.send_timeout_ms.min(left))
    }

    pub(super) fn one_by_one(&self) -> bool {
        self.in_half_open() || self.careful.rows > 0
    }

    pub(super) const fn next_call(&mut self) -> u64 {
        self.next_call += 1;
        self.next_call
    }

    pub(super) fn new_call(&mut self, rows: Vec<i64>) -> u64 {
        let call = self.next_call();
        self.calls.insert(call, rows);
        call
    }

    fn publish(&mut self, rows: Vec<i64>, deadline_ms: u64, commands: &mut Vec<Command>) {
        let handed = rows.iter().filter_map(|row| self.window.send(*row)).collect();
        let call = self.new_call(rows);
        commands.push(Command::Publish {
            call,
            rows: handed,
            deadline_ms,
        });
    }
}
