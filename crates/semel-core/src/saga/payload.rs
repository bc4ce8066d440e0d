//! Bytes inside a saga's stored state: readable where they are text, exact always.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(super) fn serialize<S: Serializer>(bytes: &Option<Bytes>, to: S) -> Result<S::Ok, S::Error> {
    let text = bytes.as_ref().map(|bytes| match std::str::from_utf8(bytes) {
        Ok(text) => format!("t:{text}"),
        Err(_) => format!("b:{}", STANDARD.encode(bytes)),
    });
    text.serialize(to)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Bytes>, D::Error> {
    let Some(text) = Option::<String>::deserialize(from)? else {
        return Ok(None);
    };
    match (text.strip_prefix("t:"), text.strip_prefix("b:")) {
        (Some(text), _) => Ok(Some(Bytes::copy_from_slice(text.as_bytes()))),
        (_, Some(text)) => STANDARD
            .decode(text)
            .map(|bytes| Some(bytes.into()))
            .map_err(serde::de::Error::custom),
        (None, None) => Err(serde::de::Error::custom("bytes begin with t: or b:")),
    }
}
