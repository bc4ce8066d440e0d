//! What an answer means for the key: stored, given back, or unknown.
//!
//! | answer | the key is |
//! | --- | --- |
//! | 2xx, 3xx, 4xx but those below | store |
//! | 401, 403, 407, 421, 425, 429; 501; 503 with `Retry-After` | give back: nothing happened, a retry runs |
//! | 408, 500, 502, 504, other 5xx, a panic, an error of the service, a broken body | unknown |
//! | an inner Semel's `running` or `unknown` | never stored (rule K12) |
//!
//! A handler that knows better says so: see [`Disposition`] and [`SEMEL_OUTCOME`].

mod disposition;
pub(crate) mod grpc;
mod words;

pub use disposition::{Disposition, KeepFor, SentBefore};
pub use words::{Guarantee, OutcomeWord};

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use semel_core::wire::Memory;

use crate::headers::{SEMEL_GUARANTEE, SEMEL_NO_STORE, SEMEL_OUTCOME};

/// What becomes of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Keep the answer: a retry gets it again.
    Store,
    /// Keep it as a refusal: it is certain that nothing happened.
    Refuse,
    /// Keep only that it was done.
    Forget,
    /// It is certain that nothing happened: give the key back, a retry runs.
    Release,
    /// It may have happened.
    Unknown,
    /// An inner Semel answers for this key: give ours back, a retry asks it again.
    Defer,
}

/// What each status means, per layer.
#[derive(Debug, Clone, Default)]
pub struct StatusPolicy {
    /// Statuses after which the key is given back although the table stores them: for routes that judge a request
    /// anew, such as one with a one-time code. Only 4xx count. Default none.
    pub release_on: Vec<StatusCode>,
    /// The handler is a remote service whose 501 and 503 are not believed: they are unknown. Default false.
    pub distrust_unavailable: bool,
    /// An inner Semel's `running` and `unknown` (marked by a `Semel-Guarantee` other than `none`) give the key back instead of making
    /// it unknown, because that Semel deduplicates the retry. Only for what forwards the same key and nothing else.
    /// Default false.
    pub defer_to_inner: bool,
}

impl StatusPolicy {
    /// What an answer means. The handler's own word goes before the table.
    #[must_use]
    pub fn judge(&self, status: StatusCode, headers: &HeaderMap, said: Option<Disposition>) -> Ending {
        if let Some(said) = said {
            return said.ending();
        }
        match OutcomeWord::read(headers.get(SEMEL_OUTCOME)) {
            // Certain, but a 5xx or 429 is of the moment: a retry may run.
            Some(OutcomeWord::Refused) => {
                return match self.by_status(status, headers) {
                    Ending::Store => Ending::Refuse,
                    _ => Ending::Release,
                };
            }
            Some(OutcomeWord::Running | OutcomeWord::Unknown) => {
                // One that ran it without a key answers for nothing.
                let inner_semel = headers
                    .get(SEMEL_GUARANTEE)
                    .is_some_and(|value| Memory::of(value.as_bytes()) != Memory::None);
                return if self.defer_to_inner && inner_semel {
                    Ending::Defer
                } else {
                    Ending::Unknown
                };
            }
            // Another layer refused the key: nothing happened, and its word is not ours to keep.
            Some(OutcomeWord::Mismatch) => return Ending::Release,
            Some(OutcomeWord::Succeeded) | None => {}
        }
        match self.by_status(status, headers) {
            Ending::Store if headers.contains_key(SEMEL_NO_STORE) => Ending::Forget,
            ending => ending,
        }
    }

