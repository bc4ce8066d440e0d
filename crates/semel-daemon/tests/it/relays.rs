//! From an outbox in SQLite to a webhook, through the daemon.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use axum::response::IntoResponse as _;
use http::StatusCode;
use semel_core::host::uuid_v7;
use semel_core::{Event, SystemClock};
use semel_sqlite::{Config, Sqlite};

use super::daemon::{Daemon, Folder, until};
use super::receiver::{Receiver, Seen};

/// The business side: another process would do the same.
pub(crate) async fn shop(path: &Path) -> Sqlite {
    let db = Sqlite::open(Config::new(path)).await.unwrap();
    db.migrate().await.unwrap();
    db
}

/// Enqueues one event per transaction; returns their ids.
async fn enqueue(db: &Sqlite, keys: &[&str], from: usize, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for n in from..from + count {
        let event = Event::new(uuid_v7(&SystemClock), "orders", "order.placed")
            .with_key(keys[n % keys.len()].to_owned())
            .with_data("application/json", format!("{{\"n\":{n}}}"));
        let mut tx = db.begin().await.unwrap();
        semel_sqlite::tx::enqueue(&mut tx, &event).await.unwrap();
        db.commit(tx).await.unwrap();
        ids.push(event.id.to_string());
    }
    ids
}

fn config(url: &str, more: &str) -> String {
    format!(
        "[store]\nurl = \"sqlite:shop.db\"\n[[relay]]\nname = \"orders\"\nlease_ms = 1500\nsend_timeout_ms = 1000\n\
         sink.webhook.url = \"{url}\"\n{more}\n"
    )
}

/// What a receiver that drops ids it has seen is left with: ids by key, in order.
fn applied(seen: &[Seen]) -> BTreeMap<String, Vec<u64>> {
    let mut ids = HashMap::new();
    let mut keys: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for request in seen {
        if ids.insert(request.header("ce-id"), ()).is_none() {
            let n = request.json()["n"].as_u64().unwrap();
            keys.entry(request.header("ce-partitionkey")).or_default().push(n);
        }
    }
    keys
}

