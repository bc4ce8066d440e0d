//! Moments inside the demo's own process, by the one clock there is.

use std::time::Duration;

use semel_core::{Clock as _, SystemClock};
use tokio::time::sleep;

/// A moment of the demo's process: since its first look at the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(Duration);

impl Moment {
    /// Now.
    pub(crate) fn now() -> Self {
        Self(SystemClock.monotonic())
    }

    /// This much later.
    pub(crate) fn plus(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }

    /// From this moment to now.
    pub(crate) fn elapsed(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }

    /// Waits for it.
    pub(crate) async fn reached(self) {
        sleep(self.0.saturating_sub(Self::now().0)).await;
    }
}
