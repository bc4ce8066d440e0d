//! Connections to one upstream, kept by one thread.
//!
//! # Guarantees
//! - [`SendError::NotSent`] only when it is certain that nothing was done: no connection could be made, or one that was
//!   kept had been closed and hyper handed the request back whole; over HTTP/2 also when the upstream said that it did
//!   not take the stream (RFC 9113, 8.7), or the request still waited for one.
//! - Each phase has a time of its own: a connection is had within `connect_timeout_ms`, and only then the time of the
//!   answer's head begins, so that [`SendError::Slow`] is never said of a request that waited for a connection.
//! - A request is written to one connection at most. Only one that came back whole is given to the next.
//!
//! Over HTTP/1.1 a request whose body is at hand drives its connection itself (`direct`); others, and those that may
//! change the protocol, go over hyper. Connections at rest serve both.

use std::error::Error as _;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Uri, Version, header};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use semel_core::error::chain;
use semel_core::{Clock as _, SystemClock};
use semel_http::BoxError;
use semel_http::headers::SEMEL_DEADLINE_MS;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::body::{Outgoing, Watch};
use super::config::{ProxyConfig, UpstreamHttp};
use super::direct::{self, Direct, Wire};
use super::forward::coded;
use super::timer::Timer;

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum SendError {
    /// Nothing was done: no byte left, or the upstream said that it took none.
    NotSent(String),
    /// Bytes may have left.
    Broken(String),
    /// Bytes may have left, and the answer's head did not come in time.
    Slow,
}

/// How long a request may take.
#[derive(Debug)]
pub(crate) struct Limits<'a> {
    /// For the answer's head, once there is a connection.
    pub(crate) head: Duration,
    /// When all must be over, on the monotonic clock.
    pub(crate) end: Option<Duration>,
    /// A body on its way: the time of the head counts from the last byte that moved.
    pub(crate) watch: Option<&'a Watch>,
}

impl Limits<'_> {
    fn left(&self, most: Duration) -> Duration {
        self.end
            .map_or(most, |end| end.saturating_sub(SystemClock.monotonic()).min(most))
    }

    /// Tells the upstream how long is left, now that there is a connection.
    fn stamp(&self, headers: &mut HeaderMap) {
        if let Some(end) = self.end {
            let left = end.saturating_sub(SystemClock.monotonic()).as_millis();
            headers.insert(
                SEMEL_DEADLINE_MS,
                HeaderValue::from(u64::try_from(left).unwrap_or(u64::MAX)),
            );
        }
    }

    /// The answer's head, or `None` when it is late.
    async fn head<T>(&self, timer: &mut Timer, answer: impl Future<Output = T>) -> Option<T> {
        let began = SystemClock.monotonic();
        let fixed = match self.watch {
            Some(watch) => {
                watch.moved_at(began);
                None
            }
            None => Some(
                self.end
                    .map_or(began + self.head, |end| end.min(began + self.head)),
            ),
        };
        let mut first = Some(began);
        let mut answer = pin!(answer);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(Some(answer));
            }
            let now = first.take().unwrap_or_else(|| SystemClock.monotonic());
            let deadline = fixed.or_else(|| self.watch.map(|watch| watch.last() + self.head));
            match deadline {
                Some(deadline) if timer.over(now, deadline, cx) => Poll::Ready(None),
                _ => Poll::Pending,
            }
        })
        .await
    }
}

/// How long a request waits for a kept connection to be at rest: one may still be busy with a body that nobody
/// waits for.
const REST: Duration = Duration::from_millis(50);

/// How often connections at rest are looked at.
const WATCH_MIN: Duration = Duration::from_millis(10);
const WATCH_MAX: Duration = Duration::from_secs(5);

const UNKNOWN_CODING: &str = "its answer has a transfer coding that is not known here";

/// Connections to one upstream. Cheap to clone; clones share them.
#[derive(Clone)]
pub(crate) struct Client(Arc<Inner>);

struct Inner {
    config: Arc<ProxyConfig>,
    host: String,
    port: u16,
    /// Idle connections, the last used at the end.
    idle: Mutex<Idle>,
    /// Whether somebody closes those that have been idle for too long.
    watched: AtomicBool,
    /// The HTTP/2 connection, where the upstream speaks that.
    shared: Mutex<Option<http2::SendRequest<Outgoing>>>,
    /// Held while that is made, so that many requests do not make many.
    dialling: tokio::sync::Mutex<()>,
}

