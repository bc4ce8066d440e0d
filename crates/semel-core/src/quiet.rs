//! Keeps what fails many times a second from filling the log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Milliseconds between two lines of the same kind.
pub const QUIET_MS: u64 = 5_000;

/// Lets something be said once in [`QUIET_MS`], and counts what was not said.
///
/// ```
/// use std::time::Duration;
/// let quiet = semel_core::quiet::Quiet::default();
/// let now = Duration::from_secs(60);
/// assert_eq!(quiet.may_speak(now), Some(0));
/// assert_eq!(quiet.may_speak(now), None);
/// assert_eq!(quiet.may_speak(now + Duration::from_secs(5)), Some(1));
/// ```
#[derive(Debug, Default)]
pub struct Quiet {
    /// When it may be said again, in milliseconds of the monotonic clock.
    next_ms: AtomicU64,
    unsaid: AtomicU64,
}

impl Quiet {
    /// How often it was not said since the last time, when it may be said now. `now`: of a clock that only goes forward.
    pub fn may_speak(&self, now: Duration) -> Option<u64> {
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let next = self.next_ms.load(Ordering::Relaxed);
        let then = now.saturating_add(QUIET_MS);
        let mine = now >= next
            && self
                .next_ms
                .compare_exchange(next, then, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if mine {
            return Some(self.unsaid.swap(0, Ordering::Relaxed));
        }
        self.unsaid.fetch_add(1, Ordering::Relaxed);
        None
    }
}
