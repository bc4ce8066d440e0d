//! From an answer to the outcome that is stored.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::response::Parts;
use http::{HeaderMap, StatusCode};
use semel_core::StoredOutcome;
use semel_core::limits::OUTCOME_BYTES_MAX;

use crate::policy::{Ending, OutcomeWord};
use crate::response::StoredResponse;

/// The outcome of a whole answer.
pub(super) fn whole(
    ending: Ending,
    parts: &Parts,
    trailers: Option<&HeaderMap>,
    body: &[u8],
) -> StoredOutcome {
    if ending == Ending::Forget {
        return StoredOutcome::Forgotten;
    }
    let stored = StoredResponse::encode_kept(parts.status, &parts.headers, trailers, body);
    if stored.len() > OUTCOME_BYTES_MAX {
        return without_body(ending, parts);
    }
    match ending {
        Ending::Refuse => StoredOutcome::Refused(stored),
        _ => StoredOutcome::Succeeded(stored),
    }
}

/// The outcome of an answer whose body is not kept. A refusal stays one, for "nothing happened" is worth more than
/// its text; of all else only "done" is kept.
pub(super) fn without_body(ending: Ending, parts: &Parts) -> StoredOutcome {
    if ending == Ending::Refuse {
        StoredOutcome::Refused(bare_refusal(parts.status).encode())
    } else {
        StoredOutcome::Forgotten
    }
}

/// The outcome that is kept instead of one that the store says is too large; `None` where nothing smaller says as much.
pub(super) fn smaller(outcome: &StoredOutcome) -> Option<StoredOutcome> {
    match outcome {
        StoredOutcome::Succeeded(_) => Some(StoredOutcome::Forgotten),
        StoredOutcome::Refused(stored) => {
            let status = StoredResponse::decode(stored).map_or(StatusCode::CONFLICT, |stored| stored.status);
            Some(StoredOutcome::Refused(bare_refusal(status).encode()))
        }
        StoredOutcome::Forgotten => None,
    }
}

/// What the caller is told of an answer that is stored, or would be if it were not too large.
pub(super) const fn word(ending: Ending) -> OutcomeWord {
    match ending {
        Ending::Refuse => OutcomeWord::Refused,
        _ => OutcomeWord::Succeeded,
    }
}

fn bare_refusal(status: StatusCode) -> StoredResponse {
    StoredResponse {
        status,
        headers: vec![(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"))],
        trailers: Vec::new(),
        body: Bytes::from_static(
            br#"{"title":"Refused; the text of the refusal was too large to keep","outcome":"refused"}"#,
        ),
    }
}
