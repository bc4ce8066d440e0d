//! Events that wait for their time.

use semel_core::Event;
use semel_core::store::{Due, EVENT_REPEATED};

use super::world::{World, event, texts};

/// Longer than any of these laws takes, so that nothing is due by itself.
const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 3_600_000;

async fn delay(world: &World, events: &[(Event, i64)]) {
    let mut tx = world.begin().await;
    for (event, ms) in events {
        tx.enqueue_in(event, *ms).await.unwrap();
    }
    tx.commit().await;
}

async fn due(world: &World, limit: u32) -> Due {
    world.store.move_due("default", limit).await.unwrap()
}

/// Law: before its time an event is not in the outbox; when it has come the event is moved, whole, with its id, once.
pub async fn a_delayed_event_comes_when_its_time_has_come_and_not_before(world: &World) {
    let mut reader = world.reader().await;
    assert_eq!(due(world, 10).await, Due::default());
    let later = event("k", "later").with_header("a", &b"\0\xff"[..]);
    delay(world, &[(later.clone(), HOUR_MS)]).await;
    let early = due(world, 10).await;
    assert_eq!(early.moved, 0);
    assert!(
        early.next_ms.is_some_and(|ms| ms > HOUR_MS / 2 && ms <= HOUR_MS),
        "{early:?}"
    );
    assert!(reader.batch().await.is_empty());
    let elsewhere = world.store.move_due("other", 10).await.unwrap();
    assert_eq!(elsewhere, Due::default(), "streams are apart");

    world.pass_ms(HOUR_MS + 1).await;
    let moved = due(world, 10).await;
    assert_eq!((moved.moved, moved.next_ms), (1, None));
    assert_eq!(due(world, 10).await, Due::default());
    let rows = reader.batch().await;
    assert_eq!(rows.into_iter().map(|row| row.event).collect::<Vec<_>>(), [later]);
}

/// Law: due events enter in the order of their times, those of one time as they were written, and no more at once than
/// was asked for.
pub async fn due_events_come_in_the_order_of_their_times_some_at_a_time(world: &World) {
    let mut reader = world.reader().await;
    // Far apart: each call counts from the time of its own.
    let at = |text: &str, minutes| (event("k", text), HOUR_MS + minutes * MINUTE_MS);
    delay(world, &[at("4", 4), at("1", 1), at("3", 3), at("5", 60)]).await;
    delay(world, &[at("2", 2), at("0", -60)]).await;
    let first = due(world, 10).await;
    assert_eq!(first.moved, 1, "one is due at once: {first:?}");
    world.pass_ms(HOUR_MS + 5 * MINUTE_MS).await;
    for (moved, more) in [(3, true), (1, false)] {
        let step = due(world, 3).await;
        assert_eq!(step.moved, moved);
        assert_eq!(step.next_ms == Some(0), more, "{step:?}");
    }
    assert_eq!(texts(&reader.batch().await), ["0", "1", "2", "3", "4"]);
}

/// Law: what was cancelled before its time never comes, unless the transaction that cancelled it rolled back; what was
/// moved can be cancelled no longer.
pub async fn a_cancelled_event_never_comes(world: &World) {
    let mut reader = world.reader().await;
    let (kept, gone) = (event("k", "kept"), event("k", "gone"));
    delay(world, &[(kept.clone(), HOUR_MS), (gone.clone(), HOUR_MS)]).await;
    let mut tx = world.begin().await;
    assert!(tx.cancel(kept.id).await.unwrap());
    tx.rollback().await;
    let mut tx = world.begin().await;
    assert!(tx.cancel(gone.id).await.unwrap());
    tx.commit().await;
    let mut tx = world.begin().await;
    assert!(!tx.cancel(gone.id).await.unwrap());
    tx.rollback().await;
    world.pass_ms(HOUR_MS + 1).await;
    assert_eq!(due(world, 10).await.moved, 1);
    let mut tx = world.begin().await;
    assert!(!tx.cancel(kept.id).await.unwrap());
    tx.rollback().await;
    assert_eq!(texts(&reader.batch().await), ["kept"]);
}