/// Connections at rest, of either kind, each with when it began to be.
#[derive(Default)]
struct Idle {
    hyper: Vec<(One, Duration)>,
    direct: Vec<(Box<Direct>, Duration)>,
}

impl Idle {
    /// Makes room for one more connection of a kind, at the cost of the oldest of the other; `None` where there is none.
    fn room(&mut self, max: usize, direct: bool) -> Option<()> {
        if self.hyper.len() + self.direct.len() < max {
            return Some(());
        }
        match direct {
            true if !self.hyper.is_empty() => drop(self.hyper.remove(0)),
            false if !self.direct.is_empty() => drop(self.direct.remove(0)),
            _ => return None,
        }
        Some(())
    }
}

/// A connection of HTTP/1.1, with the timer of its requests.
struct One {
    sender: http1::SendRequest<Outgoing>,
    timer: Timer,
}

/// A connection in use. Dropped, it is closed; given back, the next request may have it.
struct Lease(Option<(One, Client)>);

/// The body of an upstream's answer, with its connection until that is given back. Dropped, it is closed.
pub(crate) struct Arriving(Way);

enum Way {
    Hyper(Incoming, Lease),
    Direct(direct::Arriving, Client),
}

enum Connected {
    One(One),
    Two(http2::SendRequest<Outgoing>),
}

impl Arriving {
    fn hyper(body: Incoming, connection: Option<(One, Client)>) -> Self {
        Self(Way::Hyper(body, Lease(connection)))
    }

    /// The answer was read to its end: the next request may have the connection.
    pub(super) fn give_back(&mut self) {
        match &mut self.0 {
            Way::Hyper(_, lease) => {
                if let Some((connection, client)) = lease.0.take()
                    && !connection.sender.is_closed()
                {
                    client.put(connection);
                }
            }
            Way::Direct(body, client) => {
                if let Some(connection) = body.release() {
                    client.put_direct(connection);
                }
            }
        }
    }

    /// Closes the connection.
    pub(super) fn close(&mut self) {
        match &mut self.0 {
            Way::Hyper(_, lease) => lease.0 = None,
            Way::Direct(body, _) => body.close(),
        }
    }

    /// hyper's own, of a connection that may change its protocol. It is not given back.
    pub(super) fn into_incoming(self) -> Option<Incoming> {
        match self.0 {
            Way::Hyper(body, _) => Some(body),
            Way::Direct(..) => None,
        }
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Way::Hyper(body, _) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Way::Direct(body, _) => body.poll_frame(cx).map_err(Into::into),
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        match &self.0 {
            Way::Hyper(body, _) => body.is_end_stream(),
            Way::Direct(body, _) => body.is_over(),
        }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Way::Hyper(body, _) => body.size_hint(),
            Way::Direct(body, _) => body.size_hint(),
        }
    }
}

