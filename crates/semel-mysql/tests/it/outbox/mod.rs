//! MariaDB obeys the laws of the outbox.

mod adopted;
mod documented;
mod holes;
mod limits;
mod locks;
mod reshard;
mod standing;
mod taken;

use std::sync::Arc;

use async_trait::async_trait;
use semel_core::{Event, StoreError};
use semel_mysql::{Mysql, tx};
use semel_testkit::laws::outbox::{World, Writer};
use sqlx::Transaction;
use uuid::Uuid;

use crate::keys::Lent;

/// Everything that an outbox holds, but for the row that says whose table it is.
const EMPTY: &str = "DELETE FROM semel_outbox WHERE id NOT IN (SELECT row_id FROM semel_outbox_home);
  DELETE FROM semel_outbox_shard; DELETE FROM semel_outbox_relay; DELETE FROM semel_outbox_delayed; DELETE FROM semel_outbox_exception;
  DELETE FROM semel_outbox_desk_log; DELETE FROM semel_outbox_reshard; DELETE FROM semel_outbox_limit;
  DROP TRIGGER IF EXISTS semel_outbox_in_limits; DROP TRIGGER IF EXISTS semel_outbox_delayed_in_limits";

async fn lent() -> (Lent, Mysql) {
    let (lent, db) = Lent::take().await;
    sqlx::raw_sql(EMPTY).execute(db.pool()).await.unwrap();
    (lent, db)
}

/// The laws' world over a database.
fn over(db: &Mysql) -> World {
    let (writers, clock) = (db.clone(), db.clone());
    let begin = move || {
        let db = writers.clone();
        async move {
            let tx = db.begin().await.unwrap();
            Box::new(Tx { db, tx }) as Box<dyn Writer>
        }
    };
    World::new(Arc::new(db.clone()), true, begin, move |ms| {
        let db = clock.clone();
        async move {
            for sql in [
                "UPDATE semel_outbox_shard SET until_us = until_us - ? * 1000",
                "UPDATE semel_outbox_relay SET until_us = until_us - ? * 1000",
                "UPDATE semel_outbox_delayed SET due_us = due_us - ? * 1000",
                "UPDATE semel_outbox_reshard SET hold_until_us = hold_until_us - ? * 1000",
                "UPDATE semel_outbox_limit SET oldest_us = oldest_us - ? * 1000",
            ] {
                sqlx::query(sql).bind(ms).execute(db.pool()).await.unwrap();
            }
        }
    })
}

async fn world() -> (World, Lent) {
    let (lent, db) = lent().await;
    (over(&db), lent)
}

struct Tx {
    db: Mysql,
    tx: Transaction<'static, sqlx::MySql>,
}

#[async_trait]
impl Writer for Tx {
    async fn lock(&mut self, key: &str) {
        tx::lock_key(&mut self.tx, key.as_bytes()).await.unwrap();
    }

    async fn enqueue(&mut self, event: &Event) -> Result<i64, StoreError> {
        tx::enqueue(&mut self.tx, event).await
    }

    async fn enqueue_many(&mut self, events: &[Event]) -> Result<Vec<i64>, StoreError> {
        tx::enqueue_many(&mut self.tx, events).await
    }

    async fn enqueue_new(&mut self, events: &[Event]) -> Result<Vec<Option<i64>>, StoreError> {
        tx::enqueue_new(&mut self.tx, events).await
    }

    async fn enqueue_in(&mut self, event: &Event, ms: i64) -> Result<(), StoreError> {
        let at = self.db.now().await?.plus_ms(ms);
        tx::enqueue_at(&mut self.tx, event, at).await
    }

    async fn enqueue_many_in(&mut self, events: &[(Event, i64)]) -> Result<(), StoreError> {
        let now = self.db.now().await?;
        let at = |(event, ms): &(Event, i64)| (event.clone(), now.plus_ms(*ms));
        tx::enqueue_many_at(&mut self.tx, &events.iter().map(at).collect::<Vec<_>>()).await
    }

    async fn cancel(&mut self, id: Uuid) -> Result<bool, StoreError> {
        tx::cancel_delayed(&mut self.tx, id).await
    }

    async fn commit(self: Box<Self>) {
        self.db.commit(self.tx).await.unwrap();
    }

    async fn rollback(self: Box<Self>) {
        self.tx.rollback().await.unwrap();
    }
}

semel_testkit::outbox_laws!(world());
semel_testkit::delayed_laws!(world());
semel_testkit::outbox_desk_laws!(world());
semel_testkit::reshard_laws!(world());
semel_testkit::limit_laws!(world());
