//! Bytes in JSON. Scopes, ids and outputs are bytes; JSON has only text. A JSON string stands for its UTF-8 bytes, and
//! `{"base64": "…"}` for any bytes. What is answered is a string whenever the bytes are UTF-8, so that both forms of the
//! same bytes name the same key and are shown alike.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use semel_core::claim::Nonce;
use semel_core::key::hex;
use semel_core::{Fingerprint, claim::OwnerLost};
use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes in JSON.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Octets(pub(crate) Bytes);

impl Octets {
    /// Of these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(bytes))
    }
}

impl Serialize for Octets {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => serializer.collect_map([("base64", STANDARD.encode(&self.0))]),
        }
    }
}

impl<'de> Deserialize<'de> for Octets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OctetsVisitor)
    }
}

struct OctetsVisitor;

impl<'de> Visitor<'de> for OctetsVisitor {
    type Value = Octets;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text, or {\"base64\": \"…\"} for bytes that are no UTF-8")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Octets, E> {
        Ok(Octets::of(text.as_bytes()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Octets, E> {
        Ok(Octets(text.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Octets, A::Error> {
        let Some(name) = map.next_key::<String>()? else {
            return Err(A::Error::missing_field("base64"));
        };
        if name != "base64" {
            return Err(A::Error::unknown_field(&name, &["base64"]));
        }
        let text: String = map.next_value()?;
        if let Some(name) = map.next_key::<String>()? {
            return Err(A::Error::custom(format_args!(
                "`{name}` is one field too many beside `base64`"
            )));
        }
        let bytes = STANDARD.decode(text).map_err(|error| {
            A::Error::custom(format_args!(
                "this is no base64 (RFC 4648, section 4, with padding): {error}"
            ))
        })?;
        Ok(Octets(bytes.into()))
    }
}

/// Reads exactly `N` bytes of hexadecimal.
fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    Some(bytes)
}

/// A claim's nonce: 32 hexadecimal digits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NonceText(pub(crate) Nonce);

impl<'de> Deserialize<'de> for NonceText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = unhex(&text).ok_or_else(|| {
            D::Error::custom(
                "a nonce is 32 hexadecimal digits: 128 random bits, drawn afresh for each attempt",
            )
        })?;
        Ok(Self(Nonce(bytes)))
    }
}

/// The nonce as it is answered.
pub(crate) fn nonce_text(nonce: Nonce) -> String {
    hex(&nonce.0)
}

/// A fingerprint made elsewhere: 66 hexadecimal digits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FingerprintText(pub(crate) Fingerprint);

impl<'de> Deserialize<'de> for FingerprintText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        unhex::<{ Fingerprint::BYTES }>(&text)
            .and_then(|bytes| Fingerprint::from_bytes(&bytes))
            .map(Self)
            .ok_or_else(|| {
                D::Error::custom("a fingerprint is 66 hexadecimal digits: its version, then SHA-256")
            })
    }
}

/// What becomes of a key whose owner is lost.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OwnerLostWord {
    /// It is unknown until somebody settles it.
    Hold,
    /// The next claimant runs it again.
    Rerun,
}

impl From<OwnerLostWord> for OwnerLost {
    fn from(word: OwnerLostWord) -> Self {
        match word {
            OwnerLostWord::Hold => Self::Hold,
            OwnerLostWord::Rerun => Self::Rerun,
        }
    }
}

/// A whole number; JSON does not tell `2` from `2.0`, and some languages write the latter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Whole(pub(crate) i64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WholeVisitor)
    }
}

struct WholeVisitor;

impl Visitor<'_> for WholeVisitor {
    type Value = Whole;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number of 64 bits")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Whole, E> {
        Ok(Whole(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Whole, E> {
        let whole =
            i64::try_from(number).map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))?;
        Ok(Whole(whole))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Whole, E> {
        // Beyond 2^53 a fraction cannot be told from none.
        let whole = number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0;
        if !whole {
            return Err(E::invalid_value(Unexpected::Float(number), &self));
        }
        #[expect(clippy::cast_possible_truncation, reason = "it is whole and small")]
        Ok(Whole(number as i64))
    }
}

/// A field that may be left out, but not be null.
pub(crate) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Octets, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn text_is_its_utf8_bytes_and_other_bytes_travel_as_base64() {
        for (json, bytes) in [
            (r#""o-7""#, &b"o-7"[..]),
            (r#""  A é""#, "  A é".as_bytes()),
            (r#""\u0000""#, b"\0"),
            (r#"{"base64":"/w=="}"#, b"\xff"),
            (r#"{"base64":""}"#, b""),
        ] {
            assert_eq!(read(json).unwrap(), Octets::of(bytes), "{json}");
        }
        let shown = |bytes| serde_json::to_string(&Octets::of(bytes)).unwrap();
        assert_eq!(shown(b"o-7"), r#""o-7""#);
        assert_eq!(shown(b"\xff"), r#"{"base64":"/w=="}"#);
        assert_eq!(
            read(r#"{"base64":"by03"}"#),
            read(r#""o-7""#),
            "one key, however it is written"
        );
    }

    #[test]
    fn what_is_neither_says_what_to_send() {
        for json in ["7", "null", "[]", "true"] {
            assert!(
                read(json).unwrap_err().contains(r#"text, or {"base64""#),
                "{json}"
            );
        }
        for json in [
            r#"{"base64":"/w="}"#,
            r#"{"base64":"_w=="}"#,
            r#"{"base64":"/x=="}"#,
            r#"{"base64":" /w=="}"#,
        ] {
            assert!(read(json).unwrap_err().contains("RFC 4648"), "{json}");
        }
        assert!(
            read(r#"{"base64":"","text":""}"#)
                .unwrap_err()
                .contains("too many")
        );
        assert!(read(r#"{"hex":"ff"}"#).unwrap_err().contains("unknown field"));
        assert!(read("{}").unwrap_err().contains("missing field"));
        assert!(read(r#""\ud800""#).is_err(), "half a character is no text");
    }

    #[test]
    fn a_whole_number_may_be_written_with_a_point() {
        let read = |json: &str| serde_json::from_str::<Whole>(json).map(|whole| whole.0).ok();
        for (json, number) in [
            ("2", 2),
            ("2.0", 2),
            ("-2e1", -20),
            ("9223372036854775807", i64::MAX),
        ] {
            assert_eq!(read(json), Some(number), "{json}");
        }
        for json in ["2.5", "9223372036854775808", "1e300", "\"2\"", "null", "true"] {
            assert_eq!(read(json), None, "{json}");
        }
    }

    #[test]
    fn a_nonce_is_128_bits_in_hexadecimal() {
        let read =
            |text: &str| serde_json::from_value::<NonceText>(text.into()).map(|nonce| nonce_text(nonce.0));
        let text = "000102030405060708090a0b0c0d0eFF";
        assert_eq!(read(text).unwrap(), text.to_lowercase());
        for wrong in [
            "",
            "00",
            &"0".repeat(31),
            &"0".repeat(33),
            &"g".repeat(32),
            &"é".repeat(16),
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
