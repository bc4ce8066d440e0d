//! The SQL of `docs/events.md` for MariaDB and MySQL, as it stands there.

use semel_mysql::Mysql;
use semel_testkit::documents::{Block, blocks};
use sqlx::{AssertSqlSafe, Row as _};

use super::lent;

const PAGE: &str = include_str!("../../../../../docs/events.md");

async fn run(db: &Mysql, block: &Block) {
    sqlx::raw_sql(AssertSqlSafe(block.text.clone()))
        .execute(db.pool())
        .await
        .unwrap_or_else(|error| panic!("{error} in\n{}", block.text));
}

async fn count(db: &Mysql, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(db.pool()).await.unwrap()
}

#[tokio::test]
async fn the_sql_of_the_page_on_events_does_what_it_says() {
    let found = blocks(PAGE, "sql");
    let ours: Vec<&Block> = found
        .iter()
        .filter(|block| block.chapter.contains("MariaDB"))
        .collect();
    let [insert, pass_over, lock] = ours.as_slice() else {
        panic!("a block is not run here: {ours:#?}")
    };
    let (_lent, db) = lent().await;
    sqlx::raw_sql(
        "CREATE OR REPLACE TABLE orders (id VARCHAR(40) PRIMARY KEY, cents BIGINT NOT NULL);
         CREATE OR REPLACE TABLE placed (event_id BINARY(16));
         INSERT INTO placed VALUES (UNHEX(REPEAT('01', 16))), (UNHEX(REPEAT('02', 16)))",
    )
    .execute(db.pool())
    .await
    .unwrap();

    run(&db, insert).await;
    let row = sqlx::query(
        "SELECT type, content_type, data, slot FROM semel_outbox WHERE topic = 'orders' AND `key` = 'order-7'",
    )
    .fetch_one(db.pool())
    .await
    .unwrap();
    let texts = [0, 1].map(|column| row.get::<String, _>(column));
    assert_eq!(texts, ["order.placed", "application/json"]);
    assert_eq!(row.get::<Vec<u8>, _>(2), b"{\"total\": 42}");
    assert_eq!(
        count(
            &db,
            "SELECT COUNT(*) FROM orders WHERE id = 'order-7' AND cents = 4000"
        )
        .await,
        1
    );

    // Twice: the second time all of them are there.
    let passed = "SELECT COUNT(*) FROM semel_outbox o JOIN placed p ON p.event_id = o.event_id";
    for _ in 0..2 {
        run(&db, pass_over).await;
        assert_eq!(count(&db, passed).await, 2);
    }

    // The slot of the key, and the one that the table itself gives its events.
    let mut tx = db.begin().await.unwrap();
    let locked = sqlx::raw_sql(AssertSqlSafe(lock.text.clone()))
        .fetch_all(&mut *tx)
        .await
        .unwrap();
    assert_eq!(locked.len(), 1);
    let numbers = [&locked[0], &row].map(|row| {
        let column = row.len() - 1;
        row.try_get::<i16, _>(column)
            .map(i64::from)
            .or_else(|_| row.try_get::<u16, _>(column).map(i64::from))
            .or_else(|_| row.try_get::<i32, _>(column).map(i64::from))
            .or_else(|_| row.try_get::<i64, _>(column))
            .unwrap()
    });
    assert_eq!(numbers[0], numbers[1]);
    tx.rollback().await.unwrap();
}
