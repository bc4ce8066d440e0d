//! The front of a gateway: sockets of its threads, limits of its clients, and the configuration in force behind them.
//!
//! # Guarantees
//! - A request is served whole under the configuration that it met; another one in force meanwhile changes nothing for
//!   it. Sockets stay while configurations change.
//! - Told to stop, it takes the connections that wait in the system's queue, accepts no more, and ends what runs.

mod guard;
mod heads;
mod held;
mod places;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use http::{Request, Response, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use semel_core::error::chain;
use semel_http::{Problem, ProblemKind, grpc};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::listen::accept;
use crate::gateway::{
    Answering, FrontConfig, Live, Peer, Refusal, Reply, Stats, TunnelPlace, coded, host_trouble,
    unknown_coding,
};

pub(super) use guard::{Conn, Guard, Times};
pub(super) use held::Held;
use held::Serving;
use places::{Place, Places};

/// How often a quiet HTTP/2 client is asked whether it lives.
const ALIVE: Duration = Duration::from_secs(20);

/// Bytes that hyper reads ahead on a connection at most, and at least.
const BUFFER_MAX: usize = 256 << 10;

/// The front of one gateway, shared by its threads.
pub(crate) struct Front {
    /// What answers; `None` while the store is not open.
    live: ArcSwapOption<Live>,
    /// Earlier ones, which may still have something to record.
    earlier: Mutex<Vec<Arc<Live>>>,
    /// What new connections meet.
    settings: ArcSwap<FrontConfig>,
    /// One number for all connections, whichever settings they met.
    places: Arc<Places>,
    /// Says that settings changed: who only waits for a client holds a place.
    changed: watch::Sender<()>,
    stats: Arc<Stats>,
    stop: CancellationToken,
}

impl Front {
    /// A front that nothing stands behind yet.
    pub(crate) fn new(config: &FrontConfig, stats: Arc<Stats>, stop: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            live: ArcSwapOption::empty(),
            earlier: Mutex::default(),
            settings: ArcSwap::from_pointee(config.clone()),
            places: Places::new(config.connections_max),
            changed: watch::Sender::new(()),
            stats,
            stop,
        })
    }

    /// What its gateway counts.
    pub(crate) const fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// Ends it.
    pub(crate) const fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Puts settings in force for connections that come from now on.
    pub(crate) fn set(&self, config: &FrontConfig) {
        self.settings.store(Arc::new(config.clone()));
        self.places.set(config.connections_max);
        self.changed.send_replace(());
    }

    /// Puts a configuration in force for requests that come from now on.
    pub(crate) fn put(&self, live: Arc<Live>) {
        if let Some(earlier) = self.live.swap(Some(live)) {
            let mut all = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|live| live.busy());
            all.push(earlier);
        }
    }

    /// Whether something is being carried out or still to be recorded.
    pub(crate) fn busy(&self) -> bool {
        let earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.live.load();
        now.iter().any(|live| live.busy()) || earlier.iter().any(|live| live.busy())
    }

    /// Ends when everything that was begun so far has been carried out and recorded.
    pub(crate) async fn drain(&self) {
        let mut all = {
            let earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
            earlier.clone()
        };
        all.extend(self.live.load_full());
        for live in all {
            live.drain().await;
        }
    }

    /// Serves one socket on this thread until told to stop; then ends what runs.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener, thread: usize, tasks: TaskTracker) {
        let graceful = GracefulShutdown::new();
        let mut changed = self.changed.subscribe();
        loop {
            let accepted = tokio::select! {
                () = self.stop.cancelled() => break,
                _ = changed.changed() => continue,
                accepted = accept(&listener, Arc::clone(&self.places).take()) => accepted,
            };
            if let Some((stream, peer, place)) = accepted {
                // What is in force now, not what was when the waiting began.
                let settings = self.settings.load_full();
                self.connection(stream, peer, place, &settings, thread, &tasks, graceful.watcher());
            }
        }
        // Whoever waits in the queue believes to be connected.
        let settings = self.settings.load_full();
        while let Some(Some((stream, peer, place))) =
            now(accept(&listener, Arc::clone(&self.places).take())).await
        {
            self.connection(stream, peer, place, &settings, thread, &tasks, graceful.watcher());
        }
        drop(listener);
        graceful.shutdown().await;
    }

    #[expect(clippy::too_many_arguments, reason = "one call in two places")]
    fn connection(
        self: &Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        place: Place,
        settings: &Arc<FrontConfig>,
        thread: usize,
        tasks: &TaskTracker,
        watcher: Watcher,
    ) {
        let (front, settings) = (Arc::clone(self), Arc::clone(settings));
        tasks.spawn(async move {
            let client = Client {
                thread,
                peer,
                place: Arc::new(place),
                conn: Arc::new(Conn::new(Some(Arc::clone(&front.stats)))),
                front,
            };
            let Some(tls) = settings.tls.clone() else {
                return client.serve(stream, &settings, watcher).await;
            };
            let shake = TlsAcceptor::from(tls).accept(stream);
            match tokio::time::timeout(settings.head_timeout, shake).await {
                Ok(Ok(stream)) => client.serve(stream, &settings, watcher).await,
                Ok(Err(error)) => tracing::debug!(%peer, error = %error, "a TLS handshake failed"),
                Err(_) => tracing::debug!(%peer, "a TLS handshake took longer than head_timeout_ms"),
            }
        });
    }

    /// The answer to one request, and what must be true of its head first.
    fn answer(&self, request: Request<Incoming>, thread: usize, peer: &Peer, conn: &Arc<Conn>) -> Answering {
        if conn.framing() {
            let detail = "its head has both Content-Length and Transfer-Encoding; nothing was done, and the connection \
                          is closed: send one of the two";
            return Refusal::Ambiguous.answer(detail, true).into();
        }
        if let Some(detail) = host_trouble(request.version(), request.uri(), request.headers()) {
            return Refusal::Ambiguous.answer(detail, true).into();
        }
        if coded(request.headers()) {
            return unknown_coding().into();
        }
        // The clone belongs to this thread: counting its holders meets no other one.
        let gateway = self
            .live
            .load()
            .as_ref()
            .and_then(|live| live.on(thread).cloned());
        match gateway {
            Some(gateway) => {
                let (parts, body) = request.into_parts();
                let body = gateway.take(body, parts.version);
                gateway.call(Request::from_parts(parts, body), Some(peer))
            }
            None => no_store().into(),
        }
    }
}

