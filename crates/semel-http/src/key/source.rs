//! Where a key may stand.

use std::fmt;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use http_body_util::{BodyDataStream, Full};

use super::{KeyError, KeyForm, read, sized};
use crate::config::Config;
use crate::fingerprint::{Pointer, essence, form_pairs, json_value};

const URLENCODED: &str = "application/x-www-form-urlencoded";
const MULTIPART: &str = "multipart/form-data";

/// A field of the body that may carry the key. Its text is the key, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyKey {
    /// What stands at this pointer of a JSON body.
    Json(Pointer),
    /// This field of a form, `application/x-www-form-urlencoded` or `multipart/form-data`; in the latter a part without a
    /// file name, before files or behind them.
    Form(String),
}

impl BodyKey {
    /// Whether bodies of this media type have the field.
    fn is_in(&self, kind: &str) -> bool {
        match self {
            Self::Json(_) => kind.ends_with("json"),
            Self::Form(_) => kind == URLENCODED || kind == MULTIPART,
        }
    }
}

impl fmt::Display for BodyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(pointer) => write!(f, "the body's {}", pointer.as_str()),
            Self::Form(field) => write!(f, "the form's {field}"),
        }
    }
}

/// A key and the place where it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) id: Box<[u8]>,
    place: String,
}

/// One key of two places.
pub(crate) fn agree(a: Option<Found>, b: Option<Found>) -> Result<Option<Found>, KeyError> {
    match (a, b) {
        (Some(a), Some(b)) if a.id != b.id => Err(KeyError::Disagree {
            first: a.place,
            second: b.place,
        }),
        (Some(found), _) | (None, Some(found)) => Ok(Some(found)),
        (None, None) => Ok(None),
    }
}

/// The key in the header or an alias.
pub(crate) fn from_headers(headers: &HeaderMap, config: &Config) -> Result<Option<Found>, KeyError> {
    let own = read(headers, &config.header, config.key_form, config.key_bytes_max)?;
    let mut found = own.map(|id| Found {
        id,
        // Named only when it is needed: most requests have one source.
        place: String::new(),
    });
    for alias in &config.aliases {
        let Some(id) = read(headers, alias, KeyForm::Lenient, config.key_bytes_max)? else {
            continue;
        };
        let own = found.take().map(|found| Found {
            place: named(found.place, config),
            ..found
        });
        let other = Found {
            id,
            place: format!("the header {alias}"),
        };
        found = agree(own, Some(other))?;
    }
    Ok(found)
}

fn named(place: String, config: &Config) -> String {
    if place.is_empty() {
        format!("the header {}", config.header)
    } else {
        place
    }
}

/// The key of a whole body, which must agree with that of the headers. A body that is not what a field asks for has no
/// key: the handler will say what is wrong with it. One that a handler may read and we cannot is refused where no header
/// has the key: it would run unguarded, and so would each retry.
pub(crate) fn from_body(
    headers: &HeaderMap,
    body: &Bytes,
    mut found: Option<Found>,
    config: &Config,
) -> Result<Option<Found>, KeyError> {
    if config.body_keys.is_empty() {
        return Ok(found);
    }
    let in_header = found.is_some();
    let body = if in_header {
        body.clone()
    } else {
        readable(headers, body, &config.body_keys)?
    };
    for field in &config.body_keys {
        let text = match field_of(field, headers, &body) {
            Err(KeyError::Unreadable { .. }) if in_header => None,
            read => read?,
        };
        let Some(text) = text else {
            continue;
        };
        let other = Found {
            id: sized(text.into_bytes().into(), config.key_bytes_max)?,
            place: field.to_string(),
        };
        let before = found.take().map(|found| Found {
            place: named(found.place, config),
            ..found
        });
        found = agree(before, Some(other))?;
    }
    Ok(found)
}

/// The body as it is read for its key, without a byte order mark, which many JSON readers skip.
fn readable(headers: &HeaderMap, body: &Bytes, fields: &[BodyKey]) -> Result<Bytes, KeyError> {
    if body.is_empty() {
        return Ok(Bytes::new());
    }
    if headers.get_all(CONTENT_TYPE).iter().count() > 1 {
        return Err(KeyError::Unreadable {
            detail: "send one Content-Type",
        });
    }
    let asked = essence(headers).is_some_and(|kind| fields.iter().any(|field| field.is_in(&kind)));
    let encoded = |value: &HeaderValue| !value.as_bytes().eq_ignore_ascii_case(b"identity");
    if asked && headers.get_all(CONTENT_ENCODING).iter().any(encoded) {
        return Err(KeyError::Unreadable {
            detail: "send it without Content-Encoding",
        });
    }
    let mark = if body.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    Ok(body.slice(mark..))
}

