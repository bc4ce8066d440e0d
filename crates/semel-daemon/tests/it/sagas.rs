//! Sagas through the daemon, with scripted participants: to the end, back again, and through kill -9.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use serde_json::{Value, json};

use super::daemon::{Daemon, Folder, json, until};
use super::receiver::{Receiver, Seen};

const CONFIG: &str = "[store]\nurl = \"sqlite:semel.db\"\n[saga]\nlease_ms = 1000\npoll_ms = 50";

/// An order: reserve and charge can be undone, ship cannot.
fn order(id: &str, shop: &Receiver) -> Value {
    let quick = json!({ "initial_ms": 10, "cap_ms": 50, "attempts_max": 3 });
    json!({
        "id": id,
        "definition": { "name": "order", "steps": [
            { "name": "reserve", "action": shop.url("/reserve"), "compensation": shop.url("/release"),
              "participant": "barrier", "retry": quick, "compensation_retry": quick },
            { "name": "charge", "action": shop.url("/charge"), "compensation": shop.url("/refund"),
              "participant": "barrier", "retry": quick, "compensation_retry": quick },
            { "name": "ship", "action": shop.url("/ship"), "participant": "barrier", "pivot": true, "retry": quick },
        ]},
        "input": { "order": id },
    })
}

fn refused(why: &'static str) -> Response {
    (StatusCode::CONFLICT, [("semel-outcome", "refused")], why).into_response()
}

/// Submits, waits for the end, and shows it.
async fn ended(daemon: &Daemon, id: &str) -> Value {
    let shown = daemon.get(&format!("/sagas/{id}?wait_ms=30000")).await;
    assert_eq!(shown.status(), 200, "{shown:?}");
    json(&shown)
}

fn paths(shop: &Receiver) -> Vec<String> {
    shop.seen().iter().map(|request| request.path.clone()).collect()
}

