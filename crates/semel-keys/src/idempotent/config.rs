//! Settings of a run.

use std::sync::Arc;

use semel_core::claim::{Reconcile, WITHDRAWN_MS};
use semel_core::limits::{self, LimitExceeded};
use semel_core::{Keep, OwnerLost, RetryPolicy};

/// What becomes of a key whose owner was lost.
#[derive(Clone, Default)]
pub enum OnOwnerLost {
    /// It is unknown until a person settles it.
    #[default]
    Hold,
    /// The next caller runs it again, with a larger token. Only for what may be repeated.
    Rerun,
    /// It is unknown, and whoever meets it asks this hook what happened.
    Reconcile(Arc<dyn Reconcile>),
}

impl std::fmt::Debug for OnOwnerLost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Hold => "Hold",
            Self::Rerun => "Rerun",
            Self::Reconcile(_) => "Reconcile",
        })
    }
}

impl OnOwnerLost {
    /// What the store knows of it.
    pub(super) const fn stored(&self) -> OwnerLost {
        match self {
            Self::Hold | Self::Reconcile(_) => OwnerLost::Hold,
            Self::Rerun => OwnerLost::Rerun,
        }
    }
}

/// What a call does while the store is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Outage {
    /// Runs nothing.
    #[default]
    Closed,
    /// Runs without a key: a duplicate runs again. Said in the result, logged, and counted
    /// ([`Idempotent::unguarded`](super::Idempotent::unguarded)).
    Open,
}

/// Settings of an [`Idempotent`](super::Idempotent).
#[derive(Debug, Clone)]
pub struct RunConfig {
    /// What becomes of a key whose process died. Default hold.
    pub owner_lost: OnOwnerLost,
    /// Milliseconds of a claim, renewed at a third while the function runs: 3 to [`limits::LEASE_MS_MAX`]. Default 30 000.
    pub lease_ms: i64,
    /// How long outcomes are kept. Default a day, then 30 days as a tombstone.
    pub keep: Keep,
    /// Milliseconds that a duplicate waits for the first call's outcome. Default 10 000.
    pub wait_ms_max: u64,
    /// Duplicates that wait at most, in this process. Default 4 096.
    pub waiters_max: usize,
    /// Milliseconds after which a claim is no longer renewed: the key then reads as unknown until the function ends
    /// (under `Rerun` the function is stopped). Default 10 minutes.
    pub run_ms_max: u64,
    /// Milliseconds that one call to the store may take, at most [`WITHDRAWN_MS`]. Default 5 000.
    pub store_ms_max: u64,
    /// Milliseconds that the reconcile hook may take; after that the key stays unknown. 1 to a day. Default 30 000.
    pub reconcile_ms_max: u64,
    /// How long an outcome that could not be stored is tried again in the background. Default 50 ms growing to 5 s, for
    /// 10 minutes; then the key ends as its policy says.
    pub completion_retry: RetryPolicy,
    /// Withdrawals and outcomes that wait at most for a store which gives no answer; at so many no more claims are sent, and
    /// calls do as [`outage`](Self::outage) says. Runs under way come on top. Default 4 096.
    pub behind_max: usize,
    /// Bytes of outcomes that wait so; of more it is only kept what came of the run ([`Outcome::NotKept`](super::Outcome::NotKept)).
    /// Default 64 MiB.
    pub behind_bytes_max: usize,
    /// What a call does while the store is away. Default closed.
    pub outage: Outage,
}

impl Default for RunConfig {
    fn default() -> Self {
        Self {
            owner_lost: OnOwnerLost::Hold,
            lease_ms: 30_000,
            keep: Keep::default(),
            wait_ms_max: 10_000,
            waiters_max: 4_096,
            run_ms_max: 600_000,
            store_ms_max: 5_000,
            reconcile_ms_max: 30_000,
            completion_retry: RetryPolicy {
                initial_ms: 50,
                cap_ms: 5_000,
                attempts_max: u32::MAX,
                total_ms_max: 600_000,
                ..RetryPolicy::default()
            },
            behind_max: 4_096,
            behind_bytes_max: 64 << 20,
            outage: Outage::Closed,
        }
    }
}

impl RunConfig {
    /// Refuses settings outside their limits.
    ///
    /// # Errors
    /// The first one, by name.
    pub fn check(&self) -> Result<(), LimitExceeded> {
        let help = "choose a value within the limit";
        limits::check_renewed_lease(self.lease_ms)?;
        self.keep.check()?;
        limits::check("run_ms_max", "ms", self.run_ms_max, 1, u64::MAX, help)?;
        let behind = u64::try_from(self.behind_max).unwrap_or(u64::MAX);
        limits::check("behind_max", "calls", behind, 1, u64::MAX, help)?;
        limits::check(
            "reconcile_ms_max",
            "ms",
            self.reconcile_ms_max,
            1,
            86_400_000,
            help,
        )?;
        let help = "a claim without an answer is withdrawn, and WITHDRAWN_MS is for how long that is remembered: choose \
                    store_ms_max below it";
        limits::check(
            "store_ms_max",
            "ms",
            self.store_ms_max,
            1,
            WITHDRAWN_MS as u64,
            help,
        )
    }
}
