//! What the operator's desk sees of PostgreSQL itself.

use semel_core::ErrorKind;
use semel_core::store::{Hold, OutboxDesk as _, OutboxStore as _};
use semel_postgres::{Postgres, tx};

use super::{event, fresh, own};

async fn hold(db: &Postgres, kind: &str) -> Option<Hold> {
    let standing = db.standing().await.unwrap();
    standing.holds.into_iter().find(|hold| hold.kind == kind)
}

/// A transaction that has written events and stays open is named by its process; it holds back nothing else.
#[tokio::test]
async fn an_open_writer_is_named_by_its_process() {
    let (_lent, db) = fresh().await;
    own(&db).await;
    let mut open = db.begin().await.unwrap();
    tx::enqueue(&mut open, &event("k", "x")).await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(&mut *open)
        .await
        .unwrap();
    let named = loop {
        let standing = db.standing().await.unwrap();
        let who = format!("pid {pid}");
        // Younger transactions are not told; nobody is waited for but the clock of the server.
        if let Some(hold) = standing.holds.into_iter().find(|hold| hold.who == who) {
            break hold;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(named.kind, "open_transaction");
    assert!(
        named.age_ms >= Some(1_000) && named.detail.contains("idle in transaction"),
        "{named:?}"
    );
    assert!(named.advice.contains(&format!("pg_terminate_backend({pid})")));
    open.rollback().await.unwrap();
}

/// Another cluster is named, and only a rescan of all streams makes it the outbox's home (rule O9).
#[tokio::test]
async fn a_restored_database_is_named_and_a_rescan_of_all_streams_adopts_it() {
    let (_lent, db) = fresh().await;
    let owned = own(&db).await;
    assert_eq!(hold(&db, "identity_changed").await, None);
    sqlx::query("UPDATE semel.outbox_incarnation SET system_id = 1")
        .execute(db.pool())
        .await
        .unwrap();
    let named = hold(&db, "identity_changed")
        .await
        .expect("it is another cluster");
    assert!(named.advice.contains("semel outbox rescan"), "{named:?}");
    let refused = db.rescan(Some("default"), "ann", "x", false).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::IdentityChanged);
    db.rescan(None, "ann", "a restore", true).await.unwrap();
    assert!(
        hold(&db, "identity_changed").await.is_some(),
        "a dry run changes nothing"
    );
    assert_eq!(
        db.rescan(None, "ann", "a restore", false).await.unwrap().shards,
        1
    );
    assert_eq!(hold(&db, "identity_changed").await, None);
    assert_eq!(db.renew(&[owned.lease], 1_000).await.unwrap(), [false]);
}
