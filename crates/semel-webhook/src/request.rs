//! An event as an HTTP request.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, HeaderName, Method, Request};
use semel_core::cloudevents::{header_value, header_value_len};
use semel_core::limits::{self, LimitExceeded};
use semel_core::store::OutboxRow;
use semel_core::{Event, Timestamp, signature, wire};

use crate::config::Target;

/// Names of headers, read once and not for every request.
macro_rules! names {
    ($($name:ident $text:expr;)*) => { $(static $name: HeaderName = HeaderName::from_static($text);)* };
}
names! {
    KEY wire::IDEMPOTENCY_KEY;
    ID wire::WEBHOOK_ID;
    SENT wire::WEBHOOK_TIMESTAMP;
    SIGNATURE wire::WEBHOOK_SIGNATURE;
    CE_SPECVERSION "ce-specversion";
    CE_ID "ce-id";
    CE_SOURCE "ce-source";
    CE_TYPE "ce-type";
    CE_TIME "ce-time";
    CE_PARTITIONKEY "ce-partitionkey";
    CE_SEQUENCE "ce-sequence";
    TOPIC wire::TOPIC;
    TRACEPARENT "traceparent";
    TOMBSTONE wire::TOMBSTONE;
}

/// Bytes of an id as text.
const ID_BYTES: usize = 36;
/// Bytes that the values of most events have together.
const VALUES_BYTES: usize = 512;
/// Headers of ours at most.
const OURS: usize = 15;

/// The request for this row: the same one on every attempt but for its time and its signatures.
pub(crate) fn request(
    target: &Target,
    row: &OutboxRow,
    now: Timestamp,
) -> Result<Request<Bytes>, http::Error> {
    let event = &row.event;
    let mut id = [0; ID_BYTES];
    let id = &*event.id.hyphenated().encode_lower(&mut id);
    let sent = signature::timestamp(now);
    let mut headers = HeaderMap::with_capacity(OURS + event.headers.len() + target.headers.len());
    // All values in one piece of memory.
    let mut text = BytesMut::with_capacity(VALUES_BYTES);
    let mut add = |name: HeaderName, parts: &[&[u8]]| -> Result<(), http::Error> {
        for part in parts {
            text.extend_from_slice(part);
        }
        headers.append(name, HeaderValue::from_maybe_shared(text.split().freeze())?);
        Ok(())
    };
    add(KEY.clone(), &[b"\"", id.as_bytes(), b"\""])?;
    if !target.secrets.is_empty() {
        let body = event.data.as_deref().unwrap_or_default();
        let signatures = signature::sign(&target.secrets, id, &sent, body);
        add(SIGNATURE.clone(), &[signatures.as_bytes()])?;
    }
    add(ID.clone(), &[id.as_bytes()])?;
    add(SENT.clone(), &[sent.as_bytes()])?;
    add(CE_ID.clone(), &[id.as_bytes()])?;
    add(CE_SOURCE.clone(), &[&readable(event.source.as_bytes())])?;
    add(CE_TYPE.clone(), &[&readable(event.kind.as_bytes())])?;
    add(CE_TIME.clone(), &[row.created_at.rfc3339().as_bytes()])?;
    add(TOPIC.clone(), &[event.topic.as_bytes()])?;
    if let Some(key) = &event.key {
        add(CE_PARTITIONKEY.clone(), &[&readable(key)])?;
    }
    if let Some(sequence) = row.sequence() {
        add(CE_SEQUENCE.clone(), &[sequence.as_bytes()])?;
    }
    if let Some(content_type) = &event.content_type {
        add(CONTENT_TYPE, &[content_type.as_bytes()])?;
    }
    if let Some(traceparent) = &event.traceparent {
        add(TRACEPARENT.clone(), &[traceparent.as_bytes()])?;
    }
    for (name, value) in &event.headers {
        add(passed_on(name)?, &[&readable(value)])?;
    }
    headers.append(CE_SPECVERSION.clone(), HeaderValue::from_static("1.0"));
    if event.data.is_none() {
        headers.append(TOMBSTONE.clone(), HeaderValue::from_static("1"));
    }
    for (name, value) in &target.headers {
        headers.append(name.clone(), value.clone());
    }
    let mut request = Request::new(event.data.clone().unwrap_or_default());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = target.uri(&event.topic)?;
    *request.headers_mut() = headers;
    Ok(request)
}

/// As a header carries it; most values are so already.
fn readable(bytes: &[u8]) -> Cow<'_, [u8]> {
    if header_value_len(bytes) == bytes.len() {
        Cow::Borrowed(bytes)
    } else {
        Cow::Owned(header_value(bytes).into_bytes())
    }
}

/// Whether the sink or HTTP itself sets this header: a second one would say something else, or spoil every request.
pub(crate) fn is_ours(name: &HeaderName) -> bool {
    const NAMES: [&str; 13] = [
        wire::IDEMPOTENCY_KEY,
        "connection",
        "content-length",
        "content-type",
        "expect",
        "keep-alive",
        "proxy-connection",
        "te",
        "traceparent",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "http2-settings",
    ];
    let name = name.as_str();
    NAMES.iter().any(|ours| name.eq_ignore_ascii_case(ours))
        || ["ce-", "webhook-", "semel-"]
            .iter()
            .any(|ours| name.starts_with(ours))
}

