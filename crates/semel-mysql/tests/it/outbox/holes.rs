//! Numbers that do not commit in order, and numbers that nobody has.

use semel_core::relay::Mark;
use semel_core::store::{Guarded, Opening};
use semel_core::{ErrorKind, OutboxStore};
use semel_mysql::{Mysql, tx};
use semel_testkit::laws::outbox::{PAGE, Reader, event};

use super::{lent, over};

fn texts(rows: &[semel_core::store::OutboxRow]) -> Vec<String> {
    let text = |row: &semel_core::store::OutboxRow| row.event.data.clone().unwrap().to_vec();
    rows.iter()
        .map(|row| String::from_utf8(text(row)).unwrap())
        .collect()
}

/// Whether a mark calls this number a hole: `900:17,20-25`.
fn is_hole(mark: &Mark, id: i64) -> bool {
    let (_, holes) = mark.as_str().split_once(':').unwrap_or(("", ""));
    let mut holes = holes.split(',').filter(|hole| !hole.is_empty()).map(|hole| {
        let (first, last) = hole.split_once('-').unwrap_or((hole, hole));
        first.parse().unwrap()..=last.parse::<i64>().unwrap()
    });
    holes.any(|hole| hole.contains(&id))
}

async fn idle(reader: &mut Reader) {
    let reply = reader
        .store
        .open_batch(reader.lease(), &reader.cursor, true, PAGE)
        .await
        .unwrap();
    match reply {
        Guarded::Done(Opening::Moved(cursor)) => reader.cursor = cursor,
        Guarded::Done(Opening::Empty) => {}
        other => panic!("{other:?}"),
    }
}

/// Five transactions draw their numbers in one order and commit in another one: each event comes with the first look
/// after its commit, and none twice.
#[tokio::test]
async fn commits_in_any_order_come_as_they_are_committed() {
    let (_lent, db) = lent().await;
    let world = over(&db);
    let mut reader = world.reader().await;
    let mut open = Vec::new();
    for n in 0..5 {
        let mut tx = world.begin().await;
        tx.enqueue(&event(&format!("k{n}"), &n.to_string()))
            .await
            .unwrap();
        open.push(Some(tx));
    }
    for n in [3, 0, 4, 2, 1] {
        let tx: Option<Box<dyn semel_testkit::laws::outbox::Writer>> = open[n].take();
        tx.unwrap().commit().await;
        assert_eq!(texts(&reader.batch().await), [n.to_string()]);
        assert!(reader.batch().await.is_empty());
    }
}

/// What a rollback left is remembered as a hole, and forgotten when it was filled; nothing is sent for it.
#[tokio::test]
async fn a_rolled_back_number_is_filled_and_an_open_one_is_not() {
    let (_lent, db) = lent().await;
    let world = over(&db);
    let mut reader = world.reader().await;
    idle(&mut reader).await;
    let mut open = world.begin().await;
    let slow = open.enqueue(&event("slow", "slow")).await.unwrap();
    world.write(&[event("k", "1")]).await;
    let mut lost = world.begin().await;
    let gone = lost.enqueue(&event("k", "gone")).await.unwrap();
    lost.rollback().await;
    world.write(&[event("k", "2")]).await;
    assert_eq!(texts(&reader.batch().await), ["1", "2"]);
    let cursor = reader.cursor.clone();
    let open_mark = cursor.open.as_ref().unwrap();
    assert!(
        is_hole(open_mark, slow) && is_hole(open_mark, gone),
        "{open_mark:?}"
    );

    assert_eq!(fill(&db, &[(slow, slow), (gone, gone)]).await, 1);
    assert!(
        reader.batch().await.is_empty(),
        "what filled a hole is nobody's event"
    );
    idle(&mut reader).await;
    let prev = &reader.cursor.prev;
    assert!(is_hole(prev, slow) && !is_hole(prev, gone), "{prev:?}");
    open.commit().await;
    assert_eq!(texts(&reader.batch().await), ["slow"]);
}

/// The number of a statement that is still in the middle is never filled: it reserves several at once.
#[tokio::test]
async fn numbers_behind_an_open_row_are_left_to_their_statement() {
    let (_lent, db) = lent().await;
    let world = over(&db);
    let mut open = world.begin().await;
    let first = open.enqueue(&event("k", "1")).await.unwrap();
    assert_eq!(fill(&db, &[(first, first + 5)]).await, 0);
    open.commit().await;
    let mut reader = world.reader().await;
    assert_eq!(texts(&reader.batch().await), ["1"]);
}

