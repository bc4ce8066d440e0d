//! The whole daemon dies at each crash point that it passes, on SQLite and on PostgreSQL; another is started, and
//! everything the outside saw is counted: every event applied once and in order per key, every saga ended once, no key
//! run twice.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{Request, StatusCode};
use semel_client::{HttpClient, Limits};
use semel_core::crash::{CRASH_POINTS, LAST_WORDS};
use semel_core::host::uuid_v7;
use semel_core::{Event, SystemClock};
use semel_testkit::servers::free_port;
use serde_json::json;

use super::daemon::{Daemon, Folder, LIMIT, json, until};
use super::receiver::{Receiver, Seen};

/// Points that the daemon passes; the others belong to processes that hold an inbox or a barrier.
const ROLES: [&str; 3] = ["key.", "relay.", "saga."];
pub(crate) const EVENTS: usize = 30;
pub(crate) const KEYS: usize = 5;
const SAGAS: usize = 6;

/// The business side of a store.
#[derive(Clone)]
pub(crate) enum Shop {
    Sqlite(PathBuf),
    Postgres(String),
    #[cfg(feature = "mysql")]
    Mariadb(String),
}

impl Shop {
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Sqlite(path) => format!("sqlite:{}", path.display()),
            Self::Postgres(url) => url.clone(),
            #[cfg(feature = "mysql")]
            Self::Mariadb(url) => url.clone(),
        }
    }

    /// Enqueues all events, each in a transaction of its own.
    pub(crate) async fn enqueue(&self, topic: &str) {
        let event = |n: usize| {
            Event::new(uuid_v7(&SystemClock), topic, "order.placed")
                .with_key(format!("k{}", n % KEYS))
                .with_data("application/json", format!("{{\"n\":{n}}}"))
        };
        match self {
            Self::Sqlite(path) => {
                let db = semel_sqlite::Sqlite::open(semel_sqlite::Config::new(path))
                    .await
                    .unwrap();
                for n in 0..EVENTS {
                    let mut tx = db.begin().await.unwrap();
                    semel_sqlite::tx::enqueue(&mut tx, &event(n)).await.unwrap();
                    db.commit(tx).await.unwrap();
                }
                db.close().await;
            }
            Self::Postgres(url) => {
                let db = semel_postgres::Postgres::connect(semel_postgres::Config::new(url))
                    .await
                    .unwrap();
                for n in 0..EVENTS {
                    let mut tx = db.begin().await.unwrap();
                    semel_postgres::tx::enqueue(&mut tx, &event(n)).await.unwrap();
                    db.commit(tx).await.unwrap();
                }
                db.close().await;
            }
            #[cfg(feature = "mysql")]
            Self::Mariadb(url) => {
                let db = semel_mysql::Mysql::connect(semel_mysql::Config::new(url))
                    .await
                    .unwrap();
                for n in 0..EVENTS {
                    let mut tx = db.begin().await.unwrap();
                    semel_mysql::tx::enqueue(&mut tx, &event(n)).await.unwrap();
                    db.commit(tx).await.unwrap();
                }
                db.close().await;
            }
        }
    }
}

/// Everything outside: a receiver of events, the participants of the sagas, the API behind the gateway.
#[derive(Default)]
struct Outside {
    /// Numbers of applied events by key, after dropping ids seen before.
    events: BTreeMap<String, Vec<u64>>,
    ids: HashSet<String>,
    /// What participants did, by step key: a barrier's books.
    steps: HashMap<String, String>,
    /// How often each key of the gateway was run.
    runs: HashMap<String, u32>,
}

impl Outside {
    fn answer(&mut self, request: &Seen) -> Response {
        match request.path.as_str() {
            "/events" => {
                if self.ids.insert(request.header("ce-id")) {
                    let n = request.json()["n"].as_u64().unwrap();
                    self.events
                        .entry(request.header("ce-partitionkey"))
                        .or_default()
                        .push(n);
                }
                StatusCode::OK.into_response()
            }
            "/api/charge" => {
                let run = self.runs.entry(request.header("idempotency-key")).or_default();
                *run += 1;
                (StatusCode::CREATED, format!("run {run}")).into_response()
            }
            "/ship" if odd(request) => {
                (StatusCode::CONFLICT, [("semel-outcome", "refused")], "no van").into_response()
            }
            path => {
                self.steps
                    .insert(request.header("idempotency-key"), path.to_owned());
                StatusCode::OK.into_response()
            }
        }
    }