/// Lies in a request over HTTP/2 until hyper has given it a stream; before that it can be taken back.
#[derive(Clone)]
struct Waiting(#[expect(dead_code, reason = "its holders are counted")] Arc<()>);

/// Whether an upstream said over HTTP/2 that it did not look at the request (RFC 9113, 8.7): it refused the stream, or
/// said goodbye and named an earlier one as its last.
fn not_taken(error: &hyper::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
            return error.is_remote() && (refused || error.is_go_away());
        }
        cause = error.source();
    }
    false
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    /// Opens no connection yet.
    pub(crate) fn new(config: Arc<ProxyConfig>) -> Self {
        let uri = &config.upstream;
        let secure = config.tls.is_some();
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        Self(Arc::new(Inner {
            host,
            port: uri.port_u16().unwrap_or(if secure { 443 } else { 80 }),
            idle: Mutex::default(),
            watched: AtomicBool::new(false),
            shared: Mutex::default(),
            dialling: tokio::sync::Mutex::default(),
            config,
        }))
    }

    /// Whether a request whose body is at hand needs no task of a connection.
    pub(crate) fn is_direct(&self) -> bool {
        self.0.config.http == UpstreamHttp::One
    }

    /// Sends a request whose URI is path and query, and whose `Host` is set; the answer with its connection.
    ///
    /// # Errors
    /// See [`SendError`].
    pub(crate) async fn send(
        &self,
        mut request: Request<Outgoing>,
        limits: &Limits<'_>,
    ) -> Result<Response<Arriving>, SendError> {
        if self.is_direct()
            && let Some(body) = request.body_mut().at_hand()
        {
            let mut connection = match self.rested() {
                Some(connection) => connection,
                None => {
                    let dialled = Box::pin(self.in_time(limits, self.dial_direct())).await;
                    dialled.map_err(SendError::NotSent)?
                }
            };
            let (mut parts, _) = request.into_parts();
            limits.stamp(&mut parts.headers);
            connection.begin(&parts, body);
            drop(parts);
            return self.drive(connection, limits).await;
        }
        // Boxed: it is seldom taken, and large.
        Box::pin(self.over_hyper(request, limits)).await
    }

    /// The answer to a request that was put on a connection.
    async fn drive(
        &self,
        mut connection: Box<Direct>,
        limits: &Limits<'_>,
    ) -> Result<Response<Arriving>, SendError> {
        let mut timer = std::mem::take(&mut connection.timer);
        let answered = std::future::poll_fn(|cx| connection.poll_head(cx));
        let answered = limits.head(&mut timer, answered).await;
        connection.timer = timer;
        let (answer, ending) = match answered {
            Some(Ok(answered)) => answered,
            Some(Err(why)) => return Err(SendError::Broken(why)),
            None => return Err(SendError::Slow),
        };
        if coded(answer.headers()) {
            return Err(SendError::Broken(UNKNOWN_CODING.into()));
        }
        let body = direct::Arriving::new(connection, ending);
        Ok(answer.map(|()| Arriving(Way::Direct(body, self.clone()))))
    }

    async fn over_hyper(
        &self,
        mut request: Request<Outgoing>,
        limits: &Limits<'_>,
    ) -> Result<Response<Arriving>, SendError> {
        let mut patience = REST;
        loop {
            let (connection, kept) = match self.take().await {
                Some(kept) => (kept, true),
                None => {
                    let connected = Box::pin(self.in_time(limits, self.dial_in_turn())).await;
                    (connected.map_err(SendError::NotSent)?, false)
                }
            };
            let mut failed = match connection {
                Connected::One(mut one) => {
                    if !one.sender.is_ready() {
                        let most = if kept { patience } else { self.0.config.connect };
                        // Fails for one that was closed meanwhile.
                        let ready = Box::pin(tokio::time::timeout(limits.left(most), one.sender.ready()));
                        match ready.await {
                            Ok(Ok(())) => {}
                            late if kept => {
                                // A client that sends slowly keeps its connection busy, and not those who come after.
                                if late.is_err() {
                                    patience = Duration::ZERO;
                                }
                                continue;
                            }
                            _ => return Err(SendError::NotSent("the connection was closed at once".into())),
                        }
                    }
                    limits.stamp(request.headers_mut());
                    let sent = limits
                        .head(&mut one.timer, one.sender.try_send_request(request))
                        .await;
                    match sent {
                        Some(Ok(answer)) if coded(answer.headers()) => {
                            return Err(SendError::Broken(UNKNOWN_CODING.into()));
                        }
                        Some(Ok(mut answer)) => {
                            direct::one_length(answer.headers_mut());
                            return Ok(answer.map(|body| Arriving::hyper(body, Some((one, self.clone())))));
                        }
                        Some(Err(failed)) => failed,
                        None => return Err(SendError::Slow),
                    }
                }
                Connected::Two(mut sender) => {
                    limits.stamp(request.headers_mut());
                    let taken = Arc::new(());
                    request.extensions_mut().insert(Waiting(Arc::clone(&taken)));
                    let sending = Box::pin(sender.try_send_request(self.absolute(request)));
                    let Some(sent) = limits.head(&mut Timer::default(), sending).await else {
                        return Err(if Arc::strong_count(&taken) > 1 {
                            SendError::NotSent("it had all the streams that it takes at a time".into())
                        } else {
                            SendError::Slow
                        });
                    };
                    match sent {
                        Ok(answer) => return Ok(answer.map(|body| Arriving::hyper(body, None))),
                        Err(failed) => {
                            if sender.is_closed() {
                                *lock(&self.0.shared) = None;
                            }
                            failed
                        }
                    }
                }
            };
            let whole = failed.take_message();
            let error = failed.into_error();
            request = match whole {
                Some(whole) if kept => self.origin(whole),
                Some(_) => return Err(SendError::NotSent(chain(&error))),
                None if not_taken(&error) => return Err(SendError::NotSent(chain(&error))),
                None => return Err(SendError::Broken(chain(&error))),
            };
        }
    }

    /// A connection for hyper that is there already.
    async fn take(&self) -> Option<Connected> {
        if self.0.config.http != UpstreamHttp::One {
            let shared = lock(&self.0.shared).clone();
            if let Some(sender) = shared.filter(|sender| !sender.is_closed()) {
                return Some(Connected::Two(sender));
            }
        }
        if let Some(kept) = self.take_hyper() {
            return Some(kept);
        }
        let rested = self.rested()?;
        self.handshake(rested.into_wire(), false).await.ok()
    }

    fn take_hyper(&self) -> Option<Connected> {
        let mut idle = lock(&self.0.idle);
        let idle = &mut idle.hyper;
        // The last used is the likeliest to live; when it is too old, so are all below it.
        while let Some((connection, since)) = idle.pop() {
            if SystemClock.monotonic().saturating_sub(since) > self.0.config.idle {
                idle.clear();
                break;
            }
            if connection.sender.is_closed() {
                continue;
            }
            if !connection.sender.is_ready()
                && let Some(at) = idle.iter().rposition(|(it, _)| it.sender.is_ready())
            {
                // One that is at rest goes before the last used.
                let (other, _) = idle.remove(at);
                idle.push((connection, since));
                return Some(Connected::One(other));
            }
            return Some(Connected::One(connection));
        }
        None
    }

    /// A connection at rest that its request may drive itself.
    fn rested(&self) -> Option<Box<Direct>> {
        let mut idle = lock(&self.0.idle);
        let idle = &mut idle.direct;
        while let Some((mut connection, since)) = idle.pop() {
            if SystemClock.monotonic().saturating_sub(since) > self.0.config.idle {
                idle.clear();
                break;
            }
            if connection.is_alive() {
                return Some(connection);
            }
        }
        None
    }

    fn put(&self, connection: One) {
        let since = SystemClock.monotonic();
        let mut idle = lock(&self.0.idle);
        // Those at the bottom are the oldest.
        let old = |(it, then): &(One, Duration)| {
            since.saturating_sub(*then) > self.0.config.idle || it.sender.is_closed()
        };
        let stale = idle.hyper.iter().take_while(|it| old(it)).count();
        idle.hyper.drain(..stale);
        if idle.room(self.0.config.idle_max, false).is_some() {
            idle.hyper.push((connection, since));
        }
    }

    fn put_direct(&self, connection: Box<Direct>) {
        let since = SystemClock.monotonic();
        let mut idle = lock(&self.0.idle);
        if idle.room(self.0.config.idle_max, true).is_some() {
            idle.direct.push((connection, since));
            if !self.0.watched.swap(true, Ordering::Relaxed) {
                self.watch_idle();
            }
        }
    }

    /// Closes what has been idle for too long, or was closed by the upstream, while there are connections at rest. hyper's
    /// have tasks of their own, which see to that.
    fn watch_idle(&self) {
        let (inner, idle) = (Arc::downgrade(&self.0), self.0.config.idle);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            self.0.watched.store(false, Ordering::Relaxed);
            return;
        };
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(idle.clamp(WATCH_MIN, WATCH_MAX)).await;
                let Some(inner) = Weak::upgrade(&inner) else {
                    return;
                };
                let now = SystemClock.monotonic();
                let mut at_rest = lock(&inner.idle);
                at_rest
                    .direct
                    .retain_mut(|(it, since)| now.saturating_sub(*since) <= idle && it.is_alive());
                if at_rest.direct.is_empty() {
                    inner.watched.store(false, Ordering::Relaxed);
                    return;
                }
            }
        });
    }

    /// What is dialled, within its time.
    async fn in_time<T>(
        &self,
        limits: &Limits<'_>,
        dialled: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        let most = self.0.config.connect;
        // Waiting for another's connection is a part of it.
        match tokio::time::timeout(limits.left(most), dialled).await {
            Ok(connected) => connected,
            Err(_) => Err(format!(
                "no connection within connect_timeout_ms = {}",
                most.as_millis()
            )),
        }
    }

    async fn dial_in_turn(&self) -> Result<Connected, String> {
        let config = &self.0.config;
        // One at a time where all requests will share it.
        let _turn = if config.http == UpstreamHttp::Two {
            let turn = self.0.dialling.lock().await;
            let shared = lock(&self.0.shared).clone();
            if let Some(sender) = shared.filter(|sender| !sender.is_closed()) {
                return Ok(Connected::Two(sender));
            }
            Some(turn)
        } else {
            None
        };
        self.dial().await
    }

    async fn dial_direct(&self) -> Result<Box<Direct>, String> {
        let (wire, _) = self.open().await?;
        Ok(Box::new(Direct::new(wire)))
    }

    async fn dial(&self) -> Result<Connected, String> {
        let (wire, two) = self.open().await?;
        self.handshake(wire, two).await
    }

    /// A new connection, and whether it speaks HTTP/2.
    async fn open(&self) -> Result<(Wire, bool), String> {
        let inner = &self.0;
        // Every address of the name is tried, in its order.
        let stream = TcpStream::connect((inner.host.as_str(), inner.port))
            .await
            .map_err(|error| error.to_string())?;
        // Small requests should not wait for each other; a socket that cannot do that still works.
        let _ = stream.set_nodelay(true);
        let Some((tls, name)) = &inner.config.tls else {
            return Ok((Wire::Plain(stream), inner.config.http == UpstreamHttp::Two));
        };
        let stream = TlsConnector::from(Arc::clone(tls))
            .connect(name.clone(), stream)
            .await
            .map_err(|error| format!("TLS: {}", chain(&error)))?;
        let two = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        if inner.config.http == UpstreamHttp::Two && !two {
            return Err("the upstream does not offer HTTP/2 in the TLS handshake".into());
        }
        Ok((Wire::Tls(Box::new(stream)), two))
    }

    async fn handshake(&self, wire: Wire, two: bool) -> Result<Connected, String> {
        let io = TokioIo::new(wire);
        let ended = |error: Option<hyper::Error>| {
            if let Some(error) = error {
                tracing::debug!(error = chain(&error), "a connection to an upstream broke");
            }
        };
        if two {
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(ALIVE)
                .keep_alive_timeout(ALIVE)
                .handshake(io)
                .await
                .map_err(|error| chain(&error))?;
            tokio::spawn(async move { ended(connection.await.err()) });
            *lock(&self.0.shared) = Some(sender.clone());
            return Ok(Connected::Two(sender));
        }
        let (sender, connection) = http1::Builder::new()
            .handshake(io)
            .await
            .map_err(|error| chain(&error))?;
        tokio::spawn(async move { ended(connection.with_upgrades().await.err()) });
        Ok(Connected::One(One {
            sender,
            timer: Timer::default(),
        }))
    }

    /// As HTTP/2 wants it: the whole URI, no `Host`.
    fn absolute(&self, mut request: Request<Outgoing>) -> Request<Outgoing> {
        let upstream = &self.0.config.upstream;
        let mut parts = upstream.clone().into_parts();
        parts.path_and_query = request.uri().path_and_query().cloned();
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
        request.headers_mut().remove(header::HOST);
        // hyper would take out what it names as well: `te: trailers`, which gRPC asks for.
        request.headers_mut().remove(header::CONNECTION);
        *request.version_mut() = Version::HTTP_2;
        request
    }

    /// As HTTP/1.1 wants it.
    fn origin(&self, mut request: Request<Outgoing>) -> Request<Outgoing> {
        if request.version() == Version::HTTP_2 {
            let upstream = &self.0.config.upstream;
            if let Some(target) = request.uri().path_and_query().cloned() {
                *request.uri_mut() = Uri::from(target);
            }
            if let Some(host) = upstream
                .authority()
                .and_then(|authority| HeaderValue::from_str(authority.as_str()).ok())
            {
                request.headers_mut().insert(header::HOST, host);
            }
            if request.headers().contains_key(header::TE) {
                let te = HeaderValue::from_static("te");
                request.headers_mut().insert(header::CONNECTION, te);
            }
            *request.version_mut() = Version::HTTP_11;
        }
        request
    }
}

/// How often a quiet HTTP/2 connection is asked whether it lives, and how long it may take to say so.
const ALIVE: Duration = Duration::from_secs(20);
