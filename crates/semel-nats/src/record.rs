//! An event as a message.

use async_nats::{HeaderMap, HeaderName};
use bytes::Bytes;
use semel_core::cloudevents::{header_value, header_value_len};
use semel_core::limits::{self, LimitExceeded};
use semel_core::store::{OutboxRow, is_replay_header, replay_of};
use semel_core::{Event, Timestamp};

/// The source of events that name none.
const SOURCE: &str = "/semel";

/// Names of headers, read once: the client would look through each of them for every message.
static MESSAGE_ID: HeaderName = HeaderName::from_static("Nats-Msg-Id");
static SPECVERSION: HeaderName = HeaderName::from_static("ce-specversion");
static ID: HeaderName = HeaderName::from_static("ce-id");
static CE_SOURCE: HeaderName = HeaderName::from_static("ce-source");
static TYPE: HeaderName = HeaderName::from_static("ce-type");
static TIME: HeaderName = HeaderName::from_static("ce-time");
static TOPIC: HeaderName = HeaderName::from_static("semel-topic");
static PARTITION_KEY: HeaderName = HeaderName::from_static("ce-partitionkey");
static SEQUENCE: HeaderName = HeaderName::from_static("ce-sequence");
static CONTENT_TYPE: HeaderName = HeaderName::from_static("content-type");
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
static TOMBSTONE: HeaderName = HeaderName::from_static("semel-tombstone");
static HEADERS: HeaderName = HeaderName::from_static("semel-headers");

/// Characters of a time and of a sequence: both have one length.
const TIME_CHARS: usize = 27;
const SEQUENCE_CHARS: usize = 39;
const ID_CHARS: usize = 36;

/// What stands between an event's id and that of its replay.
const REPLAY: &str = ";replay=";

/// Whether an event's own header would stand in for one of ours, or is one that NATS acts on.
fn reserved(name: &str) -> bool {
    if is_replay_header(name) {
        return false;
    }
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
    let bytes = header_bytes(event) + event.data.as_ref().map_or(0, Bytes::len);
    let help = "raise message_bytes_max of the sink and max_payload of the server, or send a reference";
    limits::check("message", "bytes", bytes as u64, 0, bytes_max as u64, help)
}

/// Bytes of the headers on the wire, as [`headers`] makes them: every event is asked for them before it is sent.
fn header_bytes(event: &Event) -> usize {
    let source = header_value_len(event.source.as_bytes());
    let message_id = if event.source == SOURCE {
        ID_CHARS
    } else {
        source + 1 + ID_CHARS
    } + replay_of(event).map_or(0, |_| REPLAY.len() + ID_CHARS);
    let of_key = event.key.as_ref().map_or(0, |key| {
        line("ce-partitionkey", header_value_len(key)) + line("ce-sequence", SEQUENCE_CHARS)
    });
    let optional = |name: &str, text: &Option<String>| text.as_ref().map_or(0, |text| line(name, text.len()));
    let own: usize = event
        .headers
        .iter()
        .map(|(name, value)| line(name, header_value_len(value)))
        .sum();
    let names: usize = event.headers.iter().map(|(name, _)| name.len() + 1).sum();
    // "NATS/1.0", a line each, and an empty one.
    "NATS/1.0\r\n\r\n".len()
        + line("Nats-Msg-Id", message_id)
        + line("ce-specversion", "1.0".len())
        + line("ce-id", ID_CHARS)
        + line("ce-source", source)
        + line("ce-type", header_value_len(event.kind.as_bytes()))
        + line("ce-time", TIME_CHARS)
        + line("semel-topic", event.topic.len())
        + of_key
        + optional("content-type", &event.content_type)
        + optional("traceparent", &event.traceparent)
        + if event.data.is_none() {
            line("semel-tombstone", 1)
        } else {
            0
        }
        + own
        + if event.headers.len() > 1 {
            line("semel-headers", names - 1)
        } else {
            0
        }
}

/// Bytes of a header's line.
const fn line(name: &str, value: usize) -> usize {
    name.len() + ": ".len() + value + "\r\n".len()
}

