//! Stores that are away, late or wrong: the process stays up and says why.

use semel_core::host::uuid_v7;
use semel_core::{Event, SystemClock};
use semel_postgres::{Config, Postgres};
use semel_testkit::servers::PostgresServer;

use super::daemon::{Daemon, Folder, run, until};
use super::receiver::Receiver;

/// The reason that `/readyz` gives for the store.
async fn reason(daemon: &Daemon) -> String {
    let body = daemon.readyz().await;
    let parts = body["parts"].as_array().unwrap().clone();
    let store = parts.iter().find(|part| part["kind"] == "store").unwrap();
    store["reason"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_store_that_is_away_is_named_and_every_role_goes_on_when_it_returns() {
    let receiver = Receiver::start().await;
    let mut server = PostgresServer::start();
    let url = server.fresh_database();
    let folder = Folder::new(&format!(
        "[store]\nurl = \"{url}\"\nmigrate = true\nacquire_timeout_ms = 1000\n[saga]\nlease_ms = 1000\n\
         [[relay]]\nname = \"orders\"\nlease_ms = 1500\nsend_timeout_ms = 1000\nsink.webhook.url = \"{}\"\n",
        receiver.url("/events"),
    ));
    server.kill();

    let daemon = folder.start().await;
    until("readyz says why", async || {
        reason(&daemon).await.contains("SEM0104")
    })
    .await;
    assert_eq!(daemon.get("/readyz").await.status(), 503);
    assert_eq!(daemon.get("/healthz").await.status(), 200);
    let refused = daemon.post("/sagas", saga("early", &receiver)).await;
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.headers()["retry-after"], "1");

    server.restart();
    daemon.until_ready().await;
    works(&daemon, &url, "first", &receiver).await;

    server.kill();
    until("readyz says why again", async || {
        !reason(&daemon).await.is_empty()
    })
    .await;
    server.restart();
    daemon.until_ready().await;
    works(&daemon, &url, "second", &receiver).await;
    let (code, log) = daemon.stop().await;
    assert_eq!(code, 0, "{log}");
}

#[tokio::test]
async fn a_sqlite_file_that_cannot_be_opened_is_named() {
    let folder = Folder::new("[store]\nurl = \"sqlite:nowhere/semel.db\"");
    let daemon = folder.start().await;
    until("readyz says which file", async || {
        reason(&daemon).await.contains("nowhere/semel.db: SEM0104")
    })
    .await;
    assert_eq!(daemon.stop().await.0, 0);
}

fn saga(id: &str, receiver: &Receiver) -> serde_json::Value {
    serde_json::json!({
        "id": id,
        "definition": { "name": "order", "steps": [
            { "name": "charge", "action": receiver.url("/charge"), "participant": "barrier", "pivot": true },
        ]},
        "input": 1,
    })
}

/// An event goes out and a saga comes to its end.
async fn works(daemon: &Daemon, url: &str, name: &str, receiver: &Receiver) {
    let db = Postgres::connect(Config::new(url)).await.unwrap();
    let mut tx = db.begin().await.unwrap();
    let event = Event::new(uuid_v7(&SystemClock), "orders", name).with_data("text/plain", "x");
    semel_postgres::tx::enqueue(&mut tx, &event).await.unwrap();
    db.commit(tx).await.unwrap();
    db.close().await;
    until("the event arrived", async || {
        let seen = receiver.seen();
        seen.iter()
            .any(|request| request.path == "/events" && request.header("ce-type") == name)
    })
    .await;
    until("the saga is accepted", async || {
        daemon
            .post("/sagas", saga(name, receiver))
            .await
            .status()
            .is_success()
    })
    .await;
    until("the saga has ended", async || {
        let shown = daemon.get(&format!("/sagas/{name}")).await;
        shown.status() == 200 && super::daemon::json(&shown)["state"] == "completed"
    })
    .await;
}

#[tokio::test]
async fn a_database_without_tables_is_waited_for_until_somebody_migrates_it() {
    let url = semel_testkit::servers::postgres().fresh_database();
    let folder = Folder::new(&format!("[store]\nurl = \"{url}\""));
    let daemon = folder.start().await;
    until("readyz says what to run", async || {
        reason(&daemon).await.contains("run `semel migrate`")
    })
    .await;
    assert_eq!(run(folder.path(), &["migrate"]).status.code(), Some(0));
    daemon.until_ready().await;
    assert_eq!(daemon.stop().await.0, 0);
}

#[tokio::test]
async fn reasons_are_shown_to_holders_of_the_token_only() {
    let folder = Folder::new("token = \"0123456789abcdef\"\n[store]\nurl = \"sqlite:nowhere/semel.db\"");
    let daemon = folder.start().await;
    let part = async |token: &str| {
        let request = http::Request::get(format!("{}/readyz", daemon.base))
            .header("authorization", format!("Bearer {token}"))
            .body(bytes::Bytes::new())
            .unwrap();
        let client = semel_client::HttpClient::new(semel_client::Limits::default());
        let answer = client.send(request, super::daemon::LIMIT).await.unwrap();
        super::daemon::json(&answer)["parts"][0].clone()
    };
    until("the store waits", async || part("x").await["state"] == "waiting").await;
    assert!(part("x").await["reason"].is_null());
    let shown = part("0123456789abcdef").await["reason"].to_string();
    assert!(shown.contains("does its folder exist"), "{shown}");
    assert_eq!(daemon.stop().await.0, 0);
}

#[tokio::test]
async fn a_store_that_does_not_fit_stops_its_own_roles_only() {
    let receiver = Receiver::start().await;
    let folder = Folder::new(&format!(
        "[store]\nurl = \"sqlite:good.db\"\n[stores.newer]\nurl = \"sqlite:newer.db\"\n\
         [[relay]]\nname = \"works\"\nsink.webhook.url = \"{url}\"\n\
         [[relay]]\nname = \"waits\"\nstore = \"newer\"\nsink.webhook.url = \"{url}\"\n",
        url = receiver.url("/"),
    ));
    let db = super::relays::shop(&folder.file("newer.db")).await;
    let mut tx = db.begin().await.unwrap();
    sqlx::query("INSERT INTO semel_schema (version, name, applied_at) VALUES (99, 'future', 0)")
        .execute(&mut *tx)
        .await
        .unwrap();
    db.commit(tx).await.unwrap();

    let daemon = folder.start().await;
    let state = async |kind: &str, name: &str| {
        let parts = daemon.readyz().await["parts"].as_array().unwrap().clone();
        let part = parts
            .into_iter()
            .find(|part| part["kind"] == kind && part["name"] == name)
            .unwrap();
        (
            part["state"].as_str().unwrap().to_owned(),
            part["reason"].to_string(),
        )
    };
    until("the one works", async || {
        state("relay", "works").await.0 == "ready"
    })
    .await;
    until("the other store says why", async || {
        state("store", "newer").await.1.contains("use a newer semel")
    })
    .await;
    assert_eq!(state("relay", "waits").await.0, "waiting");
    assert_eq!(daemon.get("/readyz").await.status(), 503);
    assert_eq!(daemon.stop().await.0, 0);
}

/// Reading goes on in WAL mode while somebody holds the file: only a write tells.
#[tokio::test]
async fn a_store_that_can_be_read_and_not_written_is_not_ready() {
    let folder = Folder::new(
        "[store]\nurl = \"sqlite:semel.db\"\nacquire_timeout_ms = 500\n[api]\nlisten = \"127.0.0.1:0\"",
    );
    let daemon = folder.start().await;
    daemon.until_ready().await;
    let db = semel_sqlite::Sqlite::open(semel_sqlite::Config::new(folder.file("semel.db")))
        .await
        .unwrap();
    let held = db.begin().await.unwrap();
    until("readyz says that it cannot be written", async || {
        daemon.get("/readyz").await.status() == 503 && reason(&daemon).await.contains("SEM0104")
    })
    .await;
    assert_eq!(daemon.get("/healthz").await.status(), 200);
    drop(held);
    daemon.until_ready().await;
    assert_eq!(daemon.stop().await.0, 0);
}
