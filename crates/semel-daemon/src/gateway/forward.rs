//! What a proxy does to headers on the way there and back.

use std::net::IpAddr;

use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Uri, uri};
use semel_http::headers;

/// Fields of one connection (RFC 9110, 7.6.1), and `Expect`, which this proxy answers itself.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Takes out what belongs to one connection, and what `Connection` names: all but the fields that say who asks for
/// what, which end-to-end judgements are made of (`kept`, the key, and Semel's own).
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap, kept: Option<&HeaderName>) {
    let kept = |name: &HeaderName| {
        kept == Some(name)
            || [headers::IDEMPOTENCY_KEY, headers::IDEMPOTENT_REPLAYED].contains(name)
            || name.as_str().starts_with("semel-")
    };
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .filter(|name| !kept(name))
        .collect();
    for name in HOP_BY_HOP.iter().chain(&named) {
        headers.remove(name);
    }
}

/// Prepares the headers of a request for the upstream. `peer` is who connected; `principal` says who asks.
pub(super) fn request(
    headers: &mut HeaderMap,
    peer: Option<IpAddr>,
    trust_forwarded: bool,
    principal: Option<&HeaderName>,
) {
    strip_hop_by_hop(headers, principal);
    headers.remove(header::EXPECT);
    // Only this gateway says these; a client must not.
    for name in [
        headers::SEMEL_TOKEN,
        headers::SEMEL_ATTEMPT,
        headers::SEMEL_DEADLINE_MS,
        headers::SEMEL_OUTCOME,
        headers::SEMEL_NO_STORE,
    ] {
        headers.remove(name);
    }
    if !trust_forwarded {
        for name in [
            X_FORWARDED_FOR,
            X_FORWARDED_HOST,
            X_FORWARDED_PROTO,
            header::FORWARDED,
        ] {
            headers.remove(name);
        }
    }
    // The client sets the upstream's own from the URI.
    let host = headers.remove(header::HOST);
    if let Some(peer) = peer {
        append(headers, &X_FORWARDED_FOR, &peer.to_string());
    }
    if let Some(host) = &host {
        headers.entry(X_FORWARDED_HOST).or_insert_with(|| host.clone());
    }
    headers
        .entry(X_FORWARDED_PROTO)
        .or_insert(HeaderValue::from_static("http"));
    append(headers, &header::FORWARDED, &forwarded(peer, host.as_ref()));
}

/// One element of `Forwarded` (RFC 7239).
fn forwarded(peer: Option<IpAddr>, host: Option<&HeaderValue>) -> String {
    let mut element = match peer {
        Some(IpAddr::V4(ip)) => format!("for={ip}"),
        Some(IpAddr::V6(ip)) => format!("for=\"[{ip}]\""),
        None => "for=unknown".to_owned(),
    };
    // Only what needs no escape inside quotes; anything else is no host.
    let plain = |text: &&str| {
        text.bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\')
    };
    if let Some(host) = host.and_then(|host| host.to_str().ok()).filter(plain) {
        element.push_str(&format!(";host=\"{host}\""));
    }
    element + ";proto=http"
}

/// Adds to a list in one line.
fn append(headers: &mut HeaderMap, name: &HeaderName, element: &str) {
    let mut list: Vec<u8> = headers
        .get_all(name)
        .iter()
        .map(HeaderValue::as_bytes)
        .filter(|value| !value.is_empty())
        .collect::<Vec<_>>()
        .join(&b", "[..]);
    if !list.is_empty() {
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(element.as_bytes());
    if let Ok(value) = HeaderValue::from_bytes(&list) {
        headers.insert(name, value);
    }
}

/// The request's path and query below the upstream's address; `None` for a target without a path, such as CONNECT's.
pub(super) fn target(upstream: &Uri, request: &Uri) -> Option<Uri> {
    let target = request.path_and_query()?;
    let base = upstream.path().trim_end_matches('/');
    let target = if base.is_empty() {
        target.clone()
    } else {
        format!("{base}{target}").parse::<uri::PathAndQuery>().ok()?
    };
    Uri::builder()
        .scheme(upstream.scheme()?.clone())
        .authority(upstream.authority()?.clone())
        .path_and_query(target)
        .build()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    fn get<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
        headers.get(name).map(|value| value.to_str().unwrap())
    }

    #[test]
    fn fields_of_the_connection_and_those_it_names_go() {
        let mut headers = map(&[
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("expect", "100-continue"),
            ("semel-token", "7"),
            ("idempotency-key", "a"),
            ("accept", "*/*"),
        ]);
        request(&mut headers, None, false, None);
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            ["accept", "forwarded", "idempotency-key", "x-forwarded-proto"]
        );
    }

    #[test]
    fn who_asked_is_said_anew_or_added() {
        let sent = [
            ("host", "shop.example"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-forwarded-proto", "https"),
            ("forwarded", "for=10.0.0.1"),
        ];
        let peer = Some("10.0.0.2".parse().unwrap());
        let mut anew = map(&sent);
        request(&mut anew, peer, false, None);
        assert_eq!(get(&anew, "x-forwarded-for"), Some("10.0.0.2"));
        assert_eq!(get(&anew, "x-forwarded-host"), Some("shop.example"));
        assert_eq!(get(&anew, "x-forwarded-proto"), Some("http"));
        assert_eq!(
            get(&anew, "forwarded"),
            Some("for=10.0.0.2;host=\"shop.example\";proto=http")
        );
        assert_eq!(get(&anew, "host"), None);

        let mut added = map(&sent);
        request(&mut added, peer, true, None);
        assert_eq!(get(&added, "x-forwarded-for"), Some("10.0.0.1, 10.0.0.2"));
        assert_eq!(get(&added, "x-forwarded-proto"), Some("https"));
        let both = "for=10.0.0.1, for=10.0.0.2;host=\"shop.example\";proto=http";
        assert_eq!(get(&added, "forwarded"), Some(both));
    }

    #[test]
    fn an_ipv6_peer_is_quoted() {
        let peer = Some("::1".parse().unwrap());
        assert_eq!(forwarded(peer, None), "for=\"[::1]\";proto=http");
    }

    #[test]
    fn the_upstreams_path_comes_first() {
        for (upstream, asked, goes_to) in [
            ("http://u:1", "/a?b=c", "http://u:1/a?b=c"),
            ("http://u:1/", "/", "http://u:1/"),
            ("http://u:1/base/", "/a%2Fb?x", "http://u:1/base/a%2Fb?x"),
            ("http://u:1", "http://other/a", "http://u:1/a"),
        ] {
            let found = target(&upstream.parse().unwrap(), &asked.parse().unwrap());
            assert_eq!(found.unwrap().to_string(), goes_to);
        }
        assert_eq!(
            target(&"http://u:1".parse().unwrap(), &"other:443".parse().unwrap()),
            None
        );
    }
}
