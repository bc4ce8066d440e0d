//! What this gateway answers by itself: problems, and what they say about the key.

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Uri, Version, header};
use semel_core::wire;
use semel_http::grpc::GrpcStatus;
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
    /// The client broke off the body of a request without a key, and a part of it has left.
    BodyBroken,
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
            Self::BodyBroken => (
                "SEM0475",
                "body-broken",
                StatusCode::BAD_REQUEST,
                "The request's body broke off on its way",
            ),
        }
    }

    /// What is known of the request.
    const fn outcome(self) -> &'static str {
        match self {
            Self::BodyBroken => "unknown",
            _ => "refused",
        }
    }

    /// The number of its status in gRPC.
    const fn grpc(self) -> u8 {
        match self {
            // RESOURCE_EXHAUSTED, INVALID_ARGUMENT, UNAVAILABLE, UNKNOWN.
            Self::HeadTooLarge | Self::BodyTooLarge => 8,
            Self::Ambiguous => 3,
            Self::AuthAway => 14,
            Self::BodyBroken => 2,
        }
    }

    /// The answer; of all but a broken body it is certain that nothing was done. `close` ends the connection behind it.
    pub(crate) fn answer(self, detail: &str, close: bool) -> Response<Reply> {
        let (code, kind, status, title) = self.row();
        let json = serde_json::json!({
            "type": format!("urn:semel:problem:{kind}"),
            "title": title,
            "status": status.as_u16(),
            "detail": detail,
            "code": code,
            "outcome": self.outcome(),
        });
        let mut response = Response::new(Reply::Own(Body::whole(json.to_string())));
        *response.status_mut() = status;
        let grpc = GrpcStatus::new(self.grpc(), format!("{title} ({code}): {detail}"));
        response.extensions_mut().insert(grpc);
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.insert(
            HeaderName::from_static(wire::OUTCOME),
            HeaderValue::from_static(self.outcome()),
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

/// It was sent more than once, and the last answer says nothing of the first.
pub(crate) fn still_open() -> Problem {
    let detail = "the request was sent more than once, and the last answer says nothing of what became of the first; it may \
                  have been done";
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

/// A body in a transfer coding that is not known here (RFC 9112, 6.1).
pub(crate) fn unknown_coding() -> Response<Reply> {
    let detail = "its body has another Transfer-Encoding than chunked; nothing was done, and the connection is closed: \
                  send it chunked or with Content-Length, and compressed only under Content-Encoding";
    let mut response = not_supported(detail);
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

/// A problem and what it means for the key.
pub(crate) fn failed(problem: &Problem, disposition: Disposition) -> Response<Reply> {
    let mut response = problem.response().map(Reply::Own);
    response.extensions_mut().insert(disposition);
    response
}

/// Whether a head names its host twice, or over HTTP/1.1 not at all (RFC 9112, 3.2), or by what is no host, and what to
/// say then.
pub(crate) fn host_trouble(version: Version, uri: &Uri, headers: &HeaderMap) -> Option<&'static str> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(_), Some(_)) => return Some("it has more than one Host; send one"),
        (None, _) if version == Version::HTTP_11 && uri.authority().is_none() => {
            return Some("it has no Host; send one");
        }
        (host, _) => host,
    };
    let asked = uri.authority().map(|authority| authority.as_str().as_bytes());
    let named = host.map(HeaderValue::as_bytes);
    if [asked, named].into_iter().flatten().all(is_host) {
        None
    } else {
        Some("its Host is no host name or address with at most a port; send it so")
    }
}

/// Whether servers agree on what this names: a name or an address, and at most a port. Nothing at all is allowed
/// (RFC 9110, 7.2).
fn is_host(text: &[u8]) -> bool {
    let (name, rest) = match text.strip_prefix(b"[") {
        Some(inside) => match inside.iter().position(|byte| *byte == b']') {
            Some(end) => (inside.get(..end), inside.get(end + 1..)),
            None => return false,
        },
        None => {
            let end = text.iter().position(|byte| *byte == b':').unwrap_or(text.len());
            (text.get(..end), text.get(end..))
        }
    };
    let (name, rest) = (name.unwrap_or_default(), rest.unwrap_or_default());
    let fits: fn(&u8) -> bool = if text.starts_with(b"[") {
        |byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.')
    } else {
        |byte| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=".contains(byte)
    };
    let port = rest.strip_prefix(b":").unwrap_or_default();
    name.iter().all(fits)
        && (rest.is_empty() || rest.starts_with(b":"))
        && port.iter().all(u8::is_ascii_digit)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address_and_at_most_a_port() {
        for good in [
            "",
            "a",
            "shop.example",
            "a_b:80",
            "a:",
            "[::1]",
            "[::1]:8443",
            "10.0.0.2:1",
            "xn--p1ai",
        ] {
            assert!(is_host(good.as_bytes()), "{good}");
        }
        for bad in [
            "a b", "a/b", "a@b", "a:80:81", "a:x", "a,b", "a\"", "[::1", "[::1]a", "[g]", "a\\b", "a?b",
            "a#b", "<a>", "\u{e4}",
        ] {
            assert!(!is_host(bad.as_bytes()), "{bad}");
        }
    }
}
