//! A scripted participant over HTTP, and a coordinator over a SQLite file.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use semel_core::saga::{CheckedDefinition, Definition, SagaId, Status, Step};
use semel_core::store::SagaStore;
use semel_core::{RetryPolicy, limits};
use semel_postgres::Postgres;
use semel_saga::{Coordinator, CoordinatorConfig, HttpParticipants, Participants, SagaHandle, SagaView};
use semel_sqlite::{Config, Sqlite};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How a scripted participant answers one call.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Ok(&'static str),
    Refuse(&'static str),
    Status(u16),
    /// Refused by a Semel layer because the first call still runs.
    Running,
    /// Acts, but answers only after so many milliseconds.
    Late(u64),
    Huge,
    /// Acts, then waits until the test lets it go.
    Gate,
}

#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: serde_json::Value,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

struct Script {
    replies: Mutex<HashMap<String, VecDeque<Reply>>>,
    seen: Mutex<Vec<Seen>>,
    gate: Semaphore,
    inside: AtomicUsize,
    inside_max: AtomicUsize,
}

/// One HTTP server that plays all participants; `POST /{step}` and `POST /undo-{step}`.
#[derive(Clone)]
pub(crate) struct Shop {
    url: String,
    script: Arc<Script>,
}

impl Shop {
    pub(crate) async fn open() -> Self {
        let script = Arc::new(Script {
            replies: Mutex::default(),
            seen: Mutex::default(),
            gate: Semaphore::new(0),
            inside: AtomicUsize::new(0),
            inside_max: AtomicUsize::new(0),
        });
        let app = Router::new()
            .route("/{path}", post(answer))
            .with_state(script.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, script }
    }

    /// The next answers of a path; after them it answers 200 with `{}`.
    pub(crate) fn will(&self, path: &str, replies: &[Reply]) {
        self.script
            .replies
            .lock()
            .unwrap()
            .insert(path.to_owned(), replies.to_vec().into());
    }

    pub(crate) fn open_gate(&self) {
        self.script.gate.add_permits(1_000);
    }

    /// The most calls that were inside at the same time.
    pub(crate) fn inside_max(&self) -> usize {
        self.script.inside_max.load(Ordering::SeqCst)
    }

    /// What has been called, in order.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.script.seen.lock().unwrap().clone()
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.seen().into_iter().map(|seen| seen.path).collect()
    }

    pub(crate) fn calls(&self, path: &str) -> usize {
        self.paths().iter().filter(|seen| *seen == path).count()
    }

    pub(crate) async fn until_called(&self, path: &str, times: usize) {
        until(|| self.calls(path) >= times).await;
    }

    /// A step of this shop, quick to give up, that keeps a barrier.
    pub(crate) fn step(&self, name: &str) -> Step {
        Step::new(name, format!("{}/{name}", self.url))
            .compensated_by(format!("{}/undo-{name}", self.url))
            .barrier()
            .with_retry(quick(4))
            .with_compensation_retry(quick(5))
            .with_attempt_timeout_ms(2_000)
    }

    /// The steps one after the other.
    pub(crate) fn chain(&self, steps: &[&str]) -> CheckedDefinition {
        steps
            .iter()
            .fold(Definition::new("shop"), |all, name| all.step(self.step(name)))
            .check()
            .unwrap()
    }
}

async fn answer(
    State(script): State<Arc<Script>>,
    Path(path): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let inside = script.inside.fetch_add(1, Ordering::SeqCst) + 1;
    script.inside_max.fetch_max(inside, Ordering::SeqCst);
    let response = act(&script, path, headers, body).await;
    script.inside.fetch_sub(1, Ordering::SeqCst);
    response
}

