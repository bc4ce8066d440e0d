//! A record as one packed string, which the scripts can read, too.
//!
//! | bytes (from 1, as in Lua) | what |
//! | --- | --- |
//! | 1–8 | µs: claimed until, outcome kept until, tombstone until |
//! | 9–16 | µs: done: tombstone until |
//! | 17–24 | token |
//! | 25–40 | nonce |
//! | 41 | version of this layout, 2 |
//! | 42 | state: `c` claimed, `u` unknown, `d` done, `t` tombstone, `a` absent |
//! | 43 | flags: 1 hold, 2 extended, 4 somebody waits |
//! | 44–47 | attempt |
//! | 48–80 | fingerprint |
//! | 81–88 | µs: withdrawn nonces are kept until |
//! | 89 | how many |
//! | 90– | the withdrawn nonces, 16 bytes each |
//! | then 32 | done and tombstone: digest of the outcome |
//! | then 1, rest | done: outcome's code and bytes |
//!
//! Numbers are big endian. What a field has nothing for is zero. What a script fills in stands in front, so that it puts
//! a record together from two or three pieces.

use bytes::Bytes;
use semel_core::claim::{
    Keep, Lease, Nonce, OwnerLost, REMOVE_GRACE_MS, Record, State, Token, WITHDRAWN_MS, Withdrawn,
};
use semel_core::{Claim, Fingerprint, StoredOutcome, Timestamp};

const VERSION: u8 = 2;
const HOLD: u8 = 1;
const EXTENDED: u8 = 2;
const WAITED: u8 = 4;
/// Bytes before the withdrawn nonces.
const HEAD: usize = 89;

/// A record, and whether somebody asked to be told when its run ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packed {
    pub(crate) record: Record,
    pub(crate) waited: bool,
}

impl Packed {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut flags = if self.waited { WAITED } else { 0 };
        let (mut first, mut last, mut attempts) = (0, 0, 0);
        let mut rest = Vec::new();
        let state = match &self.record.state {
            State::Absent => b'a',
            State::Claimed {
                owner_lost,
                until,
                extended,
                attempt,
                ..
            } => {
                flags |= hold(*owner_lost) | if *extended { EXTENDED } else { 0 };
                (first, attempts) = (until.0, *attempt);
                b'c'
            }
            State::Unknown { attempt, .. } => {
                // Only such claims become unknown.
                flags |= HOLD;
                attempts = *attempt;
                b'u'
            }
            State::Done {
                outcome,
                retain_until,
                tombstone_until,
                ..
            } => {
                (first, last) = (retain_until.0, tombstone_until.0);
                rest = done_tail(outcome);
                b'd'
            }
            State::Tombstone { digest, until, .. } => {
                first = until.0;
                rest.extend_from_slice(digest);
                b't'
            }
        };
        let lease = self.record.lease().map_or([0; 24], lease_bytes);
        let fingerprint = self.record.fingerprint.map_or([0; 33], Fingerprint::to_bytes);
        let withdrawn = &self.record.withdrawn;
        let until = if withdrawn.nonces.is_empty() {
            0
        } else {
            withdrawn.until.0
        };
        let mut bytes = Vec::with_capacity(HEAD + 16 * withdrawn.nonces.len() + rest.len());
        bytes.extend_from_slice(&first.to_be_bytes());
        bytes.extend_from_slice(&last.to_be_bytes());
        bytes.extend_from_slice(&lease);
        bytes.extend_from_slice(&[VERSION, state, flags]);
        bytes.extend_from_slice(&attempts.to_be_bytes());
        bytes.extend_from_slice(&fingerprint);
        bytes.extend_from_slice(&until.to_be_bytes());
        // A record remembers at most 8.
        bytes.push(u8::try_from(withdrawn.nonces.len()).unwrap_or(u8::MAX));
        for nonce in &withdrawn.nonces {
            bytes.extend_from_slice(&nonce.0);
        }
        bytes.extend_from_slice(&rest);
        bytes
    }

    /// Reads it back; `None` for what this build does not know.
    pub(crate) fn from_bytes(bytes: &Bytes) -> Option<Self> {
        let mut reader = Reader(bytes);
        let (first, last) = (Timestamp(reader.number()?), Timestamp(reader.number()?));
        let lease = Lease {
            token: Token(reader.number()?),
            nonce: Nonce(reader.array()?),
        };
        let [version, state, flags] = reader.array()?;
        if version != VERSION {
            return None;
        }
        let attempt = u32::from_be_bytes(reader.array()?);
        let fingerprint = Fingerprint::from_bytes(&reader.array::<33>()?)?;
        let until = Timestamp(reader.number()?);
        let [count] = reader.array()?;
        let nonces = (0..count).map(|_| reader.array().map(Nonce));
        let nonces = nonces.collect::<Option<Vec<_>>>()?;
        let owner_lost = if flags & HOLD == 0 {
            OwnerLost::Rerun
        } else {
            OwnerLost::Hold
        };
        let state = match state {
            b'a' => State::Absent,
            b'c' => State::Claimed {
                lease,
                owner_lost,
                until: first,
                extended: flags & EXTENDED != 0,
                attempt,
            },
            b'u' => State::Unknown { lease, attempt },
            b'd' => {
                let _digest: [u8; 32] = reader.array()?;
                let [code] = reader.array()?;
                let code = [code];
                let code = std::str::from_utf8(&code).ok()?;
                State::Done {
                    lease,
                    outcome: StoredOutcome::from_parts(code, bytes.slice_ref(reader.take_rest()))?,
                    retain_until: first,
                    tombstone_until: last,
                }
            }
            b't' => State::Tombstone {
                lease,
                digest: reader.array()?,
                until: first,
            },
            _ => return None,
        };
        reader.0.is_empty().then_some(())?;
        let record = Record {
            fingerprint: (state != State::Absent).then_some(fingerprint),
            state,
            withdrawn: Withdrawn { nonces, until },
        };
        Some(Self {
            record,
            waited: flags & WAITED != 0,
        })
    }
}

