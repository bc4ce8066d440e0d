//! Reading a request's body whole.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame};
use http_body_util::BodyExt;

use crate::body::{Body, BoxError, Gathered};
use crate::within::within_soon;

/// How far reading came.
pub(crate) enum Collected {
    /// To the end, within the limit.
    Whole(Bytes, Option<Box<HeaderMap>>),
    /// The limit was passed. This body still gives all of it.
    TooLarge(Body),
    /// Nothing came for too long. This body gives what came and what may still come.
    Idle(Body),
    /// It broke off. What came and the error, as a body.
    Broken(String, Body),
}

/// Reads a body to its end; at most `max` bytes and one frame are held, and none for longer than `idle` without another.
pub(crate) async fn collect<B>(body: B, max: usize, idle: Duration) -> Collected
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    if body.size_hint().lower() > max as u64 {
        return Collected::TooLarge(Body::new(body));
    }
    let mut body = Box::pin(body);
    let mut bytes = Gathered::default();
    let mut trailers: Option<Box<HeaderMap>> = None;
    loop {
        let Ok(frame) = within_soon(idle, body.frame()).await else {
            let rest = Rest {
                read: [Ok(Frame::data(bytes.whole()))].into(),
                body,
            };
            return Collected::Idle(Body::new(rest));
        };
        let frame = match frame {
            None => return Collected::Whole(bytes.whole(), trailers),
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                let error: BoxError = error.into();
                let text = error.to_string();
                let rest = Rest {
                    read: [Ok(Frame::data(bytes.whole())), Err(error)].into(),
                    body: Box::pin(Body::empty()),
                };
                return Collected::Broken(text, Body::new(rest));
            }
        };
        match frame.into_data() {
            Ok(data) if bytes.len() + data.len() <= max => bytes.add(data),
            Ok(data) => {
                let rest = Rest {
                    read: [Ok(Frame::data(bytes.whole())), Ok(Frame::data(data))].into(),
                    body,
                };
                return Collected::TooLarge(Body::new(rest));
            }
            Err(frame) => {
                if let Ok(more) = frame.into_trailers() {
                    trailers.get_or_insert_default().extend(more);
                }
            }
        }
    }
}

/// What was read, then the body that it was read from.
struct Rest<B> {
    read: VecDeque<Result<Frame<Bytes>, BoxError>>,
    body: Pin<Box<B>>,
}

impl<B> HttpBody for Rest<B>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        match this.read.pop_front() {
            Some(read) => Poll::Ready(Some(read)),
            None => this.body.as_mut().poll_frame(cx).map_err(Into::into),
        }
    }
}
