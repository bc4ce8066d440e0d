//! PostgreSQL obeys the laws of the outbox, and what only PostgreSQL can get wrong.

mod backlog;
mod clean;
mod documented;
mod functions;
mod limits;
mod partition_change;
mod partitions;
mod plans;
mod pooler;
mod standby;
mod standing;

use std::sync::Arc;

use async_trait::async_trait;
use semel_core::host::{random_16, uuid_v7};
use semel_core::relay::{Cursor, OwnedShard};
use semel_core::store::{Acquire, CursorSave, Exception, ExceptionKind, Guarded, Opening, PageSize};
use semel_core::{Clock as _, ErrorKind, Event, Nonce, OutboxStore as _, StoreError, SystemClock};
use semel_postgres::{Config, Postgres, tx};
use semel_testkit::laws::outbox::{PAGE, World, Writer};
use semel_testkit::servers::PostgresServer;
use sqlx::Transaction;
use uuid::Uuid;

use crate::keys::Lent;

const EMPTY: &str = "TRUNCATE semel.outbox, semel.outbox_delayed, semel.outbox_reshard, semel.outbox_shard, semel.outbox_relay,
     semel.outbox_exception, semel.outbox_desk_log, semel.outbox_limit,
     semel.outbox_limit_count; SELECT semel.outbox_limits_apply()";

async fn fresh() -> (Lent, Postgres) {
    let (lent, db) = Lent::take().await;
    sqlx::raw_sql(EMPTY).execute(db.pool()).await.unwrap();
    (lent, db)
}

async fn world() -> (World, Lent) {
    let (lent, db) = fresh().await;
    world_of(lent, &db, &db)
}

/// The laws' world over one way to the database, aged by another.
fn world_of(lent: Lent, db: &Postgres, direct: &Postgres) -> (World, Lent) {
    let (db, writers, aging) = (db.clone(), db.clone(), direct.clone());
    let begin = move || {
        let db = writers.clone();
        async move {
            let tx = db.begin().await.unwrap();
            Box::new(Tx { db, tx }) as Box<dyn Writer>
        }
    };
    let pass = move |ms: i64| {
        let db = aging.clone();
        async move {
            for sql in [
                "UPDATE semel.outbox_shard SET until = until - $1 * interval '1 ms'",
                "UPDATE semel.outbox_relay SET until = until - $1 * interval '1 ms'",
                "UPDATE semel.outbox_delayed SET due = due - $1 * interval '1 ms'",
                "UPDATE semel.outbox_limit SET measured_at = measured_at - $1 * interval '1 ms',
                   oldest_at = oldest_at - $1 * interval '1 ms'",
                "UPDATE semel.outbox_limit_count SET measured_at = measured_at - $1 * interval '1 ms',
                   oldest_at = oldest_at - $1 * interval '1 ms'",
                "UPDATE semel.outbox_reshard SET hold_until = hold_until - $1 * interval '1 ms'",
            ] {
                sqlx::query(sql).bind(ms as f64).execute(db.pool()).await.unwrap();
            }
        }
    };
    (World::new(Arc::new(db), true, begin, pass), lent)
}

