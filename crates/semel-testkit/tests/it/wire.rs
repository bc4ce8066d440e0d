//! A line in memory, counted as a wire is.

use std::sync::{Mutex, MutexGuard};

use semel_testkit::laws::sink::Line;

/// What lies between, and is broken by the laws.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    state: Mutex<State>,
    changed: tokio::sync::Notify,
}

#[derive(Debug, Default)]
struct State {
    held: bool,
    severed: bool,
    cut_sends: Option<u64>,
    cut_answers: Option<u64>,
    cuts: u64,
}

impl Wire {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_waiters();
    }

    /// Waits while the line is held.
    pub(crate) async fn unheld(&self) {
        loop {
            let changed = self.changed.notified();
            if !self.state().held {
                return;
            }
            changed.await;
        }
    }

    /// Whether these bytes get through.
    pub(crate) fn pass(&self, bytes: u64, back: bool) -> bool {
        let mut state = self.state();
        let left = if back {
            &mut state.cut_answers
        } else {
            &mut state.cut_sends
        };
        match left {
            Some(rest) if *rest <= bytes => {
                *left = None;
                state.cuts += 1;
                false
            }
            Some(rest) => {
                *rest -= bytes;
                true
            }
            None => !state.severed,
        }
    }

    pub(crate) fn severed(&self) -> bool {
        self.state().severed
    }
}

impl Line for Wire {
    fn hold(&self) {
        self.change(|state| state.held = true);
    }

    fn sever(&self) {
        self.change(|state| state.severed = true);
    }

    fn restore(&self) {
        self.change(|state| (state.held, state.severed) = (false, false));
    }

    fn cut_sends(&self, bytes: u64) {
        self.change(|state| state.cut_sends = Some(bytes));
    }

    fn cut_answers(&self, bytes: u64) {
        self.change(|state| state.cut_answers = Some(bytes));
    }

    fn cuts(&self) -> u64 {
        self.state().cuts
    }
}
