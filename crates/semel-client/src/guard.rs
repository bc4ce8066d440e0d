//! The guard against private addresses: what a URL from outside could otherwise reach, such as a cloud's metadata service.
//!
//! It looks at the very address that is connected to, after the name was resolved, so that a name server cannot show it
//! one address and the connection another.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use tower_service::Service;

/// Why nothing was connected to.
#[derive(Debug, thiserror::Error)]
#[error("{address} is not a public address, and private ones are refused (allow_private = false)")]
pub(crate) struct PrivateAddress {
    pub(crate) address: IpAddr,
}

/// Whether the address is one of the public Internet: none of the IANA special-purpose registries' others, and none that
/// carries such an address inside.
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

const fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    !(
        // This network; private; carrier-grade NAT; loopback; link-local (169.254.169.254 is a metadata service).
        a == 0
            || a == 10
            || (a == 100 && b >= 64 && b <= 127)
            || a == 127
            || (a == 169 && b == 254)
            || (a == 172 && b >= 16 && b <= 31)
            || (a == 192 && b == 168)
            // Protocol assignments, documentation, the old 6to4 relays, benchmarks.
            || (a == 192 && b == 0 && (c == 0 || c == 2))
            || (a == 192 && b == 88 && c == 99)
            || (a == 198 && (b == 18 || b == 19))
            || (a == 198 && b == 51 && c == 100)
            || (a == 203 && b == 0 && c == 113)
            // Multicast, reserved, broadcast.
            || a >= 224
    )
}

const fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, g, h] = address.segments();
    // IPv4-mapped, -compatible and -translated; NAT64; 6to4: what counts is the address inside.
    if a == 0 && b == 0 && c == 0 && d == 0 {
        let mapped = (e == 0 && f == 0xffff) || (e == 0xffff && f == 0);
        return mapped && is_public_v4(v4(g, h));
    }
    if a == 0x64 && b == 0xff9b {
        return c == 0 && d == 0 && e == 0 && f == 0 && is_public_v4(v4(g, h));
    }
    if a == 0x2002 {
        return is_public_v4(v4(b, c));
    }
    // Only 2000::/3 is given out; of it not: protocol assignments with Teredo, documentation.
    a & 0xe000 == 0x2000
        && !(a == 0x2001 && b < 0x200)
        && !(a == 0x2001 && b == 0xdb8)
        && !(a == 0x3fff && b < 0x1000)
}

const fn v4(high: u16, low: u16) -> Ipv4Addr {
    let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
    Ipv4Addr::new(a, b, c, d)
}

/// The host of a URL, where it is an address and not a name. Addresses in other writings (`0x7f.1`) are names: the
/// resolver reads them.
pub(crate) fn literal(host: &str) -> Option<IpAddr> {
    let bare = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(host);
    bare.parse().ok()
}

/// The system's resolver, less the private addresses where those are refused.
#[derive(Debug, Clone)]
pub(crate) struct Resolver {
    inner: GaiResolver,
    allow_private: bool,
}

impl Resolver {
    pub(crate) fn new(allow_private: bool) -> Self {
        Self {
            inner: GaiResolver::new(),
            allow_private,
        }
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let resolving = self.inner.call(name);
        let allow_private = self.allow_private;
        Box::pin(async move {
            let found: Vec<SocketAddr> = resolving.await?.collect();
            let kept = kept(&found, allow_private)?;
            Ok(kept.into_iter())
        })
    }
}

/// The addresses that may be connected to. None at all is the error of the first that may not.
fn kept(found: &[SocketAddr], allow_private: bool) -> Result<Vec<SocketAddr>, PrivateAddress> {
    let may = |address: &&SocketAddr| allow_private || is_public(address.ip());
    let kept: Vec<_> = found.iter().filter(may).copied().collect();
    match found.first() {
        Some(first) if kept.is_empty() => Err(PrivateAddress { address: first.ip() }),
        _ => Ok(kept),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_that_is_not_public_is_refused_at_both_ends() {
        for text in [
            "0.0.0.0",
            "10.0.0.0",
            "10.255.255.255",
            "100.64.0.0",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.0",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.0.0",
            "192.168.255.255",
            "198.18.0.0",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.7",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:10.1.2.3",
            "::ffff:0:10.1.2.3",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::8.8.8.8",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::1",
            "2002:a00:1::1",
            "3fff::1",
            "4000::1",
            "fc00::1",
            "fdff:ffff::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn public_addresses_pass_also_inside_others() {
        for text in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.1",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "192.169.0.0",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00::1",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
            "2001:200::1",
        ] {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn a_name_with_a_public_and_a_private_address_is_connected_to_by_the_public_one_only() {
        let both: Vec<SocketAddr> = ["127.0.0.1:0", "1.1.1.1:0"].map(|a| a.parse().unwrap()).into();
        assert_eq!(kept(&both, false).unwrap(), [both[1]]);
        assert_eq!(kept(&both, true).unwrap(), both);
        let error = kept(&both[..1], false).unwrap_err().to_string();
        assert!(
            error.contains("127.0.0.1") && error.contains("allow_private"),
            "{error}"
        );
        assert!(kept(&[], false).unwrap().is_empty());
    }
}
