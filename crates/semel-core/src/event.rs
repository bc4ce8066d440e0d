//! Events: what an outbox holds and a relay publishes. CloudEvents 1.0 with byte-exact data.

use bytes::Bytes;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::limits::{self, LimitExceeded};

/// Slots an ordering key can fall into; shards are ranges of slots (rule O12).
pub const SLOTS: u16 = 4_096;

/// One event, as written into the outbox in the business transaction.
///
/// Build it with [`Event::new`] and the `with_` methods, then [`Event::check`] (every `enqueue` does).
///
/// ```
/// use semel_core::Event;
/// let event = Event::new(uuid::Uuid::from_u128(7), "orders", "order.placed")
///     .with_key("order-7")
///     .with_data("application/json", r#"{"total":42}"#);
/// event.check()?;
/// # Ok::<(), semel_core::limits::LimitExceeded>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Unique id, the same on every delivery. CloudEvents `id`.
    pub id: Uuid,
    /// The stream: events with one sink and one cursor. Default `default`.
    pub stream: String,
    /// Where it goes: a Kafka topic, or the last part of a webhook's URL.
    pub topic: String,
    /// CloudEvents `type`.
    pub kind: String,
    /// CloudEvents `source`. Default `/semel`.
    pub source: String,
    /// Events of one key are delivered in order; without a key there is none.
    pub key: Option<Bytes>,
    /// The data's media type.
    pub content_type: Option<String>,
    /// Headers in order; names may repeat, values are bytes.
    pub headers: Vec<(String, Bytes)>,
    /// The data, byte for byte; `None` is a tombstone.
    pub data: Option<Bytes>,
    /// W3C trace context.
    pub traceparent: Option<String>,
}

impl Event {
    /// An event without key and data in the stream `default`.
    #[must_use]
    pub fn new(id: Uuid, topic: impl Into<String>, kind: impl Into<String>) -> Self {
        Self {
            id,
            stream: "default".to_owned(),
            topic: topic.into(),
            kind: kind.into(),
            source: "/semel".to_owned(),
            key: None,
            content_type: None,
            headers: Vec::new(),
            data: None,
            traceparent: None,
        }
    }

    /// Sets the ordering key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the data and its media type.
    #[must_use]
    pub fn with_data(mut self, content_type: impl Into<String>, data: impl Into<Bytes>) -> Self {
        self.content_type = Some(content_type.into());
        self.data = Some(data.into());
        self
    }

