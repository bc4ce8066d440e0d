//! Reading an answer's body whole, as far as one may.

use std::collections::VecDeque;

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body::{Body as HttpBody, Frame};

use super::produce::{Broken, next_frame};
use crate::body::{Body, Gathered};

/// How far reading came.
pub(super) enum Buffered {
    /// To the end, within the limit.
    Whole(Bytes, Option<Box<HeaderMap>>),
    /// Not to the end: the body is too long or has no end. These frames were read already and go first.
    Stream(VecDeque<Frame<Bytes>>),
}

/// Reads `body` until it ends or cannot be kept; at most `max` bytes and one frame are held.
pub(super) async fn buffer(headers: &HeaderMap, body: &mut Body, max: usize) -> Result<Buffered, Broken> {
    let mut read = VecDeque::new();
    if is_endless(headers) || body.size_hint().lower() > max as u64 {
        return Ok(Buffered::Stream(read));
    }
    let mut bytes = Gathered::default();
    let mut trailers: Option<Box<HeaderMap>> = None;
    let too_much = loop {
        let Some(frame) = next_frame(body).await? else {
            return Ok(Buffered::Whole(bytes.whole(), trailers));
        };
        match frame.into_data() {
            Ok(data) if bytes.len() + data.len() <= max => bytes.add(data),
            Ok(data) => break Frame::data(data),
            Err(frame) => match frame.into_trailers() {
                Ok(more) => trailers.get_or_insert_default().extend(more),
                // Neither data nor trailers: a kind of frame that has no place in the stored form.
                Err(frame) => break frame,
            },
        }
    };
    let bytes = bytes.whole();
    if !bytes.is_empty() {
        read.push_back(Frame::data(bytes));
    }
    read.push_back(too_much);
    Ok(Buffered::Stream(read))
}

/// Event streams are not held back until they end: most never do.
fn is_endless(headers: &HeaderMap) -> bool {
    const KIND: &[u8] = b"text/event-stream";
    let kind = headers.get(CONTENT_TYPE).map(|value| value.as_bytes());
    let kind = kind.and_then(|kind| kind.get(..KIND.len()));
    // Types have no case (RFC 9110, 8.3.1).
    kind.is_some_and(|kind| kind.eq_ignore_ascii_case(KIND))
}
