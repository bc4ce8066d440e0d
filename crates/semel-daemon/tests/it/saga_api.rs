//! The saga API: what it accepts, what it refuses, and how it says so.

use bytes::Bytes;
use http::{Method, Request, Response};
use semel_client::{HttpClient, Limits};
use serde_json::{Value, json};

use super::daemon::{Daemon, Folder, LIMIT, json};

/// A daemon without a coordinator's participants: what it accepts stays as it is.
async fn daemon() -> (Folder, Daemon) {
    let folder = Folder::new("body_bytes_max = 5000\n[store]\nurl = \"sqlite:semel.db\"\n[saga]\n");
    let daemon = folder.start().await;
    daemon.until_ready().await;
    (folder, daemon)
}

fn order(id: &str, input: Value) -> Value {
    json!({
        "id": id,
        "definition": { "name": "order", "steps": [
            { "name": "charge", "action": "http://127.0.0.1:1/charge", "compensation": "http://127.0.0.1:1/refund",
              "participant": "barrier", "retry": { "attempts_max": 100_000, "total_ms_max": 86_400_000 } },
            { "name": "ship", "action": "http://127.0.0.1:1/ship", "participant": "barrier", "pivot": true },
        ]},
        "input": input,
    })
}

fn problem(answer: &Response<Bytes>) -> Value {
    assert_eq!(answer.headers()["content-type"], "application/problem+json");
    json(answer)
}

#[tokio::test]
async fn a_submission_is_accepted_once_and_then_shown() {
    let (_folder, daemon) = daemon().await;
    let first = daemon.post("/sagas", order("o/1", json!({"total": 42}))).await;
    assert_eq!(first.status(), 201, "{first:?}");
    assert_eq!(first.headers()["location"], "/sagas/o%2F1");
    assert_eq!(first.headers()["semel-outcome"], "running");

    let again = daemon.post("/sagas", order("o/1", json!({"total": 42}))).await;
    assert_eq!(again.status(), 200);
    assert_eq!(json(&again)["id"], "o/1");

    let other = daemon.post("/sagas", order("o/1", json!({"total": 43}))).await;
    assert_eq!(other.status(), 409);
    assert_eq!(other.headers()["semel-outcome"], "mismatch");
    assert_eq!(problem(&other)["type"], "urn:semel:problem:saga-mismatch");

    let mut changed = order("o/1", json!({"total": 42}));
    changed["definition"]["name"] = "purchase".into();
    let detail = problem(&daemon.post("/sagas", changed).await)["detail"].to_string();
    assert!(detail.contains("another definition"), "{detail}");

    let shown = json(&daemon.get("/sagas/o%2F1").await);
    assert_eq!(shown["definition"], "order");
    assert_eq!(shown["steps"][0]["name"], "charge");
    assert_eq!(daemon.get("/sagas/o-2").await.status(), 404);

    let (code, log) = daemon.stop().await;
    assert_eq!(code, 0, "{log}");
}

#[tokio::test]
async fn an_accepted_saga_is_there_after_kill_9() {
    let (folder, mut daemon) = daemon().await;
    assert_eq!(daemon.post("/sagas", order("o-1", json!(1))).await.status(), 201);
    daemon.process.kill();
    let daemon = folder.start().await;
    daemon.until_ready().await;
    assert_eq!(daemon.get("/sagas/o-1").await.status(), 200);
}

#[tokio::test]
async fn what_could_not_be_carried_out_is_refused_with_each_reason() {
    let (_folder, daemon) = daemon().await;
    let mut bad = order("o-1", json!(1));
    bad["definition"]["steps"][0]["action"] = "charge".into();
    bad["definition"]["steps"][0]
        .as_object_mut()
        .unwrap()
        .remove("compensation");
    let refused = daemon.post("/sagas", bad).await;
    assert_eq!(refused.status(), 400);
    let errors = problem(&refused)["errors"].to_string();
    assert!(errors.contains("step charge has no compensation"), "{errors}");
    assert!(
        errors.contains("step charge: its action is no http URL"),
        "{errors}"
    );

    let mut misspelt = order("o-1", json!(1));
    misspelt["definition"]["steps"][1]["pviot"] = true.into();
    let detail = problem(&daemon.post("/sagas", misspelt).await)["detail"].to_string();
    assert!(
        detail.contains("definition.steps[1]") && detail.contains("pviot"),
        "{detail}"
    );

    let long = order(&"x".repeat(300), json!(1));
    let detail = problem(&daemon.post("/sagas", long).await)["detail"].to_string();
    assert!(detail.contains("300 bytes is outside 1..=255"), "{detail}");

    let large = daemon
        .post("/sagas", order("o-1", json!("x".repeat(6_000))))
        .await;
    assert_eq!(large.status(), 413);
    assert!(
        problem(&large)["detail"]
            .to_string()
            .contains("body_bytes_max = 5000")
    );

    let plain = Request::post(format!("{}/sagas", daemon.base))
        .body(Bytes::from_static(b"{}"))
        .unwrap();
    let plain = HttpClient::new(Limits::default())
        .send(plain, LIMIT)
        .await
        .unwrap();
    assert_eq!(plain.status(), 400);
    assert!(problem(&plain)["detail"].to_string().contains("application/json"));

    assert_eq!(
        json(&daemon.get("/sagas").await)["sagas"],
        json!([]),
        "nothing was started"
    );
}

