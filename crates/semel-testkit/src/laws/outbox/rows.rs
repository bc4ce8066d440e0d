//! What becomes of a row.

use bytes::Bytes;
use semel_core::store::{Guarded, Opening, PageSize};
use semel_core::{ErrorKind, Event};
use uuid::Uuid;

use super::world::{PAGE, Reader, World, event, texts};

/// Law: binary keys and data, repeated and binary headers, tombstones and empty data come out as they went in.
pub async fn every_byte_of_an_event_arrives(world: &World) {
    let mut whole = event("k", "");
    whole.key = Some(Bytes::from_static(b"\0\xff'key"));
    whole.data = Some(Bytes::from_static(b"\0\x01\xfe\xff'; --"));
    whole.headers = vec![
        ("a".to_owned(), Bytes::from_static(b"1")),
        ("A".to_owned(), Bytes::from_static(b"\0\xff")),
        ("a".to_owned(), Bytes::new()),
    ];
    whole.source = "/shop/\u{fc}".to_owned();
    whole.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
    let mut tombstone = Event::new(Uuid::from_u128(7), "T", "gone");
    tombstone.key = None;
    let empty = event("e", "");
    let events = [whole, tombstone, empty];
    let rows = world.write(&events).await;
    let read = world.reader().await.batch().await;
    assert_eq!(read.iter().map(|row| row.row).collect::<Vec<_>>(), rows);
    assert_eq!(read.into_iter().map(|row| row.event).collect::<Vec<_>>(), events);
}

/// Law: an event whose transaction did not commit never was.
pub async fn a_rollback_publishes_nothing(world: &World) {
    let mut reader = world.reader().await;
    let mut tx = world.begin().await;
    tx.enqueue(&event("k", "no")).await.unwrap();
    tx.rollback().await;
    world.write(&[event("k", "yes")]).await;
    assert_eq!(texts(&reader.batch().await), ["yes"]);
    assert!(reader.batch().await.is_empty());
}

/// Law: what no sink could send is an error at once, and nothing of it is written.
pub async fn what_can_never_be_sent_is_refused_at_enqueue(world: &World) {
    let mut tx = world.begin().await;
    let mut bad = event("k", "x");
    bad.topic = "no such topic".to_owned();
    let error = tx.enqueue(&bad).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert!(error.to_string().contains("topic"), "{error}");
    tx.rollback().await;
    assert!(world.reader().await.batch().await.is_empty());
}

/// Law: a row is in the one shard of its stream that has its slot.
pub async fn streams_and_shards_see_their_own_rows_only(world: &World) {
    world.store.register_stream("default", 3).await.unwrap();
    world.store.register_stream("other", 1).await.unwrap();
    let events: Vec<Event> = (0..30)
        .map(|n| event(&format!("key-{n}"), &n.to_string()))
        .collect();
    world.write(&events).await;
    world
        .write(&[event("key-1", "of the other").with_stream("other")])
        .await;
    let shards = world.store.acquire(&world.wish()).await.unwrap();
    assert_eq!(shards.len(), 3);
    let mut seen = Vec::new();
    for owned in shards {
        let slots = owned.lease.slots.range();
        let rows = Reader::new(world.store.clone(), owned).batch().await;
        assert!(rows.iter().all(|row| slots.contains(&row.event.slot())));
        seen.extend(rows.into_iter().map(|row| row.event.id));
    }
    seen.sort();
    let mut ids: Vec<Uuid> = events.iter().map(|event| event.id).collect();
    ids.sort();
    assert_eq!(seen, ids);
}

/// Law: a relay that is installed after the service has begun to write misses nothing.
pub async fn rows_written_before_the_stream_is_registered_are_in_its_first_batch(world: &World) {
    world.write(&[event("k", "early")]).await;
    assert_eq!(texts(&world.reader().await.batch().await), ["early"]);
}

/// Law: registering again is fine, with a number or name that cannot be it is refused.
pub async fn a_stream_is_registered_any_number_of_times(world: &World) {
    world.store.register_stream("default", 2).await.unwrap();
    world.store.register_stream("default", 2).await.unwrap();
    assert!(world.store.register_stream("none", 0).await.is_err());
    assert!(world.store.register_stream("no such name", 1).await.is_err());
    assert_eq!(world.store.backlog().await.unwrap().shards.len(), 2);
}

/// Law: a page ends at whichever limit comes first, holds one row at least, and the next one goes on after it.
pub async fn pages_are_bounded_and_leave_nothing_out(world: &World) {
    let events: Vec<Event> = (0..10).map(|n| event("k", &"x".repeat(n * 100))).collect();
    world.write(&events).await;
    let mut reader = world.reader().await;
    assert!(reader.open().await);
    let mut ids = Vec::new();
    let mut after = reader.cursor.last_id;
    loop {
        let size = PageSize { rows: 4, bytes: 700 };
        let reply = reader
            .store
            .read_page(reader.lease(), &reader.cursor, after, size)
            .await
            .unwrap();
        let Guarded::Done(page) = reply else {
            panic!("{reply:?}")
        };
        let bytes: usize = page
            .rows
            .iter()
            .map(|row| row.row.event.data.as_ref().unwrap().len())
            .sum();
        assert!(page.rows.len() <= 4 && (bytes <= 700 || page.rows.len() == 1));
        assert!(!page.rows.is_empty() || !page.more);
        for row in &page.rows {
            after = row.row.row;
            ids.push(row.row.event.id);
        }
        if !page.more {
            break;
        }
    }
    assert_eq!(ids, events.iter().map(|event| event.id).collect::<Vec<_>>());
}

/// Law: looking costs no write, so that an idle relay leaves the store alone.
pub async fn an_empty_look_writes_nothing(world: &World) {
    let reader = world.reader().await;
    for _ in 0..3 {
        let reply = reader
            .store
            .open_batch(reader.lease(), &reader.cursor, false, PAGE)
            .await
            .unwrap();
        assert_eq!(reply, Guarded::Done(Opening::Empty));
    }
    assert_eq!(
        reader.store.load(reader.lease()).await.unwrap(),
        Guarded::Done(reader.cursor.clone())
    );
}

/// Law: a shard without rows of its own moves past those of others, so that the cleaner can follow.
pub async fn an_idle_cursor_moves_on_when_asked(world: &World) {
    world.store.register_stream("other", 1).await.unwrap();
    let mut reader = world.reader().await;
    world.write(&[event("k", "x").with_stream("other")]).await;
    let reply = reader
        .store
        .open_batch(reader.lease(), &reader.cursor, true, PAGE)
        .await
        .unwrap();
    let Guarded::Done(Opening::Moved(moved)) = reply else {
        panic!("{reply:?}")
    };
    assert_ne!(moved.prev, reader.cursor.prev);
    assert_eq!(
        (moved.open.clone(), moved.batch_no),
        (None, reader.cursor.batch_no)
    );
    assert!(moved.version > reader.cursor.version);
    reader.cursor = moved;
    world.write(&[event("k", "mine")]).await;
    assert_eq!(texts(&reader.batch().await), ["mine"]);
}
