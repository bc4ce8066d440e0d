//! A record as the two values that a row of `semel_key` keeps of it: nobody searches in either
//! ([decision 0039](../../../../docs/decisions/0039-a-row-of-a-key-on-sqlite-is-packed.md)).
//!
//! `outcome` has the outcome's bytes, so that they can be counted; `record` all else: a version, the state, the outcome's
//! code or 0, a count of withdrawn nonces; then, numbers big endian and each only where its state has it, fingerprint (33
//! bytes), token (8), nonce (16), owner lost and extended (1), attempt (4), until (8), tombstone until (8), digest (32); then
//! until when nonces are withdrawn (8) and those (16 each).

use bytes::Bytes;
use semel_core::claim::{Lease, Nonce, OwnerLost, Record, State, Token, Withdrawn};
use semel_core::{ErrorKind, Fingerprint, StoreError, StoredOutcome, Timestamp};

const VERSION: u8 = 1;

const ABSENT: u8 = 0;
const CLAIMED: u8 = 1;
const UNKNOWN: u8 = 2;
const DONE: u8 = 3;
const TOMBSTONE: u8 = 4;

const HOLD: u8 = 1;
const EXTENDED: u8 = 2;

/// What most records take.
const ROOM: usize = 96;

/// The column `state`: what can be searched for.
pub(crate) const fn state(record: &Record) -> &'static str {
    match record.state.name() {
        Some(name) => name.as_str(),
        None => "absent",
    }
}

/// The column `outcome`.
pub(crate) fn outcome(record: &Record) -> Option<&[u8]> {
    match &record.state {
        State::Done { outcome, .. } => Some(outcome.bytes()),
        _ => None,
    }
}

/// The column `record`.
pub(crate) fn pack(record: &Record) -> Vec<u8> {
    let (state, code) = match &record.state {
        State::Absent => (ABSENT, 0),
        State::Claimed { .. } => (CLAIMED, 0),
        State::Unknown { .. } => (UNKNOWN, 0),
        State::Done { outcome, .. } => (DONE, outcome.code().as_bytes().first().copied().unwrap_or(0)),
        State::Tombstone { .. } => (TOMBSTONE, 0),
    };
    let Withdrawn {
        nonces,
        until: forgotten,
    } = &record.withdrawn;
    let mut bytes = Vec::with_capacity(ROOM);
    // A record remembers eight of them at most.
    bytes.extend([
        VERSION,
        state,
        code,
        u8::try_from(nonces.len()).unwrap_or(u8::MAX),
    ]);
    if let Some(fingerprint) = record.fingerprint {
        bytes.extend(fingerprint.to_bytes());
    }
    if let Some(lease) = record.lease() {
        bytes.extend(lease.token.0.to_be_bytes());
        bytes.extend(lease.nonce.0);
    }
    match &record.state {
        State::Absent => {}
        State::Claimed {
            owner_lost,
            until,
            extended,
            attempt,
            ..
        } => {
            let hold = if *owner_lost == OwnerLost::Hold { HOLD } else { 0 };
            bytes.push(hold | if *extended { EXTENDED } else { 0 });
            bytes.extend(attempt.to_be_bytes());
            bytes.extend(until.0.to_be_bytes());
        }
        State::Unknown { attempt, .. } => bytes.extend(attempt.to_be_bytes()),
        State::Done {
            retain_until,
            tombstone_until,
            ..
        } => {
            bytes.extend(retain_until.0.to_be_bytes());
            bytes.extend(tombstone_until.0.to_be_bytes());
        }
        State::Tombstone { digest, until, .. } => {
            bytes.extend(until.0.to_be_bytes());
            bytes.extend(digest);
        }
    }
    if !nonces.is_empty() {
        bytes.extend(forgotten.0.to_be_bytes());
        bytes.extend(nonces.iter().flat_map(|nonce| nonce.0));
    }
    bytes
}

/// Reads a row.
///
/// # Errors
/// `Corrupt`: this build cannot read it.
pub(crate) fn unpack(state: &str, record: &[u8], outcome: Option<&[u8]>) -> Result<Record, StoreError> {
    read(record, outcome)
        .filter(|record| self::state(record) == state)
        .ok_or_else(|| {
            let text = format!("the stored record of a key (state {state:?}) cannot be read by this build");
            StoreError::new(ErrorKind::Corrupt, "read", text)
        })
}

