//! An event as a message.

use std::fmt::Write as _;

use async_nats::HeaderMap;
use bytes::Bytes;
use semel_core::limits::{self, LimitExceeded};
use semel_core::store::OutboxRow;
use semel_core::{Event, Timestamp};

/// The source of events that name none.
const SOURCE: &str = "/semel";

/// Whether an event's own header would stand in for one of ours, or is one that NATS acts on.
fn reserved(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["nats-", "ce-", "semel-"]
        .iter()
        .any(|taken| name.starts_with(taken))
        || name == "content-type"
        || name == "traceparent"
}

/// Refuses what no message could carry.
pub(crate) fn check(event: &Event, subject: &str, bytes_max: usize) -> Result<(), LimitExceeded> {
    let empty = subject.split('.').filter(|part| part.is_empty()).count() as u64;
    let help = "use a topic without a dot at its ends and without two in a row";
    limits::check("subject", "empty parts", empty, 0, 0, help)?;
    for (what, text) in [
        ("content type", &event.content_type),
        ("traceparent", &event.traceparent),
    ] {
        let text = text.as_deref().unwrap_or("");
        let bad = text.bytes().filter(|byte| !matches!(byte, 0x20..=0x7e)).count() as u64;
        limits::check(what, "bytes that NATS cannot carry", bad, 0, 0, "use ASCII only")?;
    }
    let taken = event.headers.iter().filter(|(name, _)| reserved(name)).count() as u64;
    let help = "rename headers called content-type, traceparent, nats-…, ce-… or semel-…";
    limits::check("header name", "names that mean something else", taken, 0, 0, help)?;
    // As long as any.
    let sequence = event.key.as_ref().map(|_| "0".repeat(39));
    let headers = headers(event, Timestamp(0), sequence);
    let headers: usize = headers
        .iter()
        .flat_map(|(name, values)| {
            values
                .iter()
                .map(move |value| name.to_string().len() + value.as_str().len() + 4)
        })
        .sum();
    // The first line of the headers and the empty one behind them.
    let bytes = headers + 12 + event.data.as_ref().map_or(0, Bytes::len);
    let help = "raise message_bytes_max of the sink and max_payload of the server, or send a reference";
    limits::check("message", "bytes", bytes as u64, 0, bytes_max as u64, help)
}

/// What the stream knows a repeat by: what CloudEvents calls unique. The id alone says enough of events with the default
/// source; another source may have the same id, derived from a key of its own, and one stream may take both.
fn message_id(event: &Event) -> String {
    if event.source == SOURCE {
        event.id.to_string()
    } else {
        format!("{}/{}", encode(event.source.as_bytes()), event.id)
    }
}

/// The headers of a row's message.
pub(crate) fn of_row(row: &OutboxRow) -> HeaderMap {
    headers(&row.event, row.created_at, row.sequence())
}

fn headers(event: &Event, at: Timestamp, sequence: Option<String>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.append("Nats-Msg-Id", message_id(event));
    headers.append("ce-specversion", "1.0");
    headers.append("ce-id", event.id.to_string());
    headers.append("ce-source", encode(event.source.as_bytes()));
    headers.append("ce-type", encode(event.kind.as_bytes()));
    headers.append("ce-time", at.rfc3339());
    headers.append("semel-topic", event.topic.as_str());
    if let Some(key) = &event.key {
        headers.append("ce-partitionkey", encode(key));
    }
    if let Some(sequence) = sequence {
        headers.append("ce-sequence", sequence);
    }
    if let Some(content_type) = &event.content_type {
        headers.append("content-type", content_type.as_str());
    }
    if let Some(traceparent) = &event.traceparent {
        headers.append("traceparent", traceparent.as_str());
    }
    if event.data.is_none() {
        headers.append("semel-tombstone", "1");
    }
    for (name, value) in &event.headers {
        headers.append(name.as_str(), encode(value));
    }
    if event.headers.len() > 1 {
        let names: Vec<&str> = event.headers.iter().map(|(name, _)| name.as_str()).collect();
        headers.append("semel-headers", names.join(","));
    }
    headers
}

/// Percent-encodes as the CloudEvents bindings say, byte by byte.
fn encode(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len()), |mut text, byte| {
            match byte {
                b'"' | b'%' => {
                    let _ = write!(text, "%{byte:02X}");
                }
                0x21..=0x7e => text.push(char::from(*byte)),
                _ => {
                    let _ = write!(text, "%{byte:02X}");
                }
            }
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn what_no_message_can_carry_is_refused_and_the_limit_is_named() {
        let event = || Event::new(Uuid::from_u128(7), "t", "e");
        let checked =
            |event: &Event, subject: &str| check(event, subject, 400).map_err(|limit| limit.to_string());
        checked(&event(), "a.b").unwrap();
        assert!(checked(&event(), "a..b").unwrap_err().contains("empty parts"));
        let large = checked(&event().with_data("text/plain", vec![b'x'; 300]), "t").unwrap_err();
        assert!(large.contains("message_bytes_max"), "{large}");
        for name in [
            "Nats-Msg-Id",
            "nats-expected-stream",
            "ce-id",
            "Content-Type",
            "traceparent",
            "semel-topic",
        ] {
            assert!(checked(&event().with_header(name, "x"), "t").is_err(), "{name}");
        }
        assert!(checked(&event().with_data("text/\u{fc}", ""), "t").is_err());
    }

    #[test]
    fn events_of_two_sources_are_never_one_for_the_stream() {
        let mut event = Event::new(Uuid::from_u128(7), "t", "e");
        let own = message_id(&event);
        assert_eq!(own, event.id.to_string());
        event.source = "/shop one".to_owned();
        let other = message_id(&event);
        assert_eq!(other, format!("/shop%20one/{own}"));
        event.source = "/shop two".to_owned();
        assert_ne!(message_id(&event), other);
    }

    #[test]
    fn bytes_are_counted_as_the_server_counts_them() {
        let event = Event::new(Uuid::from_u128(7), "t", "e")
            .with_header("a", &b"\xff"[..])
            .with_header("b", "");
        // "NATS/1.0\r\n", then a line for each value, then "\r\n".
        let wire: usize = headers(&event, Timestamp(0), None)
            .iter()
            .flat_map(|(name, values)| {
                values
                    .iter()
                    .map(move |value| format!("{name}: {value}\r\n").len())
            })
            .sum::<usize>()
            + 12;
        assert!(check(&event, "t", wire).is_ok());
        assert!(check(&event, "t", wire - 1).is_err());
    }
}
