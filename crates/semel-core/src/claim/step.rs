//! The key protocol, one pure function per transition. No clock, no I/O: `now` and `next_token` are passed in.
//!
//! Each function takes the record as stored and returns the record to store, with the reply; [`changes`] says whether
//! it need be written.

use super::{
    Abandonment, Claim, ClaimReply, Completion, Extension, Keep, Lease, LeaseReply, Nonce, OwnerLost, Record,
    Release, Settlement, State, Token, Verdict, Withdrawn,
};
use crate::fingerprint::Fingerprint;
use crate::host::Timestamp;
use crate::outcome::StoredOutcome;

/// Whether a decision changed a record. What merely reads differently because time has passed is left as it is: a
/// sweep tidies it.
#[must_use]
pub fn changes(before: Option<&Record>, after: Option<&Record>, now: Timestamp) -> bool {
    // Most records read as they are stored; then nothing need be copied to find out.
    before != after
        && before.is_none_or(|record| record.is_current(now) || record.clone().at(now).as_ref() != after)
}

/// Decides a claim. `next_token` is larger than every token drawn before; it is used only when the claim is granted
/// anew, and may be skipped over otherwise.
#[must_use]
pub fn claim(
    record: Option<Record>,
    claim: &Claim,
    now: Timestamp,
    next_token: Token,
) -> (Option<Record>, ClaimReply) {
    let Some(record) = record.and_then(|record| record.at(now)) else {
        return grant(claim, now, next_token, 1, Withdrawn::default());
    };
    // A mismatch is judged before anything else (rule K11); an absent key has nothing to compare.
    if record
        .fingerprint
        .is_some_and(|stored| stored != claim.fingerprint)
    {
        return (Some(record), ClaimReply::Mismatch);
    }
    let owners = match &record.state {
        State::Absent => 0,
        State::Claimed {
            lease,
            until,
            extended,
            attempt,
            ..
        } if now < *until => {
            // The reply was lost and the caller asks again: same token, same deadline (rule K3).
            let reply = if lease.nonce == claim.nonce && !extended {
                ClaimReply::Granted {
                    lease: *lease,
                    until: *until,
                    attempt: *attempt,
                }
            } else {
                ClaimReply::Busy {
                    lease_left_ms: left_ms(*until, now),
                }
            };
            return (Some(record), reply);
        }
        // `at` has turned an expired Hold claim into Unknown: this one is Rerun.
        State::Claimed { attempt, .. } => *attempt,
        State::Unknown { lease, .. } => {
            let reply = ClaimReply::Unknown { token: lease.token };
            return (Some(record), reply);
        }
        State::Done {
            outcome,
            retain_until,
            ..
        } => {
            let reply = ClaimReply::Done {
                outcome: outcome.clone(),
                retain_until: *retain_until,
            };
            return (Some(record), reply);
        }
        State::Tombstone { until, .. } => {
            let reply = ClaimReply::Gone { until: *until };
            return (Some(record), reply);
        }
    };
    if record.withdrawn.nonces.contains(&claim.nonce) {
        return (Some(record), ClaimReply::Withdrawn);
    }
    grant(claim, now, next_token, owners.saturating_add(1), record.withdrawn)
}

fn grant(
    claim: &Claim,
    now: Timestamp,
    token: Token,
    attempt: u32,
    withdrawn: Withdrawn,
) -> (Option<Record>, ClaimReply) {
    let lease = Lease {
        token,
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
        withdrawn,
    };
    let reply = ClaimReply::Granted {
        lease,
        until,
        attempt,
    };
    (Some(record), reply)
}

/// Milliseconds from `now` to `until`, rounded up: whoever waits so long finds the lease ended.
const fn left_ms(until: Timestamp, now: Timestamp) -> i64 {
    until.0.saturating_sub(now.0).saturating_add(999) / 1_000
}

/// Decides a completion. Time alone never refuses it (rule K1); a repeat with the same outcome is `Ok` (rule K2).
#[must_use]
pub fn complete(record: Option<Record>, done: &Completion, now: Timestamp) -> (Option<Record>, LeaseReply) {
    let Some(record) = record.and_then(|record| record.at(now)) else {
        return (None, LeaseReply::LeaseLost);
    };
    let reply = match &record.state {
        State::Claimed { lease, .. } | State::Unknown { lease, .. } if *lease == done.lease => {
            return finish(
                record.fingerprint,
                done.lease,
                &done.outcome,
                done.keep,
                record.withdrawn,
                now,
            );
        }
        State::Done { lease, .. } | State::Tombstone { lease, .. } if *lease == done.lease => {
            repeated(&record.state, &done.outcome)
        }
        State::Absent
        | State::Claimed { .. }
        | State::Unknown { .. }
        | State::Done { .. }
        | State::Tombstone { .. } => LeaseReply::LeaseLost,
    };
    (Some(record), reply)
}

