//! What an event costs the business transaction that writes it: beside the same transaction with a row of a plain table.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use semel_core::host::uuid_v7;
use semel_core::{Event, SystemClock};
use semel_postgres::Postgres;
use semel_testkit::servers::postgres;
use sqlx::{Postgres as Driver, Transaction};

use crate::Plan;
use crate::harness::{Table, callers, timed};
use crate::machine::{WITH_POSTGRESQL, with_postgresql};

/// Transactions at once.
const AT_ONCE: usize = 16;
const ACCOUNTS: u32 = 10_000;

/// A plain table of events, and one whose reader can tell a repetition and finds what is new, as Semel's can.
const TABLES: &str = "
CREATE TABLE account (id integer PRIMARY KEY, cents integer NOT NULL);
INSERT INTO account SELECT i, 0 FROM generate_series(0, 9999) i;
CREATE TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event_id uuid NOT NULL, topic text NOT NULL,
  type text NOT NULL, key bytea, content_type text, data bytea, created_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE indexed (LIKE plain INCLUDING ALL, xid xid8 NOT NULL DEFAULT pg_current_xact_id());
CREATE UNIQUE INDEX ON indexed (event_id);
CREATE INDEX ON indexed (xid, id)";

#[derive(Clone, Copy)]
enum To {
    Table(&'static str),
    Outbox,
}

#[derive(Clone)]
struct Bed {
    db: Postgres,
    number: Arc<AtomicU32>,
}

impl Bed {
    async fn write(self, to: To) {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let mut tx = self.db.begin().await.unwrap();
        // Far apart, so that no two of them wait for one another.
        let account = number.wrapping_mul(2_654_435_761) % ACCOUNTS;
        sqlx::query("UPDATE account SET cents = cents + 1 WHERE id = $1")
            .bind(account as i32)
            .execute(&mut *tx)
            .await
            .unwrap();
        let data = format!(r#"{{"order":"{number:012}","note":"{:-<460}"}}"#, "");
        let event = Event::new(uuid_v7(&SystemClock), "orders", "order.placed")
            .with_key(format!("c-{account:05}"))
            .with_data("application/json", data);
        match to {
            To::Table(insert) => plain(&mut tx, insert, &event).await,
            To::Outbox => {
                semel_postgres::tx::enqueue(&mut tx, &event).await.unwrap();
            }
        }
        self.db.commit(tx).await.unwrap();
    }
}

async fn plain(tx: &mut Transaction<'_, Driver>, insert: &'static str, event: &Event) {
    sqlx::query(insert)
        .bind(event.id)
        .bind(&event.topic)
        .bind(&event.kind)
        .bind(event.key.as_deref())
        .bind(event.content_type.as_deref())
        .bind(event.data.as_deref())
        .fetch_one(&mut **tx)
        .await
        .unwrap();
}

pub(super) async fn enqueue(plan: Plan, only: Option<&str>) {
    let db = Postgres::connect(semel_postgres::Config::new(postgres().fresh_database()))
        .await
        .unwrap();
    db.migrate().await.unwrap();
    sqlx::raw_sql(TABLES).execute(db.pool()).await.unwrap();
    let bed = Bed {
        db,
        number: Arc::default(),
    };
    let title = format!("A transaction (UPDATE, one event of 500 bytes) on PostgreSQL, {AT_ONCE} at once");
    let mut table = Table::new(title, "transactions").processors(WITH_POSTGRESQL);
    for (name, to) in [
        (
            "limit: INSERT into a plain table",
            To::Table(
                "INSERT INTO plain (event_id, topic, type, key, content_type, data) VALUES ($1, $2, $3, $4, $5, $6) RETURNING id",
            ),
        ),
        (
            "by hand: a table with the unique id and the index of the reader",
            To::Table(
                "INSERT INTO indexed (event_id, topic, type, key, content_type, data) VALUES ($1, $2, $3, $4, $5, $6) RETURNING id",
            ),
        ),
        ("enqueue", To::Outbox),
    ] {
        let bed = bed.clone();
        table = table.contender(name, move || {
            let bed = bed.clone();
            let run = callers(AT_ONCE, plan.run, move |_| {
                let bed = bed.clone();
                async move {
                    bed.write(to).await;
                    1
                }
            });
            timed(with_postgresql, run)
        });
    }
    table.only(only).measure(plan.rounds).await;
}
