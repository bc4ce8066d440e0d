//! How late it can be for a server, by what it said last.
//!
//! The claim script takes the id of the registry's new entry for the time, which it is unless the clock was set back since
//! the entry before. So it is told how late it can be, and asks for the time itself where the id is later than that.

use std::sync::atomic::{AtomicI64, Ordering};

use semel_core::{Clock as _, SystemClock, Timestamp};

/// By how much two clocks may drift apart, or two servers of a cluster differ, before scripts ask for the time.
const SLACK_US: i64 = 1_000_000;

/// A server's clock as it was seen last: µs that it is ahead of this process's monotonic clock.
#[derive(Debug)]
pub(crate) struct ServerTime(AtomicI64);

impl Default for ServerTime {
    /// Not seen yet: scripts ask.
    fn default() -> Self {
        Self(AtomicI64::new(i64::MIN / 2))
    }
}

impl ServerTime {
    /// Notes what a server has said just now.
    pub(crate) fn seen(&self, time: Timestamp) {
        self.0
            .store(time.0.saturating_sub(monotonic_us()), Ordering::Relaxed);
    }

    /// The latest that it can be, in ms.
    pub(crate) fn latest_ms(&self) -> i64 {
        let ahead = self.0.load(Ordering::Relaxed);
        ahead
            .saturating_add(monotonic_us())
            .saturating_add(SLACK_US)
            .max(0)
            / 1_000
    }
}

fn monotonic_us() -> i64 {
    i64::try_from(SystemClock.monotonic().as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_back_is_followed_and_one_that_was_never_seen_is_asked() {
        let time = ServerTime::default();
        assert_eq!(time.latest_ms(), 0);
        for seen in [1_800_000_000_000_000, 1_700_000_000_000_000] {
            time.seen(Timestamp(seen));
            let late = time.latest_ms() - seen / 1_000;
            assert!((1_000..60_000).contains(&late), "{late}");
        }
    }
}