fn finish(
    fingerprint: Option<Fingerprint>,
    lease: Lease,
    outcome: &StoredOutcome,
    keep: Keep,
    withdrawn: Withdrawn,
    now: Timestamp,
) -> (Option<Record>, LeaseReply) {
    let retain_until = now.plus_ms(keep.retention_ms);
    let state = State::Done {
        lease,
        outcome: outcome.clone(),
        retain_until,
        tombstone_until: retain_until.plus_ms(keep.tombstone_ms),
    };
    let record = Record {
        fingerprint,
        state,
        withdrawn,
    };
    (Some(record), LeaseReply::Ok(retain_until))
}

/// The reply to an outcome for a run that has one already.
fn repeated(state: &State, again: &StoredOutcome) -> LeaseReply {
    match state {
        State::Done {
            outcome,
            retain_until,
            ..
        } if outcome.digest() == again.digest() => LeaseReply::Ok(*retain_until),
        State::Tombstone { digest, until, .. } if *digest == again.digest() => LeaseReply::Ok(*until),
        _ => LeaseReply::Conflict,
    }
}

/// Decides an extension: a current owner may extend, also late; then the key is claimed again.
#[must_use]
pub fn extend(record: Option<Record>, wish: &Extension, now: Timestamp) -> (Option<Record>, LeaseReply) {
    let Some(record) = record.and_then(|record| record.at(now)) else {
        return (None, LeaseReply::LeaseLost);
    };
    let (owner_lost, attempt, ends) = match &record.state {
        State::Claimed {
            lease,
            owner_lost,
            attempt,
            until,
            ..
        } if *lease == wish.lease => (*owner_lost, *attempt, *until),
        // Only Hold claims become unknown.
        State::Unknown { lease, attempt } if *lease == wish.lease => (OwnerLost::Hold, *attempt, now),
        _ => return (Some(record), LeaseReply::LeaseLost),
    };
    let until = now.plus_ms(wish.lease_ms).max(ends);
    let state = State::Claimed {
        lease: wish.lease,
        owner_lost,
        until,
        extended: true,
        attempt,
    };
    (Some(Record { state, ..record }), LeaseReply::Ok(until))
}

/// Decides an abandonment: a `Hold` claim is unknown from now on, a `Rerun` claim free for the next claimant.
#[must_use]
pub fn abandon(
    record: Option<Record>,
    abandonment: &Abandonment,
    now: Timestamp,
) -> (Option<Record>, LeaseReply) {
    let Some(record) = record.and_then(|record| record.at(now)) else {
        return (None, LeaseReply::LeaseLost);
    };
    let state = match &record.state {
        State::Claimed {
            lease,
            owner_lost,
            until,
            attempt,
            ..
        } if *lease == abandonment.lease => match owner_lost {
            OwnerLost::Hold => State::Unknown {
                lease: *lease,
                attempt: *attempt,
            },
            OwnerLost::Rerun => State::Claimed {
                lease: *lease,
                owner_lost: OwnerLost::Rerun,
                until: now.min(*until),
                // A repeated claim under the same nonce is a stranger's from now on.
                extended: true,
                attempt: *attempt,
            },
        },
        State::Unknown { lease, .. } if *lease == abandonment.lease => {
            return (Some(record), LeaseReply::Ok(now));
        }
        State::Done { lease, .. } | State::Tombstone { lease, .. } if *lease == abandonment.lease => {
            return (Some(record), LeaseReply::Conflict);
        }
        _ => return (Some(record), LeaseReply::LeaseLost),
    };
    (Some(Record { state, ..record }), LeaseReply::Ok(now))
}

