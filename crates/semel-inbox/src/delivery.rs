//! One webhook delivery: its id, its CloudEvents attributes and its bytes.

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use semel_core::cloudevents;
use semel_core::inbox::mark::{self, check_id};
use semel_core::limits::LimitExceeded;
use semel_core::wire;

/// A webhook delivery in CloudEvents' binary or structured mode, or any POST with an id.
///
/// # Which id names it
/// `Idempotency-Key` (bare or as a quoted structured-field string), else `webhook-id`, else `ce-id` together with
/// `ce-source` (in structured mode the document's `id` and `source`), as CloudEvents ids are unique only within their
/// source. A delivery without any of them is refused:
/// an id is never made up, since a redelivery would get another one.
///
/// # Not yet
/// CloudEvents' batched mode and formats other than JSON are refused with 415, never taken for plain data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The id to be marked: 1 to 255 bytes.
    pub id: Bytes,
    /// CloudEvents `id`.
    pub event_id: Option<String>,
    /// CloudEvents `source`.
    pub source: Option<String>,
    /// CloudEvents `type`.
    pub kind: Option<String>,
    /// CloudEvents `subject`.
    pub subject: Option<String>,
    /// CloudEvents `time`, as sent.
    pub time: Option<String>,
    /// The ordering key: CloudEvents `partitionkey`.
    pub key: Option<String>,
    /// The place among the events of its key, to be compared byte by byte: CloudEvents `sequence`. What is not above the largest
    /// that was taken of this key is older, or was taken before.
    pub sequence: Option<String>,
    /// The data's media type.
    pub content_type: Option<String>,
    /// W3C trace context.
    pub traceparent: Option<String>,
    /// All headers as received.
    pub headers: HeaderMap,
    /// The data, byte for byte; in structured mode what the document says it is.
    pub data: Bytes,
}

/// Why a request is no delivery. Nothing was done; sending the same again gets the same answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryError {
    /// No header names it. Page: SEM0601.
    #[error("SEM0601: the delivery has no id; send Idempotency-Key, webhook-id, or ce-id with ce-source")]
    NoId,
    /// A header cannot be read. Page: SEM0602.
    #[error("SEM0602: header {header}: {why}")]
    Header {
        /// Which.
        header: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The body is larger than allowed. Page: SEM0603.
    #[error(
        "SEM0603: the body is larger than {max} bytes; send less, or raise DeliveryLimits::body_bytes_max"
    )]
    TooLarge {
        /// The limit in bytes.
        max: usize,
    },
    /// A content mode that is not understood. Page: SEM0604.
    #[error(
        "SEM0604: {content_type} is not understood; send CloudEvents in binary mode (ce- headers) or as \
         application/cloudevents+json"
    )]
    Mode {
        /// The media type sent.
        content_type: String,
    },
    /// The CloudEvents document in the body cannot be read. Page: SEM0602.
    #[error("SEM0602: the CloudEvents document: {why}")]
    Document {
        /// What is wrong with it.
        why: String,
    },
    /// It was not signed with a secret that is known, or not lately. Page: SEM0609.
    #[error("SEM0609: the signature is not accepted: {why}")]
    Signature {
        /// What is wrong with it.
        why: String,
    },
    /// The body did not arrive whole. Page: SEM0605.
    #[error("SEM0605: the body did not arrive whole; send the delivery again")]
    Broken,
}

impl Delivery {
    /// A delivery of these headers and this body.
    ///
    /// # Errors
    /// See [`DeliveryError`].
    pub fn from_parts(headers: HeaderMap, data: Bytes) -> Result<Self, DeliveryError> {
        let content_type = text(&headers, "content-type")?;
        if content_type.as_deref().is_some_and(cloudevents::is_structured) {
            return Self::from_document(headers, &data);
        }
        if let Some(content_type) = &content_type
            && content_type
                .to_ascii_lowercase()
                .starts_with("application/cloudevents")
        {
            return Err(DeliveryError::Mode {
                content_type: content_type.clone(),
            });
        }
        if let Some(version) = attribute(&headers, "ce-specversion")?
            && !version.starts_with("1.")
        {
            return Err(bad(
                "ce-specversion",
                format!("{version} is not understood; send 1.0"),
            ));
        }
        let event_id = attribute(&headers, "ce-id")?;
        let source = attribute(&headers, "ce-source")?;
        Ok(Self {
            id: id(&headers, event_id.as_deref(), source.as_deref())?,
            event_id,
            source,
            kind: attribute(&headers, "ce-type")?,
            subject: attribute(&headers, "ce-subject")?,
            time: attribute(&headers, "ce-time")?,
            key: attribute(&headers, "ce-partitionkey")?,
            sequence: attribute(&headers, "ce-sequence")?,
            content_type,
            traceparent: text(&headers, "traceparent")?,
            headers,
            data,
        })
    }
}