    fn count(&self, path: &str) -> usize {
        self.steps.values().filter(|done| *done == path).count()
    }
}

/// Every other saga is refused at its last step.
fn odd(request: &Seen) -> bool {
    request.json()["input"]["n"].as_u64().unwrap() % 2 == 1
}

fn saga(n: usize, outside: &Receiver) -> serde_json::Value {
    json!({
        "id": format!("s-{n}"),
        "definition": { "name": "order", "steps": [
            { "name": "charge", "action": outside.url("/charge"), "compensation": outside.url("/refund"),
              "participant": "barrier" },
            { "name": "ship", "action": outside.url("/ship"), "participant": "barrier", "pivot": true },
        ]},
        "input": { "n": n },
    })
}

async fn charge(port: u16, key: &str) -> Result<http::Response<Bytes>, semel_client::ClientError> {
    let request = Request::post(format!("http://127.0.0.1:{port}/charge"))
        .header("idempotency-key", key)
        .body(Bytes::from_static(b"{}"))
        .unwrap();
    HttpClient::new(Limits::default()).send(request, LIMIT).await
}

/// Dies at `point`, starts again, audits.
async fn dies_at(point: &str, shop: impl FnOnce(&Folder) -> Shop) {
    let outside = Arc::new(Mutex::new(Outside::default()));
    let books = Arc::clone(&outside);
    let receiver = Receiver::scripted(move |request| books.lock().unwrap().answer(request)).await;
    let gateway = free_port();
    let folder = Folder::new("");
    let shop = shop(&folder);
    folder.append(&format!(
        "[store]\nurl = \"{}\"\nmigrate = true\n\
         [[relay]]\nname = \"orders\"\nshards = 2\nlease_ms = 1200\nsend_timeout_ms = 1000\nsink.webhook.url = \"{}\"\n\
         [[gateway]]\nname = \"api\"\nlisten = \"127.0.0.1:{gateway}\"\nupstream = \"{}\"\nanonymous = true\n\
         lease_ms = 1000\nwait_ms_max = 100\n\
         [saga]\nlease_ms = 1000\npoll_ms = 50\n",
        shop.url(),
        receiver.url("/events"),
        receiver.url("/api"),
    ));
    // The tables first, so that business transactions can come before the daemon.
    assert_eq!(
        super::daemon::run(folder.path(), &["migrate"]).status.code(),
        Some(0)
    );
    if point.starts_with("relay.") {
        shop.enqueue("orders").await;
    }
    let mut armed = folder.spawn(&[("SEMEL_CRASH_POINT", point)]);
    let mut accepted = HashSet::new();
    load(&mut armed, point, gateway, &receiver, &mut accepted).await;
    let (_, log) = armed.ended().await;
    assert!(log.contains(LAST_WORDS), "{point}: it ended otherwise:\n{log}");

    let daemon = folder.start().await;
    daemon.until_ready().await;
    if !point.starts_with("relay.") {
        shop.enqueue("orders").await;
    }
    for n in 0..SAGAS {
        let answer = daemon.post("/sagas", saga(n, &receiver)).await;
        let status = answer.status().as_u16();
        assert!(status == 201 || status == 200, "{point}: {answer:?}");
        assert!(
            status == 200 || !accepted.contains(&n),
            "{point}: saga {n} was accepted and is gone"
        );
    }
    audit_sagas(point, &daemon, &outside).await;
    audit_events(point, &outside).await;
    audit_keys(point, gateway, &outside).await;
    let (code, log) = daemon.stop().await;
    assert_eq!(code, 0, "{point}: {log}");
}

