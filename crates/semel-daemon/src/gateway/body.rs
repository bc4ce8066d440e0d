//! Bodies on their way: a request's, which tells when it last moved and knows its limit, and an answer's, which ends
//! in time and gives its connection back.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use http_body_util::Full;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use semel_core::{Clock as _, SystemClock};
use semel_http::{Body, BoxError};
use tokio::time::Sleep;

use super::client::Lease;
use super::failure::{broke_off, too_slow};

/// A request's body on its way to the upstream.
pub(crate) struct Outgoing {
    body: Source,
    watch: Option<Arc<Watch>>,
    left: Option<u64>,
    idle: Option<Idle>,
}

/// How long a client may send nothing. Over HTTP/2 nothing else keeps this time, and many streams share a connection.
struct Idle {
    most: Duration,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Idle {
    /// Whether it sent nothing for too long; the timer is made when it is first needed.
    fn late(&mut self, cx: &mut Context<'_>) -> bool {
        let most = self.most;
        let sleep = self
            .sleep
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(most)));
        sleep.as_mut().poll(cx).is_ready()
    }
}

/// Where it comes from.
enum Source {
    Client(Incoming),
    Layer(Body),
    Whole(Full<Bytes>),
}

/// What is known of a body that streams.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    last_ms: AtomicU64,
    too_long: AtomicBool,
    broken: AtomicBool,
}

impl Outgoing {
    /// What a client sends; more bytes than `max` are an error, and so is nothing for longer than `idle`.
    pub(crate) fn client(body: Incoming, max: Option<u64>, idle: Option<Duration>) -> Self {
        let mut outgoing = Self::streamed(Source::Client(body), max);
        outgoing.idle = idle.map(|most| Idle { most, sleep: None });
        outgoing
    }

    /// What the layer hands on.
    pub(crate) fn layer(body: Body, max: Option<u64>) -> Self {
        Self::streamed(Source::Layer(body), max)
    }

    /// These bytes.
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self {
            body: Source::Whole(Full::new(bytes)),
            watch: None,
            left: None,
            idle: None,
        }
    }

    fn streamed(body: Source, max: Option<u64>) -> Self {
        let mut outgoing = Self {
            body,
            watch: None,
            left: max,
            idle: None,
        };
        if !outgoing.is_end_stream() {
            // Its time begins when it is sent.
            outgoing.watch = Some(Arc::new(Watch::default()));
        }
        outgoing
    }

    /// The same without its limit: the layer has one of its own.
    pub(crate) const fn unlimited(mut self) -> Self {
        self.left = None;
        self
    }

    /// Follows it while it streams; `None` where there is nothing to send.
    pub(crate) fn watch(&self) -> Option<Arc<Watch>> {
        self.watch.clone()
    }
}

impl Watch {
    /// When something last moved, on the monotonic clock.
    pub(crate) fn last(&self) -> Duration {
        Duration::from_millis(self.last_ms.load(Ordering::Relaxed))
    }

    /// Ends when nothing has moved for so long.
    pub(crate) async fn still_for(&self, limit: Duration) {
        loop {
            let still = SystemClock.monotonic().saturating_sub(self.last());
            match limit.checked_sub(still) {
                Some(left) if !left.is_zero() => tokio::time::sleep(left).await,
                _ => return,
            }
        }
    }

    /// Notes that something moved.
    pub(crate) fn moved(&self) {
        self.moved_at(SystemClock.monotonic());
    }

    /// Notes that something moved at this moment of the monotonic clock.
    pub(crate) fn moved_at(&self, now: Duration) {
        let ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(ms, Ordering::Relaxed);
    }

