//! SQLite obeys the laws of the outbox.

use std::sync::Arc;

use async_trait::async_trait;
use semel_core::store::{Exception, ExceptionKind, Guarded, PageSize};
use semel_core::{ErrorKind, Event, StoreError};
use semel_sqlite::Sqlite;
use semel_testkit::clock::ManualClock;
use semel_testkit::laws::outbox as laws;
use semel_testkit::laws::outbox::{PAGE, World, Writer, event};
use sqlx::Transaction;
use tempfile::TempDir;
use uuid::Uuid;

async fn world() -> (World, TempDir) {
    let (db, clock, dir) = super::keys::store().await;
    (over(&db, clock), dir)
}

/// The laws' world over one file.
fn over(db: &Sqlite, clock: Arc<ManualClock>) -> World {
    let (writers, aging) = (db.clone(), db.clone());
    let begin = move || {
        let db = writers.clone();
        async move {
            let tx = db.begin().await.unwrap();
            Box::new(Tx { db, tx }) as Box<dyn Writer>
        }
    };
    World::new(Arc::new(db.clone()), false, begin, move |ms| {
        clock.advance_ms(ms);
        let db = aging.clone();
        async move {
            let sql = "UPDATE semel_outbox_limit SET measured_us = measured_us - ?1 * 1000, oldest_us = oldest_us - ?1 * 1000";
            let mut tx = db.begin().await.unwrap();
            sqlx::query(sql).bind(ms).execute(&mut *tx).await.unwrap();
            db.commit(tx).await.unwrap();
        }
    })
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

    async fn enqueue_many(&mut self, events: &[Event]) -> Result<Vec<i64>, StoreError> {
        semel_sqlite::tx::enqueue_many(&mut self.tx, events).await
    }

    async fn enqueue_new(&mut self, events: &[Event]) -> Result<Vec<Option<i64>>, StoreError> {
        semel_sqlite::tx::enqueue_new(&mut self.tx, events).await
    }

    async fn enqueue_in(&mut self, event: &Event, ms: i64) -> Result<(), StoreError> {
        let not_before = self.db.now().plus_ms(ms);
        semel_sqlite::tx::enqueue_at(&mut self.tx, event, not_before).await
    }

    async fn enqueue_many_in(&mut self, events: &[(Event, i64)]) -> Result<(), StoreError> {
        let at = |(event, ms): &(Event, i64)| (event.clone(), self.db.now().plus_ms(*ms));
        let events: Vec<_> = events.iter().map(at).collect();
        semel_sqlite::tx::enqueue_many_at(&mut self.tx, &events).await
    }

    async fn cancel(&mut self, id: Uuid) -> Result<bool, StoreError> {
        semel_sqlite::tx::cancel_delayed(&mut self.tx, id).await
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
semel_testkit::reshard_laws!(world());
semel_testkit::limit_laws!(world());
semel_testkit::counting_laws!(world());
semel_testkit::outbox_desk_laws!(world());

/// wolverine GH-3773: a row that another program wrote wrongly stops nobody, and is listed as it is.
#[tokio::test]
async fn a_row_that_cannot_be_read_is_barred_alone() {
    let (world, dir) = world().await;
    let db = Sqlite::open(semel_sqlite::Config::new(dir.path().join("test.db")))
        .await
        .unwrap();
    let mut tx = db.begin().await.unwrap();
    sqlx::query(
        "INSERT INTO semel_outbox (slot, event_id, topic, type, headers, data, created_at)
         VALUES (1, x'00000000000000000000000000000007', 't', CAST(x'ff' AS TEXT), x'7b7d', x'01', 1)",
    )
    .execute(&mut *tx)
    .await
    .unwrap();
    db.commit(tx).await.unwrap();
    let row = world.write(&[event("k", "good")]).await[0];
    let mut reader = world.reader().await;
    assert!(reader.open().await);
    let size = PageSize {
        rows: 10,
        bytes: 1_000,
    };
    let reply = reader
        .store
        .read_page(reader.lease(), &reader.cursor, 0, size)
        .await
        .unwrap();
    let Guarded::Done(page) = reply else {
        panic!("{reply:?}")
    };
    assert!(
        page.rows[0].barred.as_deref().unwrap().contains("headers"),
        "{page:?}"
    );
    assert_eq!((page.rows[1].row.row, &page.rows[1].barred), (row, &None));
    let mut save = reader.saving(row, true);
    save.exceptions = vec![Exception {
        row: page.rows[0].row.row,
        event_id: page.rows[0].row.event.id,
        kind: ExceptionKind::Skipped,
        attempts: 0,
        reason: "refused".to_owned(),
    }];
    reader.write(&save).await;
    let stored = world.store.exceptions("default", 0, 10).await.unwrap();
    assert_eq!(stored.len(), 1);
    assert!(stored[0].row.barred.is_some());
    assert_eq!(stored[0].row.row.event.data.as_deref(), Some(&[1_u8][..]));
}

/// An id of the writer's choice could lie below the cursor, and its event would never be sent.
#[tokio::test]
async fn an_insert_that_chooses_its_own_id_is_refused() {
    let (world, dir) = world().await;
    let db = Sqlite::open(semel_sqlite::Config::new(dir.path().join("test.db")))
        .await
        .unwrap();
    let insert = |id: &str| {
        format!(
            "INSERT INTO semel_outbox (id, slot, event_id, topic, type, created_at)
             VALUES ({id}, 1, x'00000000000000000000000000000007', 't', 'e', 1)"
        )
    };
    let first = world.write(&[event("k", "1")]).await[0];
    for (id, why) in [
        ("1", "leave the column out"),
        ("1000", "leave the column out"),
        ("0", "leave the column out"),
        ("-2", "leave the column out"),
        ("-1", "CHECK constraint failed"),
    ] {
        let mut tx = db.begin().await.unwrap();
        let error = sqlx::raw_sql(sqlx::AssertSqlSafe(insert(id)))
            .execute(&mut *tx)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{id}: {error}");
        tx.rollback().await.unwrap();
    }
    let mut tx = db.begin().await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(insert("NULL")))
        .execute(&mut *tx)
        .await
        .unwrap();
    db.commit(tx).await.unwrap();
    assert_eq!(world.write(&[event("k", "2")]).await, [first + 2]);
}

/// A table that was emptied and began anew is not taken for a quiet one.
#[tokio::test]
async fn a_table_that_was_replaced_stops_the_relay() {
    let (world, dir) = world().await;
    let mut reader = world.reader().await;
    world.write(&[event("k", "1"), event("k", "2")]).await;
    let last = reader.batch().await[1].row;
    reader.save(last, true).await;
    let db = Sqlite::open(semel_sqlite::Config::new(dir.path().join("test.db")))
        .await
        .unwrap();
    let mut tx = db.begin().await.unwrap();
    for sql in [
        "DELETE FROM semel_outbox",
        "DELETE FROM sqlite_sequence WHERE name = 'semel_outbox'",
    ] {
        sqlx::query(sql).execute(&mut *tx).await.unwrap();
    }
    db.commit(tx).await.unwrap();
    world.write(&[event("k", "3")]).await;
    let error = world
        .store
        .open_batch(reader.lease(), &reader.cursor, false, PAGE)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IdentityChanged);

    // What the error's page says.
    let mut tx = db.begin().await.unwrap();
    sqlx::raw_sql(semel_sqlite::ADOPT_OUTBOX)
        .execute(&mut *tx)
        .await
        .unwrap();
    db.commit(tx).await.unwrap();
    let reply = world.store.load(reader.lease()).await.unwrap();
    let Guarded::Done(cursor) = reply else {
        panic!("{reply:?}")
    };
    reader.cursor = cursor;
    assert_eq!(reader.batch().await.len(), 1);
    // What comes now is above all that was known, for an older event may be parked under its number.
    assert!(world.write(&[event("k", "4")]).await[0] > last);
}

