//! After SEM0202: an outbox whose table of events began anew.

use semel_core::ErrorKind;
use semel_core::store::{Exception, ExceptionKind, Guarded};
use semel_mysql::Mysql;
use semel_testkit::laws::outbox::{Reader, World, event};

use super::{lent, over};

async fn run(db: &Mysql, sql: &'static str) {
    sqlx::raw_sql(sql).execute(db.pool()).await.unwrap();
}

/// Reads a batch and parks its first row.
async fn park(reader: &mut Reader) -> Result<(), semel_core::StoreError> {
    let first = reader.batch().await.remove(0);
    let mut save = reader.saving(first.row, true);
    save.exceptions.push(Exception {
        row: first.row,
        event_id: first.event.id,
        kind: ExceptionKind::Parked,
        attempts: 1,
        reason: "no".to_owned(),
    });
    let Guarded::Done(cursor) = reader.store.save_cursor(reader.lease(), &save).await? else {
        panic!("not the owner")
    };
    reader.cursor = cursor;
    Ok(())
}

async fn parked(world: &World) -> usize {
    world.store.exceptions("default", 0, 10).await.unwrap().len()
}

async fn reload(reader: &mut Reader) {
    let Guarded::Done(cursor) = reader.store.load(reader.lease()).await.unwrap() else {
        panic!("not the owner")
    };
    reader.cursor = cursor;
}

/// New numbers are above those of events that were parked before: none of them is taken for another one.
#[tokio::test]
async fn an_event_after_an_adoption_is_parked_beside_the_old_ones() {
    let (_lent, db) = lent().await;
    let world = over(&db);
    let mut reader = world.reader().await;
    run(&db, "ALTER TABLE semel_outbox AUTO_INCREMENT = 1000000").await;
    world.write(&[event("k", "1")]).await;
    park(&mut reader).await.unwrap();
    let marked = world.write(&[event("k", "2")]).await[0];
    let last = reader.batch().await[0].row;
    reader.save(last, true).await;

    run(&db, "TRUNCATE TABLE semel_outbox").await;
    run(&db, semel_mysql::ADOPT_OUTBOX).await;
    reload(&mut reader).await;
    let new = world.write(&[event("k", "3")]).await[0];
    assert!(new > marked, "{new} {marked}");
    park(&mut reader).await.unwrap();
    assert_eq!(parked(&world).await, 2);
}

/// An event that has the number of an older parked one is refused by name, not passed over; and goes on when that is gone.
#[tokio::test]
async fn an_event_with_the_number_of_an_old_parked_one_is_not_lost() {
    let (_lent, db) = lent().await;
    let world = over(&db);
    let mut reader = world.reader().await;
    let row = world.write(&[event("k", "1")]).await[0];
    park(&mut reader).await.unwrap();
    sqlx::query(
        "UPDATE semel_outbox_exception SET event_id = UNHEX(REPEAT('07', 16)), id = id + 1 WHERE id = ?",
    )
    .bind(row)
    .execute(db.pool())
    .await
    .unwrap();
    let next = world.write(&[event("k", "2")]).await[0];
    assert_eq!(next, row + 1);
    let error = park(&mut reader).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IdentityChanged);
    assert!(error.to_string().contains(&next.to_string()), "{error}");
    reload(&mut reader).await;
    run(&db, "DELETE FROM semel_outbox_exception").await;
    let first = reader.rest().await.remove(0);
    let mut save = reader.saving(first.row, true);
    save.exceptions.push(Exception {
        row: first.row,
        event_id: first.event.id,
        kind: ExceptionKind::Parked,
        attempts: 1,
        reason: "no".to_owned(),
    });
    reader.write(&save).await;
    assert_eq!(parked(&world).await, 1);
}