/// Decides a release: the key is absent afterwards if this nonce held it, and the nonce is spent (rule K4).
#[must_use]
pub fn release(record: Option<Record>, release: &Release, now: Timestamp) -> (Option<Record>, LeaseReply) {
    let ok = LeaseReply::Ok(now);
    let stored = record.clone();
    let Some(record) = record.and_then(|record| record.at(now)) else {
        return (freed(Withdrawn::default(), release.nonce, now), ok);
    };
    let mine = |lease: &Lease| {
        lease.nonce == release.nonce && release.token.is_none_or(|token| token == lease.token)
    };
    match &record.state {
        State::Absent => (freed(record.withdrawn, release.nonce, now), ok),
        State::Claimed { lease, .. } | State::Unknown { lease, .. } if mine(lease) => {
            (freed(record.withdrawn, release.nonce, now), ok)
        }
        State::Done { lease, .. } | State::Tombstone { lease, .. } if mine(lease) => {
            (Some(record), LeaseReply::Conflict)
        }
        // Somebody else's run: that one goes on, but this nonce must not be granted after it.
        _ if release.token.is_none() => {
            let withdrawn = record.withdrawn.with(release.nonce, now);
            (stored.map(|stored| Record { withdrawn, ..stored }), ok)
        }
        _ => (Some(record), LeaseReply::LeaseLost),
    }
}

fn freed(withdrawn: Withdrawn, nonce: Nonce, now: Timestamp) -> Option<Record> {
    Some(Record {
        fingerprint: None,
        state: State::Absent,
        withdrawn: withdrawn.with(nonce, now),
    })
}

/// Decides a settlement of an unknown key, or the closing of any key. A repeat of the same verdict is `Ok`.
#[must_use]
pub fn settle(
    record: Option<Record>,
    settlement: &Settlement,
    now: Timestamp,
) -> (Option<Record>, LeaseReply) {
    let Settlement {
        token, verdict, keep, ..
    } = settlement;
    if *verdict == Verdict::Closed {
        return close(record, *token, *keep, now);
    }
    // Nothing is there to hold an outcome; that nothing happened is already so.
    let absent = match verdict {
        Verdict::Happened(_) => LeaseReply::LeaseLost,
        Verdict::DidNotHappen | Verdict::Closed => LeaseReply::Ok(now),
    };
    let Some(record) = record.and_then(|record| record.at(now)) else {
        return (None, absent);
    };
    match (&record.state, verdict) {
        (State::Absent, _) => (Some(record), absent),
        (State::Unknown { lease, .. }, Verdict::Happened(outcome)) if lease.token == *token => {
            finish(record.fingerprint, *lease, outcome, *keep, record.withdrawn, now)
        }
        (State::Unknown { lease, .. }, Verdict::DidNotHappen | Verdict::Closed) if lease.token == *token => {
            (freed(record.withdrawn, lease.nonce, now), LeaseReply::Ok(now))
        }
        (State::Done { lease, .. } | State::Tombstone { lease, .. }, verdict) if lease.token == *token => {
            let reply = match verdict {
                Verdict::Happened(outcome) => repeated(&record.state, outcome),
                Verdict::DidNotHappen | Verdict::Closed => LeaseReply::Conflict,
            };
            (Some(record), reply)
        }
        _ => (Some(record), LeaseReply::LeaseLost),
    }
}

/// Leaves a tombstone of whatever a key holds (rule K13).
fn close(record: Option<Record>, token: Token, keep: Keep, now: Timestamp) -> (Option<Record>, LeaseReply) {
    let Some(record) = record.and_then(|record| record.at(now)) else {
        return (None, LeaseReply::Ok(now));
    };
    let least = now.plus_ms(keep.retention_ms).plus_ms(keep.tombstone_ms);
    let (lease, digest, until) = match &record.state {
        State::Absent => return (Some(record), LeaseReply::Ok(now)),
        State::Claimed { lease, .. } | State::Unknown { lease, .. } if lease.token == token => {
            (*lease, StoredOutcome::Forgotten.digest(), least)
        }
        State::Done {
            lease,
            outcome,
            tombstone_until,
            ..
        } if lease.token == token => (*lease, outcome.digest(), least.max(*tombstone_until)),
        State::Tombstone { lease, until, .. } if lease.token == token => {
            let until = *until;
            return (Some(record), LeaseReply::Ok(until));
        }
        _ => return (Some(record), LeaseReply::LeaseLost),
    };
    let state = State::Tombstone { lease, digest, until };
    (Some(Record { state, ..record }), LeaseReply::Ok(until))
}