impl Delivery {
    /// The attributes of structured mode are those of the document; `ce-` headers beside it are passed over.
    fn from_document(headers: HeaderMap, body: &[u8]) -> Result<Self, DeliveryError> {
        let document = cloudevents::read(body).map_err(|why| DeliveryError::Document { why })?;
        let key = match document.key {
            None => None,
            // As in binary mode, where it cannot be read either.
            Some(key) => Some(
                String::from_utf8(key.into()).map_err(|_| DeliveryError::Document {
                    why: "the ordering key is not UTF-8".to_owned(),
                })?,
            ),
        };
        Ok(Self {
            id: id(&headers, Some(&document.id), Some(&document.source))?,
            event_id: Some(document.id),
            source: Some(document.source),
            kind: Some(document.kind),
            subject: document.subject,
            time: document.time,
            key,
            sequence: document.sequence,
            content_type: document.content_type,
            traceparent: document.traceparent,
            headers,
            data: document.data.unwrap_or_default(),
        })
    }
}

fn bad(header: &'static str, why: impl Into<String>) -> DeliveryError {
    DeliveryError::Header {
        header,
        why: why.into(),
    }
}

fn id(headers: &HeaderMap, event_id: Option<&str>, source: Option<&str>) -> Result<Bytes, DeliveryError> {
    let limit = |header| move |limit: LimitExceeded| bad(header, limit.to_string());
    if let Some(value) = text(headers, wire::IDEMPOTENCY_KEY)? {
        let id = unquote(&value).ok_or_else(|| {
            bad(
                wire::IDEMPOTENCY_KEY,
                "neither a bare key nor a structured-field string",
            )
        })?;
        check_id(id.as_bytes()).map_err(limit(wire::IDEMPOTENCY_KEY))?;
        return Ok(id.into());
    }
    if let Some(id) = text(headers, wire::WEBHOOK_ID)? {
        check_id(id.as_bytes()).map_err(limit(wire::WEBHOOK_ID))?;
        return Ok(id.into());
    }
    match (event_id, source) {
        (Some(""), _) => Err(bad("ce-id", "it is empty")),
        (Some(id), Some(source)) => Ok(mark::event_id(source.as_bytes(), id.as_bytes())),
        (Some(_), None) => Err(bad(
            "ce-source",
            "it is missing, and ce-id is unique only within its source",
        )),
        (None, _) => Err(DeliveryError::NoId),
    }
}

/// A header's one value as text.
pub(crate) fn text(headers: &HeaderMap, name: &'static str) -> Result<Option<String>, DeliveryError> {
    let mut values = headers.get_all(HeaderName::from_static(name)).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(bad(name, "it stands more than once"));
    }
    match value.to_str() {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(_) => Err(bad(name, "it holds bytes that are not printable ASCII")),
    }
}

/// A CloudEvents attribute: text with `%XX` for what does not fit into a header.
fn attribute(headers: &HeaderMap, name: &'static str) -> Result<Option<String>, DeliveryError> {
    let Some(text) = text(headers, name)? else {
        return Ok(None);
    };
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let escaped = (first == b'%').then(|| tail.get(..2)).flatten();
        match escaped.and_then(octet) {
            Some(value) => {
                bytes.push(value);
                rest = &tail[2..];
            }
            // A stray % stands for itself, as receivers of the binding are told to read it.
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(bad(name, "its percent-encoded bytes are not UTF-8")),
    }
}

