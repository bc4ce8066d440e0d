//! Form fields in an order of their own.

use semel_core::fingerprint::tag;

use super::profile::essence;
use super::{Asked, Read};

pub(super) const FORM: &str = "application/x-www-form-urlencoded";

pub(super) fn read(asked: Asked<'_>) -> Option<Read> {
    if essence(&asked.head.headers)? != FORM {
        return None;
    }
    let mut pairs = pairs(asked.body)?;
    // Stable: values of one field keep their order.
    pairs.sort_by(|a, b| a.0.cmp(&b.0));
    let mut canonical = Vec::with_capacity(asked.body.len() + 16 * pairs.len());
    let mut fields: Vec<(String, u8)> = Vec::new();
    for same in pairs.chunk_by(|a, b| a.0 == b.0) {
        let mut parts: Vec<&[u8]> = Vec::new();
        for (name, value) in same {
            for part in [name, value] {
                canonical.extend_from_slice(&(part.len() as u64).to_be_bytes());
                canonical.extend_from_slice(part.as_bytes());
                parts.push(part.as_bytes());
            }
        }
        fields.push((same[0].0.clone(), tag(&parts)));
    }
    Some(Read { canonical, fields })
}

/// The fields, where the text is one that every reader takes for the same: bytes that are no UTF-8 would be replaced.
pub(crate) fn pairs(body: &[u8]) -> Option<Vec<(String, String)>> {
    let pairs: Vec<(String, String)> = form_urlencoded::parse(body).into_owned().collect();
    let replaced = |text: &str| text.contains(char::REPLACEMENT_CHARACTER);
    if pairs
        .iter()
        .any(|(name, value)| replaced(name) || replaced(value))
    {
        return None;
    }
    Some(pairs)
}