fn field_of(field: &BodyKey, headers: &HeaderMap, body: &Bytes) -> Result<Option<String>, KeyError> {
    let malformed = || KeyError::Field {
        field: field.to_string(),
    };
    let kind = essence(headers).filter(|kind| field.is_in(kind));
    let Some(kind) = kind else {
        return Ok(None);
    };
    match field {
        BodyKey::Json(pointer) => {
            let Some(value) = json_value(body) else {
                // With a member twice there may be two keys; what is no JSON at all has none.
                let readable = serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok();
                return if readable { Err(malformed()) } else { Ok(None) };
            };
            match value.pointer(pointer.as_str()) {
                None | Some(serde_json::Value::Null) => Ok(None),
                Some(serde_json::Value::String(text)) => Ok(Some(text.clone())),
                Some(_) => Err(malformed()),
            }
        }
        BodyKey::Form(name) if kind == MULTIPART => {
            if body.is_empty() {
                return Ok(None);
            }
            let parts = parts_named(name, headers, body).ok_or(KeyError::Unreadable {
                detail: "send it as whole multipart/form-data, with the boundary that Content-Type names",
            })?;
            match parts.as_slice() {
                [] => Ok(None),
                [Some(text)] => String::from_utf8(text.to_vec())
                    .map(Some)
                    .map_err(|_| malformed()),
                [None] | [_, _, ..] => Err(malformed()),
            }
        }
        BodyKey::Form(name) => {
            let pairs = form_pairs(body).ok_or_else(malformed)?;
            let mut values = pairs.into_iter().filter(|(field, _)| field == name);
            match (values.next(), values.next()) {
                (None, _) => Ok(None),
                (Some((_, only)), None) => Ok(Some(only)),
                (Some(_), Some(_)) => Err(malformed()),
            }
        }
    }
}

