//! Connections to one upstream, kept by one thread.
//!
//! # Guarantees
//! - [`SendError::NotSent`] only when it is certain that nothing was done: no connection could be made, or one that was
//!   kept had been closed and hyper handed the request back whole; over HTTP/2 also when the upstream said that it did
//!   not take the stream (RFC 9113, 8.7), or the request still waited for one.
//! - Each phase has a time of its own: a connection is had within `connect_timeout_ms`, and only then the time of the
//!   answer's head begins, so that [`SendError::Slow`] is never said of a request that waited for a connection.
//! - A request is written to one connection at most. Only one that came back whole is given to the next.

use std::error::Error as _;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Request, Response, Uri, Version, header};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use semel_core::error::chain;
use semel_core::{Clock as _, SystemClock};
use semel_http::headers::SEMEL_DEADLINE_MS;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::body::{Outgoing, Watch};
use super::config::{ProxyConfig, UpstreamHttp};
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

/// Connections to one upstream. Cheap to clone; clones share them.
#[derive(Clone)]
pub(crate) struct Client(Arc<Inner>);

struct Inner {
    config: Arc<ProxyConfig>,
    host: String,
    port: u16,
    /// Idle connections, the last used at the end.
    idle: Mutex<Vec<Idle>>,
    /// The HTTP/2 connection, where the upstream speaks that.
    shared: Mutex<Option<http2::SendRequest<Outgoing>>>,
    /// Held while that is made, so that many requests do not make many.
    dialling: tokio::sync::Mutex<()>,
}

struct Idle {
    connection: One,
    since: Duration,
}

/// A connection of HTTP/1.1, with the timer of its requests.
struct One {
    sender: http1::SendRequest<Outgoing>,
    timer: Timer,
}

/// A connection in use. Dropped, it is closed; given back, the next request may have it.
pub(crate) struct Lease(Option<(One, Client)>);

enum Connected {
    One(One),
    Two(http2::SendRequest<Outgoing>),
}

impl Lease {
    /// The answer was read to its end.
    pub(crate) fn give_back(self) {
        if let Some((connection, client)) = self.0
            && !connection.sender.is_closed()
        {
            client.put(connection);
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
            shared: Mutex::default(),
            dialling: tokio::sync::Mutex::default(),
            config,
        }))
    }

    /// Sends a request whose URI is path and query, and whose `Host` is set; the answer with its connection.
    ///
    /// # Errors
    /// See [`SendError`].
    pub(crate) async fn send(
        &self,
        mut request: Request<Outgoing>,
        limits: &Limits<'_>,
    ) -> Result<(Response<Incoming>, Lease), SendError> {
        let mut patience = REST;
        loop {
            let (connection, kept) = match self.take() {
                Some(kept) => (kept, true),
                None => {
                    let connected = Box::pin(self.connect(limits)).await;
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
                            let why = "its answer has a transfer coding that is not known here";
                            return Err(SendError::Broken(why.into()));
                        }
                        Some(Ok(answer)) => return Ok((answer, Lease(Some((one, self.clone()))))),
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
                        Ok(answer) => return Ok((answer, Lease(None))),
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

    /// A connection that is there already.
    fn take(&self) -> Option<Connected> {
        if self.0.config.http != UpstreamHttp::One {
            let shared = lock(&self.0.shared).clone();
            if let Some(sender) = shared.filter(|sender| !sender.is_closed()) {
                return Some(Connected::Two(sender));
            }
        }
        let mut idle = lock(&self.0.idle);
        // The last used is the likeliest to live; when it is too old, so are all below it.
        while let Some(Idle { connection, since }) = idle.pop() {
            if SystemClock.monotonic().saturating_sub(since) > self.0.config.idle {
                idle.clear();
                break;
            }
            if connection.sender.is_closed() {
                continue;
            }
            if !connection.sender.is_ready()
                && let Some(at) = idle.iter().rposition(|it| it.connection.sender.is_ready())
            {
                // One that is at rest goes before the last used.
                let other = idle.remove(at);
                let busy = Idle { connection, since };
                idle.push(busy);
                return Some(Connected::One(other.connection));
            }
            return Some(Connected::One(connection));
        }
        None
    }

    fn put(&self, connection: One) {
        let since = SystemClock.monotonic();
        let mut idle = lock(&self.0.idle);
        // Those at the bottom are the oldest.
        let old = |it: &Idle| {
            since.saturating_sub(it.since) > self.0.config.idle || it.connection.sender.is_closed()
        };
        let stale = idle.iter().take_while(|it| old(it)).count();
        idle.drain(..stale);
        if idle.len() < self.0.config.idle_max {
            idle.push(Idle { connection, since });
        }
    }

    async fn connect(&self, limits: &Limits<'_>) -> Result<Connected, String> {
        let most = self.0.config.connect;
        // Waiting for another's connection is a part of it.
        match tokio::time::timeout(limits.left(most), self.dial_in_turn()).await {
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

    async fn dial(&self) -> Result<Connected, String> {
        let inner = &self.0;
        // Every address of the name is tried, in its order.
        let stream = TcpStream::connect((inner.host.as_str(), inner.port))
            .await
            .map_err(|error| error.to_string())?;
        // Small requests should not wait for each other; a socket that cannot do that still works.
        let _ = stream.set_nodelay(true);
        let Some((tls, name)) = &inner.config.tls else {
            let two = inner.config.http == UpstreamHttp::Two;
            return self.handshake(TokioIo::new(stream), two).await;
        };
        let stream = TlsConnector::from(Arc::clone(tls))
            .connect(name.clone(), stream)
            .await
            .map_err(|error| format!("TLS: {}", chain(&error)))?;
        let two = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        if inner.config.http == UpstreamHttp::Two && !two {
            return Err("the upstream does not offer HTTP/2 in the TLS handshake".into());
        }
        self.handshake(TokioIo::new(stream), two).await
    }

    async fn handshake<S>(&self, io: TokioIo<S>, two: bool) -> Result<Connected, String>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
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
