//! What a proxy does to headers on the way there and back.

use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Uri, uri};
use semel_core::wire;
use semel_http::headers;

use super::config::{HostRule, ProxyConfig};
use super::peer::{self, Peer};

/// Whether a field belongs to one connection (RFC 9110, 7.6.1). `Trailer` does not: it goes with the trailers, which do.
fn of_one_connection(name: &str) -> bool {
    // Most fields are ruled out by their length.
    matches!(name.len(), 2 | 7 | 10 | 14 | 16..=19)
        && matches!(
            name,
            "connection"
                | "keep-alive"
                | "proxy-connection"
                | "http2-settings"
                | "proxy-authenticate"
                | "proxy-authorization"
                | "te"
                | "transfer-encoding"
                | "upgrade"
        )
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Handler to the gateway: how many seconds this answer is kept.
pub(super) const PERSIST_FOR: HeaderName = HeaderName::from_static(wire::PERSIST_FOR);
/// Handler to the gateway: nothing was done, a retry may run.
pub(super) const NOT_EXECUTED: HeaderName = HeaderName::from_static(wire::NOT_EXECUTED);

/// What only the gateway says to the upstream, or only the upstream to the gateway; a client must not.
fn not_from_clients(name: &str) -> bool {
    matches!(
        name,
        wire::TOKEN
            | wire::ATTEMPT
            | wire::DEADLINE_MS
            | wire::OUTCOME
            | wire::NO_STORE
            | wire::PERSIST_FOR
            | wire::NOT_EXECUTED
    )
}

/// Whether it says who asked; a client may not say that of itself.
fn says_who_asked(name: &str) -> bool {
    matches!(
        name,
        "x-forwarded-for" | "x-forwarded-host" | "x-forwarded-proto" | "forwarded"
    )
}

/// Whether two names are one to servers that hand fields on as variables (CGI, WSGI, PHP): `Semel_Token`, `Semel.Token`
/// and `Semel-Token`.
fn are_twins(name: &str, other: &str) -> bool {
    let plain = |byte: u8| {
        if byte.is_ascii_alphanumeric() { byte } else { b'-' }
    };
    name.len() == other.len() && name.bytes().map(plain).eq(other.bytes().map(plain))
}

/// Whether a field of a client may be taken for one that says something about its caller or its key, and is not that one.
fn is_twin(name: &HeaderName, config: &ProxyConfig) -> bool {
    let text = name.as_str();
    let begins = |prefix: &str| {
        text.get(..prefix.len())
            .is_some_and(|start| are_twins(start, prefix))
    };
    let semels = || {
        begins("semel-")
            || begins("x-forwarded-")
            || are_twins(text, wire::IDEMPOTENCY_KEY)
            || are_twins(text, wire::IDEMPOTENT_REPLAYED)
    };
    let odd = |byte: u8| byte != b'-' && !byte.is_ascii_alphanumeric();
    (text.bytes().any(odd) && semels())
        || config
            .meant
            .iter()
            .any(|meant| meant != name && are_twins(text, meant.as_str()))
}

/// Takes out the fields of these names. Most requests have few of many such names, so each field is looked at once.
fn take_out(headers: &mut HeaderMap, goes: impl Fn(&HeaderName) -> bool) {
    let gone: Vec<HeaderName> = headers.keys().filter(|name| goes(name)).cloned().collect();
    for name in &gone {
        headers.remove(name);
    }
}

/// Takes out what belongs to one connection, and what `Connection` names: all but the fields that say who asks for
/// what, which end-to-end judgements are made of (`kept`, the key, who asked, and Semel's own).
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap, kept: &[HeaderName]) {
    strip(headers, kept, |_| false);
}

/// The same, and these fields with it.
fn strip(headers: &mut HeaderMap, kept: &[HeaderName], also: impl Fn(&HeaderName) -> bool) {
    if headers.contains_key(header::CONNECTION) {
        let stays = |name: &HeaderName| {
            kept.contains(name)
                || [
                    headers::IDEMPOTENCY_KEY,
                    headers::IDEMPOTENT_REPLAYED,
                    header::FORWARDED,
                    header::HOST,
                    header::AUTHORIZATION,
                    header::CONTENT_LENGTH,
                    header::CONTENT_TYPE,
                    header::CONTENT_ENCODING,
                ]
                .contains(name)
                || name.as_str().starts_with("semel-")
                || name.as_str().starts_with("x-forwarded-")
        };
        let named: Vec<HeaderName> = tokens(headers, &header::CONNECTION)
            .filter(|word| {
                !["keep-alive", "close"]
                    .iter()
                    .any(|said| said.eq_ignore_ascii_case(word))
            })
            .filter_map(|name| HeaderName::from_bytes(name.as_bytes()).ok())
            .filter(|name| !stays(name))
            .collect();
        for name in &named {
            headers.remove(name);
        }
    }
    take_out(headers, |name| of_one_connection(name.as_str()) || also(name));
}

