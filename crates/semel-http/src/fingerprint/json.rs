//! JSON that means one thing, in canonical form (RFC 8785).

use std::fmt;

use semel_core::fingerprint::tag;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::profile::{Pointer, essence};
use super::{Asked, Read};

/// Significant digits up to which every decimal number has a double of its own (C's `DBL_DIG`).
const DIGITS_MAX: usize = 15;
/// Decimal exponents up to which a double neither overflows nor loses digits.
const EXPONENT_MAX: i32 = 290;

pub(super) fn whole(asked: Asked<'_>) -> Option<Read> {
    let value = value(asked)?;
    canonical(&value)
}

/// What stands at the pointers, by their names.
pub(super) fn only(asked: Asked<'_>, pointers: &[Pointer]) -> Option<Read> {
    let value = value(asked)?;
    let mut canonical = Vec::new();
    let mut fields = Vec::new();
    for pointer in pointers {
        // What is absent differs from null.
        let at = match value.pointer(pointer.as_str()) {
            Some(at) => [&b"1"[..], &serde_json_canonicalizer::to_vec(at).ok()?].concat(),
            None => b"0".to_vec(),
        };
        for part in [pointer.as_str().as_bytes(), &at] {
            canonical.extend_from_slice(&(part.len() as u64).to_be_bytes());
            canonical.extend_from_slice(part);
        }
        fields.push((
            pointer.as_str().to_owned(),
            tag(&[pointer.as_str().as_bytes(), &at]),
        ));
    }
    Some(Read { canonical, fields })
}

/// All but what stands at the pointers.
pub(super) fn except(asked: Asked<'_>, pointers: &[Pointer]) -> Option<Read> {
    let mut value = value(asked)?;
    for pointer in pointers {
        let (parent, name) = pointer.as_str().rsplit_once('/')?;
        let name = name.replace("~1", "/").replace("~0", "~");
        match value.pointer_mut(parent) {
            Some(Value::Object(members)) => {
                members.remove(&name);
            }
            // Emptied, not removed: later pointers into the list keep their meaning.
            Some(Value::Array(items)) => {
                if let Some(item) = name.parse::<usize>().ok().and_then(|n| items.get_mut(n)) {
                    *item = Value::Null;
                }
            }
            _ => {}
        }
    }
    canonical(&value)
}

fn canonical(value: &Value) -> Option<Read> {
    let mut fields = match value {
        Value::Object(members) => members
            .iter()
            .map(|(name, member)| {
                let text = serde_json_canonicalizer::to_vec(member).ok()?;
                let shown = format!("/{}", name.replace('~', "~0").replace('/', "~1"));
                Some((shown, tag(&[name.as_bytes(), &text])))
            })
            .collect::<Option<Vec<_>>>()?,
        _ => Vec::new(),
    };
    // The order of the members does not count.
    fields.sort();
    Some(Read {
        canonical: serde_json_canonicalizer::to_vec(value).ok()?,
        fields,
    })
}

/// The body, where it is JSON that every reader takes for the same value.
fn value(asked: Asked<'_>) -> Option<Value> {
    let kind = essence(&asked.head.headers)?;
    let is_json = kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"));
    if !is_json || !numbers_are_exact(asked.body) {
        return None;
    }
    parse(asked.body)
}

/// JSON without a member that stands twice.
pub(crate) fn parse(body: &[u8]) -> Option<Value> {
    serde_json::from_slice::<Strict>(body).ok().map(|strict| strict.0)
}

/// Whether every number of the text survives being read as a double.
fn numbers_are_exact(text: &[u8]) -> bool {
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        match byte {
            b'"' => rest = skip_string(after),
            b'-' | b'0'..=b'9' => {
                let end = rest
                    .iter()
                    .position(|byte| !matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9'))
                    .unwrap_or(rest.len());
                if !is_exact(&rest[..end]) {
                    return false;
                }
                rest = &rest[end..];
            }
            _ => rest = after,
        }
    }
    true
}

fn skip_string(mut text: &[u8]) -> &[u8] {
    loop {
        match text {
            [b'\\', _, rest @ ..] => text = rest,
            [b'"', rest @ ..] => return rest,
            [_, rest @ ..] => text = rest,
            [] => return text,
        }
    }
}

fn is_exact(number: &[u8]) -> bool {
    let e = number.iter().position(|byte| matches!(byte, b'e' | b'E'));
    let (digits, exponent) = e.map_or((number, &b""[..]), |e| (&number[..e], &number[e + 1..]));
    let significant = digits
        .iter()
        .filter(|byte| byte.is_ascii_digit())
        .skip_while(|byte| **byte == b'0')
        .count();
    let exponent = match exponent {
        b"" => Some(0),
        text => std::str::from_utf8(text)
            .ok()
            .and_then(|text| text.parse::<i32>().ok()),
    };
    significant <= DIGITS_MAX && digits.len() < 100 && exponent.is_some_and(|e| e.abs() <= EXPONENT_MAX)
}

/// A value whose objects have no member twice.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Self)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON without a member that stands twice")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Strict(item)) = items.next_element()? {
            all.push(item);
        }
        Ok(all.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some((name, Strict(value))) = members.next_entry::<String, Strict>()? {
            if all.insert(name, value).is_some() {
                return Err(de::Error::custom("a member stands twice"));
            }
        }
        Ok(all.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_readers_round_differently_is_not_exact() {
        for exact in [
            "0",
            "-1",
            "1.50",
            "123456789012345",
            "0.000123456789012345",
            "1e3",
            "1.5E-7",
            "\"12345678901234567890\"",
            r#"{"a\"1":"9007199254740993"}"#,
        ] {
            assert!(numbers_are_exact(exact.as_bytes()), "{exact}");
        }
        for not in [
            "9007199254740993",
            "1234567890123456",
            "0.1234567890123456789",
            "1e400",
            "1e-400",
            "[1,{\"a\":9007199254740993}]",
            "1e99999999999",
        ] {
            assert!(!numbers_are_exact(not.as_bytes()), "{not}");
        }
    }

    #[test]
    fn a_member_that_stands_twice_is_not_read() {
        assert!(parse(br#"{"a":1,"a":2}"#).is_none());
        assert!(parse(br#"{"x":[{"a":1,"a":1}]}"#).is_none());
        assert!(parse(br#"{"a":1} x"#).is_none());
        assert_eq!(parse(br#"{"a":{"b":1},"b":1}"#).unwrap()["a"]["b"], 1);
    }
}
