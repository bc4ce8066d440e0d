//! Another number of shards: what is special here.

use std::collections::HashMap;

use semel_core::store::{Guarded, Opening};
use semel_mysql::tx;
use semel_testkit::laws::outbox::{PAGE, Reader, event};

use super::{lent, over};

/// A shard that is far behind comes to the mark in several batches, none of which goes over more rows than a look may; and
/// nobody is run further than the one who was furthest.
#[tokio::test]
async fn a_shard_that_is_far_behind_comes_to_the_mark_in_bounded_batches() {
    const ROWS: usize = 50_000;
    let (_lent, db) = lent().await;
    let world = over(&db);
    world.store.register_stream("default", 2).await.unwrap();
    let owned = world.store.acquire(&world.wish()).await.unwrap();
    let mut readers: Vec<Reader> = owned
        .into_iter()
        .map(|owned| Reader::new(world.store.clone(), owned))
        .collect();
    let slow = readers.pop().unwrap();
    let mut ahead = readers.pop().unwrap();
    let keys = ["a", "b", "c", "d", "e", "f", "g"];
    let mut events: Vec<_> = (0..ROWS).map(|n| event(keys[n % keys.len()], "")).collect();
    for event in &mut events {
        event.data = None;
    }
    let mut tx = db.begin().await.unwrap();
    tx::enqueue_many(&mut tx, &events).await.unwrap();
    db.commit(tx).await.unwrap();
    // Numbers that nobody has, and one that is open.
    let mut gone = db.begin().await.unwrap();
    tx::enqueue(&mut gone, &event("a", "rolled back")).await.unwrap();
    gone.rollback().await.unwrap();
    let mut open = db.begin().await.unwrap();
    tx::enqueue(&mut open, &event("a", "open")).await.unwrap();
    world.write(&[event("a", "last"), event("b", "last")]).await;

    let mut seen = Vec::new();
    while ahead.open().await {
        seen.extend(ahead.rest().await);
    }
    ahead.save(i64::MAX, true).await;
    world.store.register_stream("default", 3).await.unwrap();
    world.write(&[event("a", "behind the mark")]).await;
    let mut slow = slow;
    let mut batches = 0;
    for _ in 0..20 {
        let reply = world
            .store
            .open_batch(slow.lease(), &slow.cursor, false, PAGE)
            .await;
        match reply.unwrap() {
            Guarded::Done(Opening::Opened(cursor, _)) => {
                batches += 1;
                slow.cursor = cursor;
                let rows = slow.rest().await;
                assert!(rows.len() <= 20_000, "{}", rows.len());
                seen.extend(rows);
                slow.save(i64::MAX, true).await;
            }
            Guarded::Done(Opening::Moved(cursor)) => slow.cursor = cursor,
            Guarded::Done(Opening::Empty) => {
                // The other one may have to see what was committed since, or nothing.
                let reply = world
                    .store
                    .open_batch(ahead.lease(), &ahead.cursor, false, PAGE)
                    .await;
                match reply.unwrap() {
                    Guarded::Done(Opening::Moved(cursor)) => ahead.cursor = cursor,
                    Guarded::Lost => break,
                    other => assert_eq!(other, Guarded::Done(Opening::Empty)),
                }
            }
            Guarded::Lost => break,
            Guarded::Reload => panic!("nobody else writes this cursor"),
        }
    }
    assert!(batches >= 2, "{batches}");
    assert_eq!(seen.len(), ROWS + 2, "all up to the mark, and nothing behind it");
    db.commit(open).await.unwrap();
    let owned = world.store.acquire(&world.wish()).await.unwrap();
    assert_eq!(owned.len(), 3);
    for owned in owned {
        let mut reader = Reader::new(world.store.clone(), owned);
        seen.extend(reader.batch().await);
    }
    assert_eq!(seen.len(), ROWS + 4);
    let mut last: HashMap<_, Vec<i64>> = HashMap::new();
    for row in &seen {
        last.entry(row.event.key.clone()).or_default().push(row.row);
    }
    // The open one had drawn a smaller number than what was sent before it: its writer took no turns.
    let open_key = last.remove(&Some("a".into())).unwrap();
    assert_eq!(open_key.windows(2).filter(|pair| pair[0] > pair[1]).count(), 1);
    assert!(last.values().all(|rows| rows.is_sorted()));
}
