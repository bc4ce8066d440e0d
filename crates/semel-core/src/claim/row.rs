//! A record as the flat row that SQL stores keep: one reading and one writing of it for all of them.

use bytes::Bytes;

use super::record::{Lease, Nonce, OwnerLost, Record, State, Token, Withdrawn};
use crate::error::{ErrorKind, StoreError};
use crate::fingerprint::Fingerprint;
use crate::host::Timestamp;
use crate::outcome::StoredOutcome;

/// The columns of a key's row beside scope and id. Times are microseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Row {
    /// `absent`, `claimed`, `unknown`, `done` or `tombstone`.
    pub state: String,
    /// [`Fingerprint::to_bytes`].
    pub fingerprint: Option<Vec<u8>>,
    /// The fencing token.
    pub token: Option<i64>,
    /// The claim's nonce.
    pub nonce: Option<Vec<u8>>,
    /// Whether the owner's loss holds the key.
    pub hold: Option<bool>,
    /// Whether the claim was ever extended.
    pub extended: Option<bool>,
    /// How many owners it has had.
    pub attempt: Option<i32>,
    /// Claimed: when the lease ends. Done: until when the outcome is kept.
    pub until: Option<i64>,
    /// [`StoredOutcome::code`].
    pub outcome_code: Option<String>,
    /// [`StoredOutcome::bytes`].
    pub outcome: Option<Vec<u8>>,
    /// [`StoredOutcome::digest`].
    pub digest: Option<Vec<u8>>,
    /// Until when it is known that it was done.
    pub tombstone_until: Option<i64>,
    /// Withdrawn nonces, one after the other, 16 bytes each.
    pub withdrawn: Option<Vec<u8>>,
    /// When those are forgotten.
    pub withdrawn_until: Option<i64>,
    /// [`Record::due`].
    pub due_at: Option<i64>,
}

impl From<&Record> for Row {
    fn from(record: &Record) -> Self {
        let lease = record.lease();
        let withdrawn = &record.withdrawn;
        let some = !withdrawn.nonces.is_empty();
        let mut row = Self {
            fingerprint: record.fingerprint.map(|it| it.to_bytes().to_vec()),
            token: lease.map(|lease| lease.token.0),
            nonce: lease.map(|lease| lease.nonce.0.to_vec()),
            withdrawn: some.then(|| withdrawn.nonces.iter().flat_map(|nonce| nonce.0).collect()),
            withdrawn_until: some.then_some(withdrawn.until.0),
            due_at: record.due().map(|due| due.0),
            ..Self::default()
        };
        row.state = match &record.state {
            State::Absent => "absent",
            State::Claimed {
                owner_lost,
                until,
                extended,
                attempt,
                ..
            } => {
                row.hold = Some(*owner_lost == OwnerLost::Hold);
                row.extended = Some(*extended);
                row.attempt = Some(i32::try_from(*attempt).unwrap_or(i32::MAX));
                row.until = Some(until.0);
                "claimed"
            }
            State::Unknown { attempt, .. } => {
                row.attempt = Some(i32::try_from(*attempt).unwrap_or(i32::MAX));
                "unknown"
            }
            State::Done {
                outcome,
                retain_until,
                tombstone_until,
                ..
            } => {
                row.until = Some(retain_until.0);
                row.tombstone_until = Some(tombstone_until.0);
                row.outcome_code = Some(outcome.code().to_owned());
                row.outcome = Some(outcome.bytes().to_vec());
                row.digest = Some(outcome.digest().to_vec());
                "done"
            }
            State::Tombstone { digest, until, .. } => {
                row.tombstone_until = Some(until.0);
                row.digest = Some(digest.to_vec());
                "tombstone"
            }
        }
        .to_owned();
        row
    }
}

