//! Exceptions, cleaning, and what the console sees.

use semel_core::store::{Acquire, CursorSave, Exception, ExceptionKind, Guarded};
use uuid::Uuid;

use super::world::{LEASE_MS, Reader, World, event, texts};

fn parked(row: i64) -> Exception {
    Exception {
        row,
        event_id: Uuid::nil(),
        kind: ExceptionKind::Parked,
        attempts: 5,
        reason: "400: no 'such' order".to_owned(),
    }
}

fn parking(reader: &Reader, rows: &[i64]) -> CursorSave {
    CursorSave {
        exceptions: rows.iter().copied().map(parked).collect(),
        log: None,
        ..reader.saving(*rows.last().unwrap(), false)
    }
}

/// Law, rule O7: a row that is passed over is copied whole in the same transaction, and outlives the original; it keeps its place
/// among those of its key (rule O16).
pub async fn exceptions_move_with_the_cursor_and_are_whole(world: &World) {
    let mut reader = world.reader().await;
    let bad = event("k", "bad").with_header("h", b"\0\xff".to_vec());
    let rows = world.write(&[bad.clone(), event("k", "good")]).await;
    assert!(reader.open().await);
    let mut save = parking(&reader, &rows[..1]);
    save.exceptions[0].event_id = bad.id;
    reader.write(&save).await;
    let batch_no = reader.cursor.batch_no;
    reader.save(rows[1], true).await;
    world.write(&[event("k", "next")]).await;
    assert!(reader.batch().await[0].batch_no > batch_no);
    reader.save(i64::MAX, true).await;
    assert_eq!(world.store.clean("default", -1, 100).await.unwrap(), 3);

    let stored = world.store.exceptions("default", 0, 10).await.unwrap();
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0].exception, save.exceptions[0]);
    assert_eq!(stored[0].row.row.event, bad);
    assert_eq!(stored[0].row.row.batch_no, batch_no);
    assert_eq!(stored[0].shard, reader.lease().shard);
    assert!(
        world
            .store
            .exceptions("default", rows[0], 10)
            .await
            .unwrap()
            .is_empty()
    );
    assert!(world.store.exceptions("other", 0, 10).await.unwrap().is_empty());
    assert_eq!(world.store.backlog().await.unwrap().shards[0].exceptions, 1);
}

/// Law: no cursor, no exception.
pub async fn exceptions_of_a_refused_save_are_not_written(world: &World) {
    let mut reader = world.reader().await;
    let rows = world.write(&[event("k", "1"), event("k", "2")]).await;
    assert!(reader.open().await);
    let late = parking(&reader, &rows[..1]);
    reader.save(rows[0], false).await;
    assert_eq!(
        world.store.save_cursor(reader.lease(), &late).await.unwrap(),
        Guarded::Reload
    );
    world.pass_ms(LEASE_MS + 1).await;
    let next = world.take_over().await.expect("the lease has ended");
    let late = parking(&reader, &rows);
    assert_eq!(
        world.store.save_cursor(reader.lease(), &late).await.unwrap(),
        Guarded::Lost
    );
    assert_eq!(next.owned.parked.len(), 0);
    assert!(world.store.exceptions("default", 0, 10).await.unwrap().is_empty());
}

/// Law: the next owner knows which keys are parked.
pub async fn parked_keys_come_with_the_shard(world: &World) {
    let mut reader = world.reader().await;
    let rows = world
        .write(&[event("bad", "1"), event("skipped", "2"), event("good", "3")])
        .await;
    assert!(reader.open().await);
    let mut save = parking(&reader, &rows[..2]);
    save.exceptions[1].kind = ExceptionKind::Skipped;
    reader.write(&save).await;
    world.pass_ms(LEASE_MS + 1).await;
    let next = world.take_over().await.expect("the lease has ended");
    assert_eq!(next.owned.parked, ["bad"]);
    assert_eq!(texts(&next.rest().await), ["3"]);
}

