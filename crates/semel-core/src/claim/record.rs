//! What a store keeps about a key.

use crate::fingerprint::Fingerprint;
use crate::host::Timestamp;
use crate::key::hex;
use crate::outcome::StoredOutcome;

/// How long a withdrawal refuses its nonce: longer than a claim can be on its way.
pub const WITHDRAWN_MS: i64 = 60_000;
/// Withdrawn nonces that one key remembers; the oldest go first.
pub const WITHDRAWN_NONCES_MAX: usize = 8;
/// How long a sweep leaves a record that has ended. A claim that drew its token before the record's last one cannot
/// still be waiting to be written when the record is gone, so a token never goes back.
pub const REMOVE_GRACE_MS: i64 = 60_000;

/// How long after its lease's end a claim that may be run again is kept when nobody retries it: 31 days, as long as an ended
/// record by default. Then nothing is known of it any more, as of that one.
pub const RERUN_KEPT_MS: i64 = 31 * 24 * 3_600_000;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OwnerLost {
    /// It becomes unknown: a person or a reconcile hook decides.
    #[default]
    Hold,
    /// The next claimant runs it again, with a larger token. Only for effects that may be repeated.
    Rerun,
}

/// One key's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// What was asked when it was claimed; `None` exactly when the state is [`State::Absent`].
    pub fingerprint: Option<Fingerprint>,
    /// Where it stands.
    pub state: State,
    /// Nonces that must not be granted any more.
    pub withdrawn: Withdrawn,
}

/// Where a key stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// As if there were no record: it only remembers withdrawn nonces.
    Absent,
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
        /// The lost owner's right, still good for `complete`, `extend` and `release` (rule K1).
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
    /// It was done or refused once; which of the two is no longer kept.
    Tombstone {
        /// The right under which it was done.
        lease: Lease,
        /// Digest of the outcome, to recognise a repeated `complete`.
        digest: [u8; 32],
        /// When even this is forgotten.
        until: Timestamp,
    },
}

/// Where a key stands, without the details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StateName {
    /// Somebody may run it.
    Claimed,
    /// Its owner was lost; it may have happened.
    Unknown,
    /// It is done, its outcome is kept.
    Done,
    /// It was done or refused once; which of the two is no longer kept.
    Tombstone,
}

impl StateName {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Claimed, Self::Unknown, Self::Done, Self::Tombstone];

    /// The word in SQL, in the API and on the console.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Claimed => "claimed",
            Self::Unknown => "unknown",
            Self::Done => "done",
            Self::Tombstone => "tombstone",
        }
    }
}

impl State {
    /// Its name; `None` for [`State::Absent`].
    #[must_use]
    pub const fn name(&self) -> Option<StateName> {
        match self {
            Self::Absent => None,
            Self::Claimed { .. } => Some(StateName::Claimed),
            Self::Unknown { .. } => Some(StateName::Unknown),
            Self::Done { .. } => Some(StateName::Done),
            Self::Tombstone { .. } => Some(StateName::Tombstone),
        }
    }
}

/// Nonces of claims whose senders have left (rule K4): should such a claim still arrive, it is not granted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Withdrawn {
    /// The nonces, the newest last; at most [`WITHDRAWN_NONCES_MAX`].
    pub nonces: Vec<Nonce>,
    /// When all of them are forgotten.
    pub until: Timestamp,
}

impl Withdrawn {
    /// What is left of it at `now`.
    #[must_use]
    pub fn at(self, now: Timestamp) -> Self {
        if self.until <= now { Self::default() } else { self }
    }

    /// Remembers one more.
    #[must_use]
    pub fn with(self, nonce: Nonce, now: Timestamp) -> Self {
        let mut nonces = self.at(now).nonces;
        if !nonces.contains(&nonce) {
            nonces.push(nonce);
        }
        if nonces.len() > WITHDRAWN_NONCES_MAX {
            nonces.remove(0);
        }
        Self {
            nonces,
            until: now.plus_ms(WITHDRAWN_MS),
        }
    }
}

