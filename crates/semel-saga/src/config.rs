//! How a coordinator works.

use std::time::Duration;

use semel_core::limits::{self, LimitExceeded};

/// Settings of one coordinator. Every field has a default.
#[derive(Debug, Clone)]
pub struct CoordinatorConfig {
    /// How long a dead coordinator's sagas wait for another. Default 10 s.
    pub lease: Duration,
    /// How often due sagas are looked for. Default 500 ms.
    pub poll: Duration,
    /// Sagas owned at a time; more are left to others. Default 2 000.
    pub owned_max: usize,
    /// Sagas in one commit. Default 256.
    pub batch_max: usize,
    /// Calls at a time to one destination, shared by all sagas. Default 32.
    pub per_destination_max: usize,
    /// A saga whose next timer is further away than this is given back until then. Default 2 s.
    pub hold: Duration,
    /// How long a saga that this coordinator cannot serve is left to others before it is stuck. Default 5 min.
    pub unserved_grace: Duration,
    /// Submissions that may wait to be stored. Default 10 000.
    pub queue_max: usize,
    /// How long a stopping coordinator waits for calls that are out. Default 10 s.
    pub stop_grace: Duration,
}

impl Default for CoordinatorConfig {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            poll: Duration::from_millis(500),
            owned_max: 2_000,
            batch_max: 256,
            per_destination_max: 32,
            hold: Duration::from_secs(2),
            unserved_grace: Duration::from_secs(300),
            queue_max: 10_000,
            stop_grace: Duration::from_secs(10),
        }
    }
}

impl CoordinatorConfig {
    /// Refuses what cannot work.
    ///
    /// # Errors
    /// [`LimitExceeded`], naming the field.
    pub fn check(&self) -> Result<(), LimitExceeded> {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let lease_max = limits::LEASE_MS_MAX as u64;
        limits::check(
            "lease",
            "ms",
            ms(self.lease),
            100,
            lease_max,
            "choose a lease of some seconds",
        )?;
        limits::check(
            "poll",
            "ms",
            ms(self.poll),
            1,
            3_600_000,
            "choose some hundred milliseconds",
        )?;
        let batch = limits::BATCH_ITEMS_MAX as u64;
        limits::check(
            "batch_max",
            "sagas",
            self.batch_max as u64,
            1,
            batch,
            "choose a smaller batch",
        )?;
        limits::check(
            "owned_max",
            "sagas",
            self.owned_max as u64,
            1,
            1_000_000,
            "choose a smaller number",
        )?;
        let calls = self.per_destination_max as u64;
        limits::check(
            "per_destination_max",
            "calls",
            calls,
            1,
            100_000,
            "choose a smaller number",
        )?;
        let queue = self.queue_max as u64;
        limits::check(
            "queue_max",
            "submissions",
            queue,
            1,
            1_000_000,
            "choose a smaller number",
        )
    }

    pub(crate) fn lease_ms(&self) -> i64 {
        millis(self.lease)
    }

    pub(crate) fn grace_ms(&self) -> i64 {
        millis(self.unserved_grace)
    }
}

pub(crate) fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
