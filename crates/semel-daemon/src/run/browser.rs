//! Web pages are kept out where there is no token: a page that a browser of this machine shows can send requests to it.

use http::{HeaderMap, header};

/// Whether a request may come from a web page: it says so, or it names this machine by a host of somebody's own.
pub(crate) fn from_a_browser(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    let local = host.is_none_or(|host| {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => host,
        };
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let address = bare.parse::<std::net::IpAddr>();
        name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
    });
    headers.contains_key(header::ORIGIN) || !local
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_this_machine_are_told_from_others() {
        let from = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            from_a_browser(&headers)
        };
        for host in ["127.0.0.1:7080", "localhost", "localhost:1", "[::1]:7080"] {
            assert!(!from(host), "{host}");
        }
        for host in ["evil.example:7080", "127.0.0.1.evil.example", "10.0.0.1:7080"] {
            assert!(from(host), "{host}");
        }
    }
}
