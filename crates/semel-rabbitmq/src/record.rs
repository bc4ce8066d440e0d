//! An event as a message.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldArray, FieldTable, ShortString};
use semel_core::Event;
use semel_core::limits::{self, LimitExceeded};
use semel_core::store::{OutboxRow, is_replay_header};

/// Bytes of a short string of AMQP.
const SHORT_BYTES_MAX: u64 = 255;

/// Whether an event's own header would stand in for one of ours, or is one that RabbitMQ acts on.
fn reserved(name: &str) -> bool {
    !is_replay_header(name)
        && (name == "traceparent" || name.starts_with("semel-") || name == "CC" || name == "BCC")
}

/// Refuses what no message could carry.
pub(crate) fn check(
    event: &Event,
    exchange: &str,
    routing_key: &str,
    bytes_max: usize,
) -> Result<(), LimitExceeded> {
    let bytes = event.data.as_ref().map_or(0, bytes::Bytes::len) as u64;
    let help = "raise message_bytes_max of the sink and max_message_size of the broker, or send a reference";
    limits::check("message body", "bytes", bytes, 0, bytes_max as u64, help)?;
    for (what, text) in [("exchange", exchange), ("routing key", routing_key)] {
        let help = "use a shorter template, topic or type";
        limits::check(what, "bytes", text.len() as u64, 0, SHORT_BYTES_MAX, help)?;
    }
    for (name, _) in &event.headers {
        let size = name.len() as u64;
        limits::check(
            "header name",
            "bytes",
            size,
            1,
            SHORT_BYTES_MAX,
            "use a shorter name",
        )?;
        let taken = u64::from(reserved(name));
        let help = "rename headers called traceparent, CC, BCC or semel-…";
        limits::check("header name", "names that mean something else", taken, 0, 0, help)?;
    }
    Ok(())
}

fn text(bytes: &[u8]) -> AMQPValue {
    AMQPValue::LongString(bytes.to_vec().into())
}

/// The properties of a row's message.
pub(crate) fn properties(row: &OutboxRow) -> BasicProperties {
    let event = &row.event;
    let id = event.id.to_string();
    let mut headers = FieldTable::default();
    let mut add = |name: &str, value: AMQPValue| {
        headers.insert(ShortString::from(name), value);
    };
    // The first of a name stays.
    for (name, value) in event.headers.iter().rev() {
        add(name, text(value));
    }
    add("cloudEvents:specversion", text(b"1.0"));
    add("cloudEvents:id", text(id.as_bytes()));
    add("cloudEvents:source", text(event.source.as_bytes()));
    add("cloudEvents:type", text(event.kind.as_bytes()));
    add("cloudEvents:time", text(row.created_at.rfc3339().as_bytes()));
    add("semel-topic", text(event.topic.as_bytes()));
    if let Some(key) = &event.key {
        add("cloudEvents:partitionkey", text(key));
    }
    if let Some(sequence) = row.sequence() {
        add("cloudEvents:sequence", text(sequence.as_bytes()));
    }
    if let Some(traceparent) = &event.traceparent {
        add("traceparent", text(traceparent.as_bytes()));
    }
    if event.data.is_none() {
        add("semel-tombstone", AMQPValue::Boolean(true));
    }
    if event.headers.len() > 1 {
        let mut all = FieldArray::default();
        for (name, value) in &event.headers {
            all.push(text(name.as_bytes()));
            all.push(text(value));
        }
        add("semel-headers", AMQPValue::FieldArray(all));
    }
    let seconds = u64::try_from(row.created_at.0 / 1_000_000).unwrap_or(0);
    let mut properties = BasicProperties::default()
        .with_message_id(id.into())
        .with_type(ShortString::from(event.kind.as_str()))
        .with_timestamp(seconds)
        .with_delivery_mode(2)
        .with_headers(headers);
    if let Some(content_type) = &event.content_type {
        properties = properties.with_content_type(ShortString::from(content_type.as_str()));
    }
    properties
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn checked(event: &Event) -> Result<(), String> {
        check(event, "", "key", 10).map_err(|limit| limit.to_string())
    }

    #[test]
    fn what_no_message_can_carry_is_refused_and_the_limit_is_named() {
        let event = || Event::new(Uuid::from_u128(7), "t", "e");
        checked(&event()).unwrap();
        let large = checked(&event().with_data("text/plain", "01234567890")).unwrap_err();
        assert!(large.contains("message_bytes_max"), "{large}");
        for name in ["CC", "BCC", "traceparent", "semel-topic", &"n".repeat(256)] {
            assert!(checked(&event().with_header(name, "x")).is_err(), "{name}");
        }
        assert!(check(&event(), "", &"r".repeat(256), 10).is_err());
    }
}
