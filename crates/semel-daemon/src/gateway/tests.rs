//! The gateway over real sockets to an upstream, and the in-memory model of keys.

mod ambiguous;
mod asking;
mod configuration;
mod faults;
mod http2;
mod kept;
mod passing;
mod routing;
mod settling;
mod upstream;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use semel_core::KeyStore;
use semel_core::model::MemoryKeys;
use semel_http::Body;
use semel_testkit::clock::ManualClock;
use tokio_util::sync::CancellationToken;

use super::{GatewayConfig, Live, Outgoing, Peer, Reply, Stats};
use crate::run::metrics::Metrics;

/// A gateway and the clock of its keys.
struct World {
    gateway: Arc<Live>,
    clock: Arc<ManualClock>,
    stats: Arc<Stats>,
}

/// A whole answer.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    fn outcome(&self) -> &str {
        self.header("semel-outcome").unwrap_or("none")
    }

    fn replayed(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    fn code(&self) -> String {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        problem["code"].as_str().unwrap_or("none").to_owned()
    }
}

/// The configuration of one gateway with these lines.
pub(super) fn config(upstream: SocketAddr, lines: &str) -> GatewayConfig {
    let text = format!(
        "[store]\nurl = \"sqlite:s.db\"\n[[gateway]]\nname = \"g\"\nlisten = \"127.0.0.1:0\"\n\
         upstream = \"http://{upstream}\"\n{lines}\n"
    );
    let config = crate::config::parse(Path::new("semel.toml"), &text, &|_| None);
    config
        .unwrap_or_else(|report| panic!("{report}"))
        .gateways
        .remove(0)
}

impl World {
    /// In front of this address, anonymous, with these lines.
    fn new(upstream: SocketAddr, lines: &str) -> Self {
        Self::with(upstream, &format!("anonymous = true\n{lines}"))
    }

    fn with(upstream: SocketAddr, lines: &str) -> Self {
        let clock = Arc::new(ManualClock::default());
        let keys: Arc<dyn KeyStore> = Arc::new(MemoryKeys::new(clock.clone()));
        let stats = Stats::new("g", &Metrics::new().gateways);
        let stop = CancellationToken::new();
        let gateway = Live::new(&config(upstream, lines), &keys, &stats, 1, stop);
        Self {
            gateway: Arc::new(gateway.unwrap_or_else(|why| panic!("{why}"))),
            clock,
            stats,
        }
    }

    /// The answer as it comes; the request is from 10.0.0.2.
    async fn begin(&self, request: Request<axum::body::Body>) -> Response<Reply> {
        let request = request.map(|body| Outgoing::layer(Body::new(body), None));
        let peer = Peer::new("10.0.0.2".parse().unwrap());
        let answer = self.gateway.on(0).unwrap().call(request, Some(&peer)).await;
        answer.unwrap_or_else(|never| match never {})
    }

    async fn send(&self, request: Request<axum::body::Body>) -> Answer {
        let (parts, body) = self.begin(request).await.into_parts();
        Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }

    /// Sends a request from a process that dies as soon as the upstream has it: its tasks end with their runtime.
    fn crashes_in(&self, request: Request<axum::body::Body>, upstream: &upstream::Upstream) {
        let dying = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let dying = dying.unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                dying.block_on(async {
                    let seen = async {
                        while upstream.count() == 0 {
                            tokio::task::yield_now().await;
                        }
                    };
                    tokio::select! {
                        _ = self.begin(request) => panic!("it was answered"),
                        () = seen => {}
                    }
                });
                drop(dying);
            });
        });
    }

    fn leases_end(&self) {
        self.clock.advance_ms(30_001);
    }
}

/// `POST /orders` with this key, from 10.0.0.2.
fn post(key: &str) -> Request<axum::body::Body> {
    request("POST", "/orders", key)
}

fn request(method: &str, target: &str, key: &str) -> Request<axum::body::Body> {
    let request = Request::builder()
        .method(method)
        .uri(target)
        .header("host", "shop.example")
        .header("content-type", "application/json")
        .header("idempotency-key", key);
    request.body(axum::body::Body::from("{}")).unwrap()
}