#[tokio::test]
async fn sagas_are_listed_by_state_and_page() {
    let (_folder, daemon) = daemon().await;
    for id in ["a", "b", "c"] {
        assert_eq!(daemon.post("/sagas", order(id, json!(1))).await.status(), 201);
    }
    let page = json(&daemon.get("/sagas?limit=2").await);
    assert_eq!(page["next"], "b");
    let ids = |page: &Value| -> Vec<String> {
        let sagas = page["sagas"].as_array().unwrap();
        sagas
            .iter()
            .map(|saga| saga["id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(ids(&page), ["a", "b"]);
    assert_eq!(ids(&json(&daemon.get("/sagas?limit=2&after=b").await)), ["c"]);
    assert_eq!(ids(&json(&daemon.get("/sagas?state=completed").await)).len(), 0);
    let wrong = daemon.get("/sagas?state=done").await;
    assert_eq!(wrong.status(), 400);
    assert!(problem(&wrong)["detail"].to_string().contains("completed"));
}

#[tokio::test]
async fn waiting_ends_at_its_cap_and_requests_are_for_sagas_that_are_there() {
    let (_folder, daemon) = daemon().await;
    daemon.post("/sagas", order("a", json!(1))).await;
    let shown = daemon.get("/sagas/a?wait_ms=50").await;
    assert_eq!(shown.status(), 200);
    assert_eq!(shown.headers()["semel-outcome"], "running");

    let retry = daemon.post("/sagas/a/retry", json!({})).await;
    assert_eq!(retry.status(), 409);
    assert_eq!(problem(&retry)["type"], "urn:semel:problem:saga-not-stuck");
    assert_eq!(daemon.post("/sagas/b/cancel", json!({})).await.status(), 404);
    let detail = problem(&daemon.post("/sagas/a/cancel", json!({"who": "me"})).await)["detail"].to_string();
    assert!(detail.contains("who"), "{detail}");
    let cancelled = daemon
        .post("/sagas/a/cancel", json!({"by": "me", "why": "changed my mind"}))
        .await;
    assert_eq!(cancelled.status(), 202);
}

#[tokio::test]
async fn the_token_is_asked_for_and_web_pages_are_kept_out_without_one() {
    let ask = async |daemon: &Daemon, name: &'static str, value: &str| {
        let request = Request::builder()
            .method(Method::GET)
            .uri(format!("{}/sagas", daemon.base))
            .header(name, value)
            .body(Bytes::new())
            .unwrap();
        HttpClient::new(Limits::default())
            .send(request, LIMIT)
            .await
            .unwrap()
    };
    let (_folder, open) = daemon().await;
    assert_eq!(ask(&open, "accept", "*/*").await.status(), 200);
    assert_eq!(ask(&open, "origin", "http://evil.example").await.status(), 403);
    assert_eq!(ask(&open, "host", "evil.example").await.status(), 403);

    let folder = Folder::new("token = \"0123456789abcdef\"\n[store]\nurl = \"sqlite:semel.db\"\n[saga]");
    let closed = folder.start().await;
    closed.until_ready().await;
    assert_eq!(ask(&closed, "accept", "*/*").await.status(), 401);
    assert_eq!(
        ask(&closed, "authorization", "Bearer 0123456789abcdeX")
            .await
            .status(),
        401
    );
    assert_eq!(
        ask(&closed, "authorization", "Bearer 0123456789abcdef")
            .await
            .status(),
        200
    );
}

#[tokio::test]
async fn participants_can_be_limited() {
    let folder =
        Folder::new("[store]\nurl = \"sqlite:semel.db\"\n[saga]\nparticipants = [\"http://127.0.0.1:2\"]");
    let daemon = folder.start().await;
    daemon.until_ready().await;
    let refused = daemon.post("/sagas", order("a", json!(1))).await;
    assert_eq!(refused.status(), 400);
    assert_eq!(problem(&refused)["errors"].as_array().unwrap().len(), 3);
}