/// A late writer whose number was filled is refused, so that its event is never lost in silence.
#[tokio::test]
async fn a_writer_whose_number_was_filled_is_refused() {
    let (_lent, db) = lent().await;
    let world = over(&db);
    let last = world.write(&[event("k", "1")]).await[0];
    assert_eq!(fill(&db, &[(last + 1, last + 3)]).await, 3);
    let error = sqlx::query("INSERT INTO semel_outbox (id, topic, type) VALUES (?, 't', 'e')")
        .bind(last + 2)
        .execute(db.pool())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("Duplicate entry"), "{error}");
    assert_eq!(world.write(&[event("k", "2")]).await, [last + 4]);
    let mut reader = world.reader().await;
    assert_eq!(texts(&reader.batch().await), ["1", "2"]);
}

/// Rows that another shard's relay has passed and the cleaner has removed are no holes to a shard that lags.
#[tokio::test]
async fn what_was_cleaned_is_no_hole_to_a_shard_that_lags() {
    let (_lent, db) = lent().await;
    let world = over(&db);
    db.register_stream("late", 1).await.unwrap();
    let mut ids = Vec::new();
    for n in 0..60 {
        let stream = if n % 2 == 0 { "default" } else { "late" };
        let event = event("k", &n.to_string()).with_stream(stream);
        ids.extend(world.write(&[event]).await);
    }
    let mut reader = world.reader().await;
    assert_eq!(reader.batch().await.len(), 30);
    let last = reader.rest().await.last().unwrap().row;
    reader.save(last, true).await;
    assert_eq!(db.clean("default", -1, 1_000).await.unwrap(), 30);

    let wish = semel_core::store::Acquire {
        stream: "late".to_owned(),
        ..world.wish()
    };
    let owned = db.acquire(&wish).await.unwrap().pop().unwrap();
    let mut late = Reader::new(world.store.clone(), owned);
    assert_eq!(late.batch().await.len(), 30);
    let mark = late.cursor.open.as_ref().unwrap();
    assert!(ids.iter().all(|id| !is_hole(mark, *id)), "{mark:?}");
}

/// More rows than one look takes: batch after batch, in order, and the memory of a new owner is as good as the old one's.
#[tokio::test]
async fn a_large_backlog_comes_in_bounded_batches() {
    const ROWS: usize = 45_000;
    let (_lent, db) = lent().await;
    let world = over(&db);
    let mut reader = world.reader().await;
    let mut events: Vec<_> = (0..ROWS).map(|_| event("k", "")).collect();
    for event in &mut events {
        event.data = None;
    }
    let mut tx = db.begin().await.unwrap();
    let rows = tx::enqueue_many(&mut tx, &events).await.unwrap();
    db.commit(tx).await.unwrap();
    let mut read = Vec::new();
    let mut batches = 0;
    while reader.open().await {
        batches += 1;
        if batches == 2 {
            // Another process: it knows nothing but what is in the database.
            let other = Mysql::connect(semel_mysql::Config::new(&_lent.url))
                .await
                .unwrap();
            let again = Reader {
                store: std::sync::Arc::new(other),
                owned: reader.owned.clone(),
                cursor: reader.cursor.clone(),
            };
            let (mine, its) = (reader.rest().await, again.rest().await);
            assert_eq!(mine.len(), its.len());
            assert!(mine == its);
        }
        read.extend(reader.rest().await);
    }
    assert!(batches >= 3, "{batches}");
    assert_eq!(read.iter().map(|row| row.row).collect::<Vec<_>>(), rows);
    assert!(
        read.iter()
            .map(|row| row.event.id)
            .eq(events.iter().map(|event| event.id))
    );
}

/// An idle shard beside a busy one moves on by itself, so that it does not look at the same rows again and again.
#[tokio::test]
async fn an_idle_shard_passes_many_rows_of_others_once() {
    let (_lent, db) = lent().await;
    let world = over(&db);
    let mut reader = world.reader().await;
    let events: Vec<_> = (0..1_500).map(|_| event("k", "").with_stream("busy")).collect();
    let mut tx = db.begin().await.unwrap();
    tx::enqueue_many(&mut tx, &events).await.unwrap();
    db.commit(tx).await.unwrap();
    let reply = reader
        .store
        .open_batch(reader.lease(), &reader.cursor, false, PAGE)
        .await
        .unwrap();
    let Guarded::Done(Opening::Moved(cursor)) = reply else {
        panic!("{reply:?}")
    };
    reader.cursor = cursor;
    world.write(&[event("k", "mine")]).await;
    assert_eq!(texts(&reader.batch().await), ["mine"]);
}

