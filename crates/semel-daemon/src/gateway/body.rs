//! Bodies on their way: a request's, which tells when it last moved and knows its limit, and an answer's, which ends
//! in time and gives its connection back.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use semel_core::{Clock as _, SystemClock};
use semel_http::{Body, BoxError};
use tokio::time::Sleep;

use super::client::Arriving;
use super::failure::{broke_off, too_slow};

/// Bytes of a request's body that are waited for before it is sent, where they are on their way already.
const GATHERED_MAX: u64 = 64 << 10;

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
    /// At hand; none, once they were taken.
    Whole(Option<Bytes>),
    /// The first of these is at hand.
    Begun(Option<Bytes>, Incoming),
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
            body: Source::Whole(Some(bytes).filter(|bytes| !bytes.is_empty())),
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

    /// The whole body, where it is at hand.
    pub(crate) fn at_hand(&mut self) -> Option<Bytes> {
        match &mut self.body {
            Source::Whole(bytes) => Some(bytes.take().unwrap_or_default()),
            Source::Client(_) | Source::Layer(_) | Source::Begun(..) => None,
        }
    }

    /// Has a short body of known length at hand, if it has come with its head. One that has not streams as before.
    ///
    /// # Errors
    /// It broke off. Nothing was sent.
    pub(crate) async fn gather(&mut self) -> Result<(), BoxError> {
        if self.is_end_stream() {
            self.body = Source::Whole(None);
            return Ok(());
        }
        let Source::Client(body) = &mut self.body else {
            return Ok(());
        };
        // Over HTTP/2 pieces come when they will, and each has its time.
        let length = body.size_hint().exact();
        if self.idle.is_some() || length.is_none_or(|length| length > GATHERED_MAX) {
            return Ok(());
        }
        let mut gathered: Option<Bytes> = None;
        // hyper gives a body only to who has asked for it once.
        let mut asked = false;
        let ended = std::future::poll_fn(|cx| {
            while !body.is_end_stream() {
                match Pin::new(&mut *body).poll_frame(cx) {
                    Poll::Ready(Some(Ok(frame))) => {
                        if let Ok(data) = frame.into_data() {
                            gathered = Some(match gathered.take() {
                                Some(first) => [first, data].concat().into(),
                                None => data,
                            });
                        }
                    }
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                    Poll::Ready(None) => break,
                    Poll::Pending if asked => return Poll::Ready(Ok(false)),
                    Poll::Pending => {
                        asked = true;
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
            }
            Poll::Ready(Ok(true))
        })
        .await;
        match ended {
            Ok(true) => *self = Self::whole(gathered.unwrap_or_default()),
            Ok(false) => {
                if let Source::Client(body) = std::mem::replace(&mut self.body, Source::Whole(None)) {
                    self.body = Source::Begun(gathered, body);
                }
            }
            Err(error) => {
                if let Some(watch) = &self.watch {
                    watch.broken.store(true, Ordering::Relaxed);
                }
                return Err(error.into());
            }
        }
        Ok(())
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
            Source::Whole(body) => Poll::Ready(body.take().map(|bytes| Ok(Frame::data(bytes)))),
            Source::Begun(first, body) => match first.take() {
                Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
                None => Pin::new(body).poll_frame(cx).map_err(Into::into),
            },
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
            Source::Whole(body) => body.is_none(),
            Source::Begun(first, body) => first.is_none() && body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Source::Client(body) => body.size_hint(),
            Source::Layer(body) => body.size_hint(),
            Source::Whole(body) => SizeHint::with_exact(body.as_ref().map_or(0, Bytes::len) as u64),
            Source::Begun(first, body) => {
                let first = first.as_ref().map_or(0, Bytes::len) as u64;
                let rest = body.size_hint();
                let mut hint = SizeHint::new();
                hint.set_lower(rest.lower() + first);
                if let Some(upper) = rest.upper() {
                    hint.set_upper(upper + first);
                }
                hint
            }
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
    body: Arriving,
    patience: Patience,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Answer {
    pub(crate) fn new(body: Arriving, patience: Patience) -> Self {
        let mut answer = Self {
            body,
            patience,
            sleep: None,
        };
        if answer.body.is_end_stream() {
            answer.body.give_back();
        }
        answer
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
        match self.body.poll_frame(cx) {
            Poll::Ready(None) => {
                self.body.give_back();
                Poll::Ready(None)
            }
            // One that never runs out of bytes must end, too.
            Poll::Ready(Some(Ok(_))) if matches!(self.patience, Patience::Until(end) if SystemClock.monotonic() >= end) =>
            {
                self.body.close();
                Poll::Ready(Some(Err(too_slow("total_timeout_ms").into())))
            }
            Poll::Ready(Some(Ok(frame))) => {
                if matches!(self.patience, Patience::Idle(_)) {
                    self.sleep = None;
                }
                if self.body.is_end_stream() {
                    self.body.give_back();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                self.body.close();
                tracing::debug!(
                    error = semel_core::error::chain(&*error),
                    "the upstream's answer broke off"
                );
                Poll::Ready(Some(Err(broke_off().into())))
            }
            Poll::Pending if self.late(cx) => {
                self.body.close();
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
            self.body.give_back();
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
