//! The SQL of `docs/events.md` for PostgreSQL, as it stands there.

use semel_postgres::{Config, Postgres};
use semel_testkit::documents::{Block, blocks};
use semel_testkit::servers::postgres;
use sqlx::AssertSqlSafe;

const PAGE: &str = include_str!("../../../../../docs/events.md");

async fn run(db: &Postgres, block: &Block) {
    sqlx::raw_sql(AssertSqlSafe(block.text.clone()))
        .execute(db.pool())
        .await
        .unwrap_or_else(|error| panic!("{error} in\n{}", block.text));
}

type Row = (String, String, Option<Vec<u8>>, Option<String>, Option<Vec<u8>>);

async fn written(db: &Postgres) -> Vec<Row> {
    sqlx::query_as("SELECT topic, type, key, content_type, data FROM semel.outbox ORDER BY id")
        .fetch_all(db.pool())
        .await
        .unwrap()
}

#[tokio::test]
async fn the_sql_of_the_page_on_events_does_what_it_says() {
    let found = blocks(PAGE, "sql");
    let ours: Vec<&Block> = found
        .iter()
        .filter(|block| !block.chapter.contains("MariaDB"))
        .collect();
    let [one, many, later] = ours.as_slice() else {
        panic!("a block is not run here: {ours:#?}")
    };
    let db = Postgres::connect(Config::new(postgres().fresh_database()))
        .await
        .unwrap();
    db.migrate().await.unwrap();
    sqlx::raw_sql("CREATE TABLE orders (id text PRIMARY KEY, cents bigint NOT NULL)")
        .execute(db.pool())
        .await
        .unwrap();

    run(&db, one).await;
    let row = |kind: &str, key: &[u8], content_type: Option<&str>, data: Option<&[u8]>| -> Row {
        (
            "orders".to_owned(),
            kind.to_owned(),
            Some(key.to_vec()),
            content_type.map(ToOwned::to_owned),
            data.map(<[u8]>::to_vec),
        )
    };
    let json = Some("application/json");
    let placed = |key: &[u8], data: &[u8]| row("order.placed", key, json, Some(data));
    assert_eq!(written(&db).await, [placed(b"order-7", b"{\"total\": 42}")]);
    let orders: i64 = sqlx::query_scalar("SELECT count(*) FROM orders WHERE id = 'order-7' AND cents = 4000")
        .fetch_one(db.pool())
        .await
        .unwrap();
    assert_eq!(orders, 1, "in the transaction of its effect");

    run(&db, many).await;
    assert_eq!(
        written(&db).await[1..],
        [
            placed(b"order-7", b"{\"total\": 42}"),
            placed(b"order-8", b"{\"total\": 7}"),
            row("order.placed", b"order-9", None, Some(b"{\"total\": 1}")),
            row("order.voided", b"\x00\xff", None, Some(b"\xff\x00")),
        ]
    );

    // The one that the page takes back: it still waits.
    let cancelled = later.text.split('\'').find(|text| text.len() == 36).unwrap();
    let waits = format!(
        "SELECT semel.enqueue('orders', 'to be cancelled', event_id => '{cancelled}', not_before => now() + interval '1 hour')"
    );
    sqlx::raw_sql(AssertSqlSafe(waits))
        .execute(db.pool())
        .await
        .unwrap();
    run(&db, later).await;
    let waiting: Vec<(String, Vec<u8>, bool)> = sqlx::query_as(
        "SELECT type, key, due - clock_timestamp() BETWEEN interval '14 minutes' AND interval '15 minutes' FROM semel.outbox_delayed",
    )
    .fetch_all(db.pool())
    .await
    .unwrap();
    assert_eq!(waiting, [("order.unpaid".to_owned(), b"order-7".to_vec(), true)]);
}
