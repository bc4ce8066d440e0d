//! Claims: who may run a key now.
//!
//! `absent → claimed → done → tombstone → absent`; `claimed → absent` only when it is certain that nothing
//! happened; `claimed → unknown` when the lease ran out under [`OwnerLost::Hold`].
//! [`step`](step::claim) and its sisters are the whole protocol as pure functions over one [`Record`]; a store
//! carries out what they say, in one atomic statement, script or writer transaction per batch.
//!
//! # Guarantees
//! - One token per key is current. A write under an older one gets `LeaseLost` and changes nothing.
//! - A token is stale only when a later one was drawn or the key was settled; time alone never makes it stale
//!   (rule K1): a slow owner's `complete` is accepted from claimed, expired or unknown.
//! - Crash before `complete` is durable: when the lease ends the key is unknown under `Hold`, or goes to the next
//!   claimant with a larger token under `Rerun`. Crash after it: every later claim gets the stored outcome.
//! - A repeated `claim` with the same nonce gets the same token (rule K3); a repeated `complete` with the same
//!   outcome is `Ok` (rule K2). So a lost reply can be asked for again.
//!
//! # Not guaranteed
//! That an owner whose lease ended has stopped. Pass the token to whatever it writes to.

mod record;
pub mod step;

pub use record::{Lease, Nonce, OwnerLost, Record, State, SweepReport, Token};

use bytes::Bytes;

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
        let actual = u64::try_from(self.lease_ms).unwrap_or(0);
        limits::check(
            "lease",
            "ms",
            actual,
            1,
            limits::LEASE_MS_MAX as u64,
            "choose lease_ms within the limit",
        )
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
        /// Milliseconds until that claim's lease ends.
        lease_left_ms: i64,
    },
    /// Its owner was lost and it may have happened. A person or a reconcile hook decides; never run it again.
    Unknown {
        /// The lost owner's token, needed to settle it.
        token: Token,
    },
    /// The key was used for something else. The stored outcome is not shown.
    Mismatch,
    /// It was done once; the outcome is no longer kept.
    Gone {
        /// When the tombstone ends.
        until: Timestamp,
    },
    /// This nonce was withdrawn by [`Release`] before the claim arrived (rule K4).
    Withdrawn,
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
    /// How long the outcome is kept, from now: 1 to [`limits::RETENTION_MS_MAX`].
    pub retention_ms: i64,
    /// How long after that it is still known that it was done.
    pub tombstone_ms: i64,
}

impl Completion {
    /// Refuses an outcome or times outside their limits.
    ///
    /// # Errors
    /// [`LimitExceeded`].
    pub fn check(&self) -> Result<(), LimitExceeded> {
        let max = limits::OUTCOME_BYTES_MAX as u64;
        let bytes = self.outcome.bytes().len() as u64;
        limits::check(
            "outcome",
            "bytes",
            bytes,
            0,
            max,
            "store StoredOutcome::Forgotten and keep it elsewhere",
        )?;
        let ms = |value| u64::try_from(value).unwrap_or(u64::MAX);
        let max = limits::RETENTION_MS_MAX as u64;
        limits::check(
            "retention",
            "ms",
            ms(self.retention_ms),
            1,
            max,
            "choose a shorter retention",
        )?;
        limits::check(
            "tombstone",
            "ms",
            ms(self.tombstone_ms),
            0,
            max,
            "choose a shorter tombstone",
        )
    }
}

/// The answer to [`Completion`], [`Extension`] and [`Release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseReply {
    /// Done; for an extension, when the lease now ends.
    Ok(Timestamp),
    /// A later token was drawn, or the key was settled or purged. Nothing was changed.
    LeaseLost,
    /// This owner has already completed it with another outcome. Nothing was changed.
    Conflict,
}

/// A wish to keep a claim longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension {
    /// What is being run.
    pub key: Key,
    /// The right.
    pub lease: Lease,
    /// New length, from now.
    pub lease_ms: i64,
}

/// Gives a claim back because it is certain that nothing happened; or, without a token, withdraws a claim whose
/// reply never came (rule K4): a marker then refuses that nonce should the claim still be on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// What was claimed.
    pub key: Key,
    /// The nonce of the claim.
    pub nonce: Nonce,
    /// The token, when the claim's reply did come.
    pub token: Option<Token>,
}

/// What a person or a reconcile hook found out about a key that is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// It happened (or was refused), and this is its outcome.
    Happened(StoredOutcome),
    /// It is certain that nothing happened: the key may be claimed again.
    DidNotHappen,
}

/// The shape of a stored output that is only text or JSON.
#[must_use]
pub fn succeeded(output: impl Into<Bytes>) -> StoredOutcome {
    StoredOutcome::Succeeded(output.into())
}
