//! A handler that counts its runs, and requests with keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::any;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use semel_core::model::MemoryKeys;
use semel_core::{Clock, KeyStore, SystemClock, Timestamp};
use semel_http::{Body, IdempotencyLayer};
use tokio::sync::Semaphore;
use tower::ServiceExt;

pub(crate) use super::faulty::{Fault, Faulty};

/// The host's clock, moved forward at will.
#[derive(Debug, Clone, Default)]
pub(crate) struct MovedClock(Arc<AtomicI64>);

impl MovedClock {
    pub(crate) fn forward_ms(&self, ms: i64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for MovedClock {
    fn now(&self) -> Timestamp {
        SystemClock.now().plus_ms(self.0.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        SystemClock.monotonic()
    }
}

/// A store in memory whose clock can be moved.
pub(crate) fn memory() -> (Arc<dyn KeyStore>, MovedClock) {
    let clock = MovedClock::default();
    (Arc::new(MemoryKeys::new(Arc::new(clock.clone()))), clock)
}

/// A layer with one scope for all.
pub(crate) fn anonymous(store: &Arc<dyn KeyStore>) -> IdempotencyLayer {
    IdempotencyLayer::builder(Arc::clone(store))
        .anonymous_scope("tests")
        .build()
        .unwrap()
}

/// Counts runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Runs(Arc<AtomicU32>);

impl Runs {
    pub(crate) fn add(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

/// An app that answers every request by `answer`, behind `layer`.
pub(crate) fn app<F, R>(layer: &IdempotencyLayer, answer: F) -> Router
where
    F: Fn() -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let handler = any(move || {
        let answer = answer();
        async move { answer.await.map(axum::body::Body::new) }
    });
    Router::new().fallback(handler).layer(layer.clone())
}

/// An app whose n-th run answers 201 with `run n`.
pub(crate) fn counting(layer: &IdempotencyLayer, runs: &Runs) -> Router {
    let runs = runs.clone();
    app(layer, move || {
        let n = runs.add();
        async move { answer(201, format!("run {n}")) }
    })
}

pub(crate) fn answer(status: u16, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::whole(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}

/// `POST /orders` with this key.
pub(crate) fn post(key: &str) -> Request<axum::body::Body> {
    request("POST", "/orders", key, "{}")
}

pub(crate) fn request(method: &str, uri: &str, key: &str, body: &'static str) -> Request<axum::body::Body> {
    Request::builder()
        .method(method)
        .uri(uri)
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(axum::body::Body::from(body))
        .unwrap()
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn replayed(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    pub(crate) fn outcome(&self) -> &str {
        self.header("semel-outcome").unwrap_or("none")
    }

    /// The code of a problem, or what the body is instead.
    pub(crate) fn code(&self) -> String {
        match serde_json::from_slice::<serde_json::Value>(&self.body) {
            Ok(problem) if problem["code"].is_string() => {
                assert_eq!(self.header("content-type"), Some("application/problem+json"));
                assert_eq!(problem["status"], self.status);
                problem["code"].as_str().unwrap().to_owned()
            }
            _ => format!("no problem: {:?}", self.body),
        }
    }
}

/// Sends a request and reads the whole answer.
pub(crate) async fn send(app: &Router, request: Request<axum::body::Body>) -> Answer {
    let response = app.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: body.collect().await.unwrap().to_bytes(),
    }
}

/// Polls until `done`, for at most ten seconds.
pub(crate) async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    for _ in 0..2_000 {
        if done().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not within ten seconds: {what}");
}

/// A place where a handler waits until the test lets it go on.
#[derive(Clone)]
pub(crate) struct Gate {
    arrived: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

impl Default for Gate {
    fn default() -> Self {
        let closed = || Arc::new(Semaphore::new(0));
        Self {
            arrived: closed(),
            open: closed(),
        }
    }
}

impl Gate {
    /// For the handler: waits here.
    pub(crate) async fn pass(&self) {
        self.arrived.add_permits(1);
        let _open = self.open.acquire().await.unwrap();
    }

    /// For the test: waits until one more handler has arrived.
    pub(crate) async fn arrived(&self) {
        self.arrived.acquire().await.unwrap().forget();
    }

    /// Lets all go on, now and later.
    pub(crate) fn open(&self) {
        self.open.add_permits(Semaphore::MAX_PERMITS / 2);
    }
}
