//! Limits of streams where several writers and a relay are at it at once.

use semel_core::OutboxStore as _;
use semel_core::store::{BACKLOG_FULL, StreamLimit};
use semel_postgres::{Postgres, tx};
use semel_testkit::laws::outbox as laws;
use semel_testkit::laws::outbox::event;

use super::{fresh, world_of};

const ROWS: StreamLimit = StreamLimit {
    rows_max: Some(3),
    age_max_ms: None,
};

/// What was measured is old by now.
async fn nobody_measures(db: &Postgres) {
    for table in ["outbox_limit", "outbox_limit_count"] {
        let sql = format!("UPDATE semel.{table} SET measured_at = measured_at - interval '4 s'");
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
            .execute(db.pool())
            .await
            .unwrap();
    }
}

async fn is_refused(db: &Postgres) -> bool {
    let mut own = db.begin().await.unwrap();
    match tx::enqueue(&mut own, &event("k", "x")).await {
        Ok(_) => {
            db.commit(own).await.unwrap();
            false
        }
        Err(error) => {
            assert_eq!(error.code(), BACKLOG_FULL, "{error}");
            true
        }
    }
}

/// A writer that counts is not refused by its own count, so that others know it: also those that cannot count because another
/// one is about to.
#[tokio::test]
async fn a_writers_count_stays_and_refuses_others() {
    let (_lent, db) = fresh().await;
    db.limit_stream("default", ROWS).await.unwrap();
    nobody_measures(&db).await;
    let mut counts = db.begin().await.unwrap();
    tx::enqueue(&mut counts, &event("k", "0")).await.unwrap();
    for _ in 0..5 {
        assert!(!is_refused(&db).await, "what is known is old");
    }
    db.commit(counts).await.unwrap();
    nobody_measures(&db).await;
    let mut counts = db.begin().await.unwrap();
    let two = [event("k", "1"), event("k", "2")];
    tx::enqueue_many(&mut counts, &two).await.unwrap();
    db.commit(counts).await.unwrap();
    assert!(is_refused(&db).await);
    nobody_measures(&db).await;
    let mut holds = db.begin().await.unwrap();
    sqlx::raw_sql("SELECT FROM semel.outbox_limit_count FOR UPDATE")
        .execute(&mut *holds)
        .await
        .unwrap();
    assert!(is_refused(&db).await, "though it cannot count itself");
}

/// A writer that has counted and stays open is in nobody's way: the relay's measure is written and holds.
#[tokio::test]
async fn a_relay_measures_while_a_writer_that_counted_is_open() {
    let (_lent, db) = fresh().await;
    db.limit_stream("default", ROWS).await.unwrap();
    nobody_measures(&db).await;
    let mut counts = db.begin().await.unwrap();
    tx::enqueue(&mut counts, &event("k", "0")).await.unwrap();
    for _ in 0..3 {
        assert!(!is_refused(&db).await);
    }
    assert_eq!(db.measure("default").await.unwrap().unwrap().waiting, 3);
    assert!(is_refused(&db).await, "the relay's measure was not written");
    // What it counted is older than that.
    db.commit(counts).await.unwrap();
    assert!(is_refused(&db).await);
}

#[tokio::test]
async fn the_oldest_event_is_that_of_any_shard() {
    let (lent, db) = fresh().await;
    let (world, _lent) = world_of(lent, &db, &db);
    let run = async |sql: &'static str| {
        sqlx::raw_sql(sql).execute(db.pool()).await.unwrap();
    };
    let age = "UPDATE semel.outbox SET created_at = created_at - interval '1 hour'";
    let clear = "TRUNCATE semel.outbox";
    laws::the_oldest_event_is_that_of_any_shard(&world, async || run(age).await, async || run(clear).await)
        .await;
}