/// Refuses an event whose request could not be built.
pub(crate) fn check(event: &Event) -> Result<(), LimitExceeded> {
    let bad = |text: &str| text.bytes().filter(|byte| !matches!(byte, 0x20..=0x7e)).count() as u64;
    let content_type = bad(event.content_type.as_deref().unwrap_or(""));
    let help = "use ASCII only";
    limits::check(
        "content type",
        "bytes that HTTP cannot carry",
        content_type,
        0,
        0,
        help,
    )?;
    let traceparent = bad(event.traceparent.as_deref().unwrap_or(""));
    limits::check(
        "traceparent",
        "bytes that HTTP cannot carry",
        traceparent,
        0,
        0,
        help,
    )
}

fn passed_on(name: &str) -> Result<HeaderName, http::Error> {
    Ok(format!("semel-h-{name}").parse::<HeaderName>()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WebhookConfig;
    use uuid::Uuid;

    fn built(event: Event) -> Request<Bytes> {
        let target = Target::read(&WebhookConfig::new("http://h/in")).unwrap();
        let row = OutboxRow {
            row: 4,
            created_at: Timestamp(1_796_083_199_999_999),
            batch_no: 0,
            event,
        };
        request(&target, &row, Timestamp(1_796_083_200_500_000)).unwrap()
    }

    #[test]
    fn an_event_is_a_cloud_event_in_binary_mode() {
        let event = Event::new(Uuid::from_u128(7), "Orders", "order.placed")
            .with_key(b"\xff k".to_vec())
            .with_data("application/json", b"{\"a\": 1}\n".to_vec())
            .with_header("Trace-Id", b"\x00%".to_vec())
            .with_header("Trace-Id", "2");
        let request = built(event);
        let one = |name: &str| {
            request
                .headers()
                .get(name)
                .map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(
            one("idempotency-key").unwrap(),
            "\"00000000-0000-0000-0000-000000000007\""
        );
        assert_eq!(one("ce-id").unwrap(), "00000000-0000-0000-0000-000000000007");
        assert_eq!(one("ce-specversion").unwrap(), "1.0");
        assert_eq!(one("ce-time").unwrap(), "2026-11-30T23:59:59.999999Z");
        assert_eq!(one("ce-type").unwrap(), "order.placed");
        assert_eq!(one("ce-source").unwrap(), "/semel");
        assert_eq!(one("ce-partitionkey").unwrap(), "%FF%20k");
        assert_eq!(one("semel-topic").unwrap(), "Orders");
        assert_eq!(one("content-type").unwrap(), "application/json");
        assert_eq!(one("semel-tombstone"), None);
        assert_eq!(one("webhook-id"), one("ce-id"));
        assert_eq!(one("webhook-timestamp").unwrap(), "1796083200");
        assert_eq!(one("webhook-signature"), None, "there is no secret");
        let passed: Vec<_> = request.headers().get_all("semel-h-trace-id").iter().collect();
        assert_eq!(passed, ["%00%25", "2"]);
        assert_eq!(request.body(), &b"{\"a\": 1}\n"[..]);
    }

    #[test]
    fn the_bytes_that_are_sent_are_signed_by_each_secret() {
        let secrets = [
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX",
        ];
        let mut config = WebhookConfig::new("http://h/in");
        config.secrets = secrets.map(str::to_owned).into();
        let target = Target::read(&config).unwrap();
        let row = OutboxRow {
            row: 4,
            created_at: Timestamp(0),
            batch_no: 0,
            event: Event::new(Uuid::from_u128(7), "t", "x").with_data("text/plain", "a\0\n"),
        };
        let now = Timestamp(1_796_083_200_000_000);
        let request = request(&target, &row, now).unwrap();
        let text = |name: &str| request.headers()[name].to_str().unwrap();
        for secret in secrets {
            let known = [signature::Secret::parse(secret).unwrap()];
            signature::verify(
                &known,
                text("webhook-id"),
                text("webhook-timestamp"),
                text("webhook-signature"),
                request.body(),
                now,
                0,
            )
            .unwrap();
        }
    }

    #[test]
    fn no_data_is_not_empty_data() {
        let none = built(Event::new(Uuid::from_u128(7), "t", "gone"));
        assert_eq!(
            (none.headers()["semel-tombstone"].as_bytes(), none.body().len()),
            (&b"1"[..], 0)
        );
        let empty = built(Event::new(Uuid::from_u128(7), "t", "x").with_data("text/plain", ""));
        assert!(!empty.headers().contains_key("semel-tombstone"));
    }

    #[test]
    fn what_http_cannot_carry_is_refused() {
        let event = Event::new(Uuid::from_u128(7), "t", "x").with_data("text/\u{fc}", "");
        assert!(check(&event).unwrap_err().to_string().contains("content type"));
    }
}
