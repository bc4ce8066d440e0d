//! SQLite obeys the laws of the outbox.

use std::sync::Arc;

use async_trait::async_trait;
use semel_core::{Event, StoreError};
use semel_sqlite::Sqlite;
use semel_testkit::laws::outbox::{World, Writer};
use sqlx::Transaction;
use tempfile::TempDir;

async fn world() -> (World, TempDir) {
    let (db, clock, dir) = super::keys::store().await;
    let writers = db.clone();
    let begin = move || {
        let db = writers.clone();
        async move {
            let tx = db.begin().await.unwrap();
            Box::new(Tx { db, tx }) as Box<dyn Writer>
        }
    };
    let world = World::new(Arc::new(db), false, begin, move |ms| {
        clock.advance_ms(ms);
        std::future::ready(())
    });
    (world, dir)
}

struct Tx {
    db: Sqlite,
    tx: Transaction<'static, sqlx::Sqlite>,
}

#[async_trait]
impl Writer for Tx {
    async fn lock(&mut self, _: &str) {}

    async fn enqueue(&mut self, event: &Event) -> Result<i64, StoreError> {
        semel_sqlite::tx::enqueue(&mut self.tx, event).await
    }

    async fn commit(self: Box<Self>) {
        self.db.commit(self.tx).await.unwrap();
    }

    async fn rollback(self: Box<Self>) {
        self.tx.rollback().await.unwrap();
    }
}

semel_testkit::outbox_laws!(world());