/// Asks for things until the process has died.
async fn load(
    armed: &mut Daemon,
    point: &str,
    gateway: u16,
    outside: &Receiver,
    accepted: &mut HashSet<usize>,
) {
    until("the daemon dies or is ready", async || {
        let ready = armed.send(http::Method::GET, "/readyz", "").await;
        ready.map_or_else(
            |_| armed.log().contains(LAST_WORDS),
            |answer| answer.status() == 200,
        )
    })
    .await;
    if point.starts_with("saga.") {
        for n in 0..SAGAS {
            let body = saga(n, outside).to_string();
            if let Ok(answer) = armed.send(http::Method::POST, "/sagas", &body).await
                && answer.status() == 201
            {
                accepted.insert(n);
            }
        }
    }
    if point.starts_with("key.") {
        // The second key finds a dead gateway; it is run after the restart.
        for key in ["a", "b"] {
            if let Ok(answer) = charge(gateway, key).await {
                assert_eq!(answer.status(), 201, "{point}: {answer:?}");
            }
        }
    }
}

async fn audit_sagas(point: &str, daemon: &Daemon, outside: &Mutex<Outside>) {
    for n in 0..SAGAS {
        let shown = json(&daemon.get(&format!("/sagas/s-{n}?wait_ms=30000")).await);
        let expected = if n % 2 == 1 { "compensated" } else { "completed" };
        assert_eq!(shown["state"], expected, "{point}: {shown}");
    }
    let outside = outside.lock().unwrap();
    assert_eq!(outside.count("/charge"), SAGAS, "{point}");
    assert_eq!(outside.count("/ship"), SAGAS / 2, "{point}");
    assert_eq!(outside.count("/refund"), SAGAS / 2, "{point}");
}

async fn audit_events(point: &str, outside: &Mutex<Outside>) {
    until("every event arrived", async || {
        outside.lock().unwrap().ids.len() == EVENTS
    })
    .await;
    let outside = outside.lock().unwrap();
    for key in 0..KEYS {
        let expected: Vec<u64> = (key as u64..EVENTS as u64).step_by(KEYS).collect();
        assert_eq!(outside.events[&format!("k{key}")], expected, "{point}");
    }
}

/// A key was run at most once. Its retry gets the stored answer, or hears that the end is not known; never a second run.
async fn audit_keys(point: &str, gateway: u16, outside: &Mutex<Outside>) {
    for key in ["a", "b"] {
        until("the key is settled", async || {
            let answer = charge(gateway, key).await.unwrap();
            match answer.status().as_u16() {
                201 => true,
                409 => answer.headers()["semel-outcome"] == "unknown",
                _ => panic!("{point}: {answer:?}"),
            }
        })
        .await;
        let first = charge(gateway, key).await.unwrap();
        let again = charge(gateway, key).await.unwrap();
        assert_eq!(first.status(), again.status(), "{point}");
        let runs = outside.lock().unwrap().runs.get(key).copied().unwrap_or(0);
        assert!(runs <= 1, "{point}: {key} was run {runs} times");
        if first.status() == 201 {
            assert_eq!((runs, first.body().as_ref()), (1, b"run 1".as_slice()), "{point}");
        }
    }
}

/// Points in the order of the list, some at a time: what takes long is waiting for leases.
async fn each_point(shop: impl Fn(&Folder) -> Shop) {
    let points = CRASH_POINTS
        .iter()
        .filter(|point| ROLES.iter().any(|role| point.starts_with(role)));
    let points: Vec<&str> = points.copied().collect();
    assert_eq!(points.len(), 14, "a new point: does the load below pass it?");
    futures_util::stream::iter(points)
        .map(|point| dies_at(point, &shop))
        .buffer_unordered(4)
        .collect::<()>()
        .await;
}

#[tokio::test]
async fn at_every_point_on_sqlite() {
    each_point(|folder| Shop::Sqlite(folder.file("semel.db"))).await;
}

#[tokio::test]
async fn at_every_point_on_postgresql() {
    let server = semel_testkit::servers::postgres();
    each_point(|_| Shop::Postgres(server.fresh_database())).await;
}