/// Two hexadecimal digits; a sign before one is none.
fn octet(digits: &[u8]) -> Option<u8> {
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// A structured-field string, or a bare key.
fn unquote(value: &str) -> Option<String> {
    let Some(quoted) = value.strip_prefix('"') else {
        return (!value.contains(['"', ',', ' ', '\t'])).then(|| value.to_owned());
    };
    let mut text = String::new();
    let mut chars = quoted.chars();
    loop {
        match chars.next()? {
            '"' => return chars.next().is_none().then_some(text),
            '\\' => match chars.next()? {
                c @ ('"' | '\\') => text.push(c),
                _ => return None,
            },
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(pairs: &[(&'static str, &str)]) -> Result<Delivery, DeliveryError> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        Delivery::from_parts(headers, Bytes::from_static(b"x"))
    }

    #[test]
    fn bare_and_quoted_keys_name_the_same_delivery() {
        let bare = delivery(&[("idempotency-key", "order-7")]).unwrap();
        let quoted = delivery(&[("idempotency-key", r#""order-7""#)]).unwrap();
        assert_eq!(bare.id, quoted.id);
        let escaped = delivery(&[("idempotency-key", r#""a\"b\\c""#)]).unwrap();
        assert_eq!(escaped.id, r#"a"b\c"#);
    }

    #[test]
    fn the_event_id_counts_only_within_its_source() {
        let a = delivery(&[("ce-id", "1"), ("ce-source", "/a")]).unwrap();
        let b = delivery(&[("ce-id", "1"), ("ce-source", "/b")]).unwrap();
        assert_ne!(a.id, b.id);
        assert!(delivery(&[("ce-id", "1")]).is_err());
    }

    #[test]
    fn a_delivery_without_an_id_is_refused_never_given_a_random_one() {
        assert_eq!(delivery(&[]).unwrap_err(), DeliveryError::NoId);
    }

    #[test]
    fn bad_ids_are_refused_with_the_header_named() {
        let long = "k".repeat(256);
        for pairs in [
            &[("idempotency-key", "")][..],
            &[("idempotency-key", r#""""#)],
            &[("idempotency-key", r#""open"#)],
            &[("idempotency-key", r#""a";p=1"#)],
            &[("idempotency-key", "a, b")],
            &[("idempotency-key", "a"), ("idempotency-key", "a")],
            &[("idempotency-key", &long)],
        ] {
            let error = delivery(pairs).unwrap_err().to_string();
            assert!(error.contains("idempotency-key"), "{pairs:?}: {error}");
        }
    }

    #[test]
    fn attributes_are_percent_decoded() {
        let it = delivery(&[("webhook-id", "w"), ("ce-subject", "caf%C3%A9 100%")]).unwrap();
        assert_eq!(it.subject.as_deref(), Some("caf\u{e9} 100%"));
        assert!(delivery(&[("webhook-id", "w"), ("ce-subject", "%FF")]).is_err());
    }

    /// `+1` is a number to Rust's parser: read as one, `a%+1` and `a%01` would be one delivery.
    #[test]
    fn a_percent_before_a_sign_stands_for_itself() {
        let it = delivery(&[("ce-id", "a%+1"), ("ce-source", "/s")]).unwrap();
        assert_eq!(it.event_id.as_deref(), Some("a%+1"));
        let other = delivery(&[("ce-id", "a%01"), ("ce-source", "/s")]).unwrap();
        assert_ne!(it.id, other.id);
    }

    #[test]
    fn structured_mode_is_read_from_the_document() {
        let mut headers = HeaderMap::new();
        headers.insert(
            "content-type",
            "application/cloudevents+json; charset=utf-8".parse().unwrap(),
        );
        headers.insert("ce-type", "not.this".parse().unwrap());
        let body = Bytes::from_static(
            br#"{"specversion":"1.0","id":"7","source":"/s","type":"t","partitionkey":"k","datacontenttype":"text/plain","data":"x"}"#,
        );
        let it = Delivery::from_parts(headers.clone(), body.clone()).unwrap();
        assert_eq!((it.kind.as_deref(), it.key.as_deref()), (Some("t"), Some("k")));
        assert_eq!(
            (it.content_type.as_deref(), &it.data[..]),
            (Some("text/plain"), &b"x"[..])
        );
        // The same event in binary mode is the same delivery.
        let binary = delivery(&[("ce-id", "7"), ("ce-source", "/s")]).unwrap();
        assert_eq!(it.id, binary.id);
        headers.insert("idempotency-key", "named".parse().unwrap());
        assert_eq!(Delivery::from_parts(headers.clone(), body).unwrap().id, "named");
        let broken = Delivery::from_parts(headers, Bytes::from_static(b"{")).unwrap_err();
        assert!(broken.to_string().starts_with("SEM0602"), "{broken}");
    }

    #[test]
    fn batched_mode_and_other_versions_are_refused_not_misread() {
        for mode in [
            "application/cloudevents-batch+json",
            "application/cloudevents+avro",
        ] {
            let other = delivery(&[("idempotency-key", "k"), ("content-type", mode)]);
            assert!(matches!(other, Err(DeliveryError::Mode { .. })), "{mode}");
        }
        assert!(delivery(&[("idempotency-key", "k"), ("ce-specversion", "2.0")]).is_err());
    }
}
