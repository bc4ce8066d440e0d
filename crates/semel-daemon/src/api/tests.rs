//! Every reply of a key store over HTTP, against the in-memory model and a store that fails on purpose.

mod access;
mod closing;
mod document;
mod faults;
mod input;
mod issue;
mod leaving;
mod replies;
mod waiting;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{HeaderMap, Request};
use http_body_util::BodyExt as _;
use semel_core::KeyStore;
use semel_core::model::MemoryKeys;
use semel_testkit::clock::ManualClock;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::access::Access;
use super::{Api, Limits, router};

/// Limits that tests do not wait for.
const LIMITS: Limits = Limits {
    body_bytes_max: 2 << 20,
    reply_bytes_max: 4 << 20,
    wait_max: Duration::from_secs(20),
    request_max: Duration::from_secs(5),
    requests_max: 8,
    waiters_max: 4,
};

/// Somebody's nonce, and somebody else's.
const MINE: &str = "00112233445566778899aabbccddeeff";
const THEIRS: &str = "ffeeddccbbaa99887766554433221100";

/// An API over some store.
#[derive(Clone)]
struct World {
    router: Router,
    api: Arc<Api>,
    clock: Arc<ManualClock>,
}

/// A whole answer.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Value,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Status, code and the outcome header of a problem.
    fn problem(&self) -> (u16, &str, Option<&str>) {
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json"),
            "{self:?}"
        );
        assert_eq!(self.body["status"], self.status);
        let code = self.body["code"].as_str().unwrap();
        (self.status, code, self.header("semel-outcome"))
    }

    fn detail(&self) -> &str {
        self.body["detail"].as_str().unwrap()
    }
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::default());
        let store = Arc::new(MemoryKeys::new(Arc::<ManualClock>::clone(&clock)));
        Self::with(store, Access::default(), LIMITS, clock)
    }

    fn with(store: Arc<dyn KeyStore>, access: Access, limits: Limits, clock: Arc<ManualClock>) -> Self {
        let api = Arc::new(Api::new(access, limits, CancellationToken::new()));
        api.serve(store);
        Self {
            router: router(Arc::clone(&api)),
            api,
            clock,
        }
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&bytes)));
        Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body,
        }
    }

    /// Asks an operation; `body` is what it takes.
    async fn ask(&self, operation: &str, body: Value) -> Answer {
        self.send(request(operation, body.to_string())).await
    }

    /// Claims `o-7` for 30 s under a nonce.
    async fn claim(&self, nonce: &str) -> Answer {
        self.ask(
            "claim",
            json!({"scope": "orders", "id": "o-7", "input": "2 teapots", "nonce": nonce}),
        )
        .await
    }

    /// Asks something that takes a lease of `o-7`.
    async fn leased(&self, operation: &str, lease: &Answer, more: Value) -> Answer {
        let mut body = json!({
            "scope": "orders", "id": "o-7", "token": lease.body["token"], "nonce": lease.body["nonce"],
        });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        self.ask(operation, body).await
    }
}

/// What is logged on this thread.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Listens until the guard is dropped.
    pub(crate) fn listen() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let lines = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || lines.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn request(operation: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post(format!("/v1/keys/{operation}"))
        .header("content-type", "application/json")
        .body(body.into())
        .unwrap()
}