struct Tx {
    db: Postgres,
    tx: Transaction<'static, sqlx::Postgres>,
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
        tx::enqueue_at(&mut self.tx, event, SystemClock.now().plus_ms(ms)).await
    }

    async fn enqueue_many_in(&mut self, events: &[(Event, i64)]) -> Result<(), StoreError> {
        let at = |(event, ms): &(Event, i64)| (event.clone(), SystemClock.now().plus_ms(*ms));
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

/// The same over an outbox in partitions.
async fn parted_world() -> (World, Lent) {
    let (lent, db) = Lent::take_parted().await;
    sqlx::raw_sql(EMPTY).execute(db.pool()).await.unwrap();
    world_of(lent, &db, &db)
}

mod laws_in_partitions {
    semel_testkit::outbox_laws!(super::parted_world());
    semel_testkit::delayed_laws!(super::parted_world());
    semel_testkit::reshard_laws!(super::parted_world());
    semel_testkit::outbox_desk_laws!(super::parted_world());
}

mod laws {
    semel_testkit::outbox_laws!(super::world());
    semel_testkit::delayed_laws!(super::world());
    semel_testkit::reshard_laws!(super::world());
    semel_testkit::limit_laws!(super::world());
    semel_testkit::counting_laws!(super::world());
    semel_testkit::outbox_desk_laws!(super::world());
}

fn event(key: &str, text: &str) -> Event {
    Event::new(uuid_v7(&SystemClock), "orders", "placed")
        .with_key(key.as_bytes().to_vec())
        .with_data("text/plain", text.as_bytes().to_vec())
}

async fn write(db: &Postgres, events: &[Event]) -> Vec<i64> {
    let mut tx = db.begin().await.unwrap();
    let rows = tx::enqueue_many(&mut tx, events).await.unwrap();
    db.commit(tx).await.unwrap();
    rows
}

async fn own(db: &Postgres) -> OwnedShard {
    db.register_stream("default", 1).await.unwrap();
    let nonce = Nonce(random_16());
    let wish = Acquire {
        stream: "default".to_owned(),
        max: 1,
        owner: "test".to_owned(),
        nonce,
        relay: nonce,
        lease_ms: 60_000,
    };
    db.acquire(&wish).await.unwrap().pop().unwrap()
}

/// Opens a batch and reads it to its end; finishes it.
async fn batch(db: &Postgres, owned: &mut OwnedShard) -> Vec<String> {
    let opening = db
        .open_batch(&owned.lease, &owned.cursor, false, PAGE)
        .await
        .unwrap();
    let Guarded::Done(Opening::Opened(cursor, _)) = opening else {
        return Vec::new();
    };
    let texts = rest(db, owned, &cursor).await;
    let save = CursorSave {
        from: cursor,
        last_id: i64::MAX,
        finished: true,
        suspect: None,
        exceptions: Vec::new(),
        log: None,
    };
    let Guarded::Done(cursor) = db.save_cursor(&owned.lease, &save).await.unwrap() else {
        panic!("not the owner")
    };
    owned.cursor = cursor;
    texts
}

async fn rest(db: &Postgres, owned: &OwnedShard, cursor: &Cursor) -> Vec<String> {
    let (mut texts, mut after) = (Vec::new(), cursor.last_id);
    loop {
        let size = PageSize {
            rows: 500,
            bytes: 1 << 20,
        };
        let Guarded::Done(page) = db.read_page(&owned.lease, cursor, after, size).await.unwrap() else {
            panic!("not the owner")
        };
        for row in &page.rows {
            assert_eq!(row.barred, None);
            assert!(row.row.row > after, "out of order");
            after = row.row.row;
            let data = row.row.event.data.clone().unwrap_or_default();
            texts.push(String::from_utf8(data.to_vec()).unwrap());
        }
        if !page.more {
            return texts;
        }
    }
}

/// Somebody's open transaction, on the outbox or not, stalls nobody: neither a writer that is idle nor one that only
/// holds row locks elsewhere.
#[tokio::test]
async fn an_idle_transaction_with_an_xid_stalls_nobody() {
    let (_lent, db) = fresh().await;
    sqlx::raw_sql("CREATE TABLE IF NOT EXISTS other (n int); INSERT INTO other VALUES (1)")
        .execute(db.pool())
        .await
        .unwrap();
    let mut owned = own(&db).await;
    let mut idle = db.begin().await.unwrap();
    sqlx::query("SELECT n FROM other FOR UPDATE")
        .execute(&mut *idle)
        .await
        .unwrap();
    for n in 0..3 {
        write(&db, &[event("k", &n.to_string())]).await;
        assert_eq!(batch(&db, &mut owned).await, [n.to_string()]);
    }
    idle.rollback().await.unwrap();
    assert!(batch(&db, &mut owned).await.is_empty());
}

/// Rows of a released savepoint carry their transaction's id; rows of one rolled back are never seen.
#[tokio::test]
async fn savepoints_are_seen_or_not_like_their_transaction() {
    let (_lent, db) = fresh().await;
    let mut owned = own(&db).await;
    let mut tx = db.begin().await.unwrap();
    for (name, keep) in [("a", true), ("b", false), ("c", true)] {
        sqlx::raw_sql("SAVEPOINT s").execute(&mut *tx).await.unwrap();
        tx::enqueue(&mut tx, &event("k", name)).await.unwrap();
        let end = if keep { "RELEASE s" } else { "ROLLBACK TO s" };
        sqlx::raw_sql(end).execute(&mut *tx).await.unwrap();
    }
    assert!(batch(&db, &mut owned).await.is_empty(), "not committed yet");
    db.commit(tx).await.unwrap();
    assert_eq!(batch(&db, &mut owned).await, ["a", "c"]);
}

/// What could never be sent is refused in SQL too, and the constraint's name says the limit.
#[tokio::test]
async fn sql_refuses_what_can_never_be_sent() {
    let (_lent, db) = fresh().await;
    for (sql, limit) in [
        ("SELECT semel.enqueue('a b', 't')", "topic_is_1_to_249"),
        ("SELECT semel.enqueue('..', 't')", "topic_is_1_to_249"),
        ("SELECT semel.enqueue('t', '')", "type_is_1_to_255_bytes"),
        (
            "SELECT semel.enqueue('t', 't', data => convert_to(repeat('x', 900001), 'UTF8'))",
            "900000_bytes",
        ),
        (
            "SELECT semel.enqueue('t', 't', key => '')",
            "key_is_1_to_1024_bytes",
        ),
        (
            "SELECT semel.enqueue('t', 't', content_type => E'a\\r\\nb')",
            "without_control_characters",
        ),
        (
            "INSERT INTO semel.outbox (topic, type, xid) VALUES ('t', 't', '3')",
            "leave the column out",
        ),
        (
            "INSERT INTO semel.outbox (topic, type, slot) VALUES ('t', 't', 3)",
            "slot",
        ),
        (
            "INSERT INTO semel.outbox (topic, type, created_at) VALUES ('t', 't', 'infinity')",
            "created_at_is_of_the_years_1970_to_9999",
        ),
        (
            "INSERT INTO semel.outbox (topic, type, created_at) VALUES ('t', 't', '-infinity')",
            "created_at_is_of_the_years_1970_to_9999",
        ),
    ] {
        let error = sqlx::raw_sql(sql)
            .execute(db.pool())
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(limit), "{sql}: {error}");
    }
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM semel.outbox")
        .fetch_one(db.pool())
        .await
        .unwrap();
    assert_eq!(rows, 0);
}

