//! What was asked, as a fingerprint.
//!
//! Covers the method, the full target with its query, `Content-Type`, `Content-Encoding`, headers chosen by the
//! operator, and the whole body, as the [`Profile`] reads it; each part length-prefixed. Not covered: authorization,
//! cookies, dates, traces, signatures, for a legitimate retry renews them.
//!
//! Each profile has a number, which stands in the fingerprint as its version. A body that a profile cannot read is taken
//! `raw`, under `raw`'s number. A retry is compared under the number of the record, so that another profile may be
//! configured while records of the old one are kept; a number that this build does not know is a mismatch (rule K13).
//!
//! Behind the hash (160 bits of SHA-256) stand tags of the parts, 8 bits each. They decide nothing; they say which part
//! differs, in words that hold nothing of the first request.

mod explain;
mod form;
mod json;
mod multipart;
mod profile;

pub(crate) use explain::explain;
pub(crate) use form::pairs as form_pairs;
pub(crate) use json::parse as json_value;
pub(crate) use profile::essence;
pub use profile::{Pointer, PointerError, Profile};

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName};
use http::request::Parts;
use semel_core::Fingerprint;
use semel_core::fingerprint::{FingerprintBuilder, tag};
use semel_core::key::derive;

/// Tags before those of the operator's headers: method, target, content type and encoding, body. Those of the body's
/// fields come last.
const FIRST_TAGS: usize = 4;

/// A request whose body is complete.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Method, headers.
    pub head: &'a Parts,
    /// The path with its query, as the client sent it.
    pub target: &'a [u8],
    /// Headers of the operator's choice that count, too.
    pub headers: &'a [HeaderName],
    /// The whole body.
    pub body: &'a [u8],
}

/// A body as a profile reads it: one canonical form, and named fields for the explanation.
pub(crate) struct Read {
    /// What is hashed.
    pub(crate) canonical: Vec<u8>,
    /// Names of fields with their tags.
    pub(crate) fields: Vec<(String, u8)>,
}

/// The fingerprint of a request under this profile.
pub async fn of(asked: Asked<'_>, profile: &Profile) -> Fingerprint {
    match read(asked, profile).await {
        Some(read) => parsed(asked, profile, &read),
        None => raw(asked),
    }
}

/// The body as the profile reads it; `None` where it is taken raw.
async fn read(asked: Asked<'_>, profile: &Profile) -> Option<Read> {
    // What is compressed is compared as it was sent.
    if matches!(profile, Profile::Raw) || asked.head.headers.contains_key(CONTENT_ENCODING) {
        return None;
    }
    match profile {
        Profile::Raw => None,
        Profile::Json => json::whole(asked),
        Profile::JsonOnly(pointers) => json::only(asked, pointers),
        Profile::JsonExcept(pointers) => json::except(asked, pointers),
        Profile::Form => form::read(asked),
        // Boxed: it is large, and the room for it would be taken for each request.
        Profile::Multipart => Box::pin(multipart::read(asked)).await,
    }
}

fn raw(asked: Asked<'_>) -> Fingerprint {
    whole(asked, Profile::RAW, None, asked.body).finish()
}

fn parsed(asked: Asked<'_>, profile: &Profile, read: &Read) -> Fingerprint {
    // The parameters of a type that was understood (a charset, a boundary) are no part of what was asked.
    let kind = essence(&asked.head.headers).unwrap_or_default();
    let parts = whole(asked, profile.number(), Some(&kind), &read.canonical);
    // Either all fields have a tag or none: a field without one would look new.
    if read.fields.len() > Fingerprint::TAGS_MAX - FIRST_TAGS - asked.headers.len() {
        return parts.finish();
    }
    let tagged = read.fields.iter().fold(parts, |parts, (_, tag)| parts.tag(*tag));
    tagged.finish()
}

/// Head and body.
fn whole(asked: Asked<'_>, number: u8, kind: Option<&str>, body: &[u8]) -> FingerprintBuilder {
    let headers = &asked.head.headers;
    let method = asked.head.method.as_str().as_bytes();
    // A hash of its own, for its tag; the body is read once.
    let digest = derive(&[body]);
    let mut parts = Fingerprint::builder_of(number);
    for part in [&b"http"[..], method, asked.target, &digest[..]] {
        parts.add(part);
    }
    let mut content = 0;
    match kind {
        Some(kind) => {
            parts.add(kind.as_bytes());
            content ^= tag(&[kind.as_bytes()]);
        }
        None => content ^= header(&mut parts, headers, &CONTENT_TYPE),
    }
    content ^= header(&mut parts, headers, &CONTENT_ENCODING);
    for tag in [tag(&[method]), tag(&[asked.target]), content, digest[0]] {
        parts.add_tag(tag);
    }
    for name in asked.headers {
        let own = header(&mut parts, headers, name);
        parts.add_tag(own);
    }
    parts
}

/// Name, number of values, values: an absent header differs from an empty one, `a, b` from `a` and `b`. The tag; 0 where
/// there is none.
fn header(parts: &mut FingerprintBuilder, headers: &HeaderMap, name: &HeaderName) -> u8 {
    let mut values = headers.get_all(name).iter();
    parts.add(name.as_str().as_bytes());
    match (values.next(), values.next()) {
        (None, _) => {
            parts.add(&0_u64.to_be_bytes());
            0
        }
        (Some(only), None) => {
            parts.add(&1_u64.to_be_bytes());
            parts.add(only.as_bytes());
            tag(&[name.as_str().as_bytes(), only.as_bytes()])
        }
        (Some(_), Some(_)) => {
            let values: Vec<&[u8]> = headers
                .get_all(name)
                .iter()
                .map(|value| value.as_bytes())
                .collect();
            parts.add(&(values.len() as u64).to_be_bytes());
            for value in &values {
                parts.add(value);
            }
            tag(&values)
        }
    }
}

/// Path and query of the request as this layer sees it.
pub(crate) fn target(request: &Parts) -> &[u8] {
    request.uri.path_and_query().map_or_else(
        || request.uri.path().as_bytes(),
        |target| target.as_str().as_bytes(),
    )
}

#[cfg(test)]
mod tests;
