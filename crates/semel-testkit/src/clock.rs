//! A clock that tests move by hand.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use semel_core::{Clock, Timestamp};

/// Stands still until it is moved.
#[derive(Debug)]
pub struct ManualClock {
    start: i64,
    now: AtomicI64,
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::at(Timestamp(1_800_000_000_000_000))
    }
}

impl ManualClock {
    /// A clock that shows this moment.
    #[must_use]
    pub const fn at(now: Timestamp) -> Self {
        Self {
            start: now.0,
            now: AtomicI64::new(now.0),
        }
    }

    /// Moves it forward, or back where `ms` is negative.
    pub fn advance_ms(&self, ms: i64) {
        self.now.fetch_add(ms * 1_000, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.now.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        // One that was set back beyond its start stands there.
        Duration::from_micros(u64::try_from(self.now().0 - self.start).unwrap_or(0))
    }
}
