//! What a store keeps about a key.

use crate::fingerprint::Fingerprint;
use crate::host::Timestamp;
use crate::key::hex;
use crate::outcome::StoredOutcome;

/// Fencing token: per key it only grows, and it is never handed out twice, purge and restart included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub i64);

/// 128 random bits of one attempt or one owner.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nonce(pub [u8; 16]);

impl Nonce {
    /// A fresh one from the host's randomness.
    #[must_use]
    pub fn random() -> Self {
        Self(crate::host::random_16())
    }
}

impl std::fmt::Debug for Nonce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nonce({}…)", hex(&self.0[..4]))
    }
}

/// The right to run a key: both parts are compared at every later write (rule K9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The fencing token.
    pub token: Token,
    /// The claim's nonce.
    pub nonce: Nonce,
}

/// What becomes of a key when its owner's lease runs out. Stored with the claim; the stored one decides (rule K10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OwnerLost {
    /// It becomes unknown: a person or a reconcile hook decides. The default.
    Hold,
    /// The next claimant runs it again, with a larger token. Only for effects that may be repeated.
    Rerun,
}

/// One key's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// What was asked when it was claimed; `None` for a mere withdrawal marker.
    pub fingerprint: Option<Fingerprint>,
    /// Where it stands.
    pub state: State,
}

/// Where a key stands. `absent` is the absence of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Somebody may run it.
    Claimed {
        /// Their right.
        lease: Lease,
        /// What happens when they are lost.
        owner_lost: OwnerLost,
        /// When the right ends.
        until: Timestamp,
        /// Whether it was ever extended: then a repeated claim is a stranger's (rule K3).
        extended: bool,
        /// How many owners it has had.
        attempt: u32,
    },
    /// Its owner was lost; it may have happened.
    Unknown {
        /// The lost owner's right, still good for `complete` and `release` (rule K1).
        lease: Lease,
        /// How many owners it has had.
        attempt: u32,
    },
    /// It is done.
    Done {
        /// The right under which it was done.
        lease: Lease,
        /// What came of it.
        outcome: StoredOutcome,
        /// Until then the outcome is kept.
        retain_until: Timestamp,
        /// Until then it is known that it was done.
        tombstone_until: Timestamp,
    },
    /// It was done once.
    Tombstone {
        /// The right under which it was done.
        lease: Lease,
        /// Digest of the outcome, to recognise a repeated `complete`.
        digest: [u8; 32],
        /// When even this is forgotten.
        until: Timestamp,
    },
    /// Nothing is known but that the claim with this nonce must not be granted (rule K4).
    Withdrawn {
        /// The nonce.
        nonce: Nonce,
        /// When the marker ends.
        until: Timestamp,
    },
}

impl Record {
    /// The record as it reads at `now`, swept or not: an expired `Hold` claim is unknown (rule K1), an outcome past
    /// its retention is a tombstone, and what has ended altogether is `None`.
    #[must_use]
    pub fn at(self, now: Timestamp) -> Option<Self> {
        let Self { fingerprint, state } = self;
        let state = match state {
            State::Claimed {
                lease,
                owner_lost: OwnerLost::Hold,
                until,
                attempt,
                ..
            } if until <= now => State::Unknown { lease, attempt },
            State::Done {
                lease,
                ref outcome,
                retain_until,
                tombstone_until,
            } if retain_until <= now => State::Tombstone {
                lease,
                digest: outcome.digest(),
                until: tombstone_until,
            },
            other => other,
        };
        match state {
            State::Tombstone { until, .. } | State::Withdrawn { until, .. } if until <= now => None,
            state => Some(Self { fingerprint, state }),
        }
    }
}

/// What one sweep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SweepReport {
    /// Expired `Hold` claims now marked unknown.
    pub unknown: u64,
    /// Outcomes dropped, tombstones left.
    pub tombstoned: u64,
    /// Records removed.
    pub removed: u64,
}
