//! Reading an answer's body whole, as far as one may.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body::{Body as HttpBody, Frame};

use super::produce::{Broken, next_frame};
use crate::body::Body;

/// How far reading came.
pub(super) enum Buffered {
    /// To the end, within the limit.
    Whole(Bytes),
    /// Not to the end: the body is too long, has no end, or has trailers, which have no place in the stored form.
    /// These frames were read already and go first.
    Stream(VecDeque<Frame<Bytes>>),
}

/// Reads `body` until it ends or cannot be kept; at most `max` bytes and one frame are held.
pub(super) async fn buffer(headers: &HeaderMap, body: &mut Body, max: usize) -> Result<Buffered, Broken> {
    let mut read = VecDeque::new();
    if is_endless(headers) || body.size_hint().lower() > max as u64 {
        return Ok(Buffered::Stream(read));
    }
    let mut bytes = BytesMut::new();
    let too_much = loop {
        let Some(frame) = next_frame(body).await? else {
            return Ok(Buffered::Whole(bytes.freeze()));
        };
        match frame.into_data() {
            Ok(data) if bytes.len() + data.len() <= max => bytes.extend_from_slice(&data),
            Ok(data) => break Frame::data(data),
            Err(trailers) => break trailers,
        }
    };
    if !bytes.is_empty() {
        read.push_back(Frame::data(bytes.freeze()));
    }
    read.push_back(too_much);
    Ok(Buffered::Stream(read))
}

/// Event streams are not held back until they end: most never do.
fn is_endless(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"))
}
