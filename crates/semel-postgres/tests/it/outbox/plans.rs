//! The hot statements find their rows by an index, however many rows are kept.

use semel_core::Event;
use semel_core::store::OutboxStore as _;
use semel_postgres::{Postgres, tx};
use sqlx::AssertSqlSafe;

use super::{EMPTY, Lent, batch, event, fresh, own, write};

fn some(n: usize) -> Vec<Event> {
    (0..n)
        .map(|n| event(&format!("k{}", n % 10), &n.to_string()))
        .collect()
}

/// sequin#465: a transaction with many events is read by pages; one with smaller numbers that commits later is found,
/// and found by its transaction alone.
#[tokio::test]
async fn large_and_small_batches_are_whole_whatever_their_numbers() {
    let (_lent, db) = fresh().await;
    let mut owned = own(&db).await;
    write(&db, &some(1)).await;
    assert_eq!(batch(&db, &mut owned).await.len(), 1);
    let mut slow = db.begin().await.unwrap();
    tx::enqueue_many(&mut slow, &some(2)).await.unwrap();
    let many = some(3_500);
    write(&db, &many).await;
    assert_eq!(
        batch(&db, &mut owned).await,
        (0..3_500).map(|n| n.to_string()).collect::<Vec<_>>()
    );
    let mut slower = db.begin().await.unwrap();
    tx::enqueue_many(&mut slower, &[event("s", "slower")])
        .await
        .unwrap();
    write(&db, &some(2_000)).await;
    db.commit(slow).await.unwrap();
    let texts = batch(&db, &mut owned).await;
    assert_eq!(
        (texts.len(), &texts[..3]),
        (2_002, &["0".to_owned(), "1".to_owned(), "0".to_owned()][..])
    );
    write(&db, &[event("k", "last")]).await;
    db.commit(slower).await.unwrap();
    assert_eq!(batch(&db, &mut owned).await, ["slower", "last"]);
}

/// As the connections of these statements are set, and the plan that a prepared statement ends up with.
const SETTINGS: &str = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL plan_cache_mode = force_generic_plan";

/// The statements themselves, under the plan that a prepared statement ends up with. Statistics know nothing of the
/// newest transactions, and here they say that each transaction has half of all rows.
#[tokio::test]
async fn no_hot_statement_reads_the_whole_table() {
    let (_lent, db) = fresh().await;
    reads_by_index(&db, ["outbox_xid", "outbox_pkey"], "Seq Scan on outbox ").await;
}

/// Nor any partition of it.
#[tokio::test]
async fn no_hot_statement_reads_a_whole_partition() {
    let (_lent, db) = Lent::take_parted().await;
    sqlx::raw_sql(EMPTY).execute(db.pool()).await.unwrap();
    reads_by_index(&db, ["_xid_id_idx", "_id_idx"], "Seq Scan on outbox_2").await;
}

async fn reads_by_index(db: &Postgres, [xid, id]: [&'static str; 2], whole: &str) {
    own(db).await;
    sqlx::raw_sql(
        "INSERT INTO semel.outbox (topic, type, key, data)
           SELECT 'orders', 'placed', int4send(n % 100), 'x' FROM generate_series(1, 30000) n;
         ANALYZE semel.outbox",
    )
    .execute(db.pool())
    .await
    .unwrap();
    let mut open = db.begin().await.unwrap();
    tx::enqueue_many(&mut open, &some(3)).await.unwrap();
    write(db, &some(1)).await;
    let snapshot = "SELECT pg_current_snapshot()::text";
    let prev: String = sqlx::query_scalar(snapshot).fetch_one(db.pool()).await.unwrap();
    assert!(!prev.ends_with(':'), "a transaction is open in it: {prev}");
    db.commit(open).await.unwrap();
    let cur: String = sqlx::query_scalar(snapshot).fetch_one(db.pool()).await.unwrap();
    let page = format!("'default', 0, 1, '\\x00', 1, '{prev}', '{cur}', 0, 4095, 29000, 500, 1000000");
    for (what, types, sql, arguments, indexes) in [
        (
            "look",
            "text, text, int, int, bigint, int, float8",
            include_str!("../../../src/sql/outbox_look.sql"),
            format!("'{prev}', 'default', 0, 4095, 1000, 0, 20000"),
            [xid, xid],
        ),
        (
            "look for all",
            "text[], int[], int[], int[], text[], bigint[]",
            include_str!("../../../src/sql/outbox_worth.sql"),
            format!("'{{default}}', '{{0}}', '{{0}}', '{{4095}}', ARRAY['{prev}'], '{{0}}'"),
            [xid, xid],
        ),
        (
            "first",
            "text, text",
            include_str!("../../../src/sql/outbox_first.sql"),
            format!("'{prev}', '{cur}'"),
            [xid, xid],
        ),
        (
            "small page",
            "text, int, bigint, bytea, bigint, text, text, int, int, bigint, bigint, bigint",
            include_str!("../../../src/sql/outbox_small_page.sql"),
            page.clone(),
            [xid, xid],
        ),
        (
            "page",
            "text, int, bigint, bytea, bigint, text, text, int, int, bigint, bigint, bigint",
            include_str!("../../../src/sql/outbox_page.sql"),
            page,
            [id, "outbox_shard_pkey"],
        ),
    ] {
        let mut tx = db.begin().await.unwrap();
        let prepare = format!("{SETTINGS}; PREPARE s ({types}) AS {sql}");
        sqlx::raw_sql(AssertSqlSafe(prepare))
            .execute(&mut *tx)
            .await
            .unwrap();
        let explain = format!("EXPLAIN EXECUTE s ({arguments})");
        let lines: Vec<String> = sqlx::query_scalar(AssertSqlSafe(explain))
            .fetch_all(&mut *tx)
            .await
            .unwrap();
        sqlx::raw_sql("DEALLOCATE s").execute(&mut *tx).await.unwrap();
        tx.rollback().await.unwrap();
        let plan = lines.join("\n");
        assert!(!plan.contains(whole), "{what}:\n{plan}");
        // A page walks in the order of ids and stops; it never gathers the rest of its batch to sort it.
        // (Of partitions it merges the walks.)
        let sorts = |pair: &[String]| pair[0].contains("Sort  (") && pair[1].contains("Sort Key: o.id");
        assert!(what != "page" || !lines.windows(2).any(sorts), "{plan}");
        let used = plan.matches(indexes[0]).count() + plan.matches(indexes[1]).count();
        assert!(used >= 2, "{what}:\n{plan}");
    }
    assert_eq!(db.clean("default", 400 * 86_400_000, 10).await.unwrap(), 0);
}
