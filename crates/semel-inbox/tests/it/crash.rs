//! A receiver that dies at each named point, over SQLite and PostgreSQL: the redelivery finishes what it began, once.

use http::HeaderMap;
use semel_core::Scope;
use semel_inbox::{Delivery, Received, receive};
use semel_postgres::Postgres;
use semel_sqlite::Sqlite;
use semel_testkit::crash::{self, Run};
use semel_testkit::servers::postgres;

const TEST: &str = "crash::a_receiver_that_dies_at_any_point_ships_each_parcel_once";

/// Point, and what the redelivery is taken for.
const CASES: [(&str, Received<()>); 3] = [
    ("inbox.marked", Received::New(())),
    ("inbox.before_commit", Received::New(())),
    ("inbox.committed", Received::Duplicate),
];

#[tokio::test]
async fn a_receiver_that_dies_at_any_point_ships_each_parcel_once() {
    if let Some(store) = crash::role("receiver") {
        ship(&store).await;
        return;
    }
    for (point, redelivery) in CASES {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("shipping.db").display().to_string();
        let database = postgres().fresh_database();
        for store in [file, database] {
            let end = Run::test(TEST, "receiver", &store).at(point).run();
            assert!(end.crashed(), "{point}: {end:?}");
            assert_eq!(ship(&store).await.0, redelivery, "{point}: {store}");
            assert_eq!(ship(&store).await, (Received::Duplicate, 1), "{point}: {store}");
        }
    }
}

/// Takes the one delivery of this test; what it was taken for, and the parcels there are afterwards.
async fn ship(store: &str) -> (Received<()>, i64) {
    let scope = Scope::new("shipping").unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("idempotency-key", "delivery-7".parse().unwrap());
    let delivery = Delivery::from_parts(headers, "a parcel".into()).unwrap();
    let table = "CREATE TABLE IF NOT EXISTS parcel (label integer)";
    let insert = "INSERT INTO parcel VALUES (7)";
    let count = "SELECT count(*) FROM parcel";
    if store.starts_with("postgres:") {
        let db = Postgres::connect(semel_postgres::Config::new(store))
            .await
            .unwrap();
        db.migrate().await.unwrap();
        sqlx::query(table).execute(db.pool()).await.unwrap();
        let received = receive(&db, &scope, &delivery, async |tx, _| {
            let done = sqlx::query(insert).execute(tx.conn()).await;
            done.map_err(|error| semel_postgres::classify("ship", error))?;
            Ok(())
        });
        let received = received.await.unwrap();
        (
            received,
            sqlx::query_scalar(count).fetch_one(db.pool()).await.unwrap(),
        )
    } else {
        let db = Sqlite::open(semel_sqlite::Config::new(store)).await.unwrap();
        db.migrate().await.unwrap();
        let mut tx = db.begin().await.unwrap();
        sqlx::query(table).execute(&mut *tx).await.unwrap();
        db.commit(tx).await.unwrap();
        let received = receive(&db, &scope, &delivery, async |tx, _| {
            let done = sqlx::query(insert).execute(tx.conn()).await;
            done.map_err(|error| semel_sqlite::classify("ship", error))?;
            Ok(())
        });
        let received = received.await.unwrap();
        (
            received,
            sqlx::query_scalar(count).fetch_one(db.readers()).await.unwrap(),
        )
    }
}