/// The fields of an answer to a request without a key: what only a gateway obeys means nothing behind one either.
pub(super) fn answer(headers: &mut HeaderMap) {
    strip(headers, &[], |name| {
        matches!(
            name.as_str(),
            wire::NO_STORE | wire::PERSIST_FOR | wire::NOT_EXECUTED
        )
    });
}

/// Whether a body comes in another transfer coding than `chunked`: hyper takes that one off and leaves what is below it,
/// and nothing behind this hop would know of it.
pub(crate) fn coded(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(header::TRANSFER_ENCODING).iter();
    let first = values.next();
    let plain = |value: &HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    first.is_some_and(|first| !plain(first) || values.next().is_some())
}

/// The words of a list.
fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|word| !word.is_empty())
}

/// The protocol that a request asks to change to, where it asks in due form. HTTP itself is none: requests in the
/// tunnel would pass by every route.
pub(super) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = headers.get(header::UPGRADE)?;
    let http = |word: &str| {
        let word = word.to_ascii_lowercase();
        word.starts_with("h2")
            || word.starts_with("h3")
            || word.starts_with("http/")
            || word.starts_with("tls/")
    };
    if tokens(headers, &header::UPGRADE).any(http) {
        return None;
    }
    tokens(headers, &header::CONNECTION)
        .any(|word| word.eq_ignore_ascii_case("upgrade"))
        .then(|| asked.clone())
}

/// Whether a WebSocket is asked for, in due form or not.
pub(super) fn wants_websocket(headers: &HeaderMap) -> bool {
    tokens(headers, &header::UPGRADE).any(|word| word.eq_ignore_ascii_case("websocket"))
}

/// Prepares the headers of a request for the upstream. `peer` is who connected, `authority` whom an HTTP/2 client
/// asked for.
pub(super) fn request(
    headers: &mut HeaderMap,
    config: &ProxyConfig,
    peer: Option<&Peer>,
    authority: Option<&HeaderValue>,
    upgrade: Option<HeaderValue>,
) {
    let trailers = tokens(headers, &header::TE).any(|word| word.eq_ignore_ascii_case("trailers"));
    strip(headers, &config.kept, |name| may_not_say(name, config));
    one_cookie(headers);
    let host = tell(headers, config, peer, authority);
    let own = || config.own_host.clone();
    let shown = match &config.host {
        HostRule::Upstream => own(),
        HostRule::Preserve => host.or_else(own),
        HostRule::Is(name) => Some(name.clone()),
    };
    if let Some(host) = shown {
        headers.insert(header::HOST, host);
    }
    if let Some(upgrade) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, upgrade);
    } else if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        headers.insert(header::CONNECTION, HeaderValue::from_static("te"));
    }
}

/// Takes out what a client may not say, and says who asked. The `Host` that it asked for is taken out and returned.
pub(super) fn who(
    headers: &mut HeaderMap,
    config: &ProxyConfig,
    peer: Option<&Peer>,
    authority: Option<&HeaderValue>,
) -> Option<HeaderValue> {
    take_out(headers, |name| may_not_say(name, config));
    tell(headers, config, peer, authority)
}

/// What a client may not say.
fn may_not_say(name: &HeaderName, config: &ProxyConfig) -> bool {
    let text = name.as_str();
    // Most fields are ruled out by their first letter.
    let goes = match text.as_bytes().first() {
        Some(b's') => not_from_clients(text),
        Some(b'x' | b'f') => !config.trust_forwarded && says_who_asked(text),
        _ => *name == header::EXPECT,
    };
    goes || is_twin(name, config)
}

