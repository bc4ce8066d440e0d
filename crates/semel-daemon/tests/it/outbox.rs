//! `semel outbox` and `semel audit outbox`: what an operator sees and settles.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::response::IntoResponse as _;
use http::StatusCode;
use semel_core::host::uuid_v7;
use semel_core::{Event, SystemClock};
use semel_sqlite::Sqlite;
use serde_json::{Value, json};

use super::daemon::{Daemon, Folder, run, texts, until};
use super::receiver::Receiver;
use super::relays::shop;

fn outbox(folder: &Path, arguments: &[&str]) -> (String, String, i32) {
    texts(&run(folder, &[&["outbox"], arguments].concat()))
}

fn json_of(folder: &Path, arguments: &[&str]) -> Value {
    let (stdout, stderr, _) = outbox(folder, arguments);
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}\n{stderr}"))
}

async fn write(db: &Sqlite, key: &str, n: u64) -> String {
    let event = Event::new(uuid_v7(&SystemClock), "orders", "order.placed")
        .with_key(key.to_owned())
        .with_data("application/json", format!("{{\"n\":{n}}}"));
    let mut tx = db.begin().await.unwrap();
    semel_sqlite::tx::enqueue(&mut tx, &event).await.unwrap();
    db.commit(tx).await.unwrap();
    event.id.to_string()
}

/// A receiver that refuses event 1 until told otherwise, and a relay that has parked key `a` because of it: rows 1, 3, 4 of
/// `a` are set aside, row 2 of `b` has arrived.
async fn parked() -> (Folder, Sqlite, Daemon, Receiver, Arc<AtomicBool>) {
    let mended = Arc::new(AtomicBool::new(false));
    let takes = Arc::clone(&mended);
    let receiver = Receiver::scripted(move |request| {
        if request.json()["n"] == 1 && !takes.load(Ordering::Relaxed) {
            StatusCode::UNPROCESSABLE_ENTITY.into_response()
        } else {
            StatusCode::OK.into_response()
        }
    })
    .await;
    let folder = Folder::new(&format!(
        "[store]\nurl = \"sqlite:shop.db\"\n[[relay]]\nname = \"orders\"\nlease_ms = 1500\nsend_timeout_ms = 1000\n\
         attempts_max = 1\npoison = \"park_key\"\nsink.webhook.url = \"{}\"\n",
        receiver.url("/")
    ));
    let db = shop(&folder.file("shop.db")).await;
    for (key, n) in [("a", 1), ("b", 2), ("a", 3), ("a", 4)] {
        write(&db, key, n).await;
    }
    let daemon = folder.start().await;
    until("the key is parked", async || {
        let set_aside = outbox(folder.path(), &["parked", "list"]).0.lines().count();
        set_aside == 3 && receiver.seen().iter().any(|seen| seen.json()["n"] == 2)
    })
    .await;
    (folder, db, daemon, receiver, mended)
}

fn order(receiver: &Receiver, key: &str) -> Vec<u64> {
    let seen = receiver.seen();
    let of = seen.iter().filter(|seen| seen.header("ce-partitionkey") == key);
    of.map(|seen| seen.json()["n"].as_u64().unwrap()).collect()
}

const WHO: [&str; 5] = ["--by", "ann", "--why", "mended", "--yes"];

