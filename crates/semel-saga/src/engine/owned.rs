//! One saga in this coordinator's hands.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use semel_core::Timestamp;
use semel_core::saga::{CheckedDefinition, Event, Instance, LogEntry, Op};
use semel_core::store::{Ownership, SaveState};
use tokio::sync::watch;

/// An event, and the number of the request it came from (0 for none).
pub(super) type Queued = (Event, i64);

pub(super) struct Owned {
    pub(super) ownership: Ownership,
    pub(super) version: i64,
    pub(super) definition: CheckedDefinition,
    pub(super) input: Bytes,
    /// The durable state.
    pub(super) instance: Instance,
    /// What is being written.
    pub(super) next: Option<Next>,
    /// What has happened since.
    pub(super) queue: VecDeque<Queued>,
    /// The last request that was put into the queue.
    pub(super) requests_seen: i64,
    /// It is being read again; nothing is decided before that.
    pub(super) loading: bool,
    /// Calls that run in this process, by their number.
    pub(super) live: HashMap<(usize, Op), u64>,
    /// Until when the lease lasts, by our monotonic clock. Calls look at it before they send.
    pub(super) lease: watch::Sender<Duration>,
    pub(super) timer: Option<Timestamp>,
}

/// A decision on its way to the store.
pub(super) struct Next {
    pub(super) state: SaveState,
    pub(super) due_at: Option<Timestamp>,
    pub(super) release: bool,
    pub(super) requests_done: i64,
    pub(super) log: Vec<LogEntry>,
    /// The events behind it, to decide again when the write misses.
    pub(super) events: Vec<Queued>,
    /// Written alone, because a batch with it failed.
    pub(super) alone: bool,
}

impl Owned {
    /// Calls that run here, and those whose answer waits in the queue: a new epoch must not take them for lost.
    pub(super) fn known_calls(&self) -> Vec<(usize, Op)> {
        let waiting = self.queue.iter().filter_map(|(event, _)| match event {
            Event::Answered { step, op, .. } => Some((*step, *op)),
            _ => None,
        });
        self.live.keys().copied().chain(waiting).collect()
    }

    /// Takes a decision back: its events are decided again.
    pub(super) fn take_back(&mut self) {
        if let Some(next) = self.next.take() {
            for event in next.events.into_iter().rev() {
                self.queue.push_front(event);
            }
        }
    }
}
