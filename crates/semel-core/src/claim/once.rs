//! A key inside the user's own transaction: mark and effect commit together, or neither does.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::request::{Claim, ClaimReply, Completion, Keep};
use super::{Lease, Nonce, OwnerLost, Record, Token, step};
use crate::fingerprint::Fingerprint;
use crate::host::Timestamp;
use crate::key::Key;
use crate::outcome::StoredOutcome;

/// What a transaction may do about a key. `P` is what the first one gets.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "only `First` may run"]
pub enum Once<P> {
    /// Run it in this transaction. The key is marked as done already: it is so once this transaction commits, and it
    /// is as if it had never been asked if it does not.
    First(P),
    /// It is done; here is what came of it.
    Done {
        /// The stored outcome.
        outcome: StoredOutcome,
        /// How long a retry will still see it.
        retain_until: Timestamp,
    },
    /// Somebody runs it now, under a claim or in other transactions.
    Busy {
        /// Milliseconds until that claim's lease ends; 0 when it is not known.
        lease_left_ms: i64,
    },
    /// It was claimed, its owner was lost and it may have happened. A person or a reconcile hook decides.
    Unknown {
        /// The lost owner's token, needed to settle it.
        token: Token,
    },
    /// The key was used for something else.
    Mismatch,
    /// It was done once; the outcome is no longer kept.
    Gone {
        /// When the tombstone ends.
        until: Timestamp,
    },
}

impl<P> Once<P> {
    /// The same answer, with another thing for the first.
    pub fn map_first<Q>(self, first: impl FnOnce(P) -> Q) -> Once<Q> {
        match self {
            Self::First(it) => Once::First(first(it)),
            Self::Done {
                outcome,
                retain_until,
            } => Once::Done {
                outcome,
                retain_until,
            },
            Self::Busy { lease_left_ms } => Once::Busy { lease_left_ms },
            Self::Unknown { token } => Once::Unknown { token },
            Self::Mismatch => Once::Mismatch,
            Self::Gone { until } => Once::Gone { until },
        }
    }
}

/// Decides a key inside a transaction: by the same rules as a claim (rule K6), so that what is claimed or unknown is
/// never passed; what is granted is marked as done at once, with the note that no outcome is kept yet.
pub fn decide(
    record: Option<Record>,
    key: &Key,
    fingerprint: Fingerprint,
    keep: Keep,
    now: Timestamp,
    fresh: Lease,
) -> (Option<Record>, Once<Lease>) {
    let claim = Claim {
        key: key.clone(),
        fingerprint,
        nonce: fresh.nonce,
        // The claim lasts for no time at all: it is completed in the same step.
        owner_lost: OwnerLost::Hold,
        lease_ms: 1,
    };
    let (record, reply) = step::claim(record, &claim, now, fresh.token);
    let once = match reply {
        ClaimReply::Granted { lease, .. } => {
            let done = Completion {
                key: claim.key,
                lease,
                outcome: StoredOutcome::Forgotten,
                keep,
            };
            return (step::complete(record, &done, now).0, Once::First(lease));
        }
        ClaimReply::Done {
            outcome,
            retain_until,
        } => Once::Done {
            outcome,
            retain_until,
        },
        ClaimReply::Busy { lease_left_ms } => Once::Busy { lease_left_ms },
        ClaimReply::Unknown { token } => Once::Unknown { token },
        ClaimReply::Mismatch => Once::Mismatch,
        ClaimReply::Gone { until } => Once::Gone { until },
        // The nonce was drawn for this very call, so nobody has withdrawn it; whatever this is, it may not run.
        ClaimReply::Withdrawn => Once::Busy { lease_left_ms: 0 },
    };
    (record, once)
}

/// Draws what [`decide`] needs beside the token.
#[must_use]
pub fn fresh(token: Token) -> Lease {
    Lease {
        token,
        nonce: Nonce::random(),
    }
}

/// How many transactions of this process wait for each key. A duplicate that waits for another transaction holds a
/// connection; without a cap the duplicates of one slow key take the whole pool (rule K6).
#[derive(Debug, Default)]
pub struct Waiters(Mutex<Option<HashMap<Key, u32>>>);

impl Waiters {
    /// Nobody waits.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Counts one more until the guard is dropped; `None` when so many wait already.
    #[must_use]
    pub fn enter(&self, key: &Key, waiters_max: u32) -> Option<Waiting<'_>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = all.get_or_insert_default().entry(key.clone()).or_default();
        if *waiting >= waiters_max {
            return None;
        }
        *waiting += 1;
        Some(Waiting {
            all: self,
            key: key.clone(),
        })
    }
}

/// One that waits.
#[derive(Debug)]
pub struct Waiting<'a> {
    all: &'a Waiters,
    key: Key,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut all = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = all.get_or_insert_default();
        if let Some(waiting) = all.get_mut(&self.key) {
            *waiting = waiting.saturating_sub(1);
            if *waiting == 0 {
                all.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Scope;

    #[test]
    fn waiters_are_capped_per_key_and_counted_down() {
        let waiters = Waiters::new();
        let key = |id| Key::new(Scope::new("s").unwrap(), id).unwrap();
        let one = waiters.enter(&key("a"), 2).unwrap();
        let _two = waiters.enter(&key("a"), 2).unwrap();
        assert!(waiters.enter(&key("a"), 2).is_none());
        assert!(
            waiters.enter(&key("b"), 2).is_some(),
            "another key is not concerned"
        );
        drop(one);
        assert!(waiters.enter(&key("a"), 2).is_some());
    }
}
