//! gRPC says in `grpc-status` what HTTP says in the status: <https://grpc.io/docs/guides/status-codes/>.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName};

use super::Ending;

/// Where the status stands.
pub(crate) const STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Whether a request or an answer is one of gRPC.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Whether an answer is one of gRPC itself, whose status stands in its headers or trailers. That of gRPC-Web stands in its
/// body, and is not read.
pub(crate) fn is_native(headers: &HeaderMap) -> bool {
    let rest = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.as_bytes().strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| !rest.starts_with(b"-"))
}

/// What a gRPC status in the headers or trailers means; `None` when there is none here.
pub(crate) fn judge(fields: &HeaderMap, distrust_unavailable: bool) -> Option<Ending> {
    let status = fields.get(STATUS)?.to_str().ok()?.parse::<u8>().ok();
    Some(match status {
        // OK; INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION, OUT_OF_RANGE: settled.
        Some(0 | 3 | 5 | 6 | 9 | 11) => Ending::Store,
        // PERMISSION_DENIED, UNAUTHENTICATED: of the moment, and nothing happened.
        Some(7 | 16) => Ending::Release,
        // UNIMPLEMENTED, as 501.
        Some(12) if !distrust_unavailable => Ending::Release,
        // CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED, INTERNAL, UNAVAILABLE, DATA_LOSS.
        // UNAVAILABLE is also what a library says of a connection that broke in the middle, RESOURCE_EXHAUSTED of an
        // answer that was too large to send.
        _ => Ending::Unknown,
    })
}

/// What is left of an ending that was judged without the gRPC status, now that this is known.
pub(crate) fn settle(ending: Ending, fields: &HeaderMap, distrust_unavailable: bool) -> Ending {
    match (ending, judge(fields, distrust_unavailable)) {
        (Ending::Store, Some(judged)) => judged,
        (Ending::Forget, Some(judged)) if judged != Ending::Store => judged,
        // Certain, but of the moment: a retry may run, as after a refusal with 429 or 5xx.
        (Ending::Refuse, Some(Ending::Release | Ending::Unknown)) => Ending::Release,
        _ => ending,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_codes_of_grpc_mean_what_the_statuses_of_http_mean() {
        let judge = |code: &'static str| {
            let mut fields = HeaderMap::new();
            fields.insert("grpc-status", HeaderValue::from_static(code));
            judge(&fields, false)
        };
        for (codes, ending) in [
            (&["0", "3", "5", "6", "9", "11"][..], Ending::Store),
            (&["7", "12", "16"], Ending::Release),
            (
                &["1", "2", "4", "8", "10", "13", "14", "15", "99", "x"],
                Ending::Unknown,
            ),
        ] {
            for code in codes {
                assert_eq!(judge(code), Some(ending), "{code}");
            }
        }
        assert_eq!(super::judge(&HeaderMap::new(), false), None);
    }
}