fn read(mut bytes: &[u8], outcome: Option<&[u8]>) -> Option<Record> {
    let from = &mut bytes;
    let [VERSION, state, code, nonces] = take::<4>(from)? else {
        return None;
    };
    let fingerprint = match state {
        ABSENT => None,
        _ => Some(Fingerprint::from_bytes(&take::<33>(from)?)?),
    };
    let mut lease = || {
        let token = Token(i64::from_be_bytes(take(from)?));
        Some(Lease {
            token,
            nonce: Nonce(take(from)?),
        })
    };
    let lease = match state {
        ABSENT => None,
        _ => Some(lease()?),
    };
    let state = match (state, lease) {
        (ABSENT, None) => State::Absent,
        (CLAIMED, Some(lease)) => {
            let [flags] = take::<1>(from)?;
            if flags & !(HOLD | EXTENDED) != 0 {
                return None;
            }
            State::Claimed {
                lease,
                owner_lost: if flags & HOLD == 0 {
                    OwnerLost::Rerun
                } else {
                    OwnerLost::Hold
                },
                extended: flags & EXTENDED != 0,
                attempt: u32::from_be_bytes(take(from)?),
                until: time(from)?,
            }
        }
        (UNKNOWN, Some(lease)) => State::Unknown {
            lease,
            attempt: u32::from_be_bytes(take(from)?),
        },
        (DONE, Some(lease)) => State::Done {
            lease,
            outcome: {
                let bytes = Bytes::copy_from_slice(outcome?);
                StoredOutcome::from_parts(str::from_utf8(&[code]).ok()?, bytes)?
            },
            retain_until: time(from)?,
            tombstone_until: time(from)?,
        },
        (TOMBSTONE, Some(lease)) => State::Tombstone {
            lease,
            until: time(from)?,
            digest: take(from)?,
        },
        _ => return None,
    };
    let withdrawn = match nonces {
        0 => Withdrawn::default(),
        _ => Withdrawn {
            until: time(from)?,
            nonces: (0..nonces)
                .map(|_| Some(Nonce(take(from)?)))
                .collect::<Option<_>>()?,
        },
    };
    from.is_empty().then_some(Record {
        fingerprint,
        state,
        withdrawn,
    })
}

fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = from.split_first_chunk::<N>()?;
    *from = rest;
    Some(*taken)
}

fn time(from: &mut &[u8]) -> Option<Timestamp> {
    Some(Timestamp(i64::from_be_bytes(take(from)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Record> {
        let lease = Lease {
            token: Token(i64::MAX - 7),
            nonce: Nonce([5; 16]),
        };
        let claimed = |owner_lost, extended| State::Claimed {
            lease,
            owner_lost,
            until: Timestamp(-1),
            extended,
            attempt: 3,
        };
        let done = |outcome| State::Done {
            lease,
            outcome,
            retain_until: Timestamp(2),
            tombstone_until: Timestamp(i64::MAX),
        };
        let states = [
            State::Absent,
            claimed(OwnerLost::Rerun, true),
            claimed(OwnerLost::Hold, false),
            State::Unknown { lease, attempt: 2 },
            done(StoredOutcome::Refused(Bytes::from_static(b"\0\xff"))),
            done(StoredOutcome::Succeeded(Bytes::new())),
            State::Tombstone {
                lease,
                digest: [9; 32],
                until: Timestamp(4),
            },
        ];
        let two = Withdrawn::default()
            .with(Nonce([1; 16]), Timestamp(5))
            .with(Nonce([2; 16]), Timestamp(6));
        let each = |withdrawn: Withdrawn| {
            states.clone().map(|state| Record {
                fingerprint: (state != State::Absent).then(|| Fingerprint::of(b"asked")),
                state,
                withdrawn: withdrawn.clone(),
            })
        };
        [each(Withdrawn::default()), each(two)].concat()
    }

    #[test]
    fn every_record_is_read_back_as_it_was_packed() {
        for record in records() {
            let read = unpack(state(&record), &pack(&record), outcome(&record)).unwrap();
            assert_eq!(read, record);
        }
    }

    #[test]
    fn what_cannot_be_read_is_an_error_and_never_guessed() {
        for record in records() {
            let (state, bytes, outcome) = (state(&record), pack(&record), outcome(&record));
            let refused = |state: &str, bytes: &[u8], outcome| {
                let error = unpack(state, bytes, outcome).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{record:?}");
            };
            for end in 0..bytes.len() {
                refused(state, &bytes[..end], outcome);
            }
            refused(state, &[&bytes[..], &[0]].concat(), outcome);
            refused("paused", &bytes, outcome);
            for (place, value) in [(0, 2), (1, 9)] {
                let mut spoilt = bytes.clone();
                spoilt[place] = value;
                refused(state, &spoilt, outcome);
            }
            if outcome.is_some() {
                refused(state, &bytes, None);
                let mut spoilt = bytes.clone();
                spoilt[2] = b'x';
                refused(state, &spoilt, outcome);
            }
        }
    }

    /// Rows are met again by later builds: these bytes are the contract.
    #[test]
    fn the_packed_form_stays_as_it_is() {
        let [.., done, _] = &records()[..6] else { panic!() };
        let hash = Fingerprint::of(b"asked").to_bytes();
        let expected = [
            &[1, 3, b'r', 0][..],
            &hash,
            &(i64::MAX - 7).to_be_bytes(),
            &[5; 16],
            &2_i64.to_be_bytes(),
            &i64::MAX.to_be_bytes(),
        ];
        assert_eq!(pack(done), expected.concat());
    }
}
