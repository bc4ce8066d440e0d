//! A handler that counts its runs, and requests with keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::any;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use semel_core::KeyStore;
use semel_core::model::MemoryKeys;
use semel_http::{Body, Config, IdempotencyLayer};
use semel_testkit::clock::ManualClock;
use semel_testkit::servers;
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tower::ServiceExt;

pub(crate) use semel_testkit::faulty::{Fault, FaultyKeys};

/// A store, the clock that it reads, and its folder where it has one.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) store: Arc<dyn KeyStore>,
    pub(crate) clock: Arc<ManualClock>,
    _dir: Option<Arc<TempDir>>,
}

impl World {
    pub(crate) fn memory() -> Self {
        let clock = Arc::new(ManualClock::default());
        Self {
            store: Arc::new(MemoryKeys::new(clock.clone())),
            clock,
            _dir: None,
        }
    }

    pub(crate) async fn sqlite() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::default());
        let mut config = semel_sqlite::Config::new(dir.path().join("keys.db"));
        config.clock = clock.clone();
        let db = semel_sqlite::Sqlite::open(config).await.unwrap();
        db.migrate().await.unwrap();
        Self {
            store: Arc::new(db),
            clock,
            _dir: Some(Arc::new(dir)),
        }
    }

    /// A store on a real server, with the server's clock: that of this world moves nothing.
    pub(crate) fn served(store: impl KeyStore) -> Self {
        Self {
            store: Arc::new(store),
            clock: Arc::new(ManualClock::default()),
            _dir: None,
        }
    }

    pub(crate) async fn postgres() -> Self {
        let url = servers::postgres().fresh_database();
        let db = semel_postgres::Postgres::connect(semel_postgres::Config::new(url))
            .await
            .unwrap();
        db.migrate().await.unwrap();
        Self::served(db)
    }

    pub(crate) async fn mariadb() -> Self {
        let url = servers::mariadb().fresh_database();
        let db = semel_mysql::Mysql::connect(semel_mysql::Config::new(url))
            .await
            .unwrap();
        db.migrate().await.unwrap();
        Self::served(db)
    }

    pub(crate) async fn redis() -> Self {
        let url = servers::redis().fresh_database();
        let store = semel_redis::Redis::connect(semel_redis::Config::new(url))
            .await
            .unwrap();
        Self::served(store)
    }

    /// A layer with one scope for all.
    pub(crate) fn layer(&self) -> IdempotencyLayer {
        self.layer_with(|_| {})
    }

    /// The same with other settings.
    pub(crate) fn layer_with(&self, change: impl FnOnce(&mut Config)) -> IdempotencyLayer {
        let mut config = Config::default();
        change(&mut config);
        IdempotencyLayer::builder(Arc::clone(&self.store))
            .config(config)
            .anonymous_scope("tests")
            .build()
            .unwrap()
    }

    /// The same world with a store that fails when told to.
    pub(crate) fn faulty(mut self) -> (Self, Arc<FaultyKeys>) {
        let faulty = FaultyKeys::over(self.store);
        self.store = faulty.clone();
        (self, faulty)
    }

    /// Every claim of now has ended afterwards.
    pub(crate) fn leases_end(&self) {
        self.clock.advance_ms(Config::default().lease_ms + 1);
    }
}

/// The store of a URL, by its scheme.
pub(crate) async fn opened(url: &str) -> Arc<dyn KeyStore> {
    match url.split_once(':').unwrap() {
        ("sqlite", path) => {
            let db = semel_sqlite::Sqlite::open(semel_sqlite::Config::new(path))
                .await
                .unwrap();
            db.migrate().await.unwrap();
            Arc::new(db)
        }
        ("redis", _) => Arc::new(
            semel_redis::Redis::connect(semel_redis::Config::new(url))
                .await
                .unwrap(),
        ),
        ("mysql" | "mariadb", _) => {
            let db = semel_mysql::Mysql::connect(semel_mysql::Config::new(url))
                .await
                .unwrap();
            db.migrate().await.unwrap();
            Arc::new(db)
        }
        _ => {
            let db = semel_postgres::Postgres::connect(semel_postgres::Config::new(url))
                .await
                .unwrap();
            db.migrate().await.unwrap();
            Arc::new(db)
        }
    }
}

/// Makes a test per store of each `async fn name(world: World)`.
macro_rules! on_each_store {
    ($($name:ident),+ $(,)?) => {
        mod memory {
            $(#[tokio::test] async fn $name() { super::$name($crate::support::World::memory()).await; })+
        }
        mod sqlite {
            $(#[tokio::test] async fn $name() { super::$name($crate::support::World::sqlite().await).await; })+
        }
    };
}
pub(crate) use on_each_store;

/// The same on PostgreSQL, MariaDB and Redis, for those that move no clock.
macro_rules! on_servers_too {
    ($($name:ident),+ $(,)?) => {
        mod on_postgres {
            $(#[tokio::test] async fn $name() { super::$name($crate::support::World::postgres().await).await; })+
        }
        mod on_mariadb {
            $(#[tokio::test] async fn $name() { super::$name($crate::support::World::mariadb().await).await; })+
        }
        mod on_redis {
            $(#[tokio::test] async fn $name() { super::$name($crate::support::World::redis().await).await; })+
        }
    };
}
pub(crate) use on_servers_too;

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

/// An app that counts its runs and answers every request by `handler`, which gets the number of the run.
pub(crate) fn app<F, R>(layer: &IdempotencyLayer, runs: &Runs, handler: F) -> Router
where
    F: Fn(u32) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let runs = runs.clone();
    let handler = any(move || {
        let answer = handler(runs.add());
        async move { answer.await.map(axum::body::Body::new) }
    });
    Router::new().fallback(handler).layer(layer.clone())
}

/// An app whose n-th run answers 201 with `run n`.
pub(crate) fn counting(layer: &IdempotencyLayer, runs: &Runs) -> Router {
    app(layer, runs, |n| async move { answer(201, format!("run {n}")) })
}

/// The same, but each run waits at the gate.
pub(crate) fn gated(layer: &IdempotencyLayer, runs: &Runs, gate: &Gate) -> Router {
    let gate = gate.clone();
    app(layer, runs, move |n| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            answer(201, format!("run {n}"))
        }
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

    /// What a problem says to a person.
    pub(crate) fn detail(&self) -> String {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        problem["detail"].as_str().unwrap().to_owned()
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

/// Sends a request in a task of its own.
pub(crate) fn send_soon(app: &Router, request: Request<axum::body::Body>) -> JoinHandle<Answer> {
    let app = app.clone();
    tokio::spawn(async move { send(&app, request).await })
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

/// Polls until `done`, for at most a minute.
pub(crate) async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    for _ in 0..12_000 {
        if done().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not within a minute: {what}");
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
        self.open.acquire().await.unwrap().forget();
    }

    /// For the test: waits until one more handler has arrived.
    pub(crate) async fn arrived(&self) {
        self.arrived.acquire().await.unwrap().forget();
    }

    /// Lets all go on, now and later.
    pub(crate) fn open(&self) {
        self.open.add_permits(1_000);
    }

    /// Lets one go on.
    pub(crate) fn open_once(&self) {
        self.open.add_permits(1);
    }
}
