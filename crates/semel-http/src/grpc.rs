//! Problems for clients that speak gRPC, which look neither at the status of HTTP nor at a body that is no message: a
//! gRPC status and nothing behind it ("trailers-only" of the protocol), with the headers of the problem.
//!
//! | problem | gRPC status |
//! | --- | --- |
//! | key missing, malformed, not given out; body broken off | 3 `INVALID_ARGUMENT` |
//! | an upstream's time is over | 4 `DEADLINE_EXCEEDED` |
//! | done, the answer is not kept | 6 `ALREADY_EXISTS` (9 where what is known is that it was refused) |
//! | too large; no room for another key | 8 `RESOURCE_EXHAUSTED` |
//! | the key names another request; its record or its time is over | 9 `FAILED_PRECONDITION` |
//! | the first one runs | 10 `ABORTED` |
//! | not supported | 12 `UNIMPLEMENTED` |
//! | the service is not set up | 13 `INTERNAL` |
//! | the store or the upstream is away, too much at once | 14 `UNAVAILABLE` |
//! | no principal | 16 `UNAUTHENTICATED` |
//! | may have happened | 2 `UNKNOWN` |
//!
//! `Retry-After` is also said as `grpc-retry-pushback-ms` (gRFC A6), which clients obey whose retry policy has the status.

use std::fmt::Write as _;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use crate::headers::SEMEL_OUTCOME;
use crate::policy::OutcomeWord;
use crate::policy::grpc::{STATUS, is_grpc};
use crate::problem::{Problem, ProblemKind};

const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

const ALREADY_EXISTS: u8 = 6;
const FAILED_PRECONDITION: u8 = 9;

/// What a problem is in gRPC. Lies in the extensions of an answer that is one, until [`answer`] says it so.
#[derive(Debug, Clone)]
pub struct GrpcStatus {
    code: u8,
    message: String,
}

impl GrpcStatus {
    /// The status of this number with this message, as it is.
    #[must_use]
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, message }
    }

    pub(crate) fn of(problem: &Problem, title: &str, detail: &str) -> Self {
        let kind = problem.kind();
        Self::new(number(kind), format!("{title} ({}): {detail}", kind.code()))
    }
}

/// The number of a kind's status.
const fn number(kind: ProblemKind) -> u8 {
    match kind {
        ProblemKind::Unknown | ProblemKind::HandlerFailed | ProblemKind::UpstreamBroken => 2,
        ProblemKind::KeyMissing
        | ProblemKind::KeyMalformed
        | ProblemKind::KeyNotIssued
        | ProblemKind::RequestBroken => 3,
        ProblemKind::UpstreamTimeout => 4,
        ProblemKind::AnswerNotKept => ALREADY_EXISTS,
        ProblemKind::RequestTooLarge | ProblemKind::StoreFull | ProblemKind::ScopeFull => 8,
        // Not 6, which many clients take for success.
        ProblemKind::Mismatch | ProblemKind::Gone | ProblemKind::IssuedKeyExpired => FAILED_PRECONDITION,
        ProblemKind::Running => 10,
        ProblemKind::NotSupported => 12,
        ProblemKind::AnonymousScope => 13,
        ProblemKind::StoreUnavailable | ProblemKind::Busy | ProblemKind::UpstreamUnreachable => 14,
        ProblemKind::NoPrincipal => 16,
    }
}

/// The content type of a request that speaks gRPC; `None` for all others.
#[must_use]
pub fn asked(headers: &HeaderMap) -> Option<HeaderValue> {
    is_grpc(headers)
        .then(|| headers.get(CONTENT_TYPE).cloned())
        .flatten()
}

/// An answer that is a problem, as a client sees it whose request had this content type. Every other answer is left as it
/// is.
pub fn answer<B>(mut response: Response<B>, asked: HeaderValue, empty: impl FnOnce() -> B) -> Response<B> {
    let Some(GrpcStatus { mut code, message }) = response.extensions_mut().remove::<GrpcStatus>() else {
        return response;
    };
    let headers = response.headers_mut();
    let refused = OutcomeWord::read(headers.get(SEMEL_OUTCOME)) == Some(OutcomeWord::Refused);
    if code == ALREADY_EXISTS && refused {
        code = FAILED_PRECONDITION;
    }
    headers.remove(CONTENT_LENGTH);
    headers.insert(CONTENT_TYPE, asked);
    headers.insert(STATUS, u16::from(code).into());
    headers.insert(MESSAGE, percent(&message));
    let seconds = headers.get(RETRY_AFTER).and_then(|after| after.to_str().ok());
    if let Some(seconds) = seconds.and_then(|text| text.parse::<u32>().ok()) {
        headers.insert(PUSHBACK, seconds.saturating_mul(1000).into());
    }
    *response.status_mut() = StatusCode::OK;
    response.map(|_| empty())
}

/// A message for the wire: what is no printable ASCII, and `%`, in hexadecimal.
fn percent(message: &str) -> HeaderValue {
    let mut text = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b'%' | ..b' ' | 0x7f.. => {
                // Writing to a string does not fail.
                let _ = write!(text, "%{byte:02X}");
            }
            plain => text.push(char::from(plain)),
        }
    }
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(problem: &Problem) -> Response<&'static str> {
        let response = problem.response().map(|_| "a body");
        answer(
            response,
            HeaderValue::from_static("application/grpc+proto"),
            || "",
        )
    }

    fn header<'a>(response: &'a Response<&str>, name: &str) -> Option<&'a str> {
        response.headers().get(name).map(|value| value.to_str().unwrap())
    }

    #[test]
    fn a_problem_is_a_status_without_a_message() {
        let response = told(&Problem::new(ProblemKind::Running, "100 % ü\n").retry_after(3));
        assert_eq!((response.status(), *response.body()), (StatusCode::OK, ""));
        for (name, value) in [
            ("content-type", "application/grpc+proto"),
            ("grpc-status", "10"),
            (
                "grpc-message",
                "The first request is still running (SEM0405): 100 %25 %C3%BC%0A",
            ),
            ("grpc-retry-pushback-ms", "3000"),
            ("retry-after", "3"),
            ("semel-outcome", "running"),
        ] {
            assert_eq!(header(&response, name), Some(value), "{name}");
        }
        let response = told(&Problem::new(ProblemKind::Unknown, ""));
        assert_eq!(header(&response, "grpc-retry-pushback-ms"), None);
    }

    /// A client that takes "already exists" for success would be wrong.
    #[test]
    fn what_was_refused_does_not_exist_already() {
        let mut response = Problem::new(ProblemKind::AnswerNotKept, "").response();
        assert_eq!(
            response
                .headers_mut()
                .insert(SEMEL_OUTCOME, OutcomeWord::Refused.header()),
            Some(OutcomeWord::Succeeded.header())
        );
        let response = answer(
            response,
            HeaderValue::from_static("application/grpc"),
            crate::Body::empty,
        );
        assert_eq!(response.headers()["grpc-status"], "9");
        assert_eq!(
            header(
                &told(&Problem::new(ProblemKind::AnswerNotKept, "")),
                "grpc-status"
            ),
            Some("6")
        );
    }

    #[test]
    fn an_answer_that_is_no_problem_is_left_alone() {
        let mut response = Response::new("hello");
        *response.status_mut() = StatusCode::NOT_FOUND;
        let response = answer(response, HeaderValue::from_static("application/grpc"), || "");
        assert_eq!(
            (response.status(), *response.body()),
            (StatusCode::NOT_FOUND, "hello")
        );
        assert!(response.headers().is_empty());
    }
}