async fn reason(daemon: &Daemon) -> String {
    let parts = daemon.readyz().await["parts"].clone();
    let relay = parts
        .as_array()
        .unwrap()
        .iter()
        .find(|part| part["kind"] == "relay")
        .unwrap()
        .clone();
    relay["reason"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn events_of_committed_transactions_arrive_once_in_order_per_key() {
    let receiver = Receiver::start().await;
    let folder = Folder::new(&config(&receiver.url("/events"), ""));
    let db = shop(&folder.file("shop.db")).await;
    let before = enqueue(&db, &["a", "b", "c"], 0, 30).await;
    let daemon = folder.start().await;
    daemon.until_ready().await;
    let after = enqueue(&db, &["a", "b", "c"], 30, 30).await;

    let mut tx = db.begin().await.unwrap();
    let event =
        Event::new(uuid_v7(&SystemClock), "orders", "order.placed").with_data("application/json", "{}");
    semel_sqlite::tx::enqueue(&mut tx, &event).await.unwrap();
    tx.rollback().await.unwrap();

    until("60 events arrived", async || receiver.seen().len() >= 60).await;
    until("they are counted", async || {
        daemon
            .metric("semel_relay_published_total{relay=\"orders\",stream=\"default\"}")
            .await
            == Some(60.0)
    })
    .await;
    let seen = receiver.seen();
    assert_eq!(
        seen.len(),
        60,
        "none came twice, and none of a transaction that was rolled back"
    );
    for request in &seen {
        assert_eq!(request.path, "/events");
        let quoted = format!("\"{}\"", request.header("ce-id"));
        assert_eq!(
            request.header("idempotency-key"),
            quoted,
            "a structured field string"
        );
        assert_eq!(request.header("ce-type"), "order.placed");
    }
    for (n, key) in ["a", "b", "c"].into_iter().enumerate() {
        let expected: Vec<u64> = (n as u64..60).step_by(3).collect();
        assert_eq!(applied(&seen)[key], expected);
    }
    let mut ids: Vec<String> = seen.iter().map(|request| request.header("ce-id")).collect();
    ids.sort();
    let mut sent = [before, after].concat();
    sent.sort();
    assert_eq!(ids, sent);
    let (code, log) = daemon.stop().await;
    assert_eq!(code, 0, "{log}");
}

#[tokio::test]
async fn a_receiver_that_is_away_costs_nothing_but_time() {
    let first = Receiver::start().await;
    let (address, url) = (first.address, first.url("/events"));
    drop(first);
    let folder = Folder::new(&config(
        &url,
        "attempts_max = 1\npoison = \"skip\"\nretry_cap_ms = 200",
    ));
    let db = shop(&folder.file("shop.db")).await;
    enqueue(&db, &["a"], 0, 5).await;
    let daemon = folder.start().await;
    until("readyz says that it is away", async || {
        reason(&daemon).await.contains("the receiver is away")
    })
    .await;
    assert_eq!(daemon.get("/readyz").await.status(), 503);
    assert_eq!(
        daemon
            .metric("semel_relay_paused{relay=\"orders\",stream=\"default\",shard=\"0\"}")
            .await,
        Some(1.0)
    );

    let receiver = Receiver::at(address, |_| StatusCode::OK.into_response()).await;
    until("all arrived", async || {
        applied(&receiver.seen())
            .get("a")
            .is_some_and(|seen| seen.len() == 5)
    })
    .await;
    assert_eq!(applied(&receiver.seen())["a"], [0, 1, 2, 3, 4]);
    daemon.until_ready().await;
    assert_eq!(
        daemon
            .metric("semel_relay_parked_total{relay=\"orders\",stream=\"default\"}")
            .await,
        Some(0.0)
    );
    assert_eq!(daemon.stop().await.0, 0);
}

#[tokio::test]
async fn poison_is_set_aside_with_its_key_and_the_others_go_on() {
    let receiver = Receiver::scripted(|request| {
        if request.json()["n"] == 2 {
            StatusCode::UNPROCESSABLE_ENTITY.into_response()
        } else {
            StatusCode::OK.into_response()
        }
    })
    .await;
    let more = "attempts_max = 2\nretry_initial_ms = 1\npoison = \"park_key\"";
    let folder = Folder::new(&config(&receiver.url("/"), more));
    let db = shop(&folder.file("shop.db")).await;
    enqueue(&db, &["a", "b"], 0, 10).await;
    let daemon = folder.start().await;
    until("the key is parked", async || {
        daemon
            .metric("semel_relay_parked_total{relay=\"orders\",stream=\"default\"}")
            .await
            == Some(4.0)
    })
    .await;
    until("the other key arrived", async || {
        applied(&receiver.seen())
            .get("b")
            .is_some_and(|seen| seen.len() == 5)
    })
    .await;
    assert_eq!(applied(&receiver.seen())["b"], [1, 3, 5, 7, 9]);
    let seen = receiver.seen();
    let poison = seen.iter().filter(|request| request.json()["n"] == 2).count();
    assert_eq!(poison, 2, "attempts_max");
    assert!(
        seen.iter()
            .all(|request| ![4, 6, 8].contains(&request.json()["n"].as_u64().unwrap()))
    );
    daemon.until_ready().await;
    assert_eq!(daemon.stop().await.0, 0);
}

#[tokio::test]
async fn kill_9_again_and_again_loses_nothing_and_keeps_the_order() {
    let receiver = Receiver::start().await;
    let folder = Folder::new(
        &config(&receiver.url("/"), "lease_ms = 1000\nsend_timeout_ms = 500").replacen(
            "lease_ms = 1500\nsend_timeout_ms = 1000\n",
            "",
            1,
        ),
    );
    let db = shop(&folder.file("shop.db")).await;
    let keys = ["a", "b", "c", "d", "e"];
    let mut sent = 0;
    for round in 1..=4 {
        let mut daemon = folder.spawn(&[]);
        let before = receiver.seen().len();
        enqueue(&db, &keys, sent, 50).await;
        sent += 50;
        until("some of it is on its way", async || {
            receiver.seen().len() > before + 10 * round
        })
        .await;
        daemon.process.kill();
    }
    let daemon = folder.start().await;
    until("all arrived", async || {
        applied(&receiver.seen()).values().map(Vec::len).sum::<usize>() == sent
    })
    .await;
    for (n, key) in keys.into_iter().enumerate() {
        let expected: Vec<u64> = (n as u64..sent as u64).step_by(keys.len()).collect();
        assert_eq!(applied(&receiver.seen())[key], expected, "{key}");
    }
    assert_eq!(daemon.stop().await.0, 0);
}
