//! Deleting what is published, among the events of others.

use semel_core::store::OutboxStore as _;
use semel_postgres::tx;

use super::{batch, event, fresh, own, write};

async fn rows(db: &semel_postgres::Postgres) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM semel.outbox WHERE stream = 'default'")
        .fetch_one(db.pool())
        .await
        .unwrap()
}

/// A transaction that was open while later ones were sent and deleted: its row is behind the place where the cleaner goes on,
/// and is deleted all the same.
#[tokio::test]
async fn a_row_that_commits_behind_the_cleaners_place_is_deleted_too() {
    let (_lent, db) = fresh().await;
    let mut owned = own(&db).await;
    let mut slow = db.begin().await.unwrap();
    tx::enqueue(&mut slow, &event("k", "slow")).await.unwrap();
    for n in 0..3 {
        write(&db, &[event("k", &n.to_string())]).await;
        assert_eq!(batch(&db, &mut owned).await.len(), 1);
        assert_eq!(db.clean("default", -1, 10).await.unwrap(), 1);
        assert_eq!(db.clean("default", -1, 10).await.unwrap(), 0);
    }
    db.commit(slow).await.unwrap();
    assert_eq!(batch(&db, &mut owned).await, ["slow"]);
    assert_eq!(db.clean("default", -1, 10).await.unwrap(), 1);
    assert_eq!(rows(&db).await, 0);
}

/// Many rows of a stream that keeps its own for long lie before, between and behind.
#[tokio::test]
async fn rows_among_those_that_another_stream_keeps_are_deleted() {
    let (_lent, db) = fresh().await;
    let mut owned = own(&db).await;
    db.register_stream("long", 1).await.unwrap();
    let kept = "INSERT INTO semel.outbox (topic, type, stream) SELECT 't', 't', 'long' FROM generate_series(1, 25000)";
    for n in 0..2 {
        sqlx::raw_sql(kept).execute(db.pool()).await.unwrap();
        write(&db, &[event("k", &n.to_string()), event("k", "x")]).await;
    }
    assert_eq!(batch(&db, &mut owned).await.len(), 4);
    assert_eq!(db.clean("default", 60_000, 10).await.unwrap(), 0, "all are young");
    assert_eq!(db.clean("default", -1, 3).await.unwrap(), 3);
    assert_eq!(db.clean("default", -1, 3).await.unwrap(), 1);
    assert_eq!(db.clean("default", -1, 3).await.unwrap(), 0);
    assert_eq!(rows(&db).await, 0);
    // From where it is now, the others are not gone over again, and new ones are found.
    write(&db, &[event("k", "new")]).await;
    assert_eq!(db.clean("default", -1, 3).await.unwrap(), 0, "not sent yet");
    assert_eq!(batch(&db, &mut owned).await.len(), 1);
    assert_eq!(db.clean("default", -1, 3).await.unwrap(), 1);
}