/// A time beyond all bounds, in a table that has lost its checks, stops nobody: neither pages, nor exceptions, nor
/// the backlog fail.
#[tokio::test]
async fn a_row_written_at_an_impossible_time_is_read_like_any_other() {
    let server = semel_testkit::servers::postgres();
    let db = Postgres::connect(Config::new(server.fresh_database()))
        .await
        .unwrap();
    db.migrate().await.unwrap();
    let unchecked = "CREATE OR REPLACE FUNCTION semel.outbox_row() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN NEW.slot := 0; RETURN NEW; END $$";
    sqlx::raw_sql(unchecked).execute(db.pool()).await.unwrap();
    let mut owned = own(&db).await;
    for time in ["infinity", "-infinity", "4713-01-01 BC", "294276-12-31"] {
        sqlx::query(
            "INSERT INTO semel.outbox (topic, type, data, created_at) VALUES ('t', 't', $1, $2::text::timestamptz)",
        )
        .bind(time.as_bytes())
        .bind(time)
        .execute(db.pool())
        .await
        .unwrap();
    }
    db.backlog().await.unwrap();
    let Guarded::Done(Opening::Opened(cursor, _)) = db
        .open_batch(&owned.lease, &owned.cursor, false, PAGE)
        .await
        .unwrap()
    else {
        panic!("four rows are there")
    };
    assert_eq!(rest(&db, &owned, &cursor).await.len(), 4);
    let save = CursorSave {
        last_id: 1,
        finished: false,
        suspect: None,
        exceptions: vec![Exception {
            row: 1,
            event_id: uuid_v7(&SystemClock),
            kind: ExceptionKind::Skipped,
            attempts: 1,
            reason: "refused".to_owned(),
        }],
        log: None,
        from: cursor,
    };
    let Guarded::Done(cursor) = db.save_cursor(&owned.lease, &save).await.unwrap() else {
        panic!("mine")
    };
    owned.cursor = cursor;
    let stored = db.exceptions("default", 0, 10).await.unwrap();
    assert!(stored[0].row.row.created_at.rfc3339().starts_with("9999-12-31"));
}

/// Rule O9: on another cluster transaction ids mean nothing. The relay stops; after the documented step every row still
/// kept goes out again, in order.
#[tokio::test]
async fn another_cluster_stops_the_relay_until_it_is_adopted() {
    let (_lent, db) = fresh().await;
    let mut owned = own(&db).await;
    let events: Vec<Event> = (0..5).map(|n| event("k", &n.to_string())).collect();
    write(&db, &events).await;
    assert_eq!(batch(&db, &mut owned).await.len(), 5);
    write(&db, &[event("k", "5")]).await;
    sqlx::raw_sql("UPDATE semel.outbox_incarnation SET system_id = 1")
        .execute(db.pool())
        .await
        .unwrap();
    let error = db
        .open_batch(&owned.lease, &owned.cursor, false, PAGE)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IdentityChanged);
    assert!(error.to_string().contains("semel.adopt_outbox()"), "{error}");

    assert_eq!(
        db.clean("default", -1, 100).await.unwrap(),
        0,
        "what is settled cannot be told here"
    );

    let adopted: i64 = sqlx::query_scalar("SELECT semel.adopt_outbox()")
        .fetch_one(db.pool())
        .await
        .unwrap();
    assert_eq!(adopted, 6);
    assert_eq!(
        db.load(&owned.lease).await.unwrap(),
        Guarded::Lost,
        "whoever owned it before must not go on"
    );
    let mut owned = own(&db).await;
    assert_eq!(batch(&db, &mut owned).await, ["0", "1", "2", "3", "4", "5"]);
}