/// Milliseconds after which Redis may drop the record by itself; 0 for one that only a claimant, an owner or a person
/// can end.
pub(crate) fn expiry_ms(record: &Record, now: Timestamp) -> i64 {
    let end = match &record.state {
        State::Claimed { .. } | State::Unknown { .. } => return 0,
        State::Done { tombstone_until, .. } => *tombstone_until,
        State::Tombstone { until, .. } => *until,
        State::Absent => Timestamp::default(),
    };
    let end = end.max(record.withdrawn.until).plus_ms(REMOVE_GRACE_MS);
    end.ms_since(now).saturating_add(1).max(1)
}

/// What the claim script puts behind the times and the token.
pub(crate) fn claim_tail(claim: &Claim) -> [u8; HEAD - 24] {
    let mut tail = [0; HEAD - 24];
    tail[..16].copy_from_slice(&claim.nonce.0);
    tail[16..19].copy_from_slice(&[VERSION, b'c', hold(claim.owner_lost)]);
    tail[19..23].copy_from_slice(&1_u32.to_be_bytes());
    tail[23..56].copy_from_slice(&claim.fingerprint.to_bytes());
    tail
}

/// The right of a run as it stands in a record, with the layout's version behind it.
pub(crate) fn right(lease: Lease) -> [u8; 25] {
    let mut bytes = [VERSION; 25];
    bytes[..24].copy_from_slice(&lease_bytes(lease));
    bytes
}

fn lease_bytes(lease: Lease) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&lease.token.0.to_be_bytes());
    bytes[8..].copy_from_slice(&lease.nonce.0);
    bytes
}

/// What stands behind the withdrawn nonces of a key that is done.
pub(crate) fn done_tail(outcome: &StoredOutcome) -> Vec<u8> {
    let mut tail = Vec::with_capacity(33 + outcome.bytes().len());
    tail.extend_from_slice(&outcome.digest());
    tail.extend_from_slice(outcome.code().as_bytes());
    tail.extend_from_slice(outcome.bytes());
    tail
}

