//! A local clock that keeps counting while the machine is suspended.

use std::sync::{Arc, Mutex, PoisonError};

use semel_core::Clock;

/// A difference between the two clocks below this is drift or an adjustment, not a suspend.
const GAP_US: i64 = 100_000;

/// Milliseconds from an arbitrary start. The host's monotonic clock stands still during a suspend and the wall clock
/// does not; when the wall clock has run ahead, that time has passed too (rule O17). A wall clock that is set back
/// changes nothing; one that is set forward only ends leases early, and they are renewed.
pub(crate) struct LocalClock {
    host: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Wall minus monotonic, as last known.
    base: Option<i64>,
    /// What the monotonic clock has missed.
    missed: i64,
}

impl LocalClock {
    pub(crate) fn new(host: Arc<dyn Clock>) -> Self {
        Self {
            host,
            state: Mutex::default(),
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let monotonic = i64::try_from(self.host.monotonic().as_micros()).unwrap_or(i64::MAX);
        let base = self.host.now().0.saturating_sub(monotonic);
        let gap = base.saturating_sub(*state.base.get_or_insert(base));
        if gap.abs() > GAP_US {
            state.base = Some(base);
            state.missed = state.missed.saturating_add(gap.max(0));
        }
        u64::try_from(monotonic.saturating_add(state.missed) / 1_000).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use semel_core::Timestamp;
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::time::Duration;

    #[derive(Default)]
    struct Two {
        monotonic_ms: AtomicI64,
        wall_ms: AtomicI64,
    }

    impl Clock for Two {
        fn now(&self) -> Timestamp {
            Timestamp(self.wall_ms.load(Ordering::Relaxed) * 1_000)
        }
        fn monotonic(&self) -> Duration {
            Duration::from_millis(self.monotonic_ms.load(Ordering::Relaxed).unsigned_abs())
        }
    }

    #[test]
    fn a_suspend_counts_and_a_wall_clock_set_back_does_not() {
        let two = Arc::new(Two::default());
        two.wall_ms.store(1_000_000, Ordering::Relaxed);
        let clock = LocalClock::new(Arc::clone(&two) as Arc<dyn Clock>);
        let pass = |monotonic: i64, wall: i64| {
            two.monotonic_ms.fetch_add(monotonic, Ordering::Relaxed);
            two.wall_ms.fetch_add(wall, Ordering::Relaxed);
            clock.now_ms()
        };
        assert_eq!(pass(0, 0), 0);
        assert_eq!(pass(50, 50), 50);
        assert_eq!(pass(10, 60_010), 60_060, "suspended for a minute");
        assert_eq!(pass(10, -3_600_000), 60_070, "set back by an hour");
        assert_eq!(pass(10, 10), 60_080);
    }
}