    /// Whether its client broke it off, or sent nothing for too long.
    pub(crate) fn broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Whether it was longer than it may be.
    pub(crate) fn too_long(&self) -> bool {
        self.too_long.load(Ordering::Relaxed)
    }
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = match &mut self.body {
            Source::Client(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Source::Layer(body) => Pin::new(body).poll_frame(cx),
            Source::Whole(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
        };
        if let Some(idle) = &mut self.idle {
            if polled.is_ready() {
                idle.sleep = None;
            } else if idle.late(cx) {
                if let Some(watch) = &self.watch {
                    watch.broken.store(true, Ordering::Relaxed);
                }
                return Poll::Ready(Some(Err(
                    "nothing more of the body came within body_idle_ms".into()
                )));
            }
        }
        if let (Poll::Ready(frame), Some(watch)) = (&polled, &self.watch) {
            watch.moved();
            let bytes = match frame {
                Some(Ok(frame)) => frame.data_ref().map_or(0, |data| data.remaining() as u64),
                Some(Err(_)) => {
                    watch.broken.store(true, Ordering::Relaxed);
                    0
                }
                None => 0,
            };
            match self.left.map(|left| left.checked_sub(bytes)) {
                Some(None) => {
                    watch.too_long.store(true, Ordering::Relaxed);
                    return Poll::Ready(Some(Err("the body is longer than unkeyed_bytes_max".into())));
                }
                Some(left) => self.left = left,
                None => {}
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Source::Client(body) => body.is_end_stream(),
            Source::Layer(body) => body.is_end_stream(),
            Source::Whole(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Source::Client(body) => body.size_hint(),
            Source::Layer(body) => body.size_hint(),
            Source::Whole(body) => body.size_hint(),
        }
    }
}

/// How long an answer's body may take.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    /// Until this moment of the monotonic clock.
    Until(Duration),
    /// As long as something comes at least this often.
    Idle(Duration),
}

/// The body of an answer to a client.
pub(crate) enum Reply {
    /// The upstream's, as it comes.
    Upstream(Box<Answer>),
    /// The layer's, or this gateway's own.
    Own(Body),
}

/// An upstream's body; its errors say what to answer where nothing was sent on yet.
pub(crate) struct Answer {
    body: Incoming,
    lease: Option<Lease>,
    patience: Patience,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Answer {
    pub(crate) fn new(body: Incoming, lease: Lease, patience: Patience) -> Self {
        let mut answer = Self {
            body,
            lease: Some(lease),
            patience,
            sleep: None,
        };
        if answer.body.is_end_stream() {
            answer.give_back();
        }
        answer
    }

    fn give_back(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.give_back();
        }
    }

    /// Whether the time is over; the timer is made when it is first needed, for most answers are there at once.
    fn late(&mut self, cx: &mut Context<'_>) -> bool {
        let patience = self.patience;
        let sleep = self.sleep.get_or_insert_with(|| {
            let left = match patience {
                Patience::Until(end) => end.saturating_sub(SystemClock.monotonic()),
                Patience::Idle(most) => most,
            };
            Box::pin(tokio::time::sleep(left))
        });
        sleep.as_mut().poll(cx).is_ready()
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(None) => {
                self.give_back();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Ok(frame))) => {
                if matches!(self.patience, Patience::Idle(_)) {
                    self.sleep = None;
                }
                if self.body.is_end_stream() {
                    self.give_back();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                self.lease = None;
                tracing::debug!(
                    error = semel_core::error::chain(&error),
                    "the upstream's answer broke off"
                );
                Poll::Ready(Some(Err(broke_off().into())))
            }
            Poll::Pending if self.late(cx) => {
                self.lease = None;
                Poll::Ready(Some(Err(too_slow("total_timeout_ms or answer_idle_ms").into())))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // A body that was never polled to its end may still have had none: a HEAD's, or one of known length.
        if self.body.is_end_stream() {
            self.give_back();
        }
    }
}

impl HttpBody for Reply {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Upstream(body) => Pin::new(&mut **body).poll_frame(cx),
            Self::Own(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Upstream(body) => body.is_end_stream(),
            Self::Own(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Upstream(body) => body.size_hint(),
            Self::Own(body) => body.size_hint(),
        }
    }
}
