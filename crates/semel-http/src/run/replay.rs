//! Answers from the record.

use http::{Response, StatusCode};
use semel_core::claim::{Record, State};
use semel_core::{Key, StoredOutcome, Timestamp};

use super::{Owned, mismatch};
use crate::body::Body;
use crate::headers::IDEMPOTENT_REPLAYED;
use crate::observe::Event;
use crate::policy::OutcomeWord;
use crate::problem::ProblemKind;
use crate::response::StoredResponse;
use crate::shared::Shared;

/// The stored answer, or that it is not kept.
pub(super) fn done(
    shared: &Shared,
    key: &Key,
    outcome: &StoredOutcome,
    retain_until: Timestamp,
) -> Response<Body> {
    shared.saw(Event::Replayed, Some(key));
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
        Err(_) if in_words(stored).is_some() => {
            let words = in_words(stored).unwrap_or_default();
            let what = match word {
                OutcomeWord::Refused => "refused: it is certain that nothing happened",
                _ => "done",
            };
            let mut detail = format!("somebody looked and found that the request was {what}");
            if !words.is_empty() {
                detail = format!("{detail}; they say: {words}");
            }
            let mut response = shared.problem(ProblemKind::AnswerNotKept, detail);
            shared.stamp(&mut response, word, Some(retain_until));
            return replayed(response);
        }
        Err(error) => {
            tracing::error!(%error, "a stored answer cannot be read");
            let what = match word {
                OutcomeWord::Refused => "refused",
                _ => "done",
            };
            let detail = format!("the request was {what}; {error}");
            let mut response = shared.problem(ProblemKind::AnswerNotKept, detail);
            shared.stamp(&mut response, word, Some(retain_until));
            return replayed(response);
        }
    };
    let trailers = (!stored.trailers.is_empty()).then(|| Box::new(stored.trailers.into_iter().collect()));
    let body = match stored.status {
        // These have no body whatever the handler gave (RFC 9110, 15.3.5, 15.3.6, 15.4.5).
        StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED => Body::empty(),
        _ => Body::with_trailers(stored.body, trailers),
    };
    let mut response = Response::new(body);
    *response.status_mut() = stored.status;
    let headers = response.headers_mut();
    headers.reserve(stored.headers.len() + 4);
    for (name, value) in stored.headers {
        headers.append(name, value);
    }
    shared.stamp(&mut response, word, Some(retain_until));
    replayed(response)
}

/// What a person wrote who settled the key, where it is no answer in the stored form: that begins with its version, a
/// control character.
fn in_words(stored: &[u8]) -> Option<&str> {
    let words = std::str::from_utf8(stored).ok()?;
    (!words.starts_with(char::is_control)).then_some(words)
}

pub(super) fn gone(shared: &Shared, key: &Key, until: Timestamp) -> Response<Body> {
    shared.saw(Event::Expired, Some(key));
    let detail = format!(
        "the request was done or refused, and its answer has expired; the key is not run again before {}",
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
        return shared.lost(&owned.key);
    };
    if fingerprint.is_some_and(|stored| stored != owned.fingerprint) {
        return mismatch::answer(shared, &owned.key, "a part of it");
    }
    match state {
        State::Claimed { lease, .. } if lease != owned.lease => shared.run_by_another(&owned.key),
        State::Done {
            outcome,
            retain_until,
            ..
        } => done(shared, &owned.key, &outcome, retain_until),
        State::Tombstone { until, .. } => gone(shared, &owned.key, until),
        State::Absent | State::Claimed { .. } | State::Unknown { .. } => shared.lost(&owned.key),
    }
}

fn replayed(mut response: Response<Body>) -> Response<Body> {
    response
        .headers_mut()
        .insert(IDEMPOTENT_REPLAYED, http::HeaderValue::from_static("true"));
    response
}
