//! Who connected, and how the upstream is told of it.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderValue;

/// The client of one connection, as an extension of its requests too. What is said of it is written once: the next
/// request of a connection mostly asks the same host.
#[derive(Debug, Clone)]
pub(crate) struct Peer(Arc<Told>);

#[derive(Debug)]
struct Told {
    address: IpAddr,
    text: Option<HeaderValue>,
    last: Mutex<Option<Last>>,
}

#[derive(Debug)]
struct Last {
    host: Option<HeaderValue>,
    proto: &'static str,
    element: HeaderValue,
}

impl Peer {
    /// An IPv4 address inside an IPv6 one is the former.
    pub(crate) fn new(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self(Arc::new(Told {
            address,
            text: HeaderValue::try_from(address.to_string()).ok(),
            last: Mutex::default(),
        }))
    }

    /// Its address, as `X-Forwarded-For` has it.
    pub(super) fn text(&self) -> Option<&HeaderValue> {
        self.0.text.as_ref()
    }

    /// Its element of `Forwarded`, when it asks this host.
    pub(super) fn element(&self, host: Option<&HeaderValue>, proto: &'static str) -> Option<HeaderValue> {
        let mut last = self.0.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = &*last
            && last.host.as_ref() == host
            && last.proto == proto
        {
            return Some(last.element.clone());
        }
        let element = element(Some(self.0.address), host, proto)?;
        *last = Some(Last {
            host: host.cloned(),
            proto,
            element: element.clone(),
        });
        Some(element)
    }
}

/// One element of `Forwarded` (RFC 7239).
pub(super) fn element(peer: Option<IpAddr>, host: Option<&HeaderValue>, proto: &str) -> Option<HeaderValue> {
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
    element.push_str(";proto=");
    HeaderValue::try_from(element + proto).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_peer_is_quoted() {
        let told = element(Some("::1".parse().unwrap()), None, "https");
        assert_eq!(told.unwrap(), "for=\"[::1]\";proto=https");
    }

    #[test]
    fn what_is_remembered_of_one_host_is_not_said_of_another() {
        let peer = Peer::new("::ffff:10.0.0.2".parse().unwrap());
        assert_eq!(peer.text().unwrap(), "10.0.0.2");
        let (a, b) = (HeaderValue::from_static("a"), HeaderValue::from_static("b"));
        for _ in 0..2 {
            let told = [Some(&a), Some(&b), None].map(|host| peer.element(host, "http").unwrap());
            let wanted = [
                "for=10.0.0.2;host=\"a\";proto=http",
                "for=10.0.0.2;host=\"b\";proto=http",
                "for=10.0.0.2;proto=http",
            ];
            assert_eq!(told, wanted);
            assert_eq!(peer.element(None, "https").unwrap(), "for=10.0.0.2;proto=https");
        }
    }
}