impl Record {
    /// The record as it reads at `now`, swept or not: an expired `Hold` claim is unknown (rule K1), an outcome past
    /// its retention is a tombstone, and what has ended altogether is `None`.
    #[must_use]
    pub fn at(self, now: Timestamp) -> Option<Self> {
        let withdrawn = self.withdrawn.at(now);
        let (fingerprint, state) = match self.state {
            State::Claimed {
                lease,
                owner_lost: OwnerLost::Hold,
                until,
                attempt,
                ..
            } if until <= now => (self.fingerprint, State::Unknown { lease, attempt }),
            State::Done {
                tombstone_until: until,
                ..
            }
            | State::Tombstone { until, .. }
                if until <= now =>
            {
                (None, State::Absent)
            }
            State::Done {
                lease,
                ref outcome,
                retain_until,
                tombstone_until,
            } if retain_until <= now => {
                let state = State::Tombstone {
                    lease,
                    digest: outcome.digest(),
                    until: tombstone_until,
                };
                (self.fingerprint, state)
            }
            other => (self.fingerprint, other),
        };
        if state == State::Absent && withdrawn.nonces.is_empty() {
            return None;
        }
        Some(Self {
            fingerprint,
            state,
            withdrawn,
        })
    }

    /// Whether it reads at `now` just as it is stored ([`Record::at`] changes nothing).
    #[must_use]
    pub fn is_current(&self, now: Timestamp) -> bool {
        let state = match &self.state {
            State::Absent => !self.withdrawn.nonces.is_empty(),
            State::Claimed {
                owner_lost: OwnerLost::Hold,
                until,
                ..
            } => now < *until,
            State::Claimed { .. } | State::Unknown { .. } => true,
            State::Done {
                retain_until,
                tombstone_until,
                ..
            } => now < *retain_until && now < *tombstone_until,
            State::Tombstone { until, .. } => now < *until,
        };
        state && (now < self.withdrawn.until || self.withdrawn == Withdrawn::default())
    }

    /// The right under which it is run or was done.
    #[must_use]
    pub const fn lease(&self) -> Option<Lease> {
        match &self.state {
            State::Absent => None,
            State::Claimed { lease, .. }
            | State::Unknown { lease, .. }
            | State::Done { lease, .. }
            | State::Tombstone { lease, .. } => Some(*lease),
        }
    }

    /// The record as a reader sees it at `now`: a key that is absent is `None`, whatever it remembers.
    #[must_use]
    pub fn visible_at(self, now: Timestamp) -> Option<Self> {
        self.at(now).filter(|record| record.state != State::Absent)
    }

    /// Bytes of the stored outcome.
    #[must_use]
    pub fn outcome_bytes(&self) -> u64 {
        match &self.state {
            State::Done { outcome, .. } => outcome.bytes().len() as u64,
            _ => 0,
        }
    }

    /// When a sweep has something to do with it; `None` while only an owner, a claimant or a person can move it.
    #[must_use]
    pub fn due(&self) -> Option<Timestamp> {
        match &self.state {
            State::Claimed {
                owner_lost: OwnerLost::Hold,
                until,
                ..
            } => Some(*until),
            State::Unknown { .. } => None,
            State::Done { retain_until, .. } => Some(*retain_until),
            State::Absent | State::Tombstone { .. } | State::Claimed { .. } => self.removable(),
        }
    }

    /// When nothing of it matters any more.
    fn removable(&self) -> Option<Timestamp> {
        let end = match &self.state {
            State::Claimed {
                owner_lost: OwnerLost::Rerun,
                until,
                ..
            } => until.plus_ms(RERUN_KEPT_MS),
            State::Claimed { .. } | State::Unknown { .. } => return None,
            State::Done { tombstone_until, .. } => *tombstone_until,
            State::Tombstone { until, .. } => *until,
            State::Absent => Timestamp::default(),
        };
        Some(end.max(self.withdrawn.until).plus_ms(REMOVE_GRACE_MS))
    }