async fn act(script: &Script, path: String, headers: HeaderMap, body: Bytes) -> Response {
    let body = serde_json::from_slice(&body).unwrap();
    script.seen.lock().unwrap().push(Seen {
        path: path.clone(),
        headers,
        body,
    });
    let reply = script
        .replies
        .lock()
        .unwrap()
        .get_mut(&path)
        .and_then(VecDeque::pop_front);
    let outcome = |outcome: &'static str| [("semel-outcome", outcome)];
    match reply.unwrap_or(Reply::Ok("{}")) {
        Reply::Ok(body) => body.into_response(),
        Reply::Refuse(why) => (StatusCode::CONFLICT, outcome("refused"), why).into_response(),
        Reply::Status(status) => StatusCode::from_u16(status).unwrap().into_response(),
        Reply::Running => (StatusCode::CONFLICT, outcome("running")).into_response(),
        Reply::Huge => vec![b'x'; limits::SAGA_PAYLOAD_BYTES_MAX + 1].into_response(),
        Reply::Late(ms) => {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            StatusCode::OK.into_response()
        }
        Reply::Gate => {
            let _permit = script.gate.acquire().await.unwrap();
            "{}".into_response()
        }
    }
}

pub(crate) fn quick(attempts_max: u32) -> RetryPolicy {
    RetryPolicy {
        initial_ms: 10,
        jitter: 0.0,
        attempts_max,
        ..RetryPolicy::default()
    }
}

/// A coordinator that runs.
pub(crate) struct Running {
    pub(crate) sagas: SagaHandle,
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl Running {
    pub(crate) fn start(
        store: Arc<dyn SagaStore>,
        participants: Arc<dyn Participants>,
        config: CoordinatorConfig,
    ) -> Self {
        let coordinator = Coordinator::new(store, participants, config).unwrap();
        let sagas = coordinator.handle();
        let stop = CancellationToken::new();
        let task = tokio::spawn(coordinator.run(stop.clone()));
        Self { sagas, task, stop }
    }

    /// As `kill -9`: the task and all its calls end where they stand.
    pub(crate) async fn dies(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    pub(crate) async fn stops(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }

    pub(crate) async fn submit(&self, definition: &CheckedDefinition, id: &str) -> SagaId {
        let id = SagaId::new(id).unwrap();
        self.sagas
            .submit(definition, id.clone(), r#"{"amount":30}"#)
            .await
            .unwrap();
        id
    }

    pub(crate) async fn end_of(&self, id: &SagaId) -> SagaView {
        let view = self.sagas.wait(id, Duration::from_secs(60)).await.unwrap();
        assert!(
            view.status.is_terminal() || view.status == Status::Stuck,
            "{view:?}"
        );
        view
    }

    /// Submits, waits for the end.
    pub(crate) async fn run(&self, definition: &CheckedDefinition, id: &str) -> SagaView {
        let id = self.submit(definition, id).await;
        self.end_of(&id).await
    }
}

/// A store of its own, a shop, and as many coordinators as a test wants.
pub(crate) struct Place {
    pub(crate) shop: Shop,
    pub(crate) db: Sqlite,
    _dir: tempfile::TempDir,
}

impl Place {
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let db = Sqlite::open(Config::new(dir.path().join("sagas.db")))
            .await
            .unwrap();
        db.migrate().await.unwrap();
        Self {
            shop: Shop::open().await,
            db,
            _dir: dir,
        }
    }

    pub(crate) fn coordinator(&self) -> Running {
        self.coordinator_with(config())
    }

    pub(crate) fn coordinator_with(&self, config: CoordinatorConfig) -> Running {
        self.coordinator_over(Arc::new(self.db.clone()), config)
    }

    pub(crate) fn coordinator_over(&self, store: Arc<dyn SagaStore>, config: CoordinatorConfig) -> Running {
        Running::start(store, Arc::new(HttpParticipants::default()), config)
    }
}

/// A PostgreSQL database of its own.
pub(crate) async fn postgres(database: &str) -> Postgres {
    let db = Postgres::connect(semel_postgres::Config::new(database))
        .await
        .unwrap();
    db.migrate().await.unwrap();
    db
}

/// Short times, so that take-overs are quick.
pub(crate) fn config() -> CoordinatorConfig {
    CoordinatorConfig {
        lease: Duration::from_secs(2),
        poll: Duration::from_millis(20),
        hold: Duration::from_millis(200),
        ..CoordinatorConfig::default()
    }
}

/// Waits for a state, never for a time.
pub(crate) async fn until(mut holds: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it does not come about");
}
