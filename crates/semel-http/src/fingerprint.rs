//! What was asked, as a fingerprint: profile `raw`, version 1.
//!
//! Covers the method, the full target with its query, `Content-Type`, `Content-Encoding`, headers chosen by the
//! operator, and the whole body; each part length-prefixed. Not covered: authorization, cookies, dates, traces,
//! signatures, for a legitimate retry renews them.
//!
//! # Not yet
//! Profiles for canonical JSON, JSON pointers, sorted forms and multipart; one hash per part, to say which differed.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName};
use http::request::Parts;
use semel_core::Fingerprint;
use semel_core::fingerprint::FingerprintBuilder;

/// The profile's name is a part of the hash: another profile never gives the same fingerprint.
const PROFILE: &[u8] = b"http/raw/1";

/// The fingerprint of a request whose body is complete. `target` is the path with its query, as the client sent it.
#[must_use]
pub fn raw(request: &Parts, target: &[u8], extra_headers: &[HeaderName], body: &[u8]) -> Fingerprint {
    let mut parts = Fingerprint::builder()
        .part(PROFILE)
        .part(request.method.as_str().as_bytes())
        .part(target);
    for name in [CONTENT_TYPE, CONTENT_ENCODING].iter().chain(extra_headers) {
        parts = header(parts, &request.headers, name);
    }
    parts.part(body).finish()
}

/// Name, number of values, values: an absent header differs from an empty one, `a, b` from `a` and `b`.
fn header(parts: FingerprintBuilder, headers: &HeaderMap, name: &HeaderName) -> FingerprintBuilder {
    let values = headers.get_all(name);
    let count = values.iter().count() as u64;
    values.iter().fold(
        parts.part(name.as_str().as_bytes()).part(&count.to_be_bytes()),
        |parts, value| parts.part(value.as_bytes()),
    )
}

/// Path and query of the request as this layer sees it.
pub(crate) fn target(request: &Parts) -> Vec<u8> {
    request.uri.path_and_query().map_or_else(
        || request.uri.path().as_bytes().to_vec(),
        |target| target.as_str().as_bytes().to_vec(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(build: impl Fn(http::request::Builder) -> http::request::Builder, body: &[u8]) -> Fingerprint {
        let request = build(http::Request::post("/orders?x=1").header("content-type", "application/json"));
        let (parts, ()) = request.body(()).unwrap().into_parts();
        raw(
            &parts,
            &target(&parts),
            &[HeaderName::from_static("x-tenant")],
            body,
        )
    }

    #[test]
    fn each_part_of_the_request_counts() {
        let base = of(|r| r, b"{}");
        assert_eq!(base, of(|r| r, b"{}"));
        for other in [
            of(|r| r.method("PATCH"), b"{}"),
            of(|r| r.uri("/order?x=1"), b"{}"),
            of(|r| r.uri("/orders?x=2"), b"{}"),
            of(|r| r.uri("/orders"), b"{}"),
            of(|r| r.header("content-type", "text/plain"), b"{}"),
            of(|r| r.header("content-encoding", "gzip"), b"{}"),
            of(|r| r.header("x-tenant", ""), b"{}"),
            of(|r| r, b"{ }"),
            of(|r| r, b""),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn credentials_dates_and_traces_do_not_count() {
        let base = of(|r| r, b"{}");
        for name in [
            "authorization",
            "cookie",
            "date",
            "traceparent",
            "signature",
            "user-agent",
        ] {
            assert_eq!(base, of(|r| r.header(name, "new"), b"{}"), "{name}");
        }
    }

    /// Stored fingerprints must be met again by later builds: this vector is the contract.
    #[test]
    fn the_recipe_is_stable_over_versions() {
        let parts: [&[u8]; 10] = [
            b"http/raw/1",
            b"POST",
            b"/orders?x=1",
            b"content-type",
            &1_u64.to_be_bytes(),
            b"application/json",
            b"content-encoding",
            &0_u64.to_be_bytes(),
            b"x-tenant",
            &0_u64.to_be_bytes(),
        ];
        let by_hand = parts
            .iter()
            .fold(Fingerprint::builder(), |all, part| all.part(part))
            .part(b"{}")
            .finish();
        assert_eq!(of(|r| r, b"{}"), by_hand);
    }
}
