//! A row as an entry of a stream.

use redis::Cmd;
use semel_core::Event;
use semel_core::store::OutboxRow;

/// What a field that holds a header of the event begins with.
pub(super) const HEADER: &str = "h:";

/// How entries are added.
#[derive(Debug, Clone)]
pub(super) struct How {
    /// The stream's key, with `{topic}` in it.
    pub(super) key: String,
    /// About how many entries a stream keeps.
    pub(super) entries_max: Option<u64>,
    /// Whether a stream that is missing is made.
    pub(super) create: bool,
}

impl How {
    /// The key of the stream of a topic.
    pub(super) fn stream(&self, topic: &str) -> String {
        self.key.replace("{topic}", topic)
    }
}

/// The command that appends a row to its stream.
pub(super) fn command(how: &How, stream: &str, row: &OutboxRow) -> Cmd {
    let event = &row.event;
    let mut command = Cmd::with_capacity(22 + 2 * event.headers.len(), bytes(event) + 512);
    command.arg("XADD").arg(stream);
    if !how.create {
        command.arg("NOMKSTREAM");
    }
    if let Some(entries_max) = how.entries_max {
        command.arg("MAXLEN").arg("~").arg(entries_max);
    }
    command.arg("*").arg("ce_specversion").arg("1.0");
    let mut id = [0; 36];
    command
        .arg("ce_id")
        .arg(event.id.hyphenated().encode_lower(&mut id).as_bytes());
    command.arg("ce_source").arg(&event.source);
    command.arg("ce_type").arg(&event.kind);
    command.arg("ce_time").arg(row.created_at.rfc3339());
    if let Some(key) = &event.key {
        command.arg("ce_partitionkey").arg(&key[..]);
    }
    if let Some(sequence) = row.sequence() {
        command.arg("ce_sequence").arg(sequence);
    }
    command.arg("topic").arg(&event.topic);
    if let Some(content_type) = &event.content_type {
        command.arg("content-type").arg(content_type);
    }
    if let Some(traceparent) = &event.traceparent {
        command.arg("traceparent").arg(traceparent);
    }
    if let Some(data) = &event.data {
        command.arg("data").arg(&data[..]);
    }
    let mut name = String::new();
    for (header, value) in &event.headers {
        name.clear();
        name.push_str(HEADER);
        name.push_str(header);
        command.arg(&name).arg(&value[..]);
    }
    command
}

/// Bytes of an event's parts that have no fixed length.
pub(super) fn bytes(event: &Event) -> usize {
    let headers: usize = event
        .headers
        .iter()
        .map(|(name, value)| name.len() + value.len() + 2)
        .sum();
    headers
        + event.data.as_ref().map_or(0, bytes::Bytes::len)
        + event.key.as_ref().map_or(0, bytes::Bytes::len)
        + event.source.len()
        + event.kind.len()
        + event.topic.len()
        + event.content_type.as_ref().map_or(0, String::len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use semel_core::Timestamp;
    use uuid::Uuid;

    fn words(how: &How, event: Event) -> Vec<Vec<u8>> {
        let row = OutboxRow {
            row: 1,
            created_at: Timestamp(0),
            batch_no: 0,
            event,
        };
        let command = command(how, &how.stream(&row.event.topic), &row);
        command
            .args_iter()
            .map(|arg| match arg {
                redis::Arg::Simple(bytes) => bytes.to_vec(),
                _ => panic!("no cursor here"),
            })
            .collect()
    }

    #[test]
    fn every_part_of_an_event_has_its_field_and_headers_keep_order_repeats_and_bytes() {
        let how = How {
            key: "events:{{topic}}".to_owned(),
            entries_max: Some(1_000),
            create: false,
        };
        let mut event = Event::new(Uuid::from_u128(7), "orders", "order.placed")
            .with_key(vec![0xff, 0])
            .with_data("text/plain", "a\r\n")
            .with_header("b", vec![0])
            .with_header("a", "1")
            .with_header("b", "");
        event.traceparent = Some("00-1-2-01".to_owned());
        let expected: [&[u8]; 35] = [
            b"XADD",
            b"events:{orders}",
            b"NOMKSTREAM",
            b"MAXLEN",
            b"~",
            b"1000",
            b"*",
            b"ce_specversion",
            b"1.0",
            b"ce_id",
            b"00000000-0000-0000-0000-000000000007",
            b"ce_source",
            b"/semel",
            b"ce_type",
            b"order.placed",
            b"ce_time",
            b"1970-01-01T00:00:00.000000Z",
            b"ce_partitionkey",
            &[0xff, 0],
            b"ce_sequence",
            b"0000000000000000000-0000000000000000001",
            b"topic",
            b"orders",
            b"content-type",
            b"text/plain",
            b"traceparent",
            b"00-1-2-01",
            b"data",
            b"a\r\n",
            b"h:b",
            &[0],
            b"h:a",
            b"1",
            b"h:b",
            b"",
        ];
        assert_eq!(words(&how, event), expected);
    }

    #[test]
    fn a_tombstone_has_no_field_for_data_and_empty_data_has() {
        let how = How {
            key: "{topic}".to_owned(),
            entries_max: None,
            create: true,
        };
        let has = |event| words(&how, event).contains(&b"data".to_vec());
        let event = Event::new(Uuid::from_u128(7), "t", "x");
        assert!(!has(event.clone()));
        assert!(has(event.with_data("text/plain", "")));
    }
}
