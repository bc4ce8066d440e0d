//! What is asked of a key store, and what it answers.

use bytes::Bytes;

use super::record::{Lease, Nonce, OwnerLost, Token};
use crate::fingerprint::Fingerprint;
use crate::host::Timestamp;
use crate::key::Key;
use crate::limits::{self, LimitExceeded};
use crate::outcome::StoredOutcome;

/// A request for the right to run a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// What to run.
    pub key: Key,
    /// What was asked; compared with the record's.
    pub fingerprint: Fingerprint,
    /// 128 random bits of this attempt, never derived from the key or a worker's name (rule K3).
    pub nonce: Nonce,
    /// What becomes of the key when this owner dies; stored, so that a later claimant's choice does not count.
    pub owner_lost: OwnerLost,
    /// How long a dead owner blocks the key: 1 to [`limits::LEASE_MS_MAX`].
    pub lease_ms: i64,
}

impl Claim {
    /// Refuses a lease outside its limits.
    ///
    /// # Errors
    /// [`LimitExceeded`].
    pub fn check(&self) -> Result<(), LimitExceeded> {
        check_lease(self.lease_ms)
    }
}

/// The answer to a [`Claim`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimReply {
    /// Run it, and pass `lease` to every later call and write.
    Granted {
        /// Token and nonce.
        lease: Lease,
        /// When the right ends by the store's clock, unless extended.
        until: Timestamp,
        /// 1 for the first owner, more after each take-over.
        attempt: u32,
    },
    /// It is done; here is what came of it.
    Done {
        /// The stored outcome.
        outcome: StoredOutcome,
        /// How long a retry will still see it.
        retain_until: Timestamp,
    },
    /// Somebody runs it now.
    Busy {
        /// Milliseconds until that claim's lease ends, rounded up.
        lease_left_ms: i64,
    },
    /// Its owner was lost and it may have happened. A person or a reconcile hook decides; never run it again.
    Unknown {
        /// The lost owner's token, needed to settle it.
        token: Token,
    },
    /// The key was used for something else. The stored outcome is not shown.
    Mismatch,
    /// It was done or refused once; which of the two is no longer kept, so to a caller that is unknown.
    Gone {
        /// When the tombstone ends.
        until: Timestamp,
    },
    /// This nonce was given back by [`Release`]. Draw another one to ask again.
    Withdrawn,
}

/// How long the store remembers what is done.
///
/// Both clocks should exceed the time over which callers may still retry (rule K14).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Milliseconds for which the outcome is kept: 1 to [`limits::RETENTION_MS_MAX`]. Default 24 hours.
    pub retention_ms: i64,
    /// Milliseconds after that for which it is still known that it was done: 0 to [`limits::RETENTION_MS_MAX`].
    /// Default 30 days.
    pub tombstone_ms: i64,
}

impl Default for Keep {
    fn default() -> Self {
        Self {
            retention_ms: 24 * 3_600_000,
            tombstone_ms: 30 * 24 * 3_600_000,
        }
    }
}

impl Keep {
    /// Refuses times outside their limits.
    ///
    /// # Errors
    /// [`LimitExceeded`].
    pub fn check(&self) -> Result<(), LimitExceeded> {
        let max = limits::RETENTION_MS_MAX as u64;
        let help = "choose retention_ms within the limit";
        limits::check_signed("retention", "ms", self.retention_ms, 1, max, help)?;
        let help = "choose tombstone_ms within the limit";
        limits::check_signed("tombstone", "ms", self.tombstone_ms, 0, max, help)
    }
}

/// The end of a run whose outcome is certain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// What was run.
    pub key: Key,
    /// The right under which it ran.
    pub lease: Lease,
    /// What came of it; at most [`limits::OUTCOME_BYTES_MAX`] bytes.
    pub outcome: StoredOutcome,
    /// How long that is remembered, from now.
    pub keep: Keep,
}

impl Completion {
    /// Refuses an outcome or times outside their limits.
    ///
    /// # Errors
    /// [`LimitExceeded`].
    pub fn check(&self) -> Result<(), LimitExceeded> {
        check_outcome(&self.outcome)?;
        self.keep.check()
    }
}

