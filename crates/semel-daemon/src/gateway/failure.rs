//! What this gateway answers by itself: problems, and what they say about the key.

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Uri, Version, header};
use semel_core::wire;
use semel_http::{Body, Disposition, Problem, ProblemKind};

use super::body::Reply;

/// A problem that only a gateway has; each has a page `docs/errors/SEM047x.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The head is over a limit.
    HeadTooLarge,
    /// The head may be read in two ways.
    Ambiguous,
    /// The body of a request without a key is over its limit.
    BodyTooLarge,
    /// Nobody can be asked who calls.
    AuthAway,
}

impl Refusal {
    /// Code, name of the type, status and title.
    const fn row(self) -> (&'static str, &'static str, StatusCode, &'static str) {
        match self {
            Self::HeadTooLarge => (
                "SEM0470",
                "head-too-large",
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "The request's head is too large",
            ),
            Self::Ambiguous => (
                "SEM0471",
                "ambiguous-head",
                StatusCode::BAD_REQUEST,
                "The request's head may be read in two ways",
            ),
            Self::BodyTooLarge => (
                "SEM0472",
                "body-too-large",
                StatusCode::PAYLOAD_TOO_LARGE,
                "The request's body is too large",
            ),
            Self::AuthAway => (
                "SEM0473",
                "auth-unavailable",
                StatusCode::SERVICE_UNAVAILABLE,
                "The caller cannot be verified now",
            ),
        }
    }

    /// The answer; nothing was done. `close` ends the connection behind it.
    pub(crate) fn answer(self, detail: &str, close: bool) -> Response<Reply> {
        let (code, kind, status, title) = self.row();
        let json = serde_json::json!({
            "type": format!("urn:semel:problem:{kind}"),
            "title": title,
            "status": status.as_u16(),
            "detail": detail,
            "code": code,
            "outcome": "refused",
        });
        let mut response = Response::new(Reply::Own(Body::whole(json.to_string())));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.insert(
            HeaderName::from_static(wire::OUTCOME),
            HeaderValue::from_static("refused"),
        );
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(1));
        }
        if close {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// The answer broke off.
pub(crate) fn broke_off() -> Problem {
    let detail = "the request was sent and the connection broke before the whole answer had come; it may have been \
                  done, and is not sent again in silence";
    Problem::new(ProblemKind::UpstreamBroken, detail)
}

/// No answer within this limit.
pub(crate) fn too_slow(limit: &str) -> Problem {
    let detail = format!(
        "the request was sent and no whole answer came within {limit}; it may have been done, and is not sent again \
         in silence"
    );
    Problem::new(ProblemKind::UpstreamTimeout, detail)
}

/// No connection.
pub(crate) fn unreachable() -> Response<Reply> {
    let detail = "nothing was sent to it; send the same request again later";
    let problem = Problem::new(ProblemKind::UpstreamUnreachable, detail).retry_after(1);
    failed(&problem, Disposition::NotExecuted)
}

/// Something that this gateway does not do.
pub(crate) fn not_supported(detail: &str) -> Response<Reply> {
    failed(
        &Problem::new(ProblemKind::NotSupported, detail),
        Disposition::NotExecuted,
    )
}

/// A problem and what it means for the key.
pub(crate) fn failed(problem: &Problem, disposition: Disposition) -> Response<Reply> {
    let mut response = problem.response().map(Reply::Own);
    response.extensions_mut().insert(disposition);
    response
}

/// Whether a head names its host twice, or over HTTP/1.1 not at all (RFC 9112, 3.2), and what to say then.
pub(crate) fn host_trouble(version: Version, uri: &Uri, headers: &HeaderMap) -> Option<&'static str> {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(_), Some(_)) => Some("it has more than one Host; send one"),
        (None, _) if version == Version::HTTP_11 && uri.authority().is_none() => {
            Some("it has no Host; send one")
        }
        _ => None,
    }
}

/// Whether a head is over its limits, and what to say then.
pub(crate) fn head_limits(
    headers: &HeaderMap,
    headers_max: usize,
    bytes_max: usize,
    target: usize,
) -> Option<String> {
    if headers.len() > headers_max {
        let found = headers.len();
        return Some(format!(
            "it has {found} fields, more than headers_max = {headers_max}; send fewer, or raise that"
        ));
    }
    let bytes = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum::<usize>()
        + target;
    (bytes > bytes_max).then(|| {
        format!("it has {bytes} bytes, more than header_bytes_max = {bytes_max}; send less, or raise that")
    })
}