/// Law: only rows that the saved cursor has passed for good are deleted; those of an open batch stay.
pub async fn cleaning_follows_the_cursor(world: &World) {
    let mut slow = None;
    let mut reader = world.reader().await;
    if world.writers_overlap {
        let mut tx = world.begin().await;
        tx.enqueue(&event("s", "slow")).await.unwrap();
        slow = Some(tx);
    }
    let rows = world.write(&[event("k", "1"), event("k", "2")]).await;
    assert_eq!(world.store.clean("default", -1, 100).await.unwrap(), 0);
    assert!(reader.open().await);
    reader.save(rows[1], false).await;
    assert_eq!(
        world.store.clean("default", -1, 100).await.unwrap(),
        0,
        "the batch is still open"
    );
    reader.save(rows[1], true).await;
    if let Some(tx) = slow {
        tx.commit().await;
    } else {
        world.write(&[event("s", "slow")]).await;
    }
    assert_eq!(
        world.store.clean("default", -1, 1).await.unwrap(),
        1,
        "as many as asked"
    );
    assert_eq!(world.store.clean("default", -1, 100).await.unwrap(), 1);
    assert_eq!(world.store.clean("default", -1, 100).await.unwrap(), 0);
    assert_eq!(texts(&reader.batch().await), ["slow"]);
}

/// Law: a grace time after the acknowledgement is kept.
pub async fn cleaning_keeps_rows_for_as_long_as_told(world: &World) {
    let mut reader = world.reader().await;
    world.write(&[event("k", "1")]).await;
    assert!(reader.open().await);
    let last = reader.rest().await[0].row;
    reader.save(last, true).await;
    assert_eq!(
        world.store.clean("default", 400 * 86_400_000, 100).await.unwrap(),
        0
    );
    assert_eq!(world.store.clean("default", -1, 100).await.unwrap(), 1);
}

/// Law: how long rows are kept is each stream's own choice.
pub async fn cleaning_one_stream_leaves_the_others_alone(world: &World) {
    world.store.register_stream("other", 1).await.unwrap();
    let mut reader = world.reader().await;
    world
        .write(&[event("k", "1"), event("k", "2").with_stream("other")])
        .await;
    let wish = Acquire {
        stream: "other".to_owned(),
        ..world.wish()
    };
    let other = world.store.acquire(&wish).await.unwrap().remove(0);
    let mut other = Reader::new(world.store.clone(), other);
    for reader in [&mut reader, &mut other] {
        let last = reader.batch().await[0].row;
        reader.save(last, true).await;
    }
    assert_eq!(world.store.clean("default", -1, 100).await.unwrap(), 1);
    assert_eq!(world.store.clean("default", -1, 100).await.unwrap(), 0);
    assert_eq!(world.store.clean("nobody", -1, 100).await.unwrap(), 0);
    assert_eq!(world.store.clean("other", -1, 100).await.unwrap(), 1);
}

/// Law, rule O10: a row that fits no stream is never dropped, and is seen.
pub async fn rows_of_a_stream_nobody_registered_stay_and_are_named(world: &World) {
    let mut reader = world.reader().await;
    world
        .write(&[event("k", "x").with_stream("typo"), event("k", "y")])
        .await;
    assert_eq!(texts(&reader.batch().await), ["y"]);
    let last = reader.rest().await[0].row;
    reader.save(last, true).await;
    assert_eq!(world.store.clean("default", -1, 100).await.unwrap(), 1);
    assert_eq!(world.store.backlog().await.unwrap().orphan_streams, ["typo"]);
    world.store.register_stream("typo", 1).await.unwrap();
    assert!(world.store.backlog().await.unwrap().orphan_streams.is_empty());
}

/// Law: the backlog is what is not settled: in the open batch, and behind it.
pub async fn the_backlog_counts_what_is_not_settled(world: &World) {
    let mut reader = world.reader().await;
    let of = async || world.store.backlog().await.unwrap().shards.remove(0);
    assert_eq!((of().await.rows, of().await.oldest_ms), (0, None));
    let rows = world
        .write(&[event("k", "1"), event("k", "2"), event("k", "3")])
        .await;
    assert_eq!(of().await.rows, 3);
    assert!(reader.open().await);
    reader.save(rows[0], false).await;
    world.write(&[event("k", "4")]).await;
    let backlog = of().await;
    assert_eq!((backlog.rows, backlog.batch_no), (3, 1));
    assert!(backlog.oldest_ms.is_some());
    reader.save(rows[2], true).await;
    assert_eq!(of().await.rows, 1);
}
