//! Settings of the batcher.

use std::time::Duration;

use semel_core::batch::{LINGER_US_MAX, LaneLimits};
use semel_core::limits::{self, BATCH_ITEMS_MAX, LimitExceeded};
use semel_core::store::{Batching, LANES_MAX};

/// Settings of a [`Batched`](super::Batched) store. The default follows the store's own wish ([`Batching`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchConfig {
    /// Batches on their way at once: 1 to [`LANES_MAX`]. Default: the store's wish.
    pub lanes: Option<usize>,
    /// Items of a batch at most: 1 to [`BATCH_ITEMS_MAX`]. Default: the store's wish.
    pub items_max: Option<usize>,
    /// Bytes of a batch at most; a single call that is larger goes alone. Default 4 MiB.
    pub bytes_max: usize,
    /// Calls that wait in one lane at most; more are refused (SEM0110). What ends a run may take as many places again.
    /// Default 10 000.
    pub queue_items_max: usize,
    /// Bytes that wait in one lane at most, likewise. Default 64 MiB.
    pub queue_bytes_max: usize,
    /// How long a call that finds its lane idle waits for company: up to 1 ms ([`LINGER_US_MAX`]). Default none: what
    /// comes while a batch is on its way gathers by itself.
    pub linger: Duration,
    /// Milliseconds that one batch may take: 1 to a day. After that its callers hear that the answer is lost, it is not
    /// asked again, and the lane goes on: a host that vanished without a word does not hold it for good. Default 15 000.
    pub batch_ms_max: u64,
}

/// A batch takes a day at most.
const BATCH_MS_MAX: u64 = 86_400_000;

impl Default for BatchConfig {
    fn default() -> Self {
        Self {
            lanes: None,
            items_max: None,
            bytes_max: 4 << 20,
            queue_items_max: 10_000,
            queue_bytes_max: 64 << 20,
            linger: Duration::ZERO,
            batch_ms_max: 15_000,
        }
    }
}

impl BatchConfig {
    /// Refuses settings outside their limits.
    ///
    /// # Errors
    /// The first one, by name.
    pub fn check(&self) -> Result<(), LimitExceeded> {
        let help = "choose a value within the limit";
        let at_least_one = |what, unit, actual: usize, max: usize| {
            limits::check(what, unit, actual as u64, 1, max as u64, help)
        };
        at_least_one("lanes", "lanes", self.lanes.unwrap_or(1), LANES_MAX)?;
        at_least_one("items_max", "items", self.items_max.unwrap_or(1), BATCH_ITEMS_MAX)?;
        at_least_one("bytes_max", "bytes", self.bytes_max, usize::MAX)?;
        at_least_one("queue_items_max", "items", self.queue_items_max, usize::MAX)?;
        at_least_one("queue_bytes_max", "bytes", self.queue_bytes_max, usize::MAX)?;
        let linger = u64::try_from(self.linger.as_micros()).unwrap_or(u64::MAX);
        limits::check("linger", "us", linger, 0, LINGER_US_MAX, help)?;
        limits::check("batch_ms_max", "ms", self.batch_ms_max, 1, BATCH_MS_MAX, help)
    }

    pub(super) fn lanes(&self, wish: Batching) -> usize {
        self.lanes.unwrap_or(wish.lanes).clamp(1, LANES_MAX)
    }

    pub(super) fn lane(&self, wish: Batching) -> LaneLimits {
        LaneLimits {
            items_max: self.items_max.unwrap_or(wish.items_max).clamp(1, BATCH_ITEMS_MAX),
            bytes_max: self.bytes_max,
            queue_items_max: self.queue_items_max,
            queue_bytes_max: self.queue_bytes_max,
            linger: self.linger,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_outside_their_limits_are_refused_by_name() {
        assert_eq!(BatchConfig::default().check(), Ok(()));
        let lingering = BatchConfig {
            linger: Duration::from_micros(1_001),
            ..BatchConfig::default()
        };
        let error = lingering.check().unwrap_err().to_string();
        assert!(error.contains("linger: 1001 us is outside 0..=1000"), "{error}");
        let none = BatchConfig {
            items_max: Some(0),
            ..BatchConfig::default()
        };
        assert!(none.check().unwrap_err().to_string().contains("items_max"));
        let endless = BatchConfig {
            batch_ms_max: 0,
            ..BatchConfig::default()
        };
        assert!(endless.check().unwrap_err().to_string().contains("batch_ms_max"));
    }
}