/// Says who asked. The `Host` that it asked for is taken out and returned.
fn tell(
    headers: &mut HeaderMap,
    config: &ProxyConfig,
    peer: Option<&Peer>,
    authority: Option<&HeaderValue>,
) -> Option<HeaderValue> {
    let own = headers.remove(header::HOST);
    let host = authority.cloned().or(own);
    if let Some(address) = peer.and_then(Peer::text) {
        append(headers, &X_FORWARDED_FOR, address);
    }
    if let Some(host) = &host {
        headers.entry(X_FORWARDED_HOST).or_insert_with(|| host.clone());
    }
    let proto = if config.secure { "https" } else { "http" };
    headers
        .entry(X_FORWARDED_PROTO)
        .or_insert(HeaderValue::from_static(proto));
    let element = match peer {
        Some(peer) => peer.element(host.as_ref(), proto),
        None => peer::element(None, host.as_ref(), proto),
    };
    if let Some(element) = &element {
        append(headers, &header::FORWARDED, element);
    }
    host
}

/// Over HTTP/2 a cookie may come in crumbs; elsewhere it is one line (RFC 9113, 8.2.3).
pub(super) fn one_cookie(headers: &mut HeaderMap) {
    if headers.len() == headers.keys_len() {
        return;
    }
    let crumbs: Vec<&[u8]> = headers
        .get_all(header::COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if crumbs.len() > 1
        && let Ok(whole) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]))
    {
        headers.insert(header::COOKIE, whole);
    }
}

/// Adds to a list in one line.
fn append(headers: &mut HeaderMap, name: &HeaderName, element: &HeaderValue) {
    if let header::Entry::Vacant(vacant) = headers.entry(name) {
        vacant.insert(element.clone());
        return;
    }
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
    // `*` is the whole server's target, which has nothing below it.
    if target.as_str() == "*" {
        return Some(Uri::from(target.clone()));
    }
    let base = upstream.path().trim_end_matches('/');
    if base.is_empty() {
        return Some(Uri::from(target.clone()));
    }
    let joined = format!("{base}{target}");
    Some(Uri::from(joined.parse::<uri::PathAndQuery>().ok()?))
}

