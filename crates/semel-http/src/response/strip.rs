//! What is not stored: fields of the connection, of the moment, of the caller's credentials, and our own marks.

use http::HeaderMap;
use http::header::{self, HeaderName, HeaderValue};
use semel_core::wire;

/// Names that are left out. A match is compiled to a comparison of length and bytes; a list would be walked for each
/// header of each answer.
fn is_stripped(name: &str) -> bool {
    match name {
        // The connection's (RFC 9110, 7.6.1).
        "connection" | "keep-alive" | "proxy-authenticate" | "proxy-connection" | "te" | "transfer-encoding"
        | "upgrade"
        // The framing and the moment: made anew.
        | "age" | "content-length" | "date" | "server"
        // The first caller's.
        | "set-cookie" | "www-authenticate" | "authentication-info"
        // The route's and the trace's.
        | "alt-svc" | "request-id" | "x-request-id" | "x-correlation-id" | "traceparent" | "tracestate"
        | "server-timing"
        // Ours, set anew on each answer. The guarantee is kept: it is the handler's word.
        | wire::IDEMPOTENT_REPLAYED | wire::OUTCOME | wire::NO_STORE | wire::RETAINED_UNTIL | wire::HOP => true,
        _ => matches!(name.as_bytes().first(), Some(b'a' | b'r' | b'x'))
            && STRIPPED_PREFIXES.iter().any(|prefix| name.starts_with(prefix)),
    }
}

/// Families of names; [`is_stripped`] knows their first letters.
const STRIPPED_PREFIXES: &[&str] = &["access-control-", "ratelimit", "x-ratelimit-", "x-rate-limit-"];

/// The headers that belong to the answer itself, in order.
pub(super) fn kept(headers: &HeaderMap) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
    let named: Vec<String> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    headers.iter().filter(move |(name, _)| {
        let name = name.as_str();
        !is_stripped(name) && !named.iter().any(|it| it == name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_answers_own_headers_are_kept() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("location", "/orders/7"),
            ("etag", "\"1\""),
            ("set-cookie", "session=1"),
            ("date", "now"),
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("ratelimit-remaining", "3"),
            ("access-control-allow-origin", "*"),
            ("link", "</a>; rel=next"),
            ("content-type", "text/plain"),
            ("content-length", "2"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers.append("link", HeaderValue::from_static("</b>; rel=prev"));
        let names: Vec<_> = kept(&headers).map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["location", "etag", "link", "link", "content-type"]);
    }
}