/// Rule O3's cousin: a cursor from a later time than the server has reached (a storage-level restore).
#[tokio::test]
async fn a_cursor_from_the_future_stops_the_relay() {
    let (_lent, db) = fresh().await;
    let owned = own(&db).await;
    sqlx::raw_sql("UPDATE semel.outbox_shard SET prev = '9000000000:9000000000:'")
        .execute(db.pool())
        .await
        .unwrap();
    let Guarded::Done(cursor) = db.load(&owned.lease).await.unwrap() else {
        panic!("mine")
    };
    let error = db
        .open_batch(&owned.lease, &cursor, false, PAGE)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IdentityChanged);
}

/// Rules O2 and K7: rows committed with `synchronous_commit = off` are sent only when they are durable. Whatever a
/// batch held before the server was killed is still there afterwards, and everything comes exactly once per cursor.
#[tokio::test(flavor = "multi_thread")]
async fn after_kill_9_of_the_server_nothing_sent_was_a_phantom_and_nothing_is_lost() {
    let mut server = tokio::task::spawn_blocking(PostgresServer::start).await.unwrap();
    let url = server.fresh_database();
    let db = Postgres::connect(Config::new(&url)).await.unwrap();
    db.migrate().await.unwrap();
    let mut owned = own(&db).await;
    let mut sent = Vec::new();
    for round in 0..5 {
        let mut tx = db.begin().await.unwrap();
        sqlx::raw_sql("SET LOCAL synchronous_commit = off")
            .execute(&mut *tx)
            .await
            .unwrap();
        let events: Vec<Event> = (0..10).map(|n| event("k", &format!("{round}.{n}"))).collect();
        tx::enqueue_many(&mut tx, &events).await.unwrap();
        tx.commit().await.unwrap();
        // The batch is open, so it may be sent; the cursor is not finished yet.
        let opening = db
            .open_batch(&owned.lease, &owned.cursor, false, PAGE)
            .await
            .unwrap();
        let Guarded::Done(Opening::Opened(cursor, _)) = opening else {
            panic!("rows are there")
        };
        sent = rest(&db, &owned, &cursor).await;
        owned.cursor = cursor;
    }
    assert_eq!(sent.len(), 10);
    server.kill();
    db.close().await;
    let server = tokio::task::spawn_blocking(move || {
        server.restart();
        server
    })
    .await
    .unwrap();

    let db = Postgres::connect(Config::new(&url)).await.unwrap();
    let Guarded::Done(cursor) = db.load(&owned.lease).await.unwrap() else {
        panic!("the lease has not ended")
    };
    assert_eq!(cursor, owned.cursor, "a saved cursor is durable");
    assert_eq!(
        rest(&db, &owned, &cursor).await,
        sent,
        "the open batch is what it was"
    );
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM semel.outbox")
        .fetch_one(db.pool())
        .await
        .unwrap();
    assert_eq!(rows, 50, "every batch that was opened is durable");
    write(&db, &[event("k", "after")]).await;
    assert_eq!(batch(&db, &mut owned).await, ["after"]);
    drop(server);
}

/// The table of events began anew, and a row of it has the number of an exception from before (rule O7): set aside, the new
/// event would be nowhere.
#[tokio::test]
async fn an_exception_of_another_event_under_the_same_number_is_not_taken_for_this_one() {
    let server = semel_testkit::servers::postgres();
    let db = Postgres::connect(Config::new(server.fresh_database()))
        .await
        .unwrap();
    db.migrate().await.unwrap();
    let mut owned = own(&db).await;
    let aside = |row, event: &Event| Exception {
        row,
        event_id: event.id,
        kind: ExceptionKind::Skipped,
        attempts: 1,
        reason: "refused".to_owned(),
    };
    let (old, new) = (event("k", "old"), event("k", "new"));
    for (event, taken) in [(&old, true), (&old, true), (&new, false)] {
        sqlx::raw_sql("TRUNCATE semel.outbox RESTART IDENTITY")
            .execute(db.pool())
            .await
            .unwrap();
        let rows = write(&db, std::slice::from_ref(event)).await;
        assert_eq!(rows, [1]);
        let opening = db.open_batch(&owned.lease, &owned.cursor, false, PAGE).await;
        let Guarded::Done(Opening::Opened(cursor, _)) = opening.unwrap() else {
            panic!("there is a row")
        };
        let save = CursorSave {
            from: cursor,
            last_id: 1,
            finished: true,
            suspect: None,
            exceptions: vec![aside(1, event)],
            log: None,
        };
        match db.save_cursor(&owned.lease, &save).await {
            Ok(Guarded::Done(cursor)) if taken => owned.cursor = cursor,
            Err(error) if !taken => assert_eq!(error.kind(), ErrorKind::IdentityChanged, "{error}"),
            other => panic!("{other:?}"),
        }
    }
    let kept = db.exceptions("default", 0, 10).await.unwrap();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].exception.event_id, old.id);
}