    /// Sets the stream.
    #[must_use]
    pub fn with_stream(mut self, stream: impl Into<String>) -> Self {
        self.stream = stream.into();
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The slot of this event: from its key, or from its id where it has none.
    #[must_use]
    pub fn slot(&self) -> u16 {
        slot(self.key.as_deref().unwrap_or(self.id.as_bytes()))
    }

    /// Refuses what could never be sent.
    ///
    /// # Errors
    /// Data, names or headers beyond the limits in [`limits`]; names with bytes that brokers refuse.
    pub fn check(&self) -> Result<(), LimitExceeded> {
        self.check_names()?;
        let size =
            |what, actual: usize, max, help| limits::check(what, "bytes", actual as u64, 0, max as u64, help);
        size(
            "event data",
            self.data.as_ref().map_or(0, Bytes::len),
            limits::EVENT_DATA_BYTES_MAX,
            "store the payload elsewhere and send a reference",
        )?;
        limits::check(
            "headers",
            "items",
            self.headers.len() as u64,
            0,
            limits::EVENT_HEADERS_MAX as u64,
            "send fewer headers",
        )?;
        size(
            "headers",
            self.headers.iter().map(|(n, v)| n.len() + v.len()).sum(),
            limits::EVENT_HEADER_BYTES_MAX,
            "send smaller headers",
        )
    }

    /// The part of [`Event::check`] that is not about how much data and how many headers there are. For a sink that may be
    /// behind a [`Mapping`](crate::mapping::Mapping), which adds to both, and has a limit of its own for them.
    ///
    /// # Errors
    /// Names, key or attributes beyond the limits in [`limits`]; names with bytes that brokers refuse.
    pub fn check_names(&self) -> Result<(), LimitExceeded> {
        check_name("topic", &self.topic)?;
        check_name("stream", &self.stream)?;
        check_text("event type", &self.kind, 1)?;
        check_text("event source", &self.source, 1)?;
        check_text("content type", self.content_type.as_deref().unwrap_or(""), 0)?;
        check_text("traceparent", self.traceparent.as_deref().unwrap_or(""), 0)?;
        limits::check(
            "ordering key",
            "bytes",
            self.key.as_ref().map_or(1, Bytes::len) as u64,
            1,
            limits::ORDERING_KEY_BYTES_MAX as u64,
            "hash the key, or leave it out",
        )?;
        for (name, _) in &self.headers {
            let bad = name
                .bytes()
                .filter(|b| !(b.is_ascii_alphanumeric() || b"-_.".contains(b)))
                .count();
            let help = "use only a-z A-Z 0-9 - _ . in header names";
            limits::check(
                "header name",
                "bad characters",
                bad as u64 + u64::from(name.is_empty()),
                0,
                0,
                help,
            )?;
        }
        Ok(())
    }
}

/// Refuses a topic or stream that some broker, or the path of a URL, could not name: 1 to
/// [`limits::TOPIC_BYTES_MAX`] of `a-z A-Z 0-9 . _ -`, and neither `.` nor `..`.
///
/// # Errors
/// The limit that is exceeded.
pub fn check_name(what: &'static str, name: &str) -> Result<(), LimitExceeded> {
    let (actual, max) = (name.len() as u64, limits::TOPIC_BYTES_MAX as u64);
    limits::check(
        what,
        "bytes",
        actual,
        1,
        max,
        "use a shorter name, and not an empty one",
    )?;
    let allowed = |b: &u8| b.is_ascii_alphanumeric() || b"._-".contains(b);
    let bad = name.bytes().filter(|b| !allowed(b)).count() as u64;
    let dots = u64::from(name == "." || name == "..");
    limits::check(
        what,
        "characters outside a-z A-Z 0-9 . _ -",
        bad + dots,
        0,
        0,
        "rename it",
    )
}

/// Refuses text that no header could carry.
fn check_text(what: &'static str, text: &str, min: u64) -> Result<(), LimitExceeded> {
    let (actual, max) = (text.len() as u64, limits::KEY_ID_BYTES_MAX as u64);
    limits::check(
        what,
        "bytes",
        actual,
        min,
        max,
        "use a shorter one, and not an empty one",
    )?;
    let bad = text.chars().filter(|c| c.is_control()).count() as u64;
    limits::check(what, "control characters", bad, 0, 0, "leave them out")
}

/// The slot of a key: the first two bytes of its SHA-256 modulo [`SLOTS`], the same in SQL.
#[must_use]
pub fn slot(key: &[u8]) -> u16 {
    let hash = Sha256::digest(key);
    u16::from_be_bytes([hash[0], hash[1]]) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        Event::new(Uuid::from_u128(1), "orders", "placed")
            .with_key("k")
            .with_data("text/plain", "x")
    }

    #[test]
    fn what_can_never_be_sent_is_refused_with_the_limit_named() {
        event().check().unwrap();
        let too_big = event().with_data("text/plain", vec![0; limits::EVENT_DATA_BYTES_MAX + 1]);
        assert!(too_big.check().unwrap_err().to_string().contains("event data"));
        for topic in ["", "a b", "a/b", "\u{e9}", "..", &"t".repeat(250)] {
            assert!(
                Event {
                    topic: topic.to_owned(),
                    ..event()
                }
                .check()
                .is_err(),
                "{topic:?}"
            );
        }
        assert!(event().with_stream("a b").check().is_err());
        assert!(event().with_data("text/plain\r\nx: y", "x").check().is_err());
        let kind = "placed\0".to_owned();
        assert!(Event { kind, ..event() }.check().is_err());
        assert!(event().with_header("a\r\nb", "x").check().is_err());
        assert!(event().with_header("a", vec![0; 20_000]).check().is_err());
        assert!(event().with_key(vec![0; 2_000]).check().is_err());
    }

    #[test]
    fn slot_follows_the_key_alone() {
        let other = Event {
            id: Uuid::from_u128(2),
            ..event()
        };
        assert_eq!(event().slot(), other.slot());
        assert!(event().slot() < SLOTS);
    }
}
