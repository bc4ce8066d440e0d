//! `semel outbox partition`.

use semel_core::host::uuid_v7;
use semel_core::store::OutboxStore as _;
use semel_core::{Event, SystemClock};
use semel_postgres::{Config, Postgres, tx};
use semel_testkit::servers::postgres;
use serde_json::{Value, json};

use super::daemon::{Folder, run, texts};

const WHO: [&str; 5] = ["--by", "ann", "--why", "many events", "--yes"];

fn partition(folder: &Folder, arguments: &[&str]) -> (String, String, i32) {
    texts(&run(
        folder.path(),
        &[&["outbox", "partition"], arguments, &WHO[..]].concat(),
    ))
}

async fn bed() -> (Folder, Postgres) {
    let url = postgres().fresh_database();
    let folder = Folder::new(&format!("[store]\nurl = \"{url}\"\n"));
    assert_eq!(run(folder.path(), &["migrate"]).status.code(), Some(0));
    (folder, Postgres::connect(Config::new(&url)).await.unwrap())
}

fn event() -> Event {
    Event::new(uuid_v7(&SystemClock), "orders", "order.placed")
}

#[tokio::test]
async fn an_outbox_is_put_into_partitions_and_back_by_a_person() {
    let (folder, db) = bed().await;
    let mut tx = db.begin().await.unwrap();
    tx::enqueue(&mut tx, &event()).await.unwrap();
    db.commit(tx).await.unwrap();

    let (stdout, stderr, code) = partition(
        &folder,
        &["--dry-run", "--json", "--width", "30m", "--ahead", "5"],
    );
    assert_eq!(code, 0, "{stderr}");
    let shown: Value = serde_json::from_str(&stdout).unwrap();
    let wanted = json!({ "before": null, "after": { "width_ms": 1_800_000, "ahead": 5 }, "copied": 1, "waits": [], "done": false });
    assert_eq!(shown, wanted);
    assert_eq!(db.partitions().await.unwrap(), None);

    let without_yes = ["outbox", "partition", "--by", "ann", "--why", "x"];
    let (_, stderr, code) = texts(&run(folder.path(), &without_yes));
    assert!(code == 2 && stderr.contains("--yes"), "{stderr}");

    let (_, stderr, code) = partition(&folder, &["--width", "30m", "--ahead", "5"]);
    assert!(
        code == 0 && stderr.contains("1 events were copied, by ann: many events"),
        "{stderr}"
    );
    let found = db.partitions().await.unwrap().unwrap();
    assert_eq!((found.width_ms, found.premake), (1_800_000, 5));
    // What is not named stays as it is, and what is so already is said.
    let (_, stderr, code) = partition(&folder, &["--ahead", "5"]);
    assert!(
        code == 4 && stderr.contains("partitions of 30m0s, 5 made ahead, already"),
        "{stderr}"
    );
    let (stdout, _, code) = partition(&folder, &["--width", "1h", "--json"]);
    let shown: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (code, &shown["after"], &shown["copied"]),
        (0, &json!({ "width_ms": 3_600_000, "ahead": 5 }), &json!(0))
    );

    let (_, stderr, code) = partition(&folder, &["--off", "--rows-max", "0"]);
    assert!(code == 4 && stderr.contains("SEM0280"), "{stderr}");
    let (_, stderr, code) = partition(&folder, &["--off"]);
    assert!(
        code == 0 && stderr.contains("the outbox is one table"),
        "{stderr}"
    );
    assert_eq!(db.partitions().await.unwrap(), None);
    let (_, stderr, code) = partition(&folder, &["--off"]);
    assert!(code == 4 && stderr.contains("one table already"), "{stderr}");

    let log = texts(&run(folder.path(), &["outbox", "parked", "log"])).0;
    let actions: Vec<_> = log.lines().filter(|line| line.contains("partition")).collect();
    assert!(actions.len() == 3 && actions[2].contains("unpartition"), "{log}");
}

#[tokio::test]
async fn who_is_in_the_way_is_named_before_anybody_waits() {
    let (folder, db) = bed().await;
    let mut open = db.begin().await.unwrap();
    tx::enqueue(&mut open, &event()).await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(&mut *open)
        .await
        .unwrap();
    let (_, stderr, code) = partition(&folder, &["--dry-run"]);
    assert!(
        code == 0 && stderr.contains(&format!("pid {pid}")) && stderr.contains("pg_terminate_backend"),
        "{stderr}"
    );
}

#[test]
fn what_cannot_be_meant_is_refused_with_what_to_do() {
    let folder = Folder::new("[store]\nurl = \"sqlite:semel.db\"\n");
    assert_eq!(run(folder.path(), &["migrate"]).status.code(), Some(0));
    let (_, stderr, code) = partition(&folder, &[]);
    assert!(
        code == 2 && stderr.contains("only an outbox on PostgreSQL") && stderr.contains("keep_ms"),
        "{stderr}"
    );
    let (_, stderr, code) = partition(&folder, &["--off", "--width", "1h"]);
    assert!(code == 2 && stderr.contains("cannot be used with"), "{stderr}");
}
