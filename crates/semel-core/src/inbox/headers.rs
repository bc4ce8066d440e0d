//! Headers as one stored value: JSON `[["name", "hex" or null], ...]`, so that order, repeats, binary and null values
//! survive.

use bytes::Bytes;

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
    }

    #[test]
    fn what_is_no_header_list_is_not_read_as_one() {
        for text in ["", "{}", r#"[["a","0"]]"#, r#"[["a","zz"]]"#, r#"[["a","+1"]]"#] {
            assert_eq!(decode(text.as_bytes()), None, "{text}");
        }
    }
}
