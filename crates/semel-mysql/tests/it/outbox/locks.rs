//! What is locked in a user's transaction.

use semel_core::store::EVENT_REPEATED;
use semel_mysql::{Mysql, tx};
use semel_testkit::laws::outbox::event;
use sqlx::Transaction;

use super::lent;

async fn at_repeatable_read(db: &Mysql) -> Transaction<'static, sqlx::MySql> {
    let mut tx = db.begin().await.unwrap();
    sqlx::raw_sql("ROLLBACK; SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; BEGIN; SAVEPOINT semel")
        .execute(&mut *tx)
        .await
        .unwrap();
    tx
}

/// At REPEATABLE READ, too, cancelling what is not there locks nothing that writers of other events wait for.
#[tokio::test]
async fn cancelling_what_is_not_there_stops_no_writer() {
    let (_lent, db) = lent().await;
    let mut tx = at_repeatable_read(&db).await;
    assert!(
        !tx::cancel_delayed(&mut tx, uuid::Uuid::from_u128(7))
            .await
            .unwrap()
    );
    let mut other = short(&db).await;
    let at = db.now().await.unwrap().plus_ms(60_000);
    tx::enqueue_at(&mut other, &event("k", "1"), at).await.unwrap();
    db.commit(other).await.unwrap();
    tx.rollback().await.unwrap();
}

/// At REPEATABLE READ, too, a refusal locks no more than the event that is there.
#[tokio::test]
async fn a_refused_event_stops_no_writer() {
    let (_lent, db) = lent().await;
    let mut first = db.begin().await.unwrap();
    let mut events = [event("k", "1"), event("k", "2"), event("k", "3")];
    for (event, id) in events.iter_mut().zip([0x20, 0x30, 0x40_u128]) {
        event.id = uuid::Uuid::from_u128(id << 120);
    }
    let [there, new, another] = events;
    tx::enqueue(&mut first, &there).await.unwrap();
    db.commit(first).await.unwrap();
    let mut tx = at_repeatable_read(&db).await;
    let error = tx::enqueue_many(&mut tx, &[there, new]).await.unwrap_err();
    assert_eq!(error.code(), EVENT_REPEATED);
    let mut other = short(&db).await;
    tx::enqueue(&mut other, &another).await.unwrap();
    db.commit(other).await.unwrap();
    tx.rollback().await.unwrap();
}

/// A transaction that waits for locks for a second.
async fn short(db: &Mysql) -> Transaction<'static, sqlx::MySql> {
    let mut tx = db.begin().await.unwrap();
    sqlx::raw_sql("SET SESSION innodb_lock_wait_timeout = 1")
        .execute(&mut *tx)
        .await
        .unwrap();
    tx
}