/// How long the completion script keeps what it stores: retention and tombstone in µs, then, as digits, the milliseconds
/// after which Redis may drop it; withdrawn nonces beside it are gone by then.
pub(crate) fn keep_bytes(keep: Keep) -> Vec<u8> {
    let expiry_ms = keep.retention_ms + keep.tombstone_ms + WITHDRAWN_MS + REMOVE_GRACE_MS;
    let mut bytes = Vec::with_capacity(32);
    bytes.extend_from_slice(&(keep.retention_ms * 1_000).to_be_bytes());
    bytes.extend_from_slice(&(keep.tombstone_ms * 1_000).to_be_bytes());
    bytes.extend_from_slice(expiry_ms.to_string().as_bytes());
    bytes
}

const fn hold(owner_lost: OwnerLost) -> u8 {
    match owner_lost {
        OwnerLost::Hold => HOLD,
        OwnerLost::Rerun => 0,
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*array)
    }

    fn number(&mut self) -> Option<i64> {
        self.array().map(i64::from_be_bytes)
    }

    fn take_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Record> {
        let lease = Lease {
            token: Token(7),
            nonce: Nonce::random(),
        };
        let states = [
            State::Absent,
            State::Claimed {
                lease,
                owner_lost: OwnerLost::Rerun,
                until: Timestamp(1),
                extended: true,
                attempt: 3,
            },
            State::Unknown { lease, attempt: 2 },
            State::Done {
                lease,
                outcome: StoredOutcome::Refused(Bytes::from_static(b"\0\xff")),
                retain_until: Timestamp(2),
                tombstone_until: Timestamp(3),
            },
            State::Tombstone {
                lease,
                digest: [9; 32],
                until: Timestamp(4),
            },
        ];
        let withdrawn = Withdrawn::default()
            .with(Nonce::random(), Timestamp(5))
            .with(Nonce::random(), Timestamp(6));
        let with = |withdrawn: &Withdrawn| {
            let withdrawn = withdrawn.clone();
            states.clone().map(|state| Record {
                fingerprint: (state != State::Absent).then(|| Fingerprint::of(b"asked")),
                state,
                withdrawn: withdrawn.clone(),
            })
        };
        [with(&Withdrawn::default()), with(&withdrawn)].concat()
    }

    #[test]
    fn every_record_is_read_back_as_it_was_written() {
        for record in records() {
            for waited in [false, true] {
                let record = record.clone();
                let packed = Packed { record, waited };
                assert_eq!(Packed::from_bytes(&packed.to_bytes().into()), Some(packed));
            }
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused_and_never_guessed() {
        for record in records() {
            let bytes = Packed {
                record,
                waited: false,
            }
            .to_bytes();
            let done = bytes[41] == b'd';
            for end in 0..bytes.len() {
                // A shorter outcome is an outcome.
                let readable = done && end >= bytes.len() - 2;
                assert!(readable || Packed::from_bytes(&bytes[..end].to_vec().into()).is_none());
            }
            for (at, byte) in [(40, 1), (41, b'x')] {
                let mut spoilt = bytes.clone();
                spoilt[at] = byte;
                assert_eq!(Packed::from_bytes(&spoilt.into()), None);
            }
        }
    }

    #[test]
    fn the_claim_script_puts_together_what_the_codec_writes() {
        let claim = Claim {
            key: semel_core::Key::new(semel_core::Scope::new("s").unwrap(), "k").unwrap(),
            fingerprint: Fingerprint::of(b"asked"),
            nonce: Nonce::random(),
            owner_lost: OwnerLost::Hold,
            lease_ms: 1,
        };
        let (token, until) = (Token(9), Timestamp(11));
        let tail = claim_tail(&claim);
        let (until_bytes, token_bytes) = (until.0.to_be_bytes(), token.0.to_be_bytes());
        let script = [&until_bytes[..], &[0; 8], &token_bytes, &tail].concat();
        let now = until.plus_ms(-1);
        let (record, _) = semel_core::claim::step::claim(None, &claim, now, token);
        let record = record.unwrap();
        assert_eq!(
            script,
            Packed {
                record,
                waited: false
            }
            .to_bytes()
        );
    }
}