fn states(saga: &Value) -> BTreeMap<String, String> {
    let steps = saga["steps"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    steps
        .iter()
        .map(|step| (text(&step["name"]), text(&step["state"])))
        .collect()
}

#[tokio::test]
async fn every_step_succeeds_and_the_outputs_are_shown() {
    let shop =
        Receiver::scripted(|request| format!("{{\"did\":\"{}\"}}", request.path).into_response()).await;
    let folder = Folder::new(CONFIG);
    let daemon = folder.start().await;
    daemon.until_ready().await;
    assert_eq!(daemon.post("/sagas", order("o-1", &shop)).await.status(), 201);
    let saga = ended(&daemon, "o-1").await;
    assert_eq!(saga["state"], "completed", "{saga}");
    assert_eq!(saga["steps"][1]["output"], json!({"did": "/charge"}));
    assert_eq!(paths(&shop), ["/reserve", "/charge", "/ship"]);
    let charge = &shop.seen()[1];
    assert_eq!(charge.header("semel-saga-id"), "o-1");
    assert_eq!(charge.header("semel-op"), "action");
    assert_eq!(charge.json()["input"], json!({"order": "o-1"}));

    assert_eq!(
        daemon.post("/sagas", order("o-1", &shop)).await.status(),
        200,
        "the finished saga"
    );
    assert_eq!(shop.seen().len(), 3);
    let log = json(&daemon.get("/sagas/o-1/log").await);
    assert_eq!(
        log["log"].as_array().unwrap().last().unwrap()["event"],
        "completed",
        "{log}"
    );
    until("it is counted", async || {
        daemon.metric("semel_sagas{state=\"completed\"}").await == Some(1.0)
    })
    .await;
    let (code, log) = daemon.stop().await;
    assert_eq!(code, 0, "{log}");
}

#[tokio::test]
async fn a_refused_step_undoes_what_was_done_in_reverse() {
    let shop = Receiver::scripted(|request| match request.path.as_str() {
        "/ship" => refused("no van"),
        _ => StatusCode::OK.into_response(),
    })
    .await;
    let folder = Folder::new(CONFIG);
    let daemon = folder.start().await;
    daemon.until_ready().await;
    daemon.post("/sagas", order("o-1", &shop)).await;
    let saga = ended(&daemon, "o-1").await;
    assert_eq!(saga["state"], "compensated", "{saga}");
    assert_eq!(
        paths(&shop),
        ["/reserve", "/charge", "/ship", "/refund", "/release"]
    );
    assert_eq!(states(&saga)["ship"], "refused");
    assert_eq!(states(&saga)["charge"], "compensated");
    assert_eq!(daemon.stop().await.0, 0);
}

#[tokio::test]
async fn what_cannot_be_undone_is_stuck_until_a_person_retries() {
    let mended = Arc::new(AtomicBool::new(false));
    let works = Arc::clone(&mended);
    let shop = Receiver::scripted(move |request| match request.path.as_str() {
        "/ship" => refused("no van"),
        "/refund" if !works.load(Ordering::SeqCst) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        _ => StatusCode::OK.into_response(),
    })
    .await;
    let folder = Folder::new(CONFIG);
    let daemon = folder.start().await;
    daemon.until_ready().await;
    daemon.post("/sagas", order("o-1", &shop)).await;
    let saga = ended(&daemon, "o-1").await;
    assert_eq!(saga["state"], "stuck", "{saga}");
    assert!(saga["reasons"].to_string().contains("charge"), "{saga}");
    assert_eq!(
        daemon.get("/sagas/o-1").await.headers()["semel-outcome"],
        "unknown"
    );
    let stuck = json(&daemon.get("/sagas?state=stuck").await);
    assert_eq!(stuck["sagas"][0]["id"], "o-1");

    mended.store(true, Ordering::SeqCst);
    let retried = daemon.post("/sagas/o-1/retry", json!({"by": "me"})).await;
    assert_eq!(retried.status(), 202, "{retried:?}");
    until("it is undone", async || {
        json(&daemon.get("/sagas/o-1").await)["state"] == "compensated"
    })
    .await;
    assert_eq!(
        daemon.post("/sagas/o-1/cancel", json!({})).await.status(),
        410,
        "it has ended"
    );
    assert_eq!(daemon.stop().await.0, 0);
}

#[tokio::test]
async fn a_cancelled_saga_is_undone() {
    let shop = Receiver::scripted(|request| match request.path.as_str() {
        "/charge" => (StatusCode::ACCEPTED, [("retry-after", "1")]).into_response(),
        _ => StatusCode::OK.into_response(),
    })
    .await;
    let folder = Folder::new(CONFIG);
    let daemon = folder.start().await;
    daemon.until_ready().await;
    daemon.post("/sagas", order("o-1", &shop)).await;
    until("it is being charged", async || {
        paths(&shop).contains(&"/charge".to_owned())
    })
    .await;
    let cancelled = daemon
        .post("/sagas/o-1/cancel", json!({"by": "me", "why": "changed my mind"}))
        .await;
    assert_eq!(cancelled.status(), 202);
    let saga = ended(&daemon, "o-1").await;
    assert_eq!(saga["state"], "compensated", "{saga}");
    assert!(
        saga["turned"]["why"].to_string().contains("changed my mind"),
        "{saga}"
    );
    assert!(!paths(&shop).contains(&"/ship".to_owned()));
    assert_eq!(daemon.stop().await.0, 0);
}

/// A participant that does each key once, whatever happens, as one with a barrier would.
#[derive(Default)]
struct Books {
    done: Mutex<HashMap<String, String>>,
    calls: AtomicUsize,
}

impl Books {
    fn book(&self, request: &Seen) {
        let key = request.header("idempotency-key");
        self.done.lock().unwrap().insert(key, request.path.clone());
        self.calls.fetch_add(1, Ordering::SeqCst);
    }

    fn count(&self, path: &str) -> usize {
        self.done
            .lock()
            .unwrap()
            .values()
            .filter(|done| *done == path)
            .count()
    }
}

#[tokio::test]
async fn kill_9_again_and_again_ends_every_saga_once() {
    const SAGAS: usize = 40;
    let books = Arc::new(Books::default());
    let keeper = Arc::clone(&books);
    let shop = Receiver::scripted(move |request| {
        let number: usize = request.json()["input"]["order"].as_str().unwrap()[2..]
            .parse()
            .unwrap();
        if request.path == "/ship" && number.is_multiple_of(3) {
            return refused("no van");
        }
        keeper.book(request);
        StatusCode::OK.into_response()
    })
    .await;
    let folder = Folder::new(CONFIG);
    let mut submitted = 0;
    while submitted < SAGAS {
        let mut daemon = folder.start().await;
        daemon.until_ready().await;
        for _ in 0..10 {
            let order = order(&format!("o-{submitted}"), &shop);
            assert_eq!(daemon.post("/sagas", order).await.status(), 201);
            submitted += 1;
        }
        let before = books.calls.load(Ordering::SeqCst);
        until("work goes on", async || {
            books.calls.load(Ordering::SeqCst) > before + 3
        })
        .await;
        daemon.process.kill();
    }
    let daemon = folder.start().await;
    daemon.until_ready().await;
    let mut compensated = 0;
    for number in 0..SAGAS {
        let saga = ended(&daemon, &format!("o-{number}")).await;
        let expected = if number.is_multiple_of(3) {
            "compensated"
        } else {
            "completed"
        };
        assert_eq!(saga["state"], expected, "{saga}");
        compensated += usize::from(number.is_multiple_of(3));
    }
    assert_eq!(books.count("/charge"), SAGAS);
    assert_eq!(books.count("/ship"), SAGAS - compensated);
    assert_eq!(books.count("/refund"), compensated);
    assert_eq!(books.count("/release"), compensated);
    assert_eq!(daemon.stop().await.0, 0);
}