impl TryFrom<Row> for Record {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Self, StoreError> {
        let state = row.state.clone();
        read(row).ok_or_else(|| {
            let text = format!("the stored record of a key (state {state:?}) cannot be read by this build");
            StoreError::new(ErrorKind::Corrupt, "read", text)
        })
    }
}

fn read(row: Row) -> Option<Record> {
    let lease = |row: &Row| {
        Some(Lease {
            token: Token(row.token?),
            nonce: Nonce(row.nonce.as_deref()?.try_into().ok()?),
        })
    };
    let attempt = |row: &Row| u32::try_from(row.attempt?).ok();
    let withdrawn = match (&row.withdrawn, row.withdrawn_until) {
        (Some(bytes), Some(until)) => {
            let (nonces, rest) = bytes.as_chunks::<16>();
            if !rest.is_empty() {
                return None;
            }
            Withdrawn {
                nonces: nonces.iter().copied().map(Nonce).collect(),
                until: Timestamp(until),
            }
        }
        _ => Withdrawn::default(),
    };
    let fingerprint = match &row.fingerprint {
        Some(bytes) => Some(Fingerprint::from_bytes(bytes)?),
        None => None,
    };
    let state = match row.state.as_str() {
        "absent" => State::Absent,
        "claimed" => State::Claimed {
            lease: lease(&row)?,
            owner_lost: if row.hold? {
                OwnerLost::Hold
            } else {
                OwnerLost::Rerun
            },
            until: Timestamp(row.until?),
            extended: row.extended?,
            attempt: attempt(&row)?,
        },
        "unknown" => State::Unknown {
            lease: lease(&row)?,
            attempt: attempt(&row)?,
        },
        "done" => State::Done {
            lease: lease(&row)?,
            outcome: StoredOutcome::from_parts(row.outcome_code.as_deref()?, Bytes::from(row.outcome?))?,
            retain_until: Timestamp(row.until?),
            tombstone_until: Timestamp(row.tombstone_until?),
        },
        "tombstone" => State::Tombstone {
            lease: lease(&row)?,
            digest: row.digest.as_deref()?.try_into().ok()?,
            until: Timestamp(row.tombstone_until?),
        },
        _ => return None,
    };
    if fingerprint.is_none() != (state == State::Absent) {
        return None;
    }
    Some(Record {
        fingerprint,
        state,
        withdrawn,
    })
}

#[cfg(test)]
mod tests {
    use super::super::once::fresh;
    use super::*;

    fn records() -> Vec<Record> {
        let lease = fresh(Token(7));
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
        let record = |(state, withdrawn)| Record {
            fingerprint: (state != State::Absent).then(|| Fingerprint::of(b"asked")),
            state,
            withdrawn,
        };
        let bare = states.iter().cloned().map(|state| (state, Withdrawn::default()));
        let with = states.iter().cloned().map(|state| (state, withdrawn.clone()));
        bare.chain(with).map(record).collect()
    }

    #[test]
    fn every_record_is_read_back_as_it_was_written() {
        for record in records() {
            assert_eq!(Record::try_from(Row::from(&record)).unwrap(), record);
        }
    }

    #[test]
    fn what_cannot_be_read_is_an_error_and_never_guessed() {
        let rows = records().into_iter().map(|record| Row::from(&record));
        for row in rows.filter(|row| row.state != "absent") {
            let spoilt = [
                Row {
                    state: "paused".into(),
                    ..row.clone()
                },
                Row {
                    fingerprint: None,
                    ..row.clone()
                },
                Row {
                    fingerprint: Some(vec![1]),
                    ..row.clone()
                },
                Row {
                    token: None,
                    ..row.clone()
                },
                Row {
                    nonce: Some(vec![0; 15]),
                    ..row.clone()
                },
                Row {
                    withdrawn: Some(vec![0; 17]),
                    withdrawn_until: Some(1),
                    ..row.clone()
                },
            ];
            for row in spoilt {
                let error = Record::try_from(row.clone()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{row:?}");
            }
        }
    }
}