/// What the stream knows a repeat by: what CloudEvents calls unique. The id alone says enough of events with the default
/// source; another source may have the same id, derived from a key of its own, and one stream may take both.
///
/// A replay is no repeat: somebody wants it to arrive although the stream has had the event lately. So it is known by the replay,
/// too; sent again within it, it is a repeat as any other.
fn message_id(event: &Event) -> String {
    let mut id = if event.source == SOURCE {
        event.id.to_string()
    } else {
        format!("{}/{}", header_value(event.source.as_bytes()), event.id)
    };
    if let Some(replay) = replay_of(event) {
        id.push_str(REPLAY);
        id.push_str(&replay.to_string());
    }
    id
}

/// The headers of a row's message.
pub(crate) fn of_row(row: &OutboxRow) -> HeaderMap {
    headers(&row.event, row.created_at, row.sequence())
}

fn headers(event: &Event, at: Timestamp, sequence: Option<String>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(MESSAGE_ID.clone(), message_id(event));
    headers.insert(SPECVERSION.clone(), "1.0");
    headers.insert(ID.clone(), event.id.to_string());
    headers.insert(CE_SOURCE.clone(), header_value(event.source.as_bytes()));
    headers.insert(TYPE.clone(), header_value(event.kind.as_bytes()));
    headers.insert(TIME.clone(), at.rfc3339());
    headers.insert(TOPIC.clone(), event.topic.as_str());
    if let Some(key) = &event.key {
        headers.insert(PARTITION_KEY.clone(), header_value(key));
    }
    if let Some(sequence) = sequence {
        headers.insert(SEQUENCE.clone(), sequence);
    }
    if let Some(content_type) = &event.content_type {
        headers.insert(CONTENT_TYPE.clone(), content_type.as_str());
    }
    if let Some(traceparent) = &event.traceparent {
        headers.insert(TRACEPARENT.clone(), traceparent.as_str());
    }
    if event.data.is_none() {
        headers.insert(TOMBSTONE.clone(), "1");
    }
    // Their names are none of those above: `check` has refused those.
    for (name, value) in &event.headers {
        headers.append(name.as_str(), header_value(value));
    }
    if event.headers.len() > 1 {
        let names: Vec<&str> = event.headers.iter().map(|(name, _)| name.as_str()).collect();
        headers.insert(HEADERS.clone(), names.join(","));
    }
    headers
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
    fn a_replay_is_no_repeat_and_its_repeats_are() {
        let event = || Event::new(Uuid::from_u128(7), "t", "e");
        let replayed = |replay: u128| {
            let event = event().with_header("semel-replay", Uuid::from_u128(replay).to_string());
            check(&event, "t", 1_000).unwrap();
            message_id(&event)
        };
        assert_eq!(replayed(1), replayed(1));
        assert_eq!(
            replayed(1),
            format!("{};replay={}", event().id, Uuid::from_u128(1))
        );
        assert_ne!(replayed(1), replayed(2));
        // Somebody's own header of that name is no replay of ours.
        assert_eq!(
            message_id(&event().with_header("semel-replay", "yes")),
            event().id.to_string()
        );
    }

    #[test]
    fn bytes_are_counted_as_the_server_counts_them() {
        let plain = || Event::new(Uuid::from_u128(7), "t", "e");
        let mut full = plain()
            .with_key(&b"a \xff"[..])
            .with_data("text/plain", "")
            .with_header("a", &b"\xff"[..])
            .with_header("b", "")
            .with_header("a", "100%");
        full.source = "/shop one".to_owned();
        full.kind = "\u{fc}".to_owned();
        full.traceparent = Some("00-1-2-01".to_owned());
        let replayed = full
            .clone()
            .with_header("semel-replay", Uuid::from_u128(9).to_string());
        let copy = plain().with_header("semel-replay", Uuid::from_u128(9).to_string());
        for event in [plain(), plain().with_header("a", "\""), full, replayed, copy] {
            let row = OutboxRow {
                row: i64::MAX,
                created_at: Timestamp(1),
                batch_no: i64::MAX,
                event,
            };
            // "NATS/1.0\r\n", then a line for each value, then "\r\n".
            let wire: usize = of_row(&row)
                .iter()
                .flat_map(|(name, values)| {
                    values
                        .iter()
                        .map(move |value| format!("{name}: {value}\r\n").len())
                })
                .sum::<usize>()
                + 12;
            assert!(check(&row.event, "t", wire).is_ok(), "{:?}", row.event);
            assert!(check(&row.event, "t", wire - 1).is_err(), "{:?}", row.event);
        }
    }
}
