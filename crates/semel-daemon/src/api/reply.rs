//! What is answered: every reply of a key store as a status and a body.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use semel_core::claim::{ClaimReply, LeaseReply, OwnerLost, Record, State};
use semel_core::store::KeyPage;
use semel_core::{Key, StoreError, StoredOutcome, Timestamp};
use serde_json::{Map, Value, json};

use super::octets::{Octets, nonce_text};
use super::problem::{Kind, Problem};

/// An answer, not yet written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Reply {
    /// What was asked for.
    Ok {
        /// 200 or 201.
        status: u16,
        /// The body.
        body: Value,
        /// What it says of the key's operation.
        outcome: Option<&'static str>,
    },
    /// What kept it from being so.
    Problem(Problem),
}

impl Reply {
    const fn ok(body: Value) -> Self {
        Self::Ok {
            status: 200,
            body,
            outcome: None,
        }
    }

    /// The status.
    pub(crate) const fn status(&self) -> u16 {
        match self {
            Self::Ok { status, .. } => *status,
            Self::Problem(problem) => problem.kind.row().status,
        }
    }

    /// One item of a batch's answer.
    fn item(self) -> Value {
        let status = self.status();
        let body = match self {
            Self::Ok { body, .. } => body,
            Self::Problem(problem) => problem.body(),
        };
        json!({ "status": status, "body": body })
    }

    /// A batch's answer: each item as it would have been answered alone.
    pub(crate) fn many(replies: impl IntoIterator<Item = Self>) -> Self {
        let items: Vec<Value> = replies.into_iter().map(Self::item).collect();
        Self::ok(json!({ "replies": items }))
    }
}

impl From<Problem> for Reply {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

fn json_of(octets: &[u8]) -> Value {
    serde_json::to_value(Octets::of(octets)).unwrap_or_default()
}

/// The word of an outcome, and what `Semel-Outcome` says of it.
const fn outcome_words(outcome: &StoredOutcome) -> (&'static str, &'static str) {
    match outcome {
        StoredOutcome::Succeeded(_) => ("succeeded", "succeeded"),
        StoredOutcome::Refused(_) => ("refused", "refused"),
        StoredOutcome::Forgotten => ("forgotten", "succeeded"),
    }
}

fn with_outcome(mut body: Map<String, Value>, outcome: &StoredOutcome) -> Map<String, Value> {
    body.insert("outcome".into(), outcome_words(outcome).0.into());
    if !matches!(outcome, StoredOutcome::Forgotten) {
        body.insert("output".into(), json_of(outcome.bytes()));
    }
    body
}

/// The answer to a claim.
pub(crate) fn claimed(reply: Result<ClaimReply, StoreError>, nonce: semel_core::claim::Nonce) -> Reply {
    match reply {
        Ok(ClaimReply::Granted {
            lease,
            until,
            attempt,
        }) => Reply::Ok {
            status: 201,
            body: json!({
                "result": "granted",
                "token": lease.token.0,
                "nonce": nonce_text(lease.nonce),
                "until": until.rfc3339(),
                "attempt": attempt,
            }),
            outcome: Some("running"),
        },
        Ok(ClaimReply::Done {
            outcome,
            retain_until,
        }) => {
            let body = Map::from_iter([
                ("result".to_owned(), "done".into()),
                ("retain_until".to_owned(), retain_until.rfc3339().into()),
            ]);
            Reply::Ok {
                status: 200,
                body: with_outcome(body, &outcome).into(),
                outcome: Some(outcome_words(&outcome).1),
            }
        }
        Ok(ClaimReply::Busy { lease_left_ms }) => running(lease_left_ms).into(),
        Ok(ClaimReply::Unknown { token }) => {
            let detail = "its owner was lost while it ran: find out whether it happened, then settle it with this token; \
                          asking again does not change it";
            Problem::new(Kind::Unknown, detail).with("token", token.0).into()
        }
        Ok(ClaimReply::Mismatch) => {
            let detail = "the key was claimed with another input; what came of that is as it was and is not shown: a retry \
                          sends the same input, a new operation takes a new id";
            Problem::new(Kind::Mismatch, detail).into()
        }
        Ok(ClaimReply::Gone { until }) => {
            let detail = "it was done or refused; its outcome was kept as long as the completion said, and is forgotten by now";
            Problem::new(Kind::Gone, detail)
                .with("until", until.rfc3339())
                .into()
        }
        Ok(ClaimReply::Withdrawn) => {
            let detail = "this nonce was released: draw a fresh one for a new attempt";
            Problem::new(Kind::Withdrawn, detail).into()
        }
        Err(error) => {
            let problem = Problem::store(&error);
            if problem.kind == Kind::ReplyLost {
                problem.with("nonce", nonce_text(nonce)).into()
            } else {
                problem.into()
            }
        }
    }
}

fn running(lease_left_ms: i64) -> Problem {
    let left = u64::try_from(lease_left_ms).unwrap_or(0);
    let detail = format!(
        "somebody else's claim has {left} ms left: ask again later, or with `wait_ms`; the lease's end is the latest"
    );
    Problem {
        // A run mostly ends long before its lease.
        retry_after_s: left.div_ceil(1_000).clamp(1, 5),
        ..Problem::new(Kind::Running, detail).with("lease_left_ms", left)
    }
}

/// The answer to a wish for an id.
pub(crate) fn issued(id: &str, until: Timestamp) -> Reply {
    Reply::Ok {
        status: 201,
        body: json!({ "id": id, "until": until.rfc3339() }),
        outcome: None,
    }
}

/// What the moment of a lease reply means.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Moment {
    /// When the lease ends now.
    Until,
    /// Until when the outcome is kept.
    RetainUntil,
    /// When it was done.
    At,
}

