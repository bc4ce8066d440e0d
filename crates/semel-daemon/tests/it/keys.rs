//! `semel keys`: what an operator sees and settles, without a daemon.

use std::path::Path;

use semel_core::claim::{
    Abandonment, Claim, ClaimReply, Completion, Keep, Lease, Nonce, OwnerLost, succeeded,
};
use semel_core::{Fingerprint, Key, KeyStoreExt as _, Scope};
use semel_sqlite::{Config, Sqlite};
use serde_json::{Value, json};

use super::daemon::{Folder, run, texts};

fn key(id: &[u8]) -> Key {
    Key::new(Scope::new("orders").unwrap(), id).unwrap()
}

async fn claimed(db: &Sqlite, key: &Key) -> Lease {
    let claim = Claim {
        key: key.clone(),
        fingerprint: Fingerprint::of(b"x"),
        nonce: Nonce::random(),
        owner_lost: OwnerLost::Hold,
        lease_ms: 60_000,
    };
    match db.claim(&claim).await.unwrap() {
        ClaimReply::Granted { lease, .. } => lease,
        other => panic!("{other:?}"),
    }
}

/// A store with a key that runs, one that is done, and two that are unknown, one of them with bytes for a name.
async fn store() -> (Folder, Sqlite) {
    let folder = Folder::new("[store]\nurl = \"sqlite:semel.db\"");
    assert_eq!(run(folder.path(), &["migrate"]).status.code(), Some(0));
    let db = Sqlite::open(Config::new(folder.file("semel.db"))).await.unwrap();
    claimed(&db, &key(b"runs")).await;
    let lease = claimed(&db, &key(b"done")).await;
    let done = Completion {
        key: key(b"done"),
        lease,
        outcome: succeeded("order 7"),
        keep: Keep::default(),
    };
    db.complete(&done).await.unwrap();
    for id in [&b"lost"[..], b"\xff\t"] {
        let lease = claimed(&db, &key(id)).await;
        let key = key(id);
        db.abandon(&Abandonment { key, lease }).await.unwrap();
    }
    (folder, db)
}

fn keys(folder: &Path, arguments: &[&str]) -> (String, String, i32) {
    texts(&run(folder, &[&["keys"], arguments].concat()))
}

#[tokio::test]
async fn keys_are_lines_in_a_pipe_and_json_for_programs() {
    let (folder, _db) = store().await;
    let (stdout, stderr, code) = keys(folder.path(), &["list", "--state", "unknown"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    let mut lines: Vec<_> = stdout
        .lines()
        .map(|line| line.split('\t').take(3).collect::<Vec<_>>())
        .collect();
    lines.sort();
    assert_eq!(
        lines,
        [
            ["unknown", "orders", "base64:/wk="],
            ["unknown", "orders", "lost"]
        ]
    );
    let (stdout, _, code) = keys(folder.path(), &["list", "--json"]);
    let all: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, all["keys"].as_array().unwrap().len()), (0, 4));
    assert_eq!(all["next"], json!(null));

    let (first, stderr, _) = keys(folder.path(), &["list", "--limit", "3"]);
    let next = stderr.trim().rsplit(' ').next().unwrap();
    let (rest, ..) = keys(folder.path(), &["list", "--page", next]);
    assert_eq!((first.lines().count(), rest.lines().count()), (3, 1), "{stderr}");
    let (none, _, code) = keys(folder.path(), &["list", "--scope", "carts"]);
    assert_eq!((none.as_str(), code), ("", 0));
}

#[tokio::test]
async fn one_key_is_shown_with_its_output_or_its_absence_is_exit_code_3() {
    let (folder, _db) = store().await;
    let (stdout, _, code) = keys(folder.path(), &["show", "orders", "done"]);
    assert!(code == 0 && stdout.contains("output  order 7"), "{stdout}");
    let (stdout, ..) = keys(folder.path(), &["show", "orders", "base64:/wk=", "--json"]);
    let shown: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (&shown["state"], &shown["id"]),
        (&json!("unknown"), &json!({"base64": "/wk="}))
    );
    let (stdout, stderr, code) = keys(folder.path(), &["show", "orders", "nope"]);
    assert_eq!((stdout.as_str(), code), ("", 3));
    assert!(stderr.contains("there is no key orders nope"), "{stderr}");
    let (_, stderr, code) = keys(folder.path(), &["show", "orders", "base64:?"]);
    assert!(code == 2 && stderr.contains("RFC 4648"), "{stderr}");
}

