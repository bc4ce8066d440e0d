//! The stored form of an answer, byte for byte.
//!
//! ```text
//! version u8 = 1 | status u16 | headers u32 | (name length u16, name, value length u32, value)* | body to the end
//! ```
//! Numbers are big endian. Headers keep their order, duplicates and bytes that are no UTF-8.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};

use super::strip;

/// The version written today. Another version is not replayed: the retry is told that the answer is not kept.
pub const CODEC_VERSION: u8 = 1;

/// What is kept of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers that are the answer's own, in order.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body's bytes.
    pub body: Bytes,
}

/// Stored bytes that this build cannot read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// Written by another version.
    #[error("the stored answer has version {0}, this build reads {CODEC_VERSION}")]
    Version(u8),
    /// Shorter than it says, or not an answer at all.
    #[error("the stored answer is damaged")]
    Damaged,
}

impl StoredResponse {
    /// Keeps what belongs to the answer itself; connection, credential, trace and date fields are left out.
    #[must_use]
    pub fn keep(status: StatusCode, headers: &HeaderMap, body: Bytes) -> Self {
        Self {
            status,
            headers: strip::kept(headers)
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            body,
        }
    }

    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let headers: usize = self
            .headers
            .iter()
            .map(|(n, v)| 6 + n.as_str().len() + v.len())
            .sum();
        let mut out = BytesMut::with_capacity(7 + headers + self.body.len());
        out.put_u8(CODEC_VERSION);
        out.put_u16(self.status.as_u16());
        // `http` itself allows fewer than 2^15 headers, names below 2^16 and values below 2^32 bytes.
        out.put_u32(u32::try_from(self.headers.len()).unwrap_or(u32::MAX));
        for (name, value) in &self.headers {
            out.put_u16(u16::try_from(name.as_str().len()).unwrap_or(u16::MAX));
            out.put_slice(name.as_str().as_bytes());
            out.put_u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
            out.put_slice(value.as_bytes());
        }
        out.put_slice(&self.body);
        out.freeze()
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`CodecError`]. Never panics, whatever the bytes.
    pub fn decode(stored: &Bytes) -> Result<Self, CodecError> {
        let mut rest = Cursor(stored.clone());
        let version = rest.take(1)?[0];
        if version != CODEC_VERSION {
            return Err(CodecError::Version(version));
        }
        let status = StatusCode::from_u16(rest.number(2)? as u16).map_err(|_| CodecError::Damaged)?;
        let count = rest.number(4)?;
        let mut headers = Vec::new();
        for _ in 0..count {
            let name = rest.number(2)?;
            let name = HeaderName::from_bytes(&rest.take(name)?).map_err(|_| CodecError::Damaged)?;
            let value = rest.number(4)?;
            let value = HeaderValue::from_maybe_shared(rest.take(value)?).map_err(|_| CodecError::Damaged)?;
            headers.push((name, value));
        }
        Ok(Self {
            status,
            headers,
            body: rest.0,
        })
    }
}

/// What is left to read.
struct Cursor(Bytes);

impl Cursor {
    fn take(&mut self, bytes: usize) -> Result<Bytes, CodecError> {
        if self.0.len() < bytes {
            return Err(CodecError::Damaged);
        }
        Ok(self.0.split_to(bytes))
    }

    /// A big endian number of at most four bytes.
    fn number(&mut self, bytes: usize) -> Result<usize, CodecError> {
        Ok(self
            .take(bytes)?
            .iter()
            .fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_known_answer_has_known_bytes() {
        let answer = StoredResponse {
            status: StatusCode::CREATED,
            headers: vec![(HeaderName::from_static("etag"), HeaderValue::from_static("\"1\""))],
            body: Bytes::from_static(b"ok"),
        };
        let bytes = b"\x01\x00\xc9\x00\x00\x00\x01\x00\x04etag\x00\x00\x00\x03\"1\"ok";
        assert_eq!(answer.encode(), &bytes[..]);
        assert_eq!(StoredResponse::decode(&Bytes::from_static(bytes)), Ok(answer));
    }

    #[test]
    fn every_cut_of_the_head_is_an_error_not_a_panic() {
        let whole = Bytes::from_static(b"\x01\x00\xc9\x00\x00\x00\x01\x00\x04etag\x00\x00\x00\x03\"1\"");
        for end in 0..whole.len() {
            assert_eq!(
                StoredResponse::decode(&whole.slice(..end)),
                Err(CodecError::Damaged),
                "{end}"
            );
        }
    }

    #[test]
    fn another_version_is_named() {
        assert_eq!(
            StoredResponse::decode(&Bytes::from_static(b"\x02x")),
            Err(CodecError::Version(2))
        );
    }

    fn header() -> impl Strategy<Value = (HeaderName, HeaderValue)> {
        (
            "[a-z][a-z0-9-]{0,20}",
            proptest::collection::vec(prop_oneof![0x20_u8..0x7f, 0x80_u8..=0xff], 0..40),
        )
            .prop_map(|(name, value)| {
                (
                    HeaderName::from_bytes(name.as_bytes()).unwrap(),
                    HeaderValue::from_bytes(&value).unwrap(),
                )
            })
    }

    proptest! {
        #[test]
        fn what_was_stored_comes_back_byte_for_byte(
            status in 200_u16..600,
            headers in proptest::collection::vec(header(), 0..12),
            body in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let answer = StoredResponse { status: StatusCode::from_u16(status).unwrap(), headers, body: body.into() };
            prop_assert_eq!(StoredResponse::decode(&answer.encode()), Ok(answer));
        }

        #[test]
        fn any_bytes_decode_or_fail_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = StoredResponse::decode(&Bytes::from(bytes));
        }
    }
}