/// The answer to [`Completion`], [`Extension`], [`Release`], [`Abandonment`] and [`Settlement`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseReply {
    /// Done. For an extension: when the lease now ends; for a completion or settlement: until when the outcome is
    /// kept.
    Ok(Timestamp),
    /// A later token was drawn, or the key was settled or purged. Nothing was changed. Ask by a claim what the record
    /// says, and answer that (rule K11).
    LeaseLost,
    /// The same run has already ended with another outcome. Nothing was changed.
    Conflict,
}

/// A wish to keep a claim longer. It never makes a lease shorter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension {
    /// What is being run.
    pub key: Key,
    /// The right.
    pub lease: Lease,
    /// New length, from now: 1 to [`limits::LEASE_MS_MAX`].
    pub lease_ms: i64,
}

impl Extension {
    /// Refuses a lease outside its limits.
    ///
    /// # Errors
    /// [`LimitExceeded`].
    pub fn check(&self) -> Result<(), LimitExceeded> {
        check_lease(self.lease_ms)
    }
}

/// Gives a claim back because it is certain that nothing happened; or, without a token, withdraws a claim whose
/// reply never came (rule K4). Either way the nonce is spent: a copy of that claim that is still on its way is not
/// granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// What was claimed.
    pub key: Key,
    /// The nonce of the claim.
    pub nonce: Nonce,
    /// The token, when the claim's reply did come.
    pub token: Option<Token>,
}

/// The end of a run whose owner does not know what came of it: a panic, a time-out, a broken connection. The key becomes
/// unknown at once instead of when its lease ends; under [`OwnerLost::Rerun`] the next claimant may run it at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abandonment {
    /// What was run.
    pub key: Key,
    /// The right under which it ran; still good for a later `complete`, `extend` and `release` (rule K1).
    pub lease: Lease,
}

/// What a person or a reconcile hook found out about a key that is unknown; or that its scope is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// Which key.
    pub key: Key,
    /// The run that was judged: a later one is not touched.
    pub token: Token,
    /// What was found.
    pub verdict: Verdict,
    /// How long an outcome is remembered, from now.
    pub keep: Keep,
}

impl Settlement {
    /// Refuses an outcome or times outside their limits.
    ///
    /// # Errors
    /// [`LimitExceeded`].
    pub fn check(&self) -> Result<(), LimitExceeded> {
        match &self.verdict {
            Verdict::Happened(outcome) => check_outcome(outcome)?,
            Verdict::DidNotHappen | Verdict::Closed => {}
        }
        self.keep.check()
    }
}

/// What became of a run whose owner was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It happened (or was refused), and this is its outcome.
    Happened(StoredOutcome),
    /// It is certain that nothing happened: the key may be claimed again.
    DidNotHappen,
    /// The key's scope is closed, for its principal is gone: whatever came of the key, or will, is nobody's to read, and
    /// only a tombstone stays (rule K13). Of a key in any state, not only of an unknown one: who runs it now may not
    /// store its outcome. The tombstone lasts for retention and tombstone together, and never shorter than before.
    Closed,
}

/// A success with this output.
#[must_use]
pub fn succeeded(output: impl Into<Bytes>) -> StoredOutcome {
    StoredOutcome::Succeeded(output.into())
}

fn check_lease(lease_ms: i64) -> Result<(), LimitExceeded> {
    let max = limits::LEASE_MS_MAX as u64;
    let help = "choose lease_ms within the limit";
    limits::check_signed("lease", "ms", lease_ms, 1, max, help)
}

/// Refuses an outcome over [`limits::OUTCOME_BYTES_MAX`].
///
/// # Errors
/// [`LimitExceeded`].
pub fn check_outcome(outcome: &StoredOutcome) -> Result<(), LimitExceeded> {
    let actual = outcome.bytes().len() as u64;
    let max = limits::OUTCOME_BYTES_MAX as u64;
    let help = "store StoredOutcome::Forgotten and keep the bytes elsewhere";
    limits::check("outcome", "bytes", actual, 0, max, help)
}
