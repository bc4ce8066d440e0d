//! Out of MariaDB, into a sink that takes everything at once: what reading costs.
//!
//! The limit reads events by `id > last` and remembers nothing; it would lose rows. The other contender is the usual
//! worker: `FOR UPDATE SKIP LOCKED`, then `DELETE`.

use std::sync::Arc;
use std::time::Instant;

use semel_mysql::{Config, Mysql};
use semel_testkit::servers::mariadb;
use sqlx::{AssertSqlSafe, Row as _};

use super::{Everything, events, relay};
use crate::Plan;
use crate::harness::{Sample, Table};

/// Rows of a page.
const PAGE: usize = 1_000;
const EVENT: &str =
    "id, stream, event_id, topic, type, source, `key`, content_type, headers, data, traceparent, created_at";

pub(super) async fn mariadb_to_nowhere(plan: Plan) {
    Table::new("MariaDB to a sink that takes everything at once", "rows")
        .contender("limit: pages by id > last, which loses rows", || bare(plan.rows))
        .contender("FOR UPDATE SKIP LOCKED, DELETE, COMMIT by the page", || {
            claiming(plan.rows)
        })
        .contender("relay", || relayed(plan.rows, false))
        .contender(
            "relay, beside an open transaction with an event and an old snapshot",
            || relayed(plan.rows, true),
        )
        .measure(plan.rounds)
        .await;
}

/// A database with that many events.
async fn filled(rows: u32) -> Mysql {
    let store = Mysql::connect(Config::new(mariadb().fresh_database()))
        .await
        .unwrap();
    store.migrate().await.unwrap();
    for events in events(rows, "orders").chunks(10_000) {
        let mut tx = store.begin().await.unwrap();
        semel_mysql::tx::enqueue_many(&mut tx, events).await.unwrap();
        store.commit(tx).await.unwrap();
    }
    store
}

async fn relayed(rows: u32, held: bool) -> Sample {
    let store = filled(rows).await;
    let mut open = store.begin().await.unwrap();
    if held {
        sqlx::raw_sql(
            "ROLLBACK; SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION WITH CONSISTENT SNAPSHOT;
             INSERT INTO semel_outbox (topic, type) VALUES ('orders', 'held')",
        )
        .execute(&mut *open)
        .await
        .unwrap();
    }
    let sample = relay(
        Arc::new(store),
        Everything,
        rows,
        semel_outbox::RelayConfig::default(),
    )
    .await;
    open.rollback().await.unwrap();
    sample
}

async fn bare(rows: u32) -> Sample {
    let store = filled(rows).await;
    let begun = Instant::now();
    let (mut last, mut done) = (0_i64, 0);
    while done < u64::from(rows) {
        let sql = format!(
            "SELECT {EVENT} FROM semel_outbox WHERE id > ? AND stream = 'default' ORDER BY id LIMIT {PAGE}"
        );
        let page = sqlx::query(AssertSqlSafe(sql))
            .bind(last)
            .fetch_all(store.pool())
            .await
            .unwrap();
        for row in &page {
            last = row.get_unchecked(0);
            std::hint::black_box(row.get_unchecked::<Vec<u8>, _>("data"));
        }
        done += page.len() as u64;
    }
    sample(rows, begun)
}

async fn claiming(rows: u32) -> Sample {
    let store = filled(rows).await;
    let begun = Instant::now();
    let mut done = 0;
    while done < u64::from(rows) {
        let mut tx = store.pool().begin().await.unwrap();
        let sql = format!(
            "SELECT {EVENT} FROM semel_outbox WHERE stream = 'default' ORDER BY id LIMIT {PAGE} FOR UPDATE SKIP LOCKED"
        );
        let page = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut *tx).await.unwrap();
        let ids: Vec<String> = page
            .iter()
            .map(|row| row.get_unchecked::<i64, _>(0).to_string())
            .collect();
        let sql = format!("DELETE FROM semel_outbox WHERE id IN ({})", ids.join(","));
        sqlx::query(AssertSqlSafe(sql))
            .persistent(false)
            .execute(&mut *tx)
            .await
            .unwrap();
        tx.commit().await.unwrap();
        done += page.len() as u64;
    }
    sample(rows, begun)
}

fn sample(rows: u32, begun: Instant) -> Sample {
    Sample {
        done: u64::from(rows),
        elapsed: begun.elapsed(),
        ..Sample::default()
    }
}
