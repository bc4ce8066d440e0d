//! An event as a Kafka record: CloudEvents 1.0, binary mode.

use std::collections::BTreeMap;

use bytes::Bytes;
use rdkafka::message::{Header, OwnedHeaders};
use semel_core::Event;
use semel_core::limits::{self, LimitExceeded};
use semel_core::store::OutboxRow;
use uuid::Uuid;

/// Whether an event's own header would stand in for one of the binding's.
fn reserved(name: &str) -> bool {
    name.starts_with("ce_")
        || name.eq_ignore_ascii_case("content-type")
        || name.eq_ignore_ascii_case("traceparent")
}

/// About how long the record is, rather more than less: what surrounds it is counted generously.
fn bytes(event: &Event) -> usize {
    // Names, id, time and sequence of the binding; the record's own fields; the batch that it may be alone in.
    const AROUND: usize = 360;
    const AROUND_HEADER: usize = 10;
    let headers: usize = event
        .headers
        .iter()
        .map(|(name, value)| name.len() + value.len() + AROUND_HEADER)
        .sum();
    let attributes = [
        Some(&event.source),
        Some(&event.kind),
        event.content_type.as_ref(),
        event.traceparent.as_ref(),
    ];
    let attributes: usize = attributes.into_iter().flatten().map(String::len).sum();
    let bytes = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
    AROUND + headers + attributes + bytes(&event.key) + bytes(&event.data)
}

/// The longest record that a client with these properties takes.
pub(crate) fn bytes_max(properties: &BTreeMap<String, String>) -> u64 {
    let set = properties.get("message.max.bytes");
    set.and_then(|text| text.parse().ok()).unwrap_or(1_000_000)
}

/// Refuses what can never be a Kafka record.
pub(crate) fn check(event: &Event, bytes_max: u64) -> Result<(), LimitExceeded> {
    event.check_names()?;
    limits::check(
        "record",
        "bytes",
        bytes(event) as u64,
        0,
        bytes_max,
        "send a reference, or raise message.max.bytes of the properties and max.message.bytes of the topic",
    )?;
    let reserved = event.headers.iter().filter(|(name, _)| reserved(name)).count();
    limits::check(
        "header name",
        "names that CloudEvents needs",
        reserved as u64,
        0,
        0,
        "rename headers called content-type, traceparent or ce_…",
    )
}

/// The headers of a row, the binding's first.
pub(crate) fn headers(row: &OutboxRow) -> OwnedHeaders {
    let event = &row.event;
    let add = |headers: OwnedHeaders, key: &str, value: &[u8]| {
        headers.insert(Header {
            key,
            value: Some(value),
        })
    };
    let mut headers = OwnedHeaders::new_with_capacity(9 + event.headers.len());
    headers = add(headers, "ce_specversion", b"1.0");
    let id = &mut Uuid::encode_buffer();
    headers = add(
        headers,
        "ce_id",
        event.id.hyphenated().encode_lower(id).as_bytes(),
    );
    headers = add(headers, "ce_source", event.source.as_bytes());
    headers = add(headers, "ce_type", event.kind.as_bytes());
    headers = add(headers, "ce_time", row.created_at.rfc3339().as_bytes());
    if let Some(sequence) = row.sequence() {
        headers = add(headers, "ce_sequence", sequence.as_bytes());
    }
    if let Some(content_type) = &event.content_type {
        headers = add(headers, "content-type", content_type.as_bytes());
    }
    if let Some(traceparent) = &event.traceparent {
        headers = add(headers, "traceparent", traceparent.as_bytes());
    }
    event
        .headers
        .iter()
        .fold(headers, |headers, (name, value)| add(headers, name, value))
}
