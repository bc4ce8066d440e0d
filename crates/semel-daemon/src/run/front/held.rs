//! An answer's body that holds something until it has been sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use semel_http::BoxError;

use crate::gateway::Reply;

/// A body and what is dropped when it ends, breaks off, or nobody wants it any more.
pub(super) struct Held<H> {
    body: Reply,
    held: Option<H>,
}

impl<H> Held<H> {
    /// A body that was empty from the start holds it too, until hyper has taken note of that.
    pub(super) const fn new(body: Reply, held: H) -> Self {
        Self {
            body,
            held: Some(held),
        }
    }
}

impl<H: Unpin> Body for Held<H> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.held = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
