//! Headers as one stored value: JSON `[["name", "hex" or null], ...]`, so that order, repeats, binary and null values
//! survive.

use bytes::Bytes;

use crate::event::Event;
use crate::key::hex;

/// Headers in order; names may repeat, values may be null.
pub type Headers = Vec<(String, Option<Bytes>)>;

/// The stored form.
#[must_use]
pub fn encode(headers: &[(String, Option<Bytes>)]) -> Vec<u8> {
    let pairs: Vec<(&str, Option<String>)> = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_deref().map(hex)))
        .collect();
    // Strings and nulls always serialise; an empty value reads back as corrupt rather than as no headers.
    serde_json::to_vec(&pairs).unwrap_or_default()
}

/// Reads the stored form; `None` when it is not one.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Headers> {
    let pairs: Vec<(String, Option<String>)> = serde_json::from_slice(bytes).ok()?;
    pairs
        .into_iter()
        .map(|(name, value)| match value {
            None => Some((name, None)),
            Some(text) => Some((name, Some(unhex(&text)?))),
        })
        .collect()
}

fn unhex(text: &str) -> Option<Bytes> {
    // Digits only: Rust's parser takes a sign for a part of the number.
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok())
        .collect::<Option<Vec<u8>>>()
        .map(Bytes::from)
}

/// The stored form of an event's headers; `None` when it has none.
#[must_use]
pub fn encode_event(event: &Event) -> Option<String> {
    let pairs: Vec<(&str, String)> = event
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), hex(value)))
        .collect();
    // Strings always serialise.
    (!pairs.is_empty()).then(|| serde_json::to_string(&pairs).unwrap_or_default())
}

/// Reads an event's headers from their stored form; a null value is an empty one.
///
/// # Errors
/// Why the event cannot be sent: what is stored is no such form.
pub fn decode_event(stored: Option<&[u8]>) -> Result<Vec<(String, Bytes)>, &'static str> {
    let Some(stored) = stored else {
        return Ok(Vec::new());
    };
    let pairs = decode(stored).ok_or(r#"headers are not JSON of the form [["name","hexadecimal value"]]"#)?;
    let value = |(name, value): (String, Option<Bytes>)| (name, value.unwrap_or_default());
    Ok(pairs.into_iter().map(value).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn order_repeats_binary_and_null_survive(
            headers in prop::collection::vec((".{0,8}", prop::option::of(prop::collection::vec(any::<u8>(), 0..9))), 0..9)
        ) {
            let headers: Headers = headers.into_iter().map(|(n, v)| (n, v.map(Bytes::from))).collect();
            prop_assert_eq!(decode(&encode(&headers)), Some(headers));
        }

        #[test]
        fn those_of_an_event_have_the_same_form(
            headers in prop::collection::vec((".{0,8}", prop::collection::vec(any::<u8>(), 0..9)), 0..9)
        ) {
            let mut event = Event::new(uuid::Uuid::nil(), "t", "k");
            event.headers = headers.into_iter().map(|(n, v)| (n, Bytes::from(v))).collect();
            let pairs: Headers = event.headers.iter().map(|(n, v)| (n.clone(), Some(v.clone()))).collect();
            let stored = encode_event(&event).map(String::into_bytes);
            prop_assert_eq!(&stored, &(!pairs.is_empty()).then(|| encode(&pairs)));
            prop_assert_eq!(decode_event(stored.as_deref()), Ok(event.headers));
        }
    }

    #[test]
    fn what_is_no_header_list_is_not_read_as_one() {
        for text in ["", "{}", r#"[["a","0"]]"#, r#"[["a","zz"]]"#, r#"[["a","+1"]]"#] {
            assert_eq!(decode(text.as_bytes()), None, "{text}");
        }
    }
}