/// The parts of this name in a form: what they hold, `None` for files. `None` for all where the body is no such form to its
/// end.
fn parts_named(name: &str, headers: &HeaderMap, body: &Bytes) -> Option<Vec<Option<Bytes>>> {
    let boundary = multer::parse_boundary(headers.get(CONTENT_TYPE)?.to_str().ok()?).ok()?;
    let read = async {
        let body = BodyDataStream::new(Full::new(body.clone()));
        let mut all = multer::Multipart::new(body, boundary);
        let mut parts = Vec::new();
        while let Some(part) = all.next_field().await.ok()? {
            if part.name() != Some(name) {
                continue;
            }
            let is_text = part.file_name().is_none();
            let bytes = part.bytes().await.ok()?;
            parts.push(is_text.then_some(bytes));
        }
        Some(parts)
    };
    // All of it is there, so nothing is waited for.
    match pin!(read).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(parts) => parts,
        Poll::Pending => None,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    fn config() -> Config {
        Config {
            aliases: vec![
                HeaderName::from_static("x-idempotency-key"),
                HeaderName::from_static("paypal-request-id"),
            ],
            body_keys: vec![
                BodyKey::Json(Pointer::new("/meta/key").unwrap()),
                BodyKey::Form("key".to_owned()),
            ],
            ..Config::default()
        }
    }

    fn found(headers: &[(&'static str, &str)], body: &[u8]) -> Result<Option<Box<[u8]>>, String> {
        let map = headers.iter().fold(HeaderMap::new(), |mut map, (name, value)| {
            map.append(HeaderName::from_static(name), value.parse().unwrap());
            map
        });
        let config = config();
        from_headers(&map, &config)
            .and_then(|found| from_body(&map, &Bytes::copy_from_slice(body), found, &config))
            .map(|found| found.map(|found| found.id))
            .map_err(|error| error.to_string())
    }

    const JSON: (&str, &str) = ("content-type", "application/json");
    const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

    #[test]
    fn every_source_names_the_same_key() {
        let k: Box<[u8]> = Box::from(&b"k1"[..]);
        let json = br#"{"meta":{"key":"k1"}}"#;
        for (headers, body) in [
            (&[("idempotency-key", "\"k1\"")][..], &b""[..]),
            (&[("x-idempotency-key", "k1")], b""),
            (&[("paypal-request-id", "\"k1\"")], b""),
            (&[JSON], json),
            (&[FORM], b"a=1&key=k1"),
            (
                &[("idempotency-key", "k1"), ("x-idempotency-key", "\"k1\""), JSON],
                json,
            ),
        ] {
            assert_eq!(found(headers, body), Ok(Some(k.clone())), "{headers:?}");
        }
        for (headers, body) in [
            (&[][..], &b""[..]),
            (&[JSON], b"{}"),
            (&[JSON], br#"{"meta":{"key":null}}"#),
            (&[JSON], b"no json"),
            (&[FORM], b"a=1"),
            (&[("content-type", "text/plain")], json),
        ] {
            assert_eq!(found(headers, body), Ok(None), "{headers:?}");
        }
    }

    const MULTI: (&str, &str) = ("content-type", "multipart/form-data; boundary=x");

    fn form(parts: &[(&str, &str)]) -> Vec<u8> {
        let part = |(head, text): &(&str, &str)| {
            format!("--x\r\nContent-Disposition: form-data; {head}\r\n\r\n{text}\r\n")
        };
        let parts: String = parts.iter().map(part).collect();
        format!("{parts}--x--\r\n").into_bytes()
    }

    #[test]
    fn a_form_with_files_has_its_key_in_a_text_field_wherever_that_stands() {
        let key = ("name=\"key\"", "k 1");
        let file = ("name=\"scan\"; filename=\"a.pdf\"", "--y\r\n%PDF");
        let other = ("name=\"keys\"", "k2");
        for parts in [&[key, file, other][..], &[file, other, key], &[key]] {
            assert_eq!(found(&[MULTI], &form(parts)), Ok(Some(Box::from(&b"k 1"[..]))));
        }
        assert_eq!(found(&[MULTI], &form(&[file, other])), Ok(None));
        assert_eq!(found(&[MULTI], b""), Ok(None));
        for (body, named) in [
            (form(&[key, file, key]), "the form's key must stand there once"),
            (form(&[("name=\"key\"; filename=\"k\"", "k1")]), "as text"),
            (
                form(&[("name=\"key\"", &"k".repeat(256))]),
                "key_bytes_max is 255",
            ),
            (form(&[("name=\"key\"", "")]), "empty"),
            // What breaks off may have had it behind.
            (form(&[file])[..40].to_vec(), "whole multipart/form-data"),
            (b"no form".to_vec(), "whole multipart/form-data"),
        ] {
            let error = found(&[MULTI], &body).unwrap_err();
            assert!(error.contains(named), "{named}: {error}");
        }
        let boundless = ("content-type", "multipart/form-data");
        assert!(found(&[boundless], &form(&[key])).is_err());
        // Where a header has the key, nothing runs unguarded.
        let header = ("idempotency-key", "k1");
        assert_eq!(
            found(&[header, MULTI], b"no form"),
            Ok(Some(Box::from(&b"k1"[..])))
        );
        let error = found(&[header, MULTI], &form(&[other, key])).unwrap_err();
        assert!(error.contains("name different keys"), "{error}");
    }

    const GZIP: (&str, &str) = ("content-encoding", "gzip");

    #[test]
    fn a_body_that_cannot_be_read_for_its_key_is_refused() {
        let json = br#"{"meta":{"key":"k1"}}"#;
        for (headers, body, named) in [
            (&[JSON, GZIP][..], &b"zipped"[..], "Content-Encoding"),
            (&[FORM, GZIP], b"zipped", "Content-Encoding"),
            (&[JSON, JSON], json, "one Content-Type"),
        ] {
            let error = found(headers, body).unwrap_err();
            assert!(error.contains(named), "{error}");
            assert_eq!(found(headers, b""), Ok(None), "no body, no key");
            // Where a header has the key, nothing runs unguarded.
            let keyed = [&[("idempotency-key", "k1")][..], headers].concat();
            assert_eq!(found(&keyed, body), Ok(Some(Box::from(&b"k1"[..]))));
        }
        let marked = [&b"\xef\xbb\xbf"[..], json].concat();
        assert_eq!(found(&[JSON], &marked), Ok(Some(Box::from(&b"k1"[..]))));
        assert_eq!(
            found(&[JSON, ("content-encoding", "identity")], json),
            Ok(Some(Box::from(&b"k1"[..])))
        );
        // No field is asked for in it.
        assert_eq!(found(&[("content-type", "image/png"), GZIP], b"zipped"), Ok(None));
    }

    #[test]
    fn two_sources_that_disagree_or_a_field_that_is_not_one_text_are_refused_by_name() {
        let json = br#"{"meta":{"key":"k2"}}"#;
        for (headers, body, named) in [
            (
                &[("idempotency-key", "k1"), ("x-idempotency-key", "k2")][..],
                &b""[..],
                &["the header idempotency-key", "the header x-idempotency-key"][..],
            ),
            (
                &[("idempotency-key", "k1"), JSON],
                json,
                &["the header idempotency-key", "the body's /meta/key"],
            ),
            (&[FORM], b"key=a&key=a", &["the form's key"]),
            (&[JSON], br#"{"meta":{"key":7}}"#, &["the body's /meta/key"]),
            (
                &[JSON],
                br#"{"meta":{"key":"a","key":"b"}}"#,
                &["the body's /meta/key"],
            ),
            (&[JSON], br#"{"meta":{"key":""}}"#, &["empty"]),
        ] {
            let error = found(headers, body).unwrap_err();
            assert!(named.iter().all(|name| error.contains(name)), "{error}");
        }
    }
}
