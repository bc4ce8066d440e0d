//! Answers from the record.

use http::Response;
use semel_core::claim::{Record, State};
use semel_core::{StoredOutcome, Timestamp};

use super::Owned;
use crate::body::Body;
use crate::headers::IDEMPOTENT_REPLAYED;
use crate::policy::OutcomeWord;
use crate::problem::ProblemKind;
use crate::response::StoredResponse;
use crate::shared::Shared;

/// The stored answer, or that it is not kept.
pub(super) fn done(shared: &Shared, outcome: &StoredOutcome, retain_until: Timestamp) -> Response<Body> {
    let (word, stored) = match outcome {
        StoredOutcome::Succeeded(stored) => (OutcomeWord::Succeeded, stored),
        StoredOutcome::Refused(stored) => (OutcomeWord::Refused, stored),
        StoredOutcome::Forgotten => {
            let detail = "the request was done; its answer was too large, a stream, or not to be stored";
            return replayed(shared.problem(ProblemKind::AnswerNotKept, detail));
        }
    };
    let stored = match StoredResponse::decode(stored) {
        Ok(stored) => stored,
        Err(error) => {
            tracing::error!(%error, "a stored answer cannot be read");
            let detail = format!("the request was done; {error}");
            return replayed(shared.problem(ProblemKind::AnswerNotKept, detail));
        }
    };
    let mut response = Response::new(Body::whole(stored.body));
    *response.status_mut() = stored.status;
    let headers = response.headers_mut();
    for (name, value) in stored.headers {
        headers.append(name, value);
    }
    shared.stamp(&mut response, word, Some(retain_until));
    replayed(response)
}

pub(super) fn mismatch(shared: &Shared) -> Response<Body> {
    let detail = "the first request with this key differs in method, target, content type or body; \
                  send the same request again, or a new key for a new one";
    shared.problem(ProblemKind::Mismatch, detail)
}

pub(super) fn gone(shared: &Shared, until: Timestamp) -> Response<Body> {
    let detail = format!(
        "the request was done and its answer has expired; the key stays refused until {}",
        until.rfc3339()
    );
    replayed(shared.problem(ProblemKind::Gone, detail))
}

/// What the record says to an owner who has lost its lease: never what that owner computed (rule K11).
pub(super) fn record(shared: &Shared, owned: &Owned, record: Option<Record>) -> Response<Body> {
    let Some(Record {
        fingerprint, state, ..
    }) = record
    else {
        return shared.unknown(&owned.key);
    };
    if fingerprint.is_some_and(|stored| stored != owned.fingerprint) {
        return mismatch(shared);
    }
    match state {
        State::Claimed { lease, .. } if lease != owned.lease => shared.still_running(),
        State::Done {
            outcome,
            retain_until,
            ..
        } => done(shared, &outcome, retain_until),
        State::Tombstone { until, .. } => gone(shared, until),
        State::Absent | State::Claimed { .. } | State::Unknown { .. } => shared.unknown(&owned.key),
    }
}

fn replayed(mut response: Response<Body>) -> Response<Body> {
    response
        .headers_mut()
        .insert(IDEMPOTENT_REPLAYED, http::HeaderValue::from_static("true"));
    response
}