    /// What a sweep makes of it at `now`, and which change that was.
    #[must_use]
    pub fn swept(self, now: Timestamp) -> (Option<Self>, Option<Swept>) {
        if self.removable().is_some_and(|end| end <= now) {
            return (None, Some(Swept::Removed));
        }
        let Self {
            fingerprint,
            state,
            withdrawn,
        } = self;
        let (state, swept) = match state {
            State::Claimed {
                lease,
                owner_lost: OwnerLost::Hold,
                until,
                attempt,
                ..
            } if until <= now => (State::Unknown { lease, attempt }, Some(Swept::Unknown)),
            State::Done {
                lease,
                ref outcome,
                retain_until,
                tombstone_until,
            } if retain_until <= now => {
                let state = State::Tombstone {
                    lease,
                    digest: outcome.digest(),
                    until: tombstone_until,
                };
                (state, Some(Swept::Tombstoned))
            }
            other => (other, None),
        };
        let record = Self {
            fingerprint,
            state,
            withdrawn,
        };
        (Some(record), swept)
    }
}

/// What a sweep did to one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swept {
    /// An expired `Hold` claim became unknown.
    Unknown,
    /// An outcome was dropped, a tombstone is left.
    Tombstoned,
    /// The record is gone.
    Removed,
}

/// What one sweep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SweepReport {
    /// Expired `Hold` claims now marked unknown.
    pub unknown: u64,
    /// Outcomes dropped, tombstones left.
    pub tombstoned: u64,
    /// Records removed, and claims that may be run again and that nobody has retried for [`RERUN_KEPT_MS`].
    pub removed: u64,
}

impl SweepReport {
    /// Counts one change.
    pub const fn count(&mut self, swept: Swept) {
        match swept {
            Swept::Unknown => self.unknown += 1,
            Swept::Tombstoned => self.tombstoned += 1,
            Swept::Removed => self.removed += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both sides of every moment at which a record begins to read differently.
    #[test]
    fn a_record_is_current_exactly_as_long_as_it_reads_as_it_is_stored() {
        let lease = Lease {
            token: Token(7),
            nonce: Nonce::random(),
        };
        let claimed = |owner_lost| State::Claimed {
            lease,
            owner_lost,
            until: Timestamp(100_000_000),
            extended: false,
            attempt: 1,
        };
        let done = |retain_until, tombstone_until| State::Done {
            lease,
            outcome: StoredOutcome::Forgotten,
            retain_until: Timestamp(retain_until),
            tombstone_until: Timestamp(tombstone_until),
        };
        let states = [
            State::Absent,
            claimed(OwnerLost::Hold),
            claimed(OwnerLost::Rerun),
            State::Unknown { lease, attempt: 1 },
            done(100_000_000, 200_000_000),
            done(200_000_000, 100_000_000),
            State::Tombstone {
                lease,
                digest: [0; 32],
                until: Timestamp(100_000_000),
            },
        ];
        let withdrawn = Withdrawn::default().with(Nonce::random(), Timestamp(50_000_000));
        let moments = [100_000_000, 200_000_000, withdrawn.until.0];
        for state in states {
            for withdrawn in [Withdrawn::default(), withdrawn.clone()] {
                let record = Record {
                    fingerprint: (state != State::Absent).then(|| Fingerprint::of(b"asked")),
                    state: state.clone(),
                    withdrawn,
                };
                for now in moments.iter().flat_map(|at| [at - 1, *at, at + 1]).map(Timestamp) {
                    let same = record.clone().at(now).as_ref() == Some(&record);
                    assert_eq!(record.is_current(now), same, "{record:?} at {now:?}");
                }
            }
        }
    }
}
