//! The stored form of an answer, byte for byte.
//!
//! ```text
//! version u8 = 2 | status u16 | headers | trailers | body to the end
//! headers, trailers: count u32 | (name length u16, name, value length u32, value)*
//! ```
//! Numbers are big endian. Version 1 had no trailers, and is read. Headers keep their order, duplicates and bytes that are no UTF-8.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};

use super::strip;

/// The version written today. Another version is not replayed: the retry is told that the answer is not kept.
pub const CODEC_VERSION: u8 = 2;

/// What is kept of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers that are the answer's own, in order.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The fields behind the body, in order: gRPC has its status there.
    pub trailers: Vec<(HeaderName, HeaderValue)>,
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
            trailers: Vec::new(),
            body,
        }
    }

    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let refs =
            |fields: &[(HeaderName, HeaderValue)]| -> usize { fields.iter().map(|(n, v)| size(n, v)).sum() };
        let room = refs(&self.headers) + refs(&self.trailers) + self.body.len();
        let mut out = begin(self.status, room);
        put_fields(&mut out, self.headers.iter().map(|(n, v)| (n, v)));
        put_fields(&mut out, self.trailers.iter().map(|(n, v)| (n, v)));
        out.put_slice(&self.body);
        out.freeze()
    }

    /// The stored form of what [`keep`](Self::keep) keeps, without copying the headers one by one.
    pub(crate) fn encode_kept(
        status: StatusCode,
        headers: &HeaderMap,
        trailers: Option<&HeaderMap>,
        body: &[u8],
    ) -> Bytes {
        let room = headers.iter().map(|(n, v)| size(n, v)).sum::<usize>() + body.len();
        let mut out = begin(status, room);
        put_fields(&mut out, strip::kept(headers));
        put_fields(&mut out, trailers.into_iter().flatten());
        out.put_slice(body);
        out.freeze()
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`CodecError`]. Never panics, whatever the bytes.
    pub fn decode(stored: &Bytes) -> Result<Self, CodecError> {
        let mut rest = Cursor { stored, at: 0 };
        let version = rest.number(1)? as u8;
        if !(1..=CODEC_VERSION).contains(&version) {
            return Err(CodecError::Version(version));
        }
        let status = StatusCode::from_u16(rest.number(2)? as u16).map_err(|_| CodecError::Damaged)?;
        let headers = rest.fields()?;
        let trailers = if version == 1 { Vec::new() } else { rest.fields()? };
        Ok(Self {
            status,
            headers,
            trailers,
            body: stored.slice(rest.at..),
        })
    }
}

fn size(name: &HeaderName, value: &HeaderValue) -> usize {
    6 + name.as_str().len() + value.len()
}

fn begin(status: StatusCode, room: usize) -> BytesMut {
    let mut out = BytesMut::with_capacity(11 + room);
    out.put_u8(CODEC_VERSION);
    out.put_u16(status.as_u16());
    out
}

fn put_fields<'a>(out: &mut BytesMut, fields: impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)>) {
    let place = out.len();
    out.put_u32(0);
    // `http` itself allows fewer than 2^15 headers, names below 2^16 and values below 2^32 bytes.
    let mut count = 0_u32;
    for (name, value) in fields {
        out.put_u16(u16::try_from(name.as_str().len()).unwrap_or(u16::MAX));
        out.put_slice(name.as_str().as_bytes());
        out.put_u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        out.put_slice(value.as_bytes());
        count += 1;
    }
    out[place..place + 4].copy_from_slice(&count.to_be_bytes());
}

/// What is left to read. Numbers and names are looked at where they stand; only what is kept shares the bytes.
struct Cursor<'a> {
    stored: &'a Bytes,
    at: usize,
}

impl Cursor<'_> {
    fn take(&mut self, bytes: usize) -> Result<std::ops::Range<usize>, CodecError> {
        let end = self.at.checked_add(bytes).filter(|end| *end <= self.stored.len());
        let end = end.ok_or(CodecError::Damaged)?;
        let taken = self.at..end;
        self.at = end;
        Ok(taken)
    }

    fn fields(&mut self) -> Result<Vec<(HeaderName, HeaderValue)>, CodecError> {
        let count = self.number(4)?;
        let mut fields = Vec::new();
        for _ in 0..count {
            let name = self.number(2)?;
            let name = self.take(name)?;
            let name = HeaderName::from_bytes(&self.stored[name]).map_err(|_| CodecError::Damaged)?;
            let value = self.number(4)?;
            let value = self.take(value)?;
            let value =
                HeaderValue::from_maybe_shared(self.stored.slice(value)).map_err(|_| CodecError::Damaged)?;
            fields.push((name, value));
        }
        Ok(fields)
    }

    /// A big endian number of at most four bytes.
    fn number(&mut self, bytes: usize) -> Result<usize, CodecError> {
        let digits = self.take(bytes)?;
        Ok(self.stored[digits]
            .iter()
            .fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KNOWN: &[u8] =
        b"\x02\x00\xc9\x00\x00\x00\x01\x00\x04etag\x00\x00\x00\x03\"1\"\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x010ok";

    fn known() -> StoredResponse {
        StoredResponse {
            status: StatusCode::CREATED,
            headers: vec![(HeaderName::from_static("etag"), HeaderValue::from_static("\"1\""))],
            trailers: vec![(HeaderName::from_static("t"), HeaderValue::from_static("0"))],
            body: Bytes::from_static(b"ok"),
        }
    }

    #[test]
    fn a_known_answer_has_known_bytes() {
        assert_eq!(known().encode(), KNOWN);
        assert_eq!(StoredResponse::decode(&Bytes::from_static(KNOWN)), Ok(known()));
        let map = |fields: Vec<(HeaderName, HeaderValue)>| fields.into_iter().collect::<HeaderMap>();
        let (headers, trailers) = (map(known().headers), map(known().trailers));
        let kept = StoredResponse::encode_kept(StatusCode::CREATED, &headers, Some(&trailers), b"ok");
        assert_eq!(kept, KNOWN);
    }

    /// Written before trailers were kept.
    #[test]
    fn version_1_is_read() {
        let bytes = b"\x01\x00\xc9\x00\x00\x00\x01\x00\x04etag\x00\x00\x00\x03\"1\"ok";
        let answer = StoredResponse {
            trailers: Vec::new(),
            ..known()
        };
        assert_eq!(StoredResponse::decode(&Bytes::from_static(bytes)), Ok(answer));
    }

    #[test]
    fn every_cut_of_the_head_is_an_error_not_a_panic() {
        let whole = Bytes::from_static(KNOWN);
        for end in 0..whole.len() - 2 {
            assert_eq!(
                StoredResponse::decode(&whole.slice(..end)),
                Err(CodecError::Damaged),
                "{end}"
            );
        }
    }

    #[test]
    fn another_version_is_named() {
        for version in [0, 3] {
            assert_eq!(
                StoredResponse::decode(&Bytes::from(vec![version, b'x'])),
                Err(CodecError::Version(version))
            );
        }
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
            trailers in proptest::collection::vec(header(), 0..3),
            body in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let answer = StoredResponse { status: StatusCode::from_u16(status).unwrap(), headers, trailers, body: body.into() };
            prop_assert_eq!(StoredResponse::decode(&answer.encode()), Ok(answer));
        }

        #[test]
        fn any_bytes_decode_or_fail_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = StoredResponse::decode(&Bytes::from(bytes));
        }
    }
}