fn no_store() -> Response<Reply> {
    let detail = "the store of keys is not open: /readyz of semel says why; nothing was sent, send the same request \
                  again later";
    Problem::new(ProblemKind::StoreUnavailable, detail)
        .retry_after(1)
        .response()
        .map(Reply::Own)
}

/// One client's connection.
struct Client {
    front: Arc<Front>,
    thread: usize,
    peer: SocketAddr,
    place: Arc<Place>,
    conn: Arc<Conn>,
}

impl Client {
    async fn serve<S>(self, stream: S, config: &FrontConfig, watcher: Watcher)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let times = Times {
            head: config.head_timeout,
            body: config.body_idle,
            idle: config.client_idle,
        };
        let stream = Guard::new(stream, Arc::clone(&self.conn), times);
        let mut server = auto::Builder::new(TokioExecutor::new());
        server
            .http1()
            // The guard keeps the time.
            .header_read_timeout(None)
            .max_buf_size(config.header_bytes_max.saturating_mul(2).max(BUFFER_MAX));
        if config.headers_max > HYPER_HEADERS_MAX {
            server.http1().max_headers(config.headers_max.saturating_add(1));
        }
        let list = config.header_bytes_max.saturating_mul(2);
        server
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(ALIVE)
            .keep_alive_timeout(ALIVE)
            .max_header_list_size(u32::try_from(list).unwrap_or(u32::MAX))
            .max_concurrent_streams(config.streams_max);
        let Self {
            front,
            thread,
            peer,
            place,
            conn,
        } = self;
        let who = Peer::new(peer.ip());
        let held = Arc::clone(&place);
        let service = service_fn(move |mut request: Request<Incoming>| {
            let running = conn.begin();
            if request.headers().contains_key(header::UPGRADE) {
                // A tunnel goes on where the connection ends for hyper.
                let place = TunnelPlace::new(Arc::<Place>::clone(&held));
                request.extensions_mut().insert(place);
            }
            let grpc = grpc::asked(request.headers());
            Serving::new(front.answer(request, thread, &who, &conn), running, grpc)
        });
        let connection = server
            .serve_connection_with_upgrades(TokioIo::new(stream), service)
            .into_owned();
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!(%peer, error = chain(&*error), "a connection broke");
        }
        drop(place);
    }
}

/// How many fields hyper reads unless it is told another number, which costs an allocation per head.
const HYPER_HEADERS_MAX: usize = 100;

/// What a future has to give at once.
async fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        found = future => Some(found),
        () = std::future::ready(()) => None,
    }
}
