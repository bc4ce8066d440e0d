//! A client's connection, with the limits that a slow or crafty one cannot get past.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use semel_core::{Clock as _, SystemClock};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::heads::{Heads, Stage};
use crate::gateway::{Stats, Timer};

/// How long a client may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// For a head.
    pub(crate) head: Duration,
    /// Between two pieces of a body, or to read a piece of an answer.
    pub(crate) body: Duration,
    /// Between requests.
    pub(crate) idle: Duration,
}

/// What a connection and its requests tell each other.
pub(crate) struct Conn {
    stats: Option<Arc<Stats>>,
    in_flight: AtomicU32,
    /// When the last request ended, in milliseconds of the monotonic clock.
    ended_ms: AtomicU64,
    framing: AtomicBool,
    tunnel: AtomicBool,
}

impl Conn {
    /// A connection of the gateway with these counters, or of something that counts elsewhere.
    pub(crate) const fn new(stats: Option<Arc<Stats>>) -> Self {
        Self {
            stats,
            in_flight: AtomicU32::new(0),
            ended_ms: AtomicU64::new(0),
            framing: AtomicBool::new(false),
            tunnel: AtomicBool::new(false),
        }
    }

    /// Whether the client's framing cannot be trusted any more.
    pub(crate) fn framing(&self) -> bool {
        self.framing.load(Ordering::Relaxed)
    }

    /// What its gateway counts.
    pub(crate) fn stats(&self) -> Option<&Stats> {
        self.stats.as_deref()
    }

    /// What follows is another protocol.
    pub(crate) fn becomes_tunnel(&self) {
        self.tunnel.store(true, Ordering::Relaxed);
    }

    /// A request runs until the result is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        if let Some(stats) = &self.stats {
            stats.begins();
        }
        InFlight(Arc::clone(self))
    }
}

/// A request that runs.
pub(crate) struct InFlight(Arc<Conn>);

impl InFlight {
    /// The connection that it came by.
    pub(crate) const fn conn(&self) -> &Arc<Conn> {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let now = u64::try_from(SystemClock.monotonic().as_millis()).unwrap_or(u64::MAX);
        self.0.ended_ms.store(now, Ordering::Relaxed);
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
        if let Some(stats) = &self.0.stats {
            stats.ends();
        }
    }
}

/// A stream that ends when its client is too slow.
pub(crate) struct Guard<S> {
    io: S,
    heads: Heads,
    conn: Arc<Conn>,
    times: Times,
    /// When something was last read.
    read_at: Duration,
    /// When the head began that is being read, or the connection's HTTP/2.
    head_at: Duration,
    /// Since when nothing could be written.
    stuck_at: Option<Duration>,
    reading: Timer,
    writing: Timer,
}

fn slow(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        format!("the client was slower than {what}"),
    )
}

impl<S> Guard<S> {
    pub(crate) fn new(io: S, conn: Arc<Conn>, times: Times) -> Self {
        let now = SystemClock.monotonic();
        Self {
            io,
            heads: Heads::new(),
            conn,
            times,
            read_at: now,
            head_at: now,
            stuck_at: None,
            reading: Timer::default(),
            writing: Timer::default(),
        }
    }

    fn came(&mut self, bytes: &[u8]) {
        self.read_at = SystemClock.monotonic();
        if self.conn.tunnel.load(Ordering::Relaxed) {
            return;
        }
        // Over HTTP/2 answers to pings come whether anything is asked or not: only requests count.
        if !matches!(self.heads.stage(), Stage::Head | Stage::Raw) {
            self.head_at = self.read_at;
        }
        self.heads.feed(bytes);
        if self.heads.framing() {
            self.conn.framing.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the client took too long to send what is being waited for.
    fn late(&mut self, cx: &mut Context<'_>) -> Option<&'static str> {
        if self.conn.tunnel.load(Ordering::Relaxed) {
            return None;
        }
        let now = SystemClock.monotonic();
        let resting = self.conn.in_flight.load(Ordering::Relaxed) == 0;
        if !resting && matches!(self.heads.stage(), Stage::Between | Stage::Raw) {
            // While a request runs, it is this side that takes its time. hyper does not ask again when it has ended,
            // so the timer must.
            self.reading.over(now, now + self.times.idle, cx);
            return None;
        }
        let (deadline, name) = match self.heads.stage() {
            Stage::Head => (self.head_at + self.times.head, "head_timeout_ms"),
            Stage::Body => (self.read_at + self.times.body, "body_idle_ms"),
            Stage::Between => (self.read_at.max(self.ended()) + self.times.idle, "client_idle_ms"),
            Stage::Raw => (self.head_at.max(self.ended()) + self.times.idle, "client_idle_ms"),
        };
        self.reading.over(now, deadline, cx).then_some(name)
    }

    fn ended(&self) -> Duration {
        Duration::from_millis(self.conn.ended_ms.load(Ordering::Relaxed))
    }

    fn wrote<T>(&mut self, polled: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if polled.is_ready() || self.conn.tunnel.load(Ordering::Relaxed) {
            self.stuck_at = None;
            return polled;
        }
        let now = SystemClock.monotonic();
        let since = *self.stuck_at.get_or_insert(now);
        if self.writing.over(now, since + self.times.body, cx) {
            return Poll::Ready(Err(slow("body_idle_ms")));
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        match Pin::new(&mut self.io).poll_read(cx, buf) {
            Poll::Ready(Ok(())) => {
                if let Some(bytes) = buf.filled().get(before..)
                    && !bytes.is_empty()
                {
                    self.came(bytes);
                }
                Poll::Ready(Ok(()))
            }
            Poll::Pending => match self.late(cx) {
                Some(what) => Poll::Ready(Err(slow(what))),
                None => Poll::Pending,
            },
            failed => failed,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.wrote(polled, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        self.wrote(polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_flush(cx);
        self.wrote(polled, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_shutdown(cx);
        self.wrote(polled, cx)
    }
}