/// Whether the upstream says `1` under this name and nothing else: `0`, `false` or a slip is no yes.
pub(super) fn says_yes(headers: &HeaderMap, name: &HeaderName) -> bool {
    let mut values = headers.get_all(name).iter();
    let yes = values
        .next()
        .is_some_and(|value| value.as_bytes().trim_ascii() == b"1");
    yes && values.next().is_none()
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

    fn config(lines: &str) -> ProxyConfig {
        with(&format!("anonymous = true\n{lines}"))
    }

    fn with(lines: &str) -> ProxyConfig {
        super::super::tests::config("127.0.0.1:9000".parse().unwrap(), lines).proxy
    }

    #[test]
    fn fields_of_the_connection_and_those_it_names_go() {
        let mut headers = map(&[
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("te", "gzip"),
            ("transfer-encoding", "chunked"),
            ("expect", "100-continue"),
            ("semel-token", "7"),
            ("semel-not-executed", "1"),
            ("idempotency-key", "a"),
            ("accept", "*/*"),
        ]);
        request(&mut headers, &config(""), None, None, None);
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "accept",
                "forwarded",
                "host",
                "idempotency-key",
                "x-forwarded-proto"
            ]
        );
    }

    #[test]
    fn who_asked_is_said_anew_or_added() {
        let sent = [
            ("host", "shop.example"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-forwarded-proto", "https"),
            ("forwarded", "for=10.0.0.1"),
            ("connection", "X-Forwarded-For, Forwarded"),
        ];
        let peer = Peer::new("10.0.0.2".parse().unwrap());
        let peer = Some(&peer);
        let mut anew = map(&sent);
        request(&mut anew, &config(""), peer, None, None);
        assert_eq!(get(&anew, "x-forwarded-for"), Some("10.0.0.2"));
        assert_eq!(get(&anew, "x-forwarded-host"), Some("shop.example"));
        assert_eq!(get(&anew, "x-forwarded-proto"), Some("http"));
        assert_eq!(
            get(&anew, "forwarded"),
            Some("for=10.0.0.2;host=\"shop.example\";proto=http")
        );
        assert_eq!(get(&anew, "host"), Some("127.0.0.1:9000"));

        let mut added = map(&sent);
        request(&mut added, &config("trust_forwarded = true"), peer, None, None);
        assert_eq!(get(&added, "x-forwarded-for"), Some("10.0.0.1, 10.0.0.2"));
        assert_eq!(get(&added, "x-forwarded-proto"), Some("https"));
        let both = "for=10.0.0.1, for=10.0.0.2;host=\"shop.example\";proto=http";
        assert_eq!(get(&added, "forwarded"), Some(both));
    }

    #[test]
    fn the_host_is_the_upstreams_the_clients_or_the_one_that_is_set() {
        for (line, shown) in [
            ("", "127.0.0.1:9000"),
            ("host = \"preserve\"", "shop.example"),
            ("host = \"inner.example\"", "inner.example"),
        ] {
            let mut headers = map(&[("host", "shop.example")]);
            request(&mut headers, &config(line), None, None, None);
            assert_eq!(get(&headers, "host"), Some(shown));
        }
    }

    /// An upstream behind CGI or WSGI would take them for the gateway's own word.
    #[test]
    fn what_a_client_writes_with_underscores_or_dots_is_not_taken_for_what_the_gateway_says() {
        let mut headers = map(&[
            ("semel_token", "7"),
            ("semel-token", "7"),
            ("semel_not-executed", "1"),
            ("idempotency_key", "b"),
            ("x_forwarded_for", "10.0.0.9"),
            ("x_user", "root"),
            ("x.user", "root"),
            ("x~forwarded.for", "10.0.0.9"),
            ("semel.token", "7"),
            ("x-user", "alice"),
            ("x_order_id", "b"),
            ("idempotency-key", "a"),
            ("x_other", "stays"),
        ]);
        let lines = "principal_header = \"X-User\"\nkey_headers = [\"X-Order-Id\"]";
        request(&mut headers, &with(lines), None, None, None);
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "forwarded",
                "host",
                "idempotency-key",
                "x-forwarded-proto",
                "x-user",
                "x_other"
            ]
        );
    }

    #[test]
    fn a_cookie_in_crumbs_becomes_one_line() {
        let mut headers = map(&[("cookie", "a=1"), ("x", "1"), ("x", "2"), ("cookie", "b=2; c=3")]);
        request(&mut headers, &config(""), None, None, None);
        let cookies: Vec<_> = headers.get_all("cookie").iter().collect();
        assert_eq!(cookies, ["a=1; b=2; c=3"]);
        assert_eq!(headers.get_all("x").iter().count(), 2);
    }

    #[test]
    fn only_trailers_of_te_goes_on() {
        let mut headers = map(&[("te", "gzip, trailers"), ("connection", "te")]);
        request(&mut headers, &config(""), None, None, None);
        assert_eq!(
            (get(&headers, "te"), get(&headers, "connection")),
            (Some("trailers"), Some("te"))
        );
    }

    /// Requests in the tunnel would pass by every route.
    #[test]
    fn no_tunnel_is_made_for_http_itself() {
        for (asked, made) in [
            ("websocket", true),
            ("h2c", false),
            ("foo, H2C", false),
            ("HTTP/2.0", false),
        ] {
            let headers = map(&[("connection", "Upgrade, HTTP2-Settings"), ("upgrade", asked)]);
            assert_eq!(upgrade(&headers).is_some(), made, "{asked}");
        }
        let mut headers = map(&[("http2-settings", "AAMAAABkAAQAAP__")]);
        request(&mut headers, &config(""), None, None, None);
        assert_eq!(get(&headers, "http2-settings"), None);
    }

    #[test]
    fn the_upstreams_path_comes_first() {
        for (upstream, asked, goes_to) in [
            ("http://u:1", "/a?b=c", "/a?b=c"),
            ("http://u:1/", "/", "/"),
            ("http://u:1/base/", "/a%2Fb/../c?x", "/base/a%2Fb/../c?x"),
            ("http://u:1", "http://other/a", "/a"),
            ("http://u:1/base", "*", "*"),
        ] {
            let found = target(&upstream.parse().unwrap(), &asked.parse().unwrap());
            assert_eq!(found.unwrap().to_string(), goes_to);
        }
        assert_eq!(
            target(&"http://u:1".parse().unwrap(), &"other:443".parse().unwrap()),
            None
        );
    }

    #[test]
    fn only_1_says_yes() {
        let said = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(NOT_EXECUTED, HeaderValue::from_static(value));
            }
            says_yes(&headers, &NOT_EXECUTED)
        };
        assert!(said(&["1"]) && said(&[" 1 "]));
        for no in [
            &[][..],
            &["0"],
            &["false"],
            &["true"],
            &["1, 1"],
            &["1", "1"],
            &[""],
        ] {
            assert!(!said(no), "{no:?}");
        }
    }
}