/// An event that has the number of an older parked one is refused by name, not passed over.
#[tokio::test]
async fn an_event_with_the_number_of_an_old_parked_one_is_not_lost() {
    let (world, dir) = world().await;
    let mut reader = world.reader().await;
    world.write(&[event("k", "1"), event("k", "2")]).await;
    let rows = reader.batch().await;
    let parking = |at: usize| {
        let mut save = reader.saving(rows[at].row, at == 1);
        save.exceptions.push(Exception {
            row: rows[at].row,
            event_id: rows[at].event.id,
            kind: ExceptionKind::Parked,
            attempts: 1,
            reason: "no".to_owned(),
        });
        save
    };
    let first = parking(0);
    let Guarded::Done(cursor) = world.store.save_cursor(reader.lease(), &first).await.unwrap() else {
        panic!("not the owner")
    };
    let db = Sqlite::open(semel_sqlite::Config::new(dir.path().join("test.db")))
        .await
        .unwrap();
    let mut tx = db.begin().await.unwrap();
    sqlx::query("UPDATE semel_outbox_exception SET event_id = randomblob(16), id = id + 1")
        .execute(&mut *tx)
        .await
        .unwrap();
    db.commit(tx).await.unwrap();
    let second = semel_core::store::CursorSave {
        from: cursor,
        ..parking(1)
    };
    let error = world
        .store
        .save_cursor(reader.lease(), &second)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IdentityChanged);
    assert!(
        error.to_string().contains(&rows[1].event.id.to_string()),
        "{error}"
    );
    let mut tx = db.begin().await.unwrap();
    sqlx::query("DELETE FROM semel_outbox_exception")
        .execute(&mut *tx)
        .await
        .unwrap();
    db.commit(tx).await.unwrap();
    let done = world.store.save_cursor(reader.lease(), &second).await.unwrap();
    assert!(matches!(done, Guarded::Done(_)));
    assert_eq!(world.store.exceptions("default", 0, 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn the_oldest_event_is_that_of_any_shard() {
    let (db, clock, _dir) = super::keys::store().await;
    let run = async |sql: &'static str| {
        let mut tx = db.begin().await.unwrap();
        sqlx::raw_sql(sql).execute(&mut *tx).await.unwrap();
        db.commit(tx).await.unwrap();
    };
    let age = "UPDATE semel_outbox SET created_at = created_at - 3601000000";
    let clear = "DELETE FROM semel_outbox";
    let world = over(&db, clock);
    laws::the_oldest_event_is_that_of_any_shard(&world, async || run(age).await, async || run(clear).await)
        .await;
}