/// A table that was emptied and began anew is not taken for a quiet one.
#[tokio::test]
async fn a_table_that_was_replaced_stops_the_relay() {
    let (_lent, db) = lent().await;
    let world = over(&db);
    let mut reader = world.reader().await;
    world.write(&[event("k", "1")]).await;
    let last = reader.batch().await[0].row;
    reader.save(last, true).await;
    sqlx::raw_sql("TRUNCATE TABLE semel_outbox")
        .execute(db.pool())
        .await
        .unwrap();
    world.write(&[event("k", "2")]).await;
    let error = db
        .open_batch(reader.lease(), &reader.cursor, false, PAGE)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IdentityChanged);

    // What the error's page says.
    sqlx::raw_sql(semel_mysql::ADOPT_OUTBOX)
        .execute(db.pool())
        .await
        .unwrap();
    let Guarded::Done(cursor) = db.load(reader.lease()).await.unwrap() else {
        panic!("not the owner")
    };
    reader.cursor = cursor;
    assert_eq!(texts(&reader.batch().await), ["2"]);
}

/// A table that was copied without its counter would give out numbers that the marks have passed: events that no relay sees.
#[tokio::test]
async fn a_counter_that_went_back_stops_the_relay() {
    let db = Mysql::connect(semel_mysql::Config::new(
        semel_testkit::servers::mariadb().fresh_database(),
    ))
    .await
    .unwrap();
    db.migrate().await.unwrap();
    let world = over(&db);
    let mut reader = world.reader().await;
    world.write(&[event("k", "1"), event("k", "2")]).await;
    let last = reader.batch().await[1].row;
    reader.save(last, true).await;
    assert_eq!(db.clean("default", -1, 10).await.unwrap(), 2);
    db.release(&[reader.lease().clone()]).await.unwrap();
    let again = world.take_over().await.expect("the shard is free");
    db.release(&[again.lease().clone()]).await.unwrap();
    sqlx::raw_sql("ALTER TABLE semel_outbox AUTO_INCREMENT = 1")
        .execute(db.pool())
        .await
        .unwrap();
    let error = db.acquire(&world.wish()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IdentityChanged, "{error}");

    sqlx::raw_sql(semel_mysql::ADOPT_OUTBOX)
        .execute(db.pool())
        .await
        .unwrap();
    let mut reader = world.take_over().await.expect("the shard is free");
    world.write(&[event("k", "3")]).await;
    assert_eq!(texts(&reader.batch().await), ["3"]);
}

/// Rows of a stream that has no relay, and those that are kept for long, do not stand in the way of what is to be cleaned.
#[tokio::test]
async fn what_is_kept_in_front_does_not_stop_cleaning() {
    let (_lent, db) = lent().await;
    let world = over(&db);
    let mut reader = world.reader().await;
    sqlx::raw_sql(
        "INSERT INTO semel_outbox (stream, topic, type)
         SELECT 'nobodys', 't', 'e' FROM semel_outbox_lock CROSS JOIN (SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4
           UNION SELECT 5) AS five",
    )
    .execute(db.pool())
    .await
    .unwrap();
    for _ in 0..2 {
        idle(&mut reader).await;
    }
    let last = world.write(&[event("k", "1")]).await[0];
    assert_eq!(fill(&db, &[(last + 1, last + 2)]).await, 2);
    sqlx::query("UPDATE semel_outbox SET created_at = 0 WHERE id > ?")
        .bind(last)
        .execute(db.pool())
        .await
        .unwrap();
    let last = world.write(&[event("k", "2")]).await[0];
    while reader.open().await {
        reader.rest().await;
    }
    reader.save(last, true).await;
    let mut cleaned = 0;
    for _ in 0..3 {
        cleaned += db.clean("default", -1, 1_000).await.unwrap();
    }
    assert_eq!(cleaned, 2);
    let fillers: i64 =
        sqlx::query_scalar("SELECT COUNT(*) FROM semel_outbox WHERE stream = '' AND created_at = 0")
            .fetch_one(db.pool())
            .await
            .unwrap();
    assert_eq!(fillers, 0);
}

async fn fill(db: &Mysql, ranges: &[(i64, i64)]) -> u64 {
    db.fill_holes(ranges).await.unwrap()
}
