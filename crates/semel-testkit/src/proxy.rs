//! A TCP proxy that breaks connections in the places that matter.
//!
//! The two ends that look alike to a client and are not: a request that never arrived ([`Proxy::drop_request`]) and
//! one that was carried out but whose answer was lost ([`Proxy::drop_reply`], [`Proxy::drop_reply_to`]). Each rule
//! acts once and is then used up; [`Proxy::hits`] counts, [`Proxy::hit`] waits. Everything is per instance, so tests of one
//! process do not disturb each other.
//!
//! # Cancel safety
//! Dropping the proxy closes its port and cuts its connections.

mod pump;
mod rules;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use rules::{Direction, Rule, Rules};

/// A proxy on a port of its own in front of one server.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

/// What all connections of one proxy look at.
#[derive(Debug)]
struct Shared {
    rules: Mutex<Rules>,
    upstream: Mutex<SocketAddr>,
    /// Nothing is forwarded while true.
    paused: watch::Sender<bool>,
    /// New connections are closed at once while true.
    refusing: watch::Sender<bool>,
    /// Every connection made under an older number is cut.
    generation: watch::Sender<u64>,
    hits: watch::Sender<u64>,
}

impl Shared {
    fn rules(&self) -> std::sync::MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn upstream(&self) -> std::sync::MutexGuard<'_, SocketAddr> {
        self.upstream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1 and forwards to `upstream`.
    ///
    /// # Errors
    /// No port can be had.
    pub async fn start(upstream: SocketAddr) -> io::Result<Self> {
        Self::at(0, upstream).await
    }

    /// The same on a given port, for a server that tells its clients where to come.
    ///
    /// # Errors
    /// The port is taken.
    pub async fn at(port: u16, upstream: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            rules: Mutex::default(),
            upstream: Mutex::new(upstream),
            paused: watch::Sender::new(false),
            refusing: watch::Sender::new(false),
            generation: watch::Sender::new(0),
            hits: watch::Sender::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self {
            addr,
            shared,
            accepting,
        })
    }

    /// The same, to a port of this machine.
    ///
    /// # Errors
    /// No port can be had.
    pub async fn to_port(port: u16) -> io::Result<Self> {
        Self::start(SocketAddr::from(([127, 0, 0, 1], port))).await
    }

    /// The same, to the server of a URL whose port is the last number before its path; and the URL that leads through it.
    ///
    /// # Errors
    /// No port can be had, or the URL names none.
    pub async fn before_url(url: &str) -> io::Result<(Self, String)> {
        let server = url.rsplit_once('/').unwrap_or((url, "")).0;
        let port = server.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let port: u16 = port.ok_or_else(|| io::Error::other(format!("no port in {url}")))?;
        let proxy = Self::to_port(port).await?;
        let through = url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
        Ok((proxy, through))
    }

    /// Cuts every connection and refuses new ones, or takes them again.
    pub fn away(&self, away: bool) {
        self.refuse(away);
        if away {
            self.cut();
        }
    }

    /// Where clients connect.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The port of [`Proxy::addr`].
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.addr.port()
    }

    /// New connections go here from now on.
    pub fn set_upstream(&self, upstream: SocketAddr) {
        *self.shared.upstream() = upstream;
    }

    /// The next reply on any connection is thrown away and that connection is cut: the request was carried out.
    pub fn drop_reply(&self) {
        self.shared.rules().push(Rule::SwallowReply);
    }

    /// The reply to the next request that contains these bytes is thrown away, and its connection cut. Such as
    /// `COMMIT` on the way to PostgreSQL.
    pub fn drop_reply_to(&self, request: &[u8]) {
        self.shared.rules().push(Rule::SwallowReplyTo(request.to_vec()));
    }

    /// The connection on which a request with these bytes comes is cut before it is forwarded: the server never sees
    /// the part that completes them.
    pub fn drop_request(&self, request: &[u8]) {
        self.shared.rules().push(Rule::CutBefore(request.to_vec()));
    }

    /// The connection is cut when this many more bytes, of all connections together, have gone to the server.
    pub fn cut_after(&self, bytes: u64) {
        self.shared
            .rules()
            .push(Rule::CutAfter(Direction::ToServer, bytes));
    }

    /// The same for bytes on their way to the client.
    pub fn cut_reply_after(&self, bytes: u64) {
        self.shared
            .rules()
            .push(Rule::CutAfter(Direction::ToClient, bytes));
    }

    /// Every piece of data waits this long, in both directions; zero ends it.
    pub fn delay(&self, delay: Duration) {
        self.shared.rules().delay = delay;
    }

    /// Forwards nothing until [`Proxy::resume`]; connections stay open and new ones are accepted.
    pub fn pause(&self) {
        self.shared.paused.send_replace(true);
    }

    /// Goes on; what was held back is forwarded.
    pub fn resume(&self) {
        self.shared.paused.send_replace(false);
    }

    /// Cuts every open connection.
    pub fn cut(&self) {
        self.shared.generation.send_modify(|number| *number += 1);
    }

    /// While true new connections are closed at once.
    pub fn refuse(&self, refuse: bool) {
        self.shared.refusing.send_replace(refuse);
    }

    /// How many rules have acted.
    #[must_use]
    pub fn hits(&self) -> u64 {
        *self.shared.hits.borrow()
    }

    /// Waits until that many rules have acted since the start.
    pub async fn hit(&self, count: u64) {
        let mut hits = self.shared.hits.subscribe();
        hits.wait_for(|hits| *hits >= count)
            .await
            .expect("the sender lives as long as this proxy");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Aborted with this task, and so is every connection.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                if *shared.refusing.borrow() {
                    continue;
                }
                let shared = Arc::clone(&shared);
                connections.spawn(async move { connection(client, shared).await });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(client: TcpStream, shared: Arc<Shared>) {
    let mut generation = shared.generation.subscribe();
    generation.mark_unchanged();
    let upstream = *shared.upstream();
    // A server that is away looks to the client like a connection that ends at once.
    let Ok(server) = TcpStream::connect(upstream).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    tokio::select! {
        () = pump::both(client, server, &shared) => {}
        _ = generation.changed() => {}
    }
}
