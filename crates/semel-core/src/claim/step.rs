//! The key protocol, one pure function per transition. No clock, no I/O: `now` and `next_token` are passed in.
//!
//! Each function takes the record as stored and returns the record to store, with the reply. Equal records mean
//! that nothing need be written.

use super::{
    Claim, ClaimReply, Completion, Extension, Lease, LeaseReply, OwnerLost, Record, Release, Settlement,
    State, Token,
};
use crate::host::Timestamp;

/// How long a withdrawal marker refuses its nonce: longer than a request can be on its way.
pub const WITHDRAWN_MS: i64 = 60_000;

/// Decides a claim. `next_token` is larger than every token drawn before; it is used only when the claim is granted
/// anew, and may be skipped over otherwise.
#[must_use]
pub fn claim(
    record: Option<Record>,
    claim: &Claim,
    now: Timestamp,
    next_token: Token,
) -> (Option<Record>, ClaimReply) {
    let grant = |attempt| {
        let lease = Lease {
            token: next_token,
            nonce: claim.nonce,
        };
        let until = now.plus_ms(claim.lease_ms);
        let state = State::Claimed {
            lease,
            owner_lost: claim.owner_lost,
            until,
            extended: false,
            attempt,
        };
        let record = Record {
            fingerprint: Some(claim.fingerprint),
            state,
        };
        (
            Some(record),
            ClaimReply::Granted {
                lease,
                until,
                attempt,
            },
        )
    };
    let Some(record) = record.and_then(|record| record.at(now)) else {
        return grant(1);
    };
    // A mismatch is judged before anything else (rule K11); a marker has nothing to compare.
    if record
        .fingerprint
        .is_some_and(|stored| stored != claim.fingerprint)
    {
        return (Some(record), ClaimReply::Mismatch);
    }
    let reply = match &record.state {
        State::Withdrawn { nonce, .. } if *nonce == claim.nonce => ClaimReply::Withdrawn,
        State::Withdrawn { .. } => return grant(1),
        State::Claimed {
            lease,
            until,
            extended,
            attempt,
            ..
        } if now < *until => {
            if lease.nonce == claim.nonce && !extended {
                ClaimReply::Granted {
                    lease: *lease,
                    until: *until,
                    attempt: *attempt,
                }
            } else {
                ClaimReply::Busy {
                    lease_left_ms: until.ms_since(now).max(1),
                }
            }
        }
        // `at` has turned an expired Hold claim into Unknown, so this one may be run again.
        State::Claimed {
            owner_lost: OwnerLost::Rerun | OwnerLost::Hold,
            attempt,
            ..
        } => {
            return grant(attempt.saturating_add(1));
        }
        State::Unknown { lease, .. } => ClaimReply::Unknown { token: lease.token },
        State::Done {
            outcome,
            retain_until,
            ..
        } => ClaimReply::Done {
            outcome: outcome.clone(),
            retain_until: *retain_until,
        },
        State::Tombstone { until, .. } => ClaimReply::Gone { until: *until },
    };
    (Some(record), reply)
}

/// Decides a completion. Time alone never refuses it (rule K1); a repeat with the same outcome is `Ok` (rule K2).
#[must_use]
pub fn complete(record: Option<Record>, done: &Completion, now: Timestamp) -> (Option<Record>, LeaseReply) {
    let Some(record) = record.and_then(|record| record.at(now)) else {
        return (None, LeaseReply::LeaseLost);
    };
    let reply = match &record.state {
        State::Claimed { lease, .. } | State::Unknown { lease, .. } if *lease == done.lease => {
            let retain_until = now.plus_ms(done.retention_ms);
            let state = State::Done {
                lease: done.lease,
                outcome: done.outcome.clone(),
                retain_until,
                tombstone_until: retain_until.plus_ms(done.tombstone_ms),
            };
            let record = Record {
                fingerprint: record.fingerprint,
                state,
            };
            return (Some(record), LeaseReply::Ok(retain_until));
        }
        State::Done {
            lease,
            outcome,
            retain_until,
            ..
        } if *lease == done.lease => {
            if outcome.digest() == done.outcome.digest() {
                LeaseReply::Ok(*retain_until)
            } else {
                LeaseReply::Conflict
            }
        }
        State::Tombstone { lease, digest, until } if *lease == done.lease => {
            if *digest == done.outcome.digest() {
                LeaseReply::Ok(*until)
            } else {
                LeaseReply::Conflict
            }
        }
        State::Claimed { .. }
        | State::Unknown { .. }
        | State::Done { .. }
        | State::Tombstone { .. }
        | State::Withdrawn { .. } => LeaseReply::LeaseLost,
    };
    (Some(record), reply)
}

