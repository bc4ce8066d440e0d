//! Listening sockets, with limits that a slow or greedy client cannot get past.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tower::ServiceExt as _;

use super::Context;
use super::front::{Conn, Guard, Held, Times};

/// Connections of one listener at a time; more wait in the system's queue.
pub(crate) const CONNECTIONS_MAX: usize = 1_024;

/// How long a client may take; one that only holds its place is closed, whether it ever sent a byte or not.
const TIMES: Times = Times {
    head: Duration::from_secs(10),
    body: Duration::from_secs(30),
    idle: Duration::from_secs(75),
};

/// How often a quiet HTTP/2 client is asked whether it lives.
const ALIVE: Duration = Duration::from_secs(20);

/// A port that cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("{code}: cannot listen on {address} ({field}): {why}", code = "SEM0302")]
pub(crate) struct PortError {
    address: SocketAddr,
    field: String,
    why: String,
}

impl PortError {
    /// Why this port cannot be had, and what to do; `field` is what the configuration calls it.
    pub(crate) fn new(address: SocketAddr, field: &str, error: &io::Error) -> Self {
        let port = address.port();
        let why = match error.kind() {
            io::ErrorKind::AddrInUse => format!(
                "another process has port {port}; stop it (`ss -ltnp 'sport = :{port}'` names it) or set another port"
            ),
            io::ErrorKind::PermissionDenied => {
                format!("this user may not use port {port}; set one above 1023")
            }
            io::ErrorKind::AddrNotAvailable => {
                format!(
                    "this machine has no address {}; set one that it has",
                    address.ip()
                )
            }
            _ => error.to_string(),
        };
        Self {
            address,
            field: field.to_owned(),
            why,
        }
    }
}

/// A bound port that accepts nobody yet.
#[derive(Debug)]
pub(crate) struct Bound {
    listener: TcpListener,
    address: SocketAddr,
}

impl Bound {
    /// Takes a port; `field` is what the configuration calls it.
    ///
    /// # Errors
    /// Somebody has it, or this user may not; the message says what to do.
    pub(crate) async fn bind(address: SocketAddr, field: impl Into<String>) -> Result<Self, PortError> {
        let field = field.into();
        let failed = |error: &io::Error| PortError::new(address, &field, error);
        let listener = TcpListener::bind(address).await.map_err(|error| failed(&error))?;
        let address = listener.local_addr().map_err(|error| failed(&error))?;
        Ok(Self { listener, address })
    }

    /// The address, with the port that the system chose where 0 was asked for.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the daemon stops; then finishes the requests that run.
    pub(crate) async fn serve(self, router: Router, context: Arc<Context>) {
        self.serve_within(router, context, TIMES).await;
    }

    async fn serve_within(self, router: Router, context: Arc<Context>, times: Times) {
        let graceful = GracefulShutdown::new();
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let place = async { Arc::clone(&places).acquire_owned().await.ok() };
            let accepted = tokio::select! {
                () = context.stop.cancelled() => break,
                accepted = accept(&self.listener, place) => accepted,
            };
            let Some((stream, peer, place)) = accepted else {
                continue;
            };
            let conn = Arc::new(Conn::new(None));
            let stream = Guard::new(stream, Arc::clone(&conn), times);
            let mut server = auto::Builder::new(TokioExecutor::new());
            // The guard keeps the time.
            server.http1().header_read_timeout(None);
            server
                .http2()
                .timer(TokioTimer::new())
                .keep_alive_interval(ALIVE)
                .keep_alive_timeout(ALIVE)
                .max_concurrent_streams(100);
            let router = router.clone();
            let service = service_fn(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(ConnectInfo(peer));
                let (router, running) = (router.clone(), conn.begin());
                async move {
                    let response = router.oneshot(request).await?;
                    Ok::<_, Infallible>(response.map(|body| Held::new(body, Some(running))))
                }
            });
            let connection = server
                .serve_connection(TokioIo::new(stream), service)
                .into_owned();
            let connection = graceful.watch(connection);
            context.tasks.spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(error = %error, "a connection broke");
                }
                drop(place);
            });
        }
        drop(self.listener);
        graceful.shutdown().await;
    }
}

/// The next connection and its place, which is waited for first.
pub(super) async fn accept<P>(
    listener: &TcpListener,
    place: impl Future<Output = Option<P>>,
) -> Option<(TcpStream, SocketAddr, P)> {
    let place = place.await?;
    match listener.accept().await {
        Ok((stream, peer)) => {
            // Small answers should not wait for each other; a socket that cannot do that still works.
            let _ = stream.set_nodelay(true);
            Some((stream, peer, place))
        }
        Err(error) => {
            // Out of file descriptors, mostly: going on at once would only spin.
            tracing::warn!(error = %error, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(100)).await;
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;

    use super::super::health::Health;
    use super::super::metrics::Metrics;
    use super::*;

    /// Each would hold one of the places for ever.
    #[tokio::test]
    async fn a_client_that_says_nothing_or_nothing_more_loses_its_place() {
        let context = Arc::new(Context {
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            health: Health::default(),
            metrics: Arc::new(Metrics::new()),
            destinations: semel_client::Destinations::default(),
        });
        let bound = Bound::bind(([127, 0, 0, 1], 0).into(), "listen").await.unwrap();
        let address = bound.address();
        let short = Duration::from_millis(300);
        let times = Times {
            head: short,
            body: short,
            idle: short,
        };
        let router = Router::new().route("/", get(|| async { "here" }));
        tokio::spawn(bound.serve_within(router, Arc::clone(&context), times));
        for (sent, answered) in [
            ("", ""),
            ("GET / HT", ""),
            ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", "here"),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0", "\u{4}"),
        ] {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(sent.as_bytes()).await.unwrap();
            let mut all = Vec::new();
            // Ends when the other side closes.
            client.read_to_end(&mut all).await.unwrap();
            let all = String::from_utf8_lossy(&all);
            assert!(all.contains(answered), "{sent:?}: {all:?}");
        }
        context.stop.cancel();
    }
}