    fn by_status(&self, status: StatusCode, headers: &HeaderMap) -> Ending {
        match status.as_u16() {
            401 | 403 | 407 | 421 | 425 | 429 => Ending::Release,
            // A time-out layer answers it while the handler may still be running (rule K12).
            408 => Ending::Unknown,
            501 if !self.distrust_unavailable => Ending::Release,
            503 if !self.distrust_unavailable && headers.contains_key(RETRY_AFTER) => Ending::Release,
            400..=499 if self.release_on.contains(&status) => Ending::Release,
            200..=499 => Ending::Store,
            _ => Ending::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn judge(policy: &StatusPolicy, status: u16, headers: &[(&'static str, &'static str)]) -> Ending {
        let headers = headers
            .iter()
            .map(|(n, v)| (http::HeaderName::from_static(n), HeaderValue::from_static(v)))
            .collect();
        policy.judge(StatusCode::from_u16(status).unwrap(), &headers, None)
    }

    #[test]
    fn the_table_of_the_module_holds() {
        let policy = StatusPolicy::default();
        let retry = [("retry-after", "1")];
        for (status, headers, ending) in [
            (200, &[][..], Ending::Store),
            (303, &[], Ending::Store),
            (402, &[], Ending::Store),
            (422, &[], Ending::Store),
            (401, &[], Ending::Release),
            (429, &[], Ending::Release),
            (501, &[], Ending::Release),
            (503, &retry, Ending::Release),
            (503, &[], Ending::Unknown),
            (408, &[], Ending::Unknown),
            (500, &[], Ending::Unknown),
            (502, &retry, Ending::Unknown),
            (599, &[], Ending::Unknown),
        ] {
            assert_eq!(judge(&policy, status, headers), ending, "{status}");
        }
    }

    #[test]
    fn a_distrusted_upstreams_503_is_unknown() {
        let policy = StatusPolicy {
            distrust_unavailable: true,
            ..StatusPolicy::default()
        };
        assert_eq!(judge(&policy, 503, &[("retry-after", "1")]), Ending::Unknown);
        assert_eq!(judge(&policy, 501, &[]), Ending::Unknown);
        assert_eq!(judge(&policy, 429, &[]), Ending::Release);
    }

    #[test]
    fn an_inner_semels_running_and_unknown_are_never_stored() {
        let plain = StatusPolicy::default();
        let gateway = StatusPolicy {
            defer_to_inner: true,
            ..StatusPolicy::default()
        };
        for word in ["running", "unknown"] {
            for status in [200, 202, 409, 500] {
                let inner = [("semel-outcome", word), ("semel-guarantee", "guarded")];
                assert_eq!(judge(&plain, status, &inner), Ending::Unknown);
                assert_eq!(judge(&gateway, status, &inner), Ending::Defer);
                assert_eq!(
                    judge(&gateway, status, &inner[..1]),
                    Ending::Unknown,
                    "no Semel stands behind it"
                );
            }
        }
    }

    #[test]
    fn an_inner_semel_that_ran_without_a_key_is_not_deferred_to() {
        let gateway = StatusPolicy {
            defer_to_inner: true,
            ..StatusPolicy::default()
        };
        for word in ["running", "unknown"] {
            for guarantee in ["none", "", "best-effort"] {
                let inner = [("semel-outcome", word), ("semel-guarantee", guarantee)];
                assert_eq!(
                    judge(&gateway, 500, &inner),
                    Ending::Unknown,
                    "{word} {guarantee}"
                );
            }
        }
    }

    #[test]
    fn a_refusal_is_kept_unless_it_is_of_the_moment() {
        let policy = StatusPolicy::default();
        for (status, ending) in [
            (200, Ending::Refuse),
            (409, Ending::Refuse),
            (422, Ending::Refuse),
            (429, Ending::Release),
            (500, Ending::Release),
            (503, Ending::Release),
        ] {
            assert_eq!(
                judge(&policy, status, &[("semel-outcome", "refused")]),
                ending,
                "{status}"
            );
        }
    }

    #[test]
    fn a_route_may_judge_a_client_error_anew_but_never_a_success() {
        let policy = StatusPolicy {
            release_on: vec![StatusCode::UNPROCESSABLE_ENTITY, StatusCode::OK],
            ..StatusPolicy::default()
        };
        assert_eq!(judge(&policy, 422, &[]), Ending::Release);
        assert_eq!(judge(&policy, 200, &[]), Ending::Store);
    }
}
