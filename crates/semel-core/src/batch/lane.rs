//! One queue in front of a store: what goes into the next batch, and when.

use std::collections::VecDeque;
use std::time::Duration;

/// How much a lane may hold and send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneLimits {
    /// Items of a batch at most.
    pub items_max: usize,
    /// Bytes of a batch at most; an item that is larger by itself goes alone.
    pub bytes_max: usize,
    /// Items that wait at most. What ends a run may take as many places again.
    pub queue_items_max: usize,
    /// Bytes that wait at most. What ends a run may take as many again.
    pub queue_bytes_max: usize,
    /// How long an item that finds the lane idle waits for company. Zero: not at all.
    pub linger: Duration,
}

/// What an item weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weight {
    /// Its bytes, roughly.
    pub bytes: usize,
    /// Whether it ends or keeps a run that was begun: turned away last.
    pub ends: bool,
}

/// The lane has no room. Nothing was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// So many items wait already.
    #[error("queue_items_max = {0} calls wait for the store already; come back later, or raise it")]
    Items(usize),
    /// So many bytes wait already.
    #[error("queue_bytes_max = {0} bytes wait for the store already; come back later, or raise it")]
    Bytes(usize),
}

/// What the lane's driver does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// Send this batch, then say [`Lane::answered`].
    Send(Vec<T>),
    /// Ask again at this moment (or earlier).
    Linger(Duration),
    /// Nothing waits. The next [`Lane::offer`] says that a driver is needed.
    Idle,
}

/// Where a lane stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing waits, nobody drives.
    Idle,
    /// Something waits since that moment, and it may go.
    Gathering(Duration),
    /// A batch is on its way since that moment; whatever comes waits for it.
    Sent(Duration),
}

/// A queue of items; see the [module](super).
///
/// ```
/// use semel_core::batch::{Lane, LaneLimits, Next, Weight};
/// use std::time::Duration;
///
/// let limits = LaneLimits {
///     items_max: 2,
///     bytes_max: 100,
///     queue_items_max: 10,
///     queue_bytes_max: 1_000,
///     linger: Duration::ZERO,
/// };
/// let (mut lane, now) = (Lane::new(limits), Duration::ZERO);
/// let weight = Weight { bytes: 10, ends: false };
/// assert_eq!(lane.offer("a", weight, now), Ok(true), "idle: a driver is needed");
/// assert_eq!(lane.next(now), Next::Send(vec!["a"]), "and nobody is waited for");
/// for item in ["b", "c", "d"] {
///     assert_eq!(lane.offer(item, weight, now), Ok(false));
/// }
/// lane.answered(now);
/// assert_eq!(lane.next(now), Next::Send(vec!["b", "c"]), "what came meanwhile");
/// lane.answered(now);
/// assert_eq!(lane.next(now), Next::Send(vec!["d"]));
/// lane.answered(now);
/// assert_eq!(lane.next(now), Next::Idle);
/// ```
#[derive(Debug)]
pub struct Lane<T> {
    limits: LaneLimits,
    waiting: VecDeque<(T, usize)>,
    bytes: usize,
    state: State,
}

impl<T> Lane<T> {
    /// An idle lane.
    #[must_use]
    pub const fn new(limits: LaneLimits) -> Self {
        Self {
            limits,
            waiting: VecDeque::new(),
            bytes: 0,
            state: State::Idle,
        }
    }

    /// Takes an item in; `true` when the lane was idle, so that somebody must begin to drive it.
    ///
    /// # Errors
    /// [`Full`].
    pub fn offer(&mut self, item: T, weight: Weight, now: Duration) -> Result<bool, Full> {
        let times = if weight.ends { 2 } else { 1 };
        let LaneLimits {
            queue_items_max,
            queue_bytes_max,
            ..
        } = self.limits;
        if self.waiting.len() >= queue_items_max.saturating_mul(times) {
            return Err(Full::Items(queue_items_max));
        }
        // One item always fits into an empty queue: its own limit was checked before.
        if !self.waiting.is_empty()
            && self.bytes.saturating_add(weight.bytes) > queue_bytes_max.saturating_mul(times)
        {
            return Err(Full::Bytes(queue_bytes_max));
        }
        self.waiting.push_back((item, weight.bytes));
        self.bytes = self.bytes.saturating_add(weight.bytes);
        let idle = self.state == State::Idle;
        if idle {
            self.state = State::Gathering(now);
        }
        Ok(idle)
    }

    /// What to do now. While a batch is on its way that is nothing.
    pub fn next(&mut self, now: Duration) -> Next<T> {
        let State::Gathering(since) = self.state else {
            return Next::Idle;
        };
        let go_at = since.saturating_add(self.limits.linger);
        if now < go_at && !self.is_full() {
            return Next::Linger(go_at);
        }
        let mut batch = Vec::with_capacity(self.waiting.len().min(self.limits.items_max));
        let mut bytes = 0_usize;
        while let Some((_, weight)) = self.waiting.front() {
            let fits = bytes.saturating_add(*weight) <= self.limits.bytes_max;
            let room = fits && batch.len() < self.limits.items_max;
            if !room && !batch.is_empty() {
                break;
            }
            if let Some((item, weight)) = self.waiting.pop_front() {
                bytes = bytes.saturating_add(weight);
                batch.push(item);
            }
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        self.state = State::Sent(now);
        Next::Send(batch)
    }

    /// The batch's callers have their answers. Until [`Lane::answered`] nothing goes, and no batch counts as one that hangs.
    pub fn told(&mut self, now: Duration) {
        if let State::Sent(_) = self.state {
            self.state = State::Sent(now);
        }
    }

    /// The batch has been answered. What waits may go from now on; whatever has gathered need not linger.
    pub fn answered(&mut self, now: Duration) {
        self.state = if self.waiting.is_empty() {
            State::Idle
        } else {
            State::Gathering(now.saturating_sub(self.limits.linger))
        };
    }

    /// For a lane whose driver is gone: hands out all that waits, and is idle, so that the next [`Lane::offer`] says that
    /// a driver is needed.
    pub fn reset(&mut self) -> Vec<T> {
        self.state = State::Idle;
        self.bytes = 0;
        self.waiting.drain(..).map(|(item, _)| item).collect()
    }

    /// For how long callers have waited for the batch that is on its way; `None` where there is none.
    #[must_use]
    pub const fn on_its_way(&self, now: Duration) -> Option<Duration> {
        match self.state {
            State::Sent(since) => Some(now.saturating_sub(since)),
            State::Idle | State::Gathering(_) => None,
        }
    }

    /// Items that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a whole batch waits.
    fn is_full(&self) -> bool {
        self.waiting.len() >= self.limits.items_max || self.bytes >= self.limits.bytes_max
    }
}