impl Moment {
    /// The field's name.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Until => "until",
            Self::RetainUntil => "retain_until",
            Self::At => "at",
        }
    }
}

/// The answer to whatever carries a token.
pub(crate) fn leased(reply: Result<LeaseReply, StoreError>, moment: Moment) -> Reply {
    match reply {
        Ok(LeaseReply::Ok(at)) => Reply::ok(json!({ moment.as_str(): at.rfc3339() })),
        Ok(LeaseReply::LeaseLost) => {
            let detail = "a later token was drawn, or the key was settled or has ended; nothing was changed: claim it again, \
                          and go by what that answers";
            Problem::new(Kind::LeaseLost, detail).into()
        }
        Ok(LeaseReply::Conflict) => {
            let detail = "this run has ended otherwise already, and that stays; nothing was changed: read the key, and go by \
                          what it says";
            Problem::new(Kind::Conflict, detail).into()
        }
        Err(error) => Problem::store(&error).into(),
    }
}

/// A step of a closing.
pub(crate) fn closed(step: semel_keys::Closed) -> Reply {
    let mut body = json!({ "closed": step.closed, "changed": step.changed });
    if let (Some(next), Some(members)) = (step.next, body.as_object_mut()) {
        members.insert("next".to_owned(), URL_SAFE_NO_PAD.encode(next).into());
    }
    Reply::ok(body)
}

/// A record as it is shown; the nonce, half of the right to change it, never is.
pub(crate) fn record(key: &Key, record: &Record, with_output: bool) -> Value {
    let mut body = Map::from_iter([
        ("scope".to_owned(), json_of(key.scope().as_bytes())),
        ("id".to_owned(), json_of(key.id())),
        (
            "state".to_owned(),
            record.state.name().map_or("absent", |name| name.as_str()).into(),
        ),
    ]);
    if let Some(lease) = record.lease() {
        body.insert("token".into(), lease.token.0.into());
    }
    let mut time = |name: &str, at: &Timestamp| body.insert(name.into(), at.rfc3339().into());
    match &record.state {
        State::Absent => {}
        State::Claimed {
            owner_lost,
            until,
            attempt,
            ..
        } => {
            time("until", until);
            let word = match owner_lost {
                OwnerLost::Hold => "hold",
                OwnerLost::Rerun => "rerun",
            };
            body.insert("owner_lost".into(), word.into());
            body.insert("attempt".into(), (*attempt).into());
        }
        State::Unknown { attempt, .. } => {
            body.insert("attempt".into(), (*attempt).into());
        }
        State::Done {
            outcome,
            retain_until,
            tombstone_until,
            ..
        } => {
            time("retain_until", retain_until);
            time("tombstone_until", tombstone_until);
            if with_output {
                body = with_outcome(body, outcome);
            } else {
                body.insert("outcome".into(), outcome_words(outcome).0.into());
            }
            body.insert("output_bytes".into(), outcome.bytes().len().into());
        }
        State::Tombstone { until, .. } => {
            time("until", until);
        }
    }
    Value::Object(body)
}

/// The answer to a look at one key.
pub(crate) fn looked(key: &Key, found: Result<Option<Record>, StoreError>) -> Reply {
    match found {
        Ok(Some(found)) => {
            let outcome = match &found.state {
                State::Claimed { .. } => Some("running"),
                State::Unknown { .. } => Some("unknown"),
                State::Done { outcome, .. } => Some(outcome_words(outcome).1),
                // Which of the two it was is forgotten.
                State::Tombstone { .. } => Some("unknown"),
                State::Absent => None,
            };
            Reply::Ok {
                status: 200,
                body: record(key, &found, true),
                outcome,
            }
        }
        Ok(None) => {
            let detail = "nobody has claimed it, it was released, or it is forgotten by now";
            Problem::new(Kind::Absent, detail).into()
        }
        Err(error) => Problem::store(&error).into(),
    }
}

/// The answer to a list.
pub(crate) fn listed(page: Result<KeyPage, StoreError>) -> Reply {
    match page {
        Ok(page) => {
            let keys: Vec<Value> = page
                .records
                .iter()
                .map(|(key, found)| record(key, found, false))
                .collect();
            let mut body = Map::from_iter([("keys".to_owned(), keys.into())]);
            if let Some(next) = &page.next {
                body.insert("next".into(), URL_SAFE_NO_PAD.encode(next).into());
            }
            Reply::ok(body.into())
        }
        Err(error) => Problem::store(&error).into(),
    }
}

/// Reads a page's `next` back.
pub(crate) fn from_page(page: &str) -> Option<Bytes> {
    URL_SAFE_NO_PAD.decode(page).ok().map(Into::into)
}
