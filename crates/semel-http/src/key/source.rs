//! Where a key may stand.

use std::fmt;

use http::HeaderMap;

use super::{KeyError, KeyForm, read, sized};
use crate::config::Config;
use crate::fingerprint::{Pointer, essence, form_pairs, json_value};

/// A field of the body that may carry the key. Its text is the key, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyKey {
    /// What stands at this pointer of a JSON body.
    Json(Pointer),
    /// This field of an `application/x-www-form-urlencoded` body.
    Form(String),
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
/// key: the handler will say what is wrong with it.
pub(crate) fn from_body(
    headers: &HeaderMap,
    body: &[u8],
    mut found: Option<Found>,
    config: &Config,
) -> Result<Option<Found>, KeyError> {
    for field in &config.body_keys {
        let Some(text) = field_of(field, headers, body)? else {
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

fn field_of(field: &BodyKey, headers: &HeaderMap, body: &[u8]) -> Result<Option<String>, KeyError> {
    let malformed = || KeyError::Field {
        field: field.to_string(),
    };
    let Some(kind) = essence(headers) else {
        return Ok(None);
    };
    match field {
        BodyKey::Json(pointer) if kind.ends_with("json") => {
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
        BodyKey::Form(name) if kind == "application/x-www-form-urlencoded" => {
            let pairs = form_pairs(body).ok_or_else(malformed)?;
            let mut values = pairs.into_iter().filter(|(field, _)| field == name);
            match (values.next(), values.next()) {
                (None, _) => Ok(None),
                (Some((_, only)), None) => Ok(Some(only)),
                (Some(_), Some(_)) => Err(malformed()),
            }
        }
        BodyKey::Json(_) | BodyKey::Form(_) => Ok(None),
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
        let map: HeaderMap = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        let config = config();
        from_headers(&map, &config)
            .and_then(|found| from_body(&map, body, found, &config))
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
