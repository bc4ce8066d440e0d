//! CloudEvents 1.0 in structured mode: an event and its attributes in one JSON document, the same for every sink.
//!
//! Source: <https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md>. Beside the specification's own
//! attributes stand `partitionkey`, `sequence` and `traceparent` (its documented extensions), `semeltopic`, and `partitionkey64`
//! for an ordering key that is no text.
//!
//! The data is lossless: JSON stays the same text (less the space around it), `text/…` in UTF-8 is a string, everything
//! else is base64. Headers of the event are not in the document; they stay beside it.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::store::OutboxRow;

/// The media type of the document.
pub const MEDIA_TYPE: &str = "application/cloudevents+json";

/// Whether a media type is that of the document; parameters are passed over.
#[must_use]
pub fn is_structured(content_type: &str) -> bool {
    essence(content_type).eq_ignore_ascii_case(MEDIA_TYPE)
}

/// Whether a byte stands for itself in the value of a header.
const fn is_plain(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e) && byte != b'"' && byte != b'%'
}

/// An attribute as the value of a header, percent-encoded byte by byte as the binary content mode says
/// (<https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md>, 3.1.3.2).
///
/// ```
/// assert_eq!(semel_core::cloudevents::header_value(b"100% \xff"), "100%25%20%FF");
/// ```
#[must_use]
pub fn header_value(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(header_value_len(bytes));
    for byte in bytes {
        if is_plain(*byte) {
            text.push(char::from(*byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// Bytes of [`header_value`].
#[must_use]
pub fn header_value_len(bytes: &[u8]) -> usize {
    bytes.len() + 2 * bytes.iter().filter(|byte| !is_plain(**byte)).count()
}

/// The bytes that [`header_value`] wrote. What is no percent-encoding stands for itself.
///
/// ```
/// assert_eq!(semel_core::cloudevents::header_bytes("100%25%20%ff%"), b"100% \xff%");
/// ```
#[must_use]
pub fn header_bytes(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, behind)) = rest.split_first() {
        let hex = behind.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let digits = hex.filter(|hex| hex.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let encoded = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match encoded.filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    bytes
}

fn essence(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

fn is_json(content_type: &str) -> bool {
    let essence = essence(content_type).to_ascii_lowercase();
    essence.ends_with("/json") || essence.ends_with("+json")
}

/// `text/…` in UTF-8, by what it says.
fn is_text(content_type: &str) -> bool {
    let lower = content_type.to_ascii_lowercase();
    lower.starts_with("text/") && (!lower.contains("charset") || lower.contains("utf-8"))
}

#[derive(Serialize)]
struct Written<'a> {
    specversion: &'static str,
    id: String,
    source: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    datacontenttype: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partitionkey: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partitionkey64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
    semeltopic: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Data<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_base64: Option<String>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Data<'a> {
    Json(&'a RawValue),
    Text(&'a str),
}

/// The data as it can stand in the document as it is; `None` where it must be base64.
fn plain<'a>(content_type: Option<&str>, data: &'a [u8]) -> Option<Data<'a>> {
    let content_type = content_type?;
    if is_json(content_type) {
        let json: &RawValue = serde_json::from_slice(data).ok()?;
        // A null would read as no data.
        (json.get() != "null").then_some(Data::Json(json))
    } else if is_text(content_type) {
        std::str::from_utf8(data).ok().map(Data::Text)
    } else {
        None
    }
}

/// The document of a row.
///
/// # Errors
/// Never in practice: everything in it can be written as JSON.
pub fn document(row: &OutboxRow) -> Result<Bytes, serde_json::Error> {
    let event = &row.event;
    let key = event.key.as_deref();
    let text = key
        .and_then(|key| std::str::from_utf8(key).ok())
        .filter(|text| !text.chars().any(char::is_control));
    let data = event
        .data
        .as_deref()
        .and_then(|data| plain(event.content_type.as_deref(), data));
    let data_base64 = match (&data, &event.data) {
        (None, Some(data)) => Some(STANDARD.encode(data)),
        _ => None,
    };
    let written = Written {
        specversion: "1.0",
        id: event.id.to_string(),
        source: &event.source,
        kind: &event.kind,
        time: row.created_at.rfc3339(),
        datacontenttype: event.content_type.as_deref(),
        partitionkey: text,
        partitionkey64: key.filter(|_| text.is_none()).map(|key| STANDARD.encode(key)),
        sequence: row.sequence(),
        traceparent: event.traceparent.as_deref(),
        semeltopic: &event.topic,
        data,
        data_base64,
    };
    serde_json::to_vec(&written).map(Bytes::from)
}

/// A document, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// `id`.
    pub id: String,
    /// `source`.
    pub source: String,
    /// `type`.
    pub kind: String,
    /// `subject`.
    pub subject: Option<String>,
    /// `time`, as sent.
    pub time: Option<String>,
    /// The ordering key: `partitionkey` or `partitionkey64`.
    pub key: Option<Bytes>,
    /// The place among the events of its key: `sequence` ([`OutboxRow::sequence`]).
    pub sequence: Option<String>,
    /// The data's media type; `application/json` where the document names none and its data is no base64.
    pub content_type: Option<String>,
    /// `traceparent`.
    pub traceparent: Option<String>,
    /// The data; `None` where there is none.
    pub data: Option<Bytes>,
}

#[derive(Deserialize)]
struct Read {
    specversion: String,
    id: String,
    source: String,
    #[serde(rename = "type")]
    kind: String,
    subject: Option<String>,
    time: Option<String>,
    datacontenttype: Option<String>,
    partitionkey: Option<String>,
    partitionkey64: Option<String>,
    sequence: Option<String>,
    traceparent: Option<String>,
    data: Option<Box<RawValue>>,
    data_base64: Option<String>,
}

/// Reads a document; attributes that are not known are passed over.
///
/// # Errors
/// What is wrong with it, in words.
pub fn read(document: &[u8]) -> Result<Document, String> {
    let read: Read = serde_json::from_slice(document).map_err(|error| error.to_string())?;
    if !read.specversion.starts_with("1.") {
        return Err(format!(
            "specversion {} is not understood; send 1.0",
            read.specversion
        ));
    }
    for (name, value) in [("id", &read.id), ("source", &read.source), ("type", &read.kind)] {
        if value.is_empty() {
            return Err(format!("{name} is empty"));
        }
    }
    let decode = |name: &str, text: String| {
        let bytes = STANDARD.decode(text).map(Bytes::from);
        bytes.map_err(|_| format!("{name} is not base64"))
    };
    let mut content_type = read.datacontenttype;
    let data = match (read.data, read.data_base64) {
        (Some(_), Some(_)) => return Err("it has both data and data_base64".to_owned()),
        (None, None) => None,
        (None, Some(text)) => Some(decode("data_base64", text)?),
        (Some(data), None) => {
            let kind = content_type.get_or_insert_with(|| "application/json".to_owned());
            // Of other types a string is the data itself.
            match serde_json::from_str::<String>(data.get()) {
                Ok(text) if !is_json(kind) => Some(text.into()),
                _ => Some(Bytes::copy_from_slice(data.get().as_bytes())),
            }
        }
    };
    let key = match (read.partitionkey, read.partitionkey64) {
        (Some(text), _) => Some(text.into()),
        (None, Some(text)) => Some(decode("partitionkey64", text)?),
        (None, None) => None,
    };
    Ok(Document {
        id: read.id,
        source: read.source,
        kind: read.kind,
        subject: read.subject,
        time: read.time,
        key,
        sequence: read.sequence,
        content_type,
        traceparent: read.traceparent,
        data,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, Timestamp};
    use proptest::prelude::*;
    use uuid::Uuid;

    fn row(event: Event) -> OutboxRow {
        OutboxRow {
            row: 1,
            created_at: Timestamp(1_796_083_199_999_999),
            batch_no: 42,
            event,
        }
    }

    fn event(content_type: &str, data: &[u8]) -> Event {
        Event::new(Uuid::from_u128(7), "orders", "order.placed").with_data(content_type, data.to_vec())
    }

    fn text(event: Event) -> String {
        String::from_utf8(document(&row(event)).unwrap().to_vec()).unwrap()
    }

    #[test]
    fn what_no_header_could_carry_is_percent_encoded() {
        for (bytes, value) in [
            (&b"a~!"[..], "a~!"),
            (b"\" %\x7f\r\xff", "%22%20%25%7F%0D%FF"),
            (b"", ""),
        ] {
            assert_eq!(header_value(bytes), value);
            assert_eq!(header_value_len(bytes), value.len());
        }
    }

    #[test]
    fn json_stays_the_same_text_inside() {
        let mut event = event(
            "application/json; charset=utf-8",
            b" {\"b\": 1.0, \"a\":1, \"a\":2}\n",
        )
        .with_key("k7");
        event.traceparent = Some("00-1-2-01".to_owned());
        assert_eq!(
            text(event),
            r#"{"specversion":"1.0","id":"00000000-0000-0000-0000-000000000007","source":"/semel","type":"order.placed","time":"2026-11-30T23:59:59.999999Z","datacontenttype":"application/json; charset=utf-8","partitionkey":"k7","sequence":"0000000000000000042-0000000000000000001","traceparent":"00-1-2-01","semeltopic":"orders","data":{"b": 1.0, "a":1, "a":2}}"#
        );
    }

    #[test]
    fn what_cannot_stand_as_it_is_is_base64() {
        for (content_type, data, expected) in [
            ("application/json", &b"{"[..], r#""data_base64":"ew==""#),
            ("application/json", b"null", r#""data_base64":"bnVsbA==""#),
            ("application/octet-stream", b"a", r#""data_base64":"YQ==""#),
            ("text/plain", b"\xff", r#""data_base64":"/w==""#),
            ("text/plain; charset=iso-8859-1", b"a", r#""data_base64":"YQ==""#),
            ("text/plain", b"", r#""data":"""#),
            (
                "text/csv;charset=\"UTF-8\"",
                "\u{e9}\n".as_bytes(),
                "\"data\":\"\u{e9}\\n\"",
            ),
        ] {
            let text = text(event(content_type, data));
            assert!(text.ends_with(&format!("{expected}}}")), "{content_type}: {text}");
        }
        let key = text(event("text/plain", b"").with_key(vec![0xff]));
        assert!(key.contains(r#""partitionkey64":"/w==""#), "{key}");
    }

    #[test]
    fn a_document_of_somebody_else_is_read() {
        let it = read(
            br#"{"specversion":"1.0","type":"t","source":"/s","id":"1","subject":"x","comexampleother":5,"data":"a\"b"}"#,
        )
        .unwrap();
        assert_eq!(it.data.unwrap(), r#""a\"b""#);
        assert_eq!(it.content_type.as_deref(), Some("application/json"));
        let xml = br#"{"specversion":"1.0","type":"t","source":"/s","id":"1","datacontenttype":"application/xml","data":"<a/>"}"#;
        assert_eq!(read(xml).unwrap().data.unwrap(), "<a/>");
        for bad in [
            r#"{"specversion":"2.0","type":"t","source":"/s","id":"1"}"#,
            r#"{"specversion":"1.0","type":"t","source":"/s","id":""}"#,
            r#"{"specversion":"1.0","type":"t","source":"/s"}"#,
            r#"{"specversion":"1.0","type":"t","source":"/s","id":"1","data":1,"data_base64":"MQ=="}"#,
            r#"{"specversion":"1.0","type":"t","source":"/s","id":"1","data_base64":"?"}"#,
            "[]",
        ] {
            assert!(read(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_media_type_is_known_with_parameters_and_in_capitals() {
        assert!(is_structured("application/cloudevents+json"));
        assert!(is_structured("Application/CloudEvents+JSON; charset=UTF-8"));
        assert!(!is_structured("application/cloudevents-batch+json"));
        assert!(!is_structured("application/json"));
    }

    proptest! {
        #[test]
        fn whatever_is_written_is_read_back(
            content_type in prop::sample::select(vec!["application/json", "text/plain", "image/png", "application/a+json"]),
            data in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..40),
                ".{0,20}".prop_map(String::into_bytes),
                prop::sample::select(vec!["{}", "\"x\"", "null", "17", "[1,2]"]).prop_map(|t| t.as_bytes().to_vec()),
            ],
            key in prop::option::of(prop::collection::vec(any::<u8>(), 1..9)),
        ) {
            let mut event = event(content_type, &data);
            event.key = key.map(Bytes::from);
            let it = read(&document(&row(event.clone())).unwrap()).unwrap();
            prop_assert_eq!(it.key, event.key);
            prop_assert_eq!(it.content_type, event.content_type);
            // JSON may lose the space around it, nothing else.
            let read = it.data.unwrap();
            prop_assert!(read == data || (is_json(content_type) && read == data.trim_ascii()), "{:?} {:?}", read, data);
        }
    }
}
