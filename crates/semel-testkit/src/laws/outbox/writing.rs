//! Writing: many at once, and the same id twice.

use semel_core::store::EVENT_REPEATED;
use semel_core::{ErrorKind, Event};

use super::world::{World, event, texts};

/// Law: several events of one call are rows in the order given, and one that could never be sent keeps all of them out.
pub async fn a_batch_is_written_in_order_or_not_at_all(world: &World) {
    let mut reader = world.reader().await;
    let events: Vec<Event> = (0..50)
        .map(|n| event(&format!("k{}", n % 3), &n.to_string()))
        .collect();
    let mut tx = world.begin().await;
    let rows = tx.enqueue_many(&events).await.unwrap();
    assert!(tx.enqueue_many(&[]).await.unwrap().is_empty());
    tx.commit().await;
    assert!(rows.is_sorted() && rows.len() == 50, "{rows:?}");
    let read = reader.batch().await;
    assert_eq!(read.iter().map(|row| row.row).collect::<Vec<_>>(), rows);
    assert_eq!(read.into_iter().map(|row| row.event).collect::<Vec<_>>(), events);

    let mut bad = event("k", "bad");
    bad.topic = "no such topic".to_owned();
    let mut tx = world.begin().await;
    let error = tx.enqueue_many(&[event("k", "x"), bad]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    tx.commit().await;
    assert!(reader.batch().await.is_empty());
}

/// Law: an id that was enqueued before is refused, by an error that names it: in the same call, in the same
/// transaction, after a commit, and after it was sent. A transaction that rolled back has used no id.
pub async fn an_id_that_was_enqueued_before_is_refused_and_named(world: &World) {
    let mut reader = world.reader().await;
    let first = event("k", "first");
    let again = Event {
        data: Some("second".into()),
        ..first.clone()
    };
    let refused = |error: semel_core::StoreError| {
        assert_eq!(error.kind(), ErrorKind::Constraint);
        assert_eq!(error.code(), EVENT_REPEATED);
        assert!(error.to_string().contains(&first.id.to_string()), "{error}");
    };
    let mut tx = world.begin().await;
    refused(
        tx.enqueue_many(&[first.clone(), again.clone()])
            .await
            .unwrap_err(),
    );
    tx.rollback().await;
    let mut tx = world.begin().await;
    tx.enqueue(&first).await.unwrap();
    refused(tx.enqueue(&again).await.unwrap_err());
    tx.rollback().await;
    assert!(reader.batch().await.is_empty());

    world.write(std::slice::from_ref(&first)).await;
    for _ in 0..2 {
        let mut tx = world.begin().await;
        refused(tx.enqueue(&again).await.unwrap_err());
        tx.rollback().await;
        let rows = reader.batch().await;
        if let Some(last) = rows.last() {
            assert_eq!(texts(&rows), ["first"]);
            reader.save(last.row, true).await;
        }
    }
}

/// Law: where it is asked for, an id that is there already is passed over, its row is what it was, and the others of the
/// call are written.
pub async fn an_id_that_was_enqueued_before_is_passed_over_when_asked(world: &World) {
    let mut reader = world.reader().await;
    let first = event("k", "first");
    let again = Event {
        data: Some("second".into()),
        ..first.clone()
    };
    let (other, third) = (event("k", "other"), event("j", "third"));
    let mut tx = world.begin().await;
    let rows = tx
        .enqueue_new(&[first.clone(), again.clone(), other.clone()])
        .await
        .unwrap();
    assert!(
        rows[0].is_some() && rows[1].is_none() && rows[2] > rows[0],
        "{rows:?}"
    );
    tx.commit().await;
    let mut tx = world.begin().await;
    let later = tx.enqueue_new(&[again, third, other]).await.unwrap();
    assert!(
        later[0].is_none() && later[1] > rows[2] && later[2].is_none(),
        "{later:?}"
    );
    tx.commit().await;
    assert_eq!(texts(&reader.batch().await), ["first", "other", "third"]);
}