/// Decides an extension: a current owner may extend, also late; then the key is claimed again.
#[must_use]
pub fn extend(record: Option<Record>, wish: &Extension, now: Timestamp) -> (Option<Record>, LeaseReply) {
    let Some(record) = record else {
        return (None, LeaseReply::LeaseLost);
    };
    let (owner_lost, attempt) = match &record.state {
        State::Claimed {
            lease,
            owner_lost,
            attempt,
            ..
        } if *lease == wish.lease => (*owner_lost, *attempt),
        // Only Hold claims become unknown.
        State::Unknown { lease, attempt } if *lease == wish.lease => (OwnerLost::Hold, *attempt),
        _ => return (record.at(now), LeaseReply::LeaseLost),
    };
    let until = now.plus_ms(wish.lease_ms);
    let state = State::Claimed {
        lease: wish.lease,
        owner_lost,
        until,
        extended: true,
        attempt,
    };
    (
        Some(Record {
            fingerprint: record.fingerprint,
            state,
        }),
        LeaseReply::Ok(until),
    )
}

/// Decides a release. With a token: the key is absent afterwards. Without: a marker refuses the nonce (rule K4).
#[must_use]
pub fn release(record: Option<Record>, release: &Release, now: Timestamp) -> (Option<Record>, LeaseReply) {
    let record = record.and_then(|record| record.at(now));
    let marker = || {
        let state = State::Withdrawn {
            nonce: release.nonce,
            until: now.plus_ms(WITHDRAWN_MS),
        };
        Some(Record {
            fingerprint: None,
            state,
        })
    };
    let mine = |lease: &Lease| {
        lease.nonce == release.nonce && release.token.is_none_or(|token| token == lease.token)
    };
    match &record {
        None if release.token.is_some() => (None, LeaseReply::Ok(now)),
        None => (marker(), LeaseReply::Ok(now)),
        Some(held) => match &held.state {
            State::Claimed { lease, .. } | State::Unknown { lease, .. } if mine(lease) => (
                if release.token.is_some() { None } else { marker() },
                LeaseReply::Ok(now),
            ),
            State::Withdrawn { .. } if release.token.is_some() => (record, LeaseReply::Ok(now)),
            State::Withdrawn { .. } => (marker(), LeaseReply::Ok(now)),
            State::Claimed { .. } | State::Unknown { .. } | State::Done { .. } | State::Tombstone { .. } => {
                (record, LeaseReply::LeaseLost)
            }
        },
    }
}

/// Decides a settlement of an unknown key. `token` names the run that was judged: a later one is not touched.
#[must_use]
pub fn settle(
    record: Option<Record>,
    token: Token,
    verdict: &Settlement,
    retention_ms: i64,
    tombstone_ms: i64,
    now: Timestamp,
) -> (Option<Record>, LeaseReply) {
    let Some(record) = record.and_then(|record| record.at(now)) else {
        return (None, LeaseReply::LeaseLost);
    };
    match (&record.state, verdict) {
        (State::Unknown { lease, .. }, Settlement::Happened(outcome)) if lease.token == token => {
            let retain_until = now.plus_ms(retention_ms);
            let tombstone_until = retain_until.plus_ms(tombstone_ms);
            let state = State::Done {
                lease: *lease,
                outcome: outcome.clone(),
                retain_until,
                tombstone_until,
            };
            (
                Some(Record {
                    fingerprint: record.fingerprint,
                    state,
                }),
                LeaseReply::Ok(retain_until),
            )
        }
        (State::Unknown { lease, .. }, Settlement::DidNotHappen) if lease.token == token => {
            (None, LeaseReply::Ok(now))
        }
        _ => (Some(record), LeaseReply::LeaseLost),
    }
}
