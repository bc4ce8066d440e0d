//! Bodies that know the time: a request's body that tells when it last moved, an answer's body that ends in time.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use semel_core::{Clock as _, SystemClock};
use semel_http::{Body, BoxError, Problem};
use tokio::time::Sleep;

use super::proxy::{broke_off, too_slow};

/// A request's body on its way to the upstream.
pub(super) struct Moving {
    body: Body,
    last: Arc<AtomicU64>,
}

/// When a request's body last moved, in milliseconds of the monotonic clock.
pub(super) struct Moved(Arc<AtomicU64>);

fn now_ms() -> u64 {
    u64::try_from(SystemClock.monotonic().as_millis()).unwrap_or(u64::MAX)
}

impl Moving {
    pub(super) fn new(body: Body) -> (Self, Moved) {
        let last = Arc::new(AtomicU64::new(now_ms()));
        let moved = Moved(Arc::clone(&last));
        (Self { body, last }, moved)
    }
}

impl Moved {
    /// Ends when nothing has moved for so long.
    pub(super) async fn still_for(&self, limit: Duration) {
        loop {
            let still = Duration::from_millis(now_ms().saturating_sub(self.0.load(Ordering::Relaxed)));
            match limit.checked_sub(still) {
                Some(left) if !left.is_zero() => tokio::time::sleep(left).await,
                _ => return,
            }
        }
    }
}

impl HttpBody for Moving {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_ready() {
            self.last.store(now_ms(), Ordering::Relaxed);
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

/// An answer's body; its errors say what to answer where nothing was sent on yet.
pub(super) struct Answer {
    body: Incoming,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Answer {
    pub(super) fn new(body: Incoming, deadline: Option<Sleep>) -> Self {
        Self {
            body,
            deadline: deadline.map(Box::pin),
        }
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = Problem;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Problem>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => Poll::Ready(frame.map(|frame| {
                frame.map_err(|error| {
                    tracing::warn!(
                        error = semel_core::error::chain(&error),
                        "the upstream's answer broke off"
                    );
                    broke_off()
                })
            })),
            Poll::Pending => match &mut self.deadline {
                Some(deadline) => deadline.as_mut().poll(cx).map(|()| Some(Err(too_slow()))),
                None => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