#[tokio::test]
async fn an_unknown_key_is_settled_once_and_what_stands_otherwise_is_left_alone() {
    let (folder, db) = store().await;
    let settle = |id: &'static str, more: &[&'static str]| {
        let fixed = [
            "settle",
            "orders",
            id,
            "--by",
            "ann",
            "--why",
            "at the bank",
            "--yes",
        ];
        keys(folder.path(), &[&fixed, more].concat())
    };
    let (_, stderr, code) = settle("lost", &["--succeeded", "--output", "order 8"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(
        stderr.contains("settled as succeeded, by ann: at the bank"),
        "{stderr}"
    );
    let (stdout, ..) = keys(folder.path(), &["show", "orders", "lost"]);
    assert!(stdout.contains("output  order 8"), "{stdout}");
    for id in ["lost", "runs", "done"] {
        let (_, stderr, code) = settle(id, &["--did-not-happen"]);
        assert!(
            code == 4 && stderr.contains("nothing was changed"),
            "{id}: {stderr}"
        );
    }
    assert_eq!(settle("nope", &["--forgotten"]).2, 3);
    let (_, stderr, code) = settle("base64:/wk=", &["--did-not-happen"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(
        db.read(&key(b"\xff\t")).await.unwrap(),
        None,
        "it may be claimed again"
    );
    let (_, stderr, code) = settle("lost", &["--succeeded", "--token", "999"]);
    assert!(code == 4 && stderr.contains("stands otherwise"), "{stderr}");
}

#[tokio::test]
async fn a_change_needs_a_verdict_a_reason_and_somebody_who_agrees() {
    let (folder, db) = store().await;
    for (arguments, said) in [
        (
            &["settle", "orders", "lost", "--why", "x", "--yes"][..],
            "--succeeded",
        ),
        (&["settle", "orders", "lost", "--forgotten", "--yes"], "--why"),
        (
            &[
                "settle",
                "orders",
                "lost",
                "--forgotten",
                "--refused",
                "--why",
                "x",
            ],
            "cannot be used with",
        ),
        (
            &[
                "settle",
                "orders",
                "lost",
                "--forgotten",
                "--output",
                "x",
                "--why",
                "x",
            ],
            "cannot be used with",
        ),
        (
            &[
                "settle",
                "orders",
                "lost",
                "--forgotten",
                "--by",
                "a",
                "--why",
                "x",
            ],
            "add --yes",
        ),
        (
            &[
                "settle",
                "orders",
                "lost",
                "--forgotten",
                "--by",
                "a",
                "--why",
                "",
                "--yes",
            ],
            "why: 0 bytes",
        ),
        (
            &["release", "orders", "runs", "--by", "a", "--why", "x"],
            "add --yes",
        ),
    ] {
        let (_, stderr, code) = keys(folder.path(), arguments);
        assert!(code == 2 && stderr.contains(said), "{arguments:?}: {stderr}");
    }
    let unknown = db.read(&key(b"lost")).await.unwrap().unwrap();
    assert_eq!(unknown.state.name(), Some(semel_core::claim::StateName::Unknown));
}

#[tokio::test]
async fn a_claim_is_released_for_an_owner_that_is_gone() {
    let (folder, db) = store().await;
    let release = |id: &'static str| {
        keys(
            folder.path(),
            &[
                "release",
                "orders",
                id,
                "--by",
                "ann",
                "--why",
                "the host is gone",
                "--yes",
            ],
        )
    };
    let (_, stderr, code) = release("runs");
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(db.read(&key(b"runs")).await.unwrap(), None);
    let (_, stderr, code) = release("lost");
    assert!(code == 4 && stderr.contains("settle it instead"), "{stderr}");
    assert_eq!(release("runs").2, 3);
}

#[test]
fn a_store_that_is_not_there_is_named() {
    let folder = Folder::new("[store]\nurl = \"sqlite:semel.db\"");
    let (_, stderr, code) = keys(folder.path(), &["list"]);
    assert!(code == 1 && stderr.contains("no such file"), "{stderr}");
    assert!(!folder.file("semel.db").exists(), "looking makes nothing");
    let (_, stderr, code) = keys(folder.path(), &["list", "--store", "shop"]);
    assert!(
        code == 2 && stderr.contains("there is no store `shop`; choose one with --store: default"),
        "{stderr}"
    );
    let away = Folder::new("[store]\nurl = \"postgres://127.0.0.1:1/x\"\nacquire_timeout_ms = 200");
    let (_, stderr, code) = keys(away.path(), &["list"]);
    assert!(code == 1 && stderr.contains("SEM0104"), "{stderr}");
}

/// Rule K13.
#[tokio::test]
async fn the_scope_of_a_deleted_principal_is_closed_and_its_answers_are_gone() {
    let (folder, db) = store().await;
    let ask = |more: &[&str]| {
        let arguments = ["close", "--by", "ann", "--why", "account deleted", "--yes"];
        keys(folder.path(), &[&arguments[..], more].concat())
    };
    let (_, stderr, code) = ask(&["nobody"]);
    assert_eq!(code, 3, "{stderr}");
    let (_, stderr, code) = ask(&[]);
    assert_eq!(code, 2, "{stderr}");
    let (_, stderr, code) = ask(&["orders"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(
        stderr.contains("orders closed, 4 keys, by ann: account deleted"),
        "{stderr}"
    );
    for id in [&b"runs"[..], b"done", b"lost", b"\xff\t"] {
        let claim = Claim {
            key: key(id),
            fingerprint: Fingerprint::of(b"x"),
            nonce: Nonce::random(),
            owner_lost: OwnerLost::Hold,
            lease_ms: 60_000,
        };
        let reply = db.claim(&claim).await.unwrap();
        assert!(matches!(reply, ClaimReply::Gone { .. }), "{reply:?}");
    }

    // A gateway's caller is named as the gateway knows it.
    let scope = Scope::of_parts(&[b"gateway", b"shop", b"ada", b"shop.example"]);
    let theirs = Key::new(scope, "k").unwrap();
    claimed(&db, &theirs).await;
    let (_, stderr, code) = ask(&[
        "--gateway",
        "shop",
        "--principal",
        "ada",
        "--host",
        "Shop.Example",
    ]);
    assert!(code == 0 && stderr.contains("closed, 1 keys"), "{stderr}");
}