/// Law: a delayed event commits or rolls back with its transaction, and is refused as any other; its id is refused for
/// another one that is to wait, and where its id was enqueued meanwhile it is dropped, and named.
pub async fn a_delayed_event_belongs_to_its_transaction_and_its_id_is_taken(world: &World) {
    let mut reader = world.reader().await;
    let waits = event("k", "waits");
    let mut tx = world.begin().await;
    tx.enqueue_in(&waits, 0).await.unwrap();
    tx.rollback().await;
    assert_eq!(due(world, 10).await, Due::default());

    let mut bad = event("k", "x");
    bad.topic = "no such topic".to_owned();
    let mut tx = world.begin().await;
    assert!(tx.enqueue_in(&bad, 0).await.is_err());
    tx.rollback().await;

    delay(world, &[(waits.clone(), HOUR_MS)]).await;
    let sent = event("k", "sent");
    world.write(std::slice::from_ref(&sent)).await;
    for taken in [&waits, &sent] {
        let mut tx = world.begin().await;
        let error = tx.enqueue_in(taken, 0).await.unwrap_err();
        assert_eq!(error.code(), EVENT_REPEATED);
        assert!(error.to_string().contains(&taken.id.to_string()), "{error}");
        tx.rollback().await;
    }
    let meanwhile = Event {
        data: Some("meanwhile".into()),
        ..waits.clone()
    };
    world.write(&[meanwhile]).await;
    world.pass_ms(HOUR_MS + 1).await;
    let dropped = due(world, 10).await;
    assert_eq!((dropped.moved, dropped.repeated), (0, vec![waits.id]));
    assert_eq!(texts(&reader.batch().await), ["sent", "meanwhile"]);
}

/// Law: an open transaction that has written the id of a delayed event holds up that event and those of its key, for as
/// long as it is open, and no other one; rolled back, it is as if it had not been.
pub async fn an_id_that_an_open_transaction_has_written_holds_up_its_key_only(world: &World) {
    if !world.writers_overlap {
        return;
    }
    let mut reader = world.reader().await;
    let taken = event("k", "taken");
    let events = [
        (event("free", "1"), -4),
        (taken.clone(), -3),
        (event("k", "behind"), -2),
        (event("free", "2"), -1),
    ];
    delay(world, &events).await;
    let mut open = world.begin().await;
    open.enqueue(&taken).await.unwrap();
    let began = std::time::Instant::now();
    due(world, 10).await;
    let took = began.elapsed();
    assert!(took < std::time::Duration::from_secs(20), "{took:?}");
    let mut came = texts(&reader.batch().await);
    assert!(came.starts_with(&["1".to_owned()]), "{came:?}");
    assert!(came.contains(&"2".to_owned()), "{came:?}");
    open.rollback().await;
    due(world, 10).await;
    came.extend(texts(&reader.batch().await));
    came.retain(|text| text.len() > 1);
    assert_eq!(came, ["taken", "behind"]);
}

/// Law: any number of movers at once move each event once, and a key's in the order of their times.
pub async fn movers_at_once_move_each_event_once_and_in_order(world: &World) {
    let mut reader = world.reader().await;
    let events: Vec<(Event, i64)> = (0..60)
        .map(|n| (event("k", &n.to_string()), n - HOUR_MS))
        .collect();
    delay(world, &events).await;
    let mover = || async {
        let mut moved = 0;
        while moved < 60 {
            let step = due(world, 7).await;
            moved += step.moved;
            if step.next_ms.is_none() {
                break;
            }
            tokio::task::yield_now().await;
        }
        moved
    };
    let (a, b, c) = tokio::join!(mover(), mover(), mover());
    assert_eq!(a + b + c, 60);
    assert_eq!(
        texts(&reader.batch().await),
        (0..60).map(|n| n.to_string()).collect::<Vec<_>>()
    );
}

/// Law: several delayed events of one call come each in its time, those of one time as they were given; one that could never
/// be sent keeps all of them out, and an id that is there already is refused and named.
pub async fn delayed_events_of_one_call_come_each_in_its_time_or_none_is_written(world: &World) {
    let mut reader = world.reader().await;
    let at = |text: &str, ms| (event("k", text), ms - 2 * HOUR_MS);
    let given = [
        at("2", 20),
        at("0", 0),
        at("3", 20),
        at("later", 3 * HOUR_MS),
        at("1", 10),
    ];
    let mut bad = given.clone();
    bad[4].0.topic = "no such topic".to_owned();
    let mut tx = world.begin().await;
    tx.enqueue_many_in(&[]).await.unwrap();
    assert!(tx.enqueue_many_in(&bad).await.is_err());
    tx.commit().await;
    assert_eq!(due(world, 10).await, Due::default());

    let mut tx = world.begin().await;
    tx.enqueue_many_in(&given).await.unwrap();
    tx.commit().await;
    let sent = event("k", "sent");
    world.write(std::slice::from_ref(&sent)).await;
    let fresh = || (event("k", "x"), 0);
    let twice = fresh();
    for (call, id) in [
        (vec![fresh(), given[3].clone()], given[3].0.id),
        (vec![fresh(), (sent.clone(), 0)], sent.id),
        (vec![twice.clone(), twice.clone()], twice.0.id),
    ] {
        let mut tx = world.begin().await;
        let error = tx.enqueue_many_in(&call).await.unwrap_err();
        assert_eq!(error.code(), EVENT_REPEATED);
        assert!(error.to_string().contains(&id.to_string()), "{error}");
        tx.rollback().await;
    }
    assert_eq!(due(world, 10).await.moved, 4);
    assert_eq!(texts(&reader.batch().await), ["sent", "0", "1", "2", "3"]);
}
