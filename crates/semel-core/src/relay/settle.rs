//! What a result of the sink means for a row and for its shard.

use super::command::{Pause, PauseKind};
use super::machine::Machine;
use crate::store::{SinkError, SinkErrorClass, SinkOrder};

/// How long a call waits of which nothing left, in milliseconds: a sink that goes on like this is not asked all the time.
pub(super) const HELD_BACK_MS: u64 = 20;

/// Whether every row of a call was held back.
pub(super) fn none_left(results: &[Result<(), SinkError>], rows: usize) -> bool {
    let held_back = |result: &Result<(), SinkError>| {
        result
            .as_ref()
            .is_err_and(|error| error.class == SinkErrorClass::HeldBack)
    };
    results.len() >= rows && results.iter().all(held_back)
}

impl Machine {
    /// Results of one call, in the order of its rows.
    pub(super) fn published(&mut self, now: u64, call: u64, results: Vec<Result<(), SinkError>>, dice: f64) {
        let Some(rows) = self.calls.remove(&call) else {
            return;
        };
        let none_left = none_left(&results, rows.len());
        let some_arrived = results.iter().any(Result::is_ok);
        let mut results = results.into_iter();
        let mut poison = Vec::new();
        for row in rows {
            // A sink that answers too little has not answered.
            let result = results.next().unwrap_or_else(|| {
                Err(SinkError::new(
                    SinkErrorClass::Away,
                    "the sink gave no result for this row",
                ))
            });
            if some_arrived && let Err(error) = &result {
                self.back_off_row(now, row, error.class, dice);
            }
            if let Some(why) = self.one_result(now, row, result, dice) {
                poison.push((row, why));
            }
            if none_left {
                self.hold_off(now, row);
            }
        }
        // Only when the later rows of a parked key are back in the queue can they be moved with it.
        for (row, why) in poison {
            self.poison(row, &why);
        }
        self.advance_prefix();
    }

    /// Returns why the row is poison, if it is.
    fn one_result(&mut self, now: u64, row: i64, result: Result<(), SinkError>, dice: f64) -> Option<String> {
        let error = match result {
            Ok(()) => {
                self.reached(now);
                if self.window.acknowledge(row) {
                    self.counters.published += 1;
                }
                return None;
            }
            Err(error) => error,
        };
        self.counters.failed(error.class);
        match error.class {
            SinkErrorClass::HeldBack => {
                self.requeue(row);
                None
            }
            SinkErrorClass::Away => {
                self.requeue(row);
                if let SinkOrder::OnePerKey { .. } = self.order {
                    self.back_off_row(now, row, error.class, dice);
                }
                self.paused(now, PauseKind::Away, &error, row, dice);
                None
            }
            SinkErrorClass::Destination => {
                self.requeue(row);
                self.paused(now, PauseKind::Destination, &error, row, dice);
                None
            }
            SinkErrorClass::Message => {
                self.reached(now);
                self.refused(now, row, &error, dice)
            }
        }
    }

    /// A row of a call of which nothing left is not tried again at once.
    pub(super) fn hold_off(&mut self, now: u64, row: i64) {
        if let Some(entry) = self.window.get_mut(row) {
            entry.not_before = entry.not_before.max(now.saturating_add(HELD_BACK_MS));
        }
    }

    pub(super) fn requeue(&mut self, row: i64) {
        self.window.requeue(row);
    }

    /// A row that meets an absent broker again and again waits longer than the others, so that they can try. In a call of
    /// many only where others of it arrived: else the receiver is away for all alike, and all go on when it is back.
    fn back_off_row(&mut self, now: u64, row: i64, class: SinkErrorClass, dice: f64) {
        let policy = match class {
            SinkErrorClass::Away => self.policy.away,
            SinkErrorClass::Destination => self.policy.destination,
            SinkErrorClass::Message | SinkErrorClass::HeldBack => return,
        };
        if let Some(entry) = self.window.get_mut(row) {
            entry.aways = entry.aways.saturating_add(1);
            let wait = policy.delay_ms(entry.aways, 0, dice).unwrap_or(policy.cap_ms);
            entry.not_before = now.saturating_add(wait);
        }
    }

    /// An attempt is spent.
    pub(super) fn refused(&mut self, now: u64, row: i64, error: &SinkError, dice: f64) -> Option<String> {
        let retry = self.policy.retry;
        let asked = self.asked_ms(error);
        let entry = self.window.requeue(row)?;
        entry.attempts = entry.attempts.saturating_add(1);
        let first = *entry.first_failed_at.get_or_insert(now);
        match retry.delay_ms(entry.attempts, now.saturating_sub(first), dice) {
            Some(wait) => {
                entry.not_before = now.saturating_add(wait.max(asked));
                None
            }
            None => {
                // Where the policy is to block, it goes on trying, as slowly as the policy allows.
                entry.not_before = now.saturating_add(retry.cap_ms.max(asked));
                Some(error.message.clone())
            }
        }
    }

    /// Something arrived at the receiver. What was sent before a pause began says nothing about the pause.
    pub(super) fn reached(&mut self, now: u64) {
        if self.pause.as_ref().is_none_or(|pause| pause.until <= now) {
            self.pause = None;
            self.streak = 0;
        }
    }

    fn asked_ms(&self, error: &SinkError) -> u64 {
        let asked = error
            .retry_after
            .map_or(0, |wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        asked.min(self.policy.retry_after_max_ms)
    }

    /// The shard pauses. Failures of sends that were on their way when the pause began do not lengthen it.
    pub(super) fn paused(&mut self, now: u64, kind: PauseKind, error: &SinkError, row: i64, dice: f64) {
        let asked = now.saturating_add(self.asked_ms(error));
        if let Some(pause) = &mut self.pause
            && now < pause.until
        {
            pause.until = pause.until.max(asked);
            return;
        }
        self.streak = self.streak.saturating_add(1);
        let policy = match kind {
            PauseKind::Destination => self.policy.destination,
            PauseKind::Away | PauseKind::Poison => self.policy.away,
        };
        let wait = policy.delay_ms(self.streak, 0, dice).unwrap_or(policy.cap_ms);
        let since = self.pause.as_ref().map_or(now, |pause| pause.since);
        self.pause = Some(Pause {
            kind,
            reason: error.message.clone(),
            row,
            until: now.saturating_add(wait).max(asked),
            since,
        });
    }

    /// The answer about the receiver, asked because the last owner died when it sent the inherited row.
    pub(super) fn probed(&mut self, now: u64, result: Result<(), SinkError>, dice: f64) {
        let Some(row) = self.end_probe() else { return };
        match result {
            Ok(()) => {
                self.careful.inherited = None;
                if let Some(entry) = self.window.get_mut(row) {
                    let why = "relays died again and again when they sent this row".to_owned();
                    entry.barred = Some(why.clone());
                    self.poison(row, &why);
                    self.advance_prefix();
                }
            }
            Err(error) => self.paused(now, PauseKind::Away, &error, row, dice),
        }
    }
}