#[tokio::test]
async fn a_parked_key_is_listed_shown_and_sent_in_order_before_its_newer_events() {
    let (folder, db, daemon, receiver, mended) = parked().await;
    let path = folder.path();
    let (stdout, stderr, code) = outbox(path, &["parked", "list"]);
    let lines: Vec<Vec<&str>> = stdout.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!((code, stderr.as_str()), (0, ""));
    let short: Vec<_> = lines.iter().map(|line| (line[0], line[1], line[4])).collect();
    assert_eq!(
        short,
        [("1", "parked", "a"), ("3", "behind", "a"), ("4", "behind", "a")]
    );
    assert!(lines[0][8].contains("422"), "{stdout}");
    let only = json_of(
        path,
        &["parked", "list", "--kind", "behind", "--limit", "1", "--json"],
    );
    assert_eq!((&only["events"][0]["row"], &only["next"]), (&json!(3), &json!(3)));
    let (stdout, ..) = outbox(path, &["parked", "show", "1"]);
    assert!(stdout.contains("data          {\"n\":1}"), "{stdout}");
    let (_, stderr, code) = outbox(path, &["parked", "show", "2"]);
    assert!(code == 3 && stderr.contains("row 2 is not among"), "{stderr}");

    let (_, stderr, code) = outbox(path, &[&["parked", "retry", "3"], &WHO[..]].concat());
    assert!(code == 4 && stderr.contains("ask row 1"), "{stderr}");
    let (stdout, stderr, code) = outbox(
        path,
        &[&["parked", "retry", "--all", "--dry-run"], &WHO[..]].concat(),
    );
    assert!(
        code == 0 && stdout.lines().count() == 1 && stderr.contains("nothing was changed"),
        "{stderr}"
    );
    let (_, stderr, code) = outbox(path, &["parked", "retry", "1", "--by", "ann", "--why", "x"]);
    assert!(code == 2 && stderr.contains("--yes"), "{stderr}");

    // Refused again: it stays, with an attempt more.
    let (_, stderr, code) = outbox(path, &[&["parked", "retry", "1"], &WHO[..]].concat());
    assert!(
        code == 0 && stderr.contains("retry asked of 1 of 1, by ann: mended"),
        "{stderr}"
    );
    until("it was tried and refused", async || {
        let row = json_of(path, &["parked", "show", "1", "--json"]);
        row["attempts"] == 2 && row["asked"].is_null()
    })
    .await;
    mended.store(true, Ordering::Relaxed);
    write(&db, "a", 5).await;
    outbox(path, &[&["parked", "retry", "--key", "a"], &WHO[..]].concat());
    until("all arrived", async || order(&receiver, "a").contains(&5)).await;
    assert_eq!(order(&receiver, "a"), [1, 1, 1, 3, 4, 5]);
    until("nothing is set aside", async || {
        outbox(path, &["parked", "list"]).0.is_empty()
    })
    .await;
    write(&db, "a", 6).await;
    until("the key goes on as all others", async || {
        order(&receiver, "a").last() == Some(&6)
    })
    .await;
    let log = json_of(path, &["parked", "log", "--json"]);
    let said: Vec<_> = log["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (&it["action"], &it["by"]))
        .collect();
    assert_eq!(said, [(&json!("retry"), &json!("ann")); 2]);
    assert_eq!(daemon.stop().await.0, 0);
}

#[tokio::test]
async fn an_event_is_edited_or_dropped_with_who_and_why() {
    let (folder, _db, daemon, receiver, _) = parked().await;
    let path = folder.path();
    let edit = |more: &[&str]| outbox(path, &[&["parked", "edit", "1"], more, &WHO[..]].concat());
    let (stdout, stderr, code) = edit(&["--data", "{\"n\":11}", "--dry-run"]);
    assert!(
        code == 0 && stdout.contains("{\"n\":11}") && stderr.contains("nothing was changed"),
        "{stderr}"
    );
    let (_, stderr, code) = edit(&["--topic", "a b"]);
    assert!(code == 2 && stderr.contains("topic"), "{stderr}");
    assert_eq!(edit(&[]).2, 2, "nothing to edit");
    let (_, stderr, code) = edit(&["--data", "{\"n\":11}", "--header", "x=1", "--header", "x=2"]);
    assert!(
        code == 0 && stderr.contains("row 1 edited, by ann: mended"),
        "{stderr}"
    );
    let (_, stderr, code) = outbox(path, &[&["parked", "drop", "3"], &WHO[..]].concat());
    assert!(code == 0 && stderr.contains("drop asked of 1 of 1"), "{stderr}");
    until("row 3 is gone, row 4 stays", async || {
        outbox(path, &["parked", "list"]).0.lines().count() == 2
    })
    .await;
    outbox(path, &[&["parked", "retry", "1"], &WHO[..]].concat());
    until("the rest arrived", async || order(&receiver, "a").contains(&4)).await;
    assert_eq!(order(&receiver, "a"), [1, 11, 4]);
    let seen = receiver.seen();
    let edited = seen.iter().find(|seen| seen.json()["n"] == 11).unwrap();
    assert_eq!(
        edited.headers.get_all("semel-h-x").iter().collect::<Vec<_>>(),
        ["1", "2"]
    );
    let log = json_of(path, &["parked", "log", "--json"]);
    assert_eq!(log["entries"][0]["before"]["data"], "{\"n\":1}");
    assert_eq!(
        (&log["entries"][1]["action"], &log["entries"][1]["before"]["data"]),
        (&json!("drop"), &json!("{\"n\":3}"))
    );
    assert_eq!(daemon.stop().await.0, 0);
}

/// A relay whose sink cannot be made never has a lease of its own.
#[tokio::test]
async fn why_names_what_keeps_a_relay_from_beginning() {
    let folder = Folder::new(
        "[store]\nurl = \"sqlite:shop.db\"\n[[relay]]\nname = \"orders\"\n\
         sink.rabbitmq = { url = \"amqps://127.0.0.1:1\", ca_file = \"missing.pem\" }\n",
    );
    let db = shop(&folder.file("shop.db")).await;
    write(&db, "a", 1).await;
    let daemon = folder.spawn(&[]);
    let why = async || outbox(folder.path(), &["why"]).0;
    until("it says why nobody owns the shard", async || {
        why().await.contains("nobody_owns_it\tdefault/0")
    })
    .await;
    let said = why().await;
    assert!(
        said.contains("stopped: ") && said.contains("missing.pem"),
        "{said}\n{}",
        daemon.log()
    );
    let text = daemon.readyz().await.to_string();
    assert!(text.contains("missing.pem"), "{text}");
}

/// What a restore into another cluster leaves: readiness, log, `why` and `rescan` have one code for it.
#[tokio::test]
async fn a_restored_outbox_is_named_wherever_somebody_looks_and_goes_on_after_a_rescan() {
    let receiver = Receiver::start().await;
    let url = semel_testkit::servers::postgres().fresh_database();
    let folder = Folder::new(&format!(
        "[store]\nurl = \"{url}\"\n[[relay]]\nname = \"orders\"\nshards = 1\nlease_ms = 1500\nsend_timeout_ms = 1000\n\
         sink.webhook.url = \"{}\"\n",
        receiver.url("/")
    ));
    let path = folder.path();
    assert_eq!(run(path, &["migrate"]).status.code(), Some(0));
    let db = semel_postgres::Postgres::connect(semel_postgres::Config::new(&url))
        .await
        .unwrap();
    let write = async |n: u32| {
        let event = Event::new(uuid_v7(&SystemClock), "orders", "order.placed")
            .with_key("a")
            .with_data("application/json", format!("{{\"n\":{n}}}"));
        let mut tx = db.begin().await.unwrap();
        semel_postgres::tx::enqueue(&mut tx, &event).await.unwrap();
        db.commit(tx).await.unwrap();
    };
    write(1).await;
    let daemon = folder.start().await;
    until("it has arrived", async || receiver.seen().len() == 1).await;
    assert_eq!(daemon.stop().await.0, 0);

    sqlx::query("UPDATE semel.outbox_incarnation SET system_id = 1")
        .execute(db.pool())
        .await
        .unwrap();
    write(2).await;
    let daemon = folder.spawn(&[]);
    daemon.until_alive().await;
    until("readiness names it", async || {
        daemon.readyz().await.to_string().contains("SEM0202")
    })
    .await;
    let (stdout, _, code) = outbox(path, &["why"]);
    assert!(
        code == 1 && stdout.contains("blocks\tidentity_changed"),
        "{stdout}"
    );
    assert!(
        stdout.contains("SEM0202") && stdout.contains("semel outbox rescan"),
        "{stdout}"
    );
    let (_, stderr, code) = outbox(path, &[&["rescan", "--stream", "default"], &WHO[..]].concat());
    assert!(code != 0 && stderr.contains("SEM0202"), "{code} {stderr}");
    let (_, log) = daemon.stop().await;
    assert!(log.contains("SEM0202"), "{log}");
    assert_eq!(receiver.seen().len(), 1, "nothing is sent before");

    let (_, stderr, code) = outbox(path, &[&["rescan"], &WHO[..]].concat());
    assert_eq!(code, 0, "{stderr}");
    let daemon = folder.start().await;
    until("all came again", async || receiver.seen().len() == 3).await;
    assert_eq!(daemon.stop().await.0, 0);
}

#[tokio::test]
async fn why_names_what_holds_a_shard_and_says_so_by_its_exit_code() {
    let away = Receiver::start().await;
    let url = away.url("/");
    drop(away);
    let folder = Folder::new(&format!(
        "[store]\nurl = \"sqlite:shop.db\"\n[[relay]]\nname = \"orders\"\nlease_ms = 1500\nsend_timeout_ms = 1000\n\
         sink.webhook.url = \"{url}\"\n"
    ));
    let path = folder.path();
    let (stdout, _, code) = outbox(path, &["why"]);
    assert!(code == 1 && stdout.contains("there is no such file"), "{stdout}");
    let db = shop(&folder.file("shop.db")).await;
    let (stdout, _, code) = outbox(path, &["why"]);
    assert_eq!((stdout.as_str(), code), ("", 0), "no stream, nothing waits");
    write(&db, "a", 1).await;
    let (stdout, _, code) = outbox(path, &["why"]);
    assert!(
        code == 1 && stdout.starts_with("blocks\torphan_stream\tdefault"),
        "{stdout}"
    );
    let mut daemon = folder.start().await;
    let what = async |word: &str| {
        let why = json_of(path, &["why", "--json"]);
        let reasons = why["reasons"].as_array().unwrap().clone();
        reasons.into_iter().find(|reason| reason["what"] == word)
    };
    until("the relay says that its receiver is away", async || {
        what("receiver_away").await.is_some()
    })
    .await;
    let reason = what("receiver_away").await.unwrap();
    assert_eq!(
        (&reason["at"], &reason["blocks"]),
        (&json!("default/0"), &json!(true))
    );
    assert!(
        reason["detail"].as_str().unwrap().contains("orders pid"),
        "{reason}"
    );
    until("the metrics say it, too", async || {
        let name = "semel_relay_pause{relay=\"orders\",stream=\"default\",shard=\"0\",reason=\"away\"}";
        daemon.metric(name).await == Some(1.0)
    })
    .await;
    daemon.process.kill();
    until("nobody owns it", async || what("nobody_owns_it").await.is_some()).await;
    let reason = what("nobody_owns_it").await.unwrap();
    assert!(
        reason["detail"].as_str().unwrap().contains("away: "),
        "its last words stay: {reason}"
    );
    let list = json_of(path, &["list", "--json"]);
    assert_eq!(
        (&list["shards"][0]["waiting"], &list["shards"][0]["owner"]),
        (&json!(1), &json!(null))
    );
    assert_eq!(outbox(path, &["list"]).0.split('\t').nth(4), Some("1"));
}

#[tokio::test]
async fn replay_and_rescan_send_again_and_the_audit_finds_what_came_twice() {
    let receiver = Receiver::start().await;
    let folder = Folder::new(&format!(
        "[store]\nurl = \"sqlite:shop.db\"\n[[relay]]\nname = \"orders\"\nlease_ms = 1500\nsend_timeout_ms = 1000\n\
         replay_per_second = 100\nsink.webhook.url = \"{}\"\n",
        receiver.url("/")
    ));
    let path = folder.path();
    let db = shop(&folder.file("shop.db")).await;
    let daemon = folder.start().await;
    let mut ids = Vec::new();
    for (key, n) in [("a", 1), ("b", 2), ("a", 3)] {
        ids.push(write(&db, key, n).await);
    }
    until("they arrived", async || receiver.seen().len() == 3).await;
    until("they are settled", async || {
        json_of(path, &["list", "--json"])["shards"][0]["waiting"] == 0
            && outbox(path, &[&["replay", "--all", "--dry-run"], &WHO[..]].concat())
                .0
                .lines()
                .count()
                == 3
    })
    .await;
    let arrivals = |name: &str| {
        let seen = receiver.seen();
        let lines: Vec<String> = seen
            .iter()
            .map(|seen| {
                json!({ "id": seen.header("ce-id"), "key": seen.header("ce-partitionkey") }).to_string()
            })
            .collect();
        std::fs::write(folder.file(name), lines.join("\n")).unwrap();
        texts(&run(path, &["audit", "outbox", "--arrived", name]))
    };
    let (stdout, stderr, code) = arrivals("once");
    assert!(
        code == 0 && stdout.contains("all that was sent arrived"),
        "{stdout}{stderr}"
    );
    std::fs::write(folder.file("none"), "").unwrap();
    let (stdout, _, code) = texts(&run(path, &["audit", "outbox", "--arrived", "none", "--json"]));
    let audit: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &audit["missing"]["count"]), (1, &json!(3)));
    std::fs::write(folder.file("bad"), "{}").unwrap();
    let (_, stderr, code) = texts(&run(path, &["audit", "outbox", "--arrived", "bad"]));
    assert!(code == 2 && stderr.contains("line 1"), "{stderr}");

    let (_, stderr, code) = outbox(path, &["replay", "--by", "ann", "--why", "x"]);
    assert!(code == 2, "what to replay must be said: {stderr}");
    let (_, stderr, code) = outbox(path, &[&["replay", "--from", "yesterday"], &WHO[..]].concat());
    assert!(code == 2 && stderr.contains("2026-12-01T13:00:00Z"), "{stderr}");
    let (_, stderr, code) = outbox(path, &[&["replay", "--all", "--rate", "0"], &WHO[..]].concat());
    assert!(code == 2 && stderr.contains("1..=1000000"), "{stderr}");
    // One event at a time, by its pace; all the same it comes to its end.
    let (stdout, stderr, code) = outbox(
        path,
        &[
            &["replay", "--key", "a", "--from", "1h", "--rate", "10"],
            &WHO[..],
        ]
        .concat(),
    );
    assert!(code == 0 && stdout.lines().count() == 2, "{stderr}");
    until("the key's events came again", async || receiver.seen().len() == 5).await;
    let seen = receiver.seen();
    assert_eq!(
        (seen[3].header("ce-id"), seen[4].header("ce-id")),
        (ids[0].clone(), ids[2].clone())
    );
    assert!(
        stderr.contains(&seen[3].header("semel-h-semel-replay")),
        "{stderr}"
    );
    let (stdout, _, code) = arrivals("twice");
    assert!(code == 1 && stdout.contains("doubled           2"), "{stdout}");

    let (stdout, ..) = outbox(
        path,
        &[
            &["replay", "--topic", "orders", "--ids", "fresh", "--limit", "2"],
            &WHO[..],
        ]
        .concat(),
    );
    assert_eq!(stdout.lines().count(), 2);
    until("copies came with ids of their own", async || {
        receiver.seen().len() == 7
    })
    .await;
    // Keys are under way at the same time.
    let mut of: Vec<String> = receiver.seen()[5..]
        .iter()
        .map(|seen| seen.header("semel-h-semel-replay-of"))
        .collect();
    let mut wanted = ids[..2].to_vec();
    of.sort();
    wanted.sort();
    assert_eq!(of, wanted);

    let (stdout, stderr, code) = outbox(path, &[&["rescan", "--dry-run"], &WHO[..]].concat());
    assert!(
        code == 0 && stdout.starts_with("5 events are kept") && stdout.contains("orders pid"),
        "{stdout}{stderr}"
    );
    assert_eq!(daemon.stop().await.0, 0);
    let (_, stderr, code) = outbox(path, &[&["rescan"], &WHO[..]].concat());
    assert!(
        code == 0 && stderr.contains("1 shards begin anew, 5 events"),
        "{stderr}"
    );
    assert_eq!(
        outbox(path, &[&["rescan", "--stream", "typo"], &WHO[..]].concat()).2,
        3
    );
    let daemon = folder.start().await;
    until("all came again", async || receiver.seen().len() == 12).await;
    let again: Vec<String> = receiver.seen()[7..]
        .iter()
        .map(|seen| seen.header("ce-id"))
        .collect();
    assert!(ids.iter().all(|id| again.contains(id)), "{again:?}");
    assert_eq!(daemon.stop().await.0, 0);
}

/// The relay would refuse each of them, and they would stand among what was set aside.
#[tokio::test]
async fn a_replay_into_kafka_transactions_is_refused_before_anything_is_copied() {
    let folder = Folder::new(
        "[store]\nurl = \"sqlite:shop.db\"\n[[relay]]\nname = \"orders\"\nstreams = [\"default\", \"more\"]\n\
         sink.kafka = { brokers = [\"127.0.0.1:1\"], mode = \"transactional\", name = \"shop\" }\n",
    );
    let db = shop(&folder.file("shop.db")).await;
    write(&db, "a", 1).await;
    let replay = [&["replay", "--all"], &WHO[..]].concat();
    let (_, stderr, code) = outbox(folder.path(), &replay);
    assert!(
        code == 2 && stderr.contains("relay orders") && stderr.contains("--ids fresh"),
        "{stderr}"
    );
    let (_, stderr, code) = outbox(folder.path(), &[&replay[..], &["--ids", "fresh"]].concat());
    assert!(
        code == 3 && !stderr.contains("relay orders"),
        "nothing was sent: {code} {stderr}"
    );
}
