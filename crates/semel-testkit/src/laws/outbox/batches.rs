//! What a batch holds, whatever the order of commits.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};

use semel_core::Event;

use super::world::{World, event, texts};

/// Law, rule O1 and the first of the field's bugs: A draws number 1 and stays open, B commits number 2, a look, A
/// commits: 2, then 1, both once; and B did not wait for A.
pub async fn a_row_committed_late_with_a_smaller_number_is_neither_lost_nor_waited_for(world: &World) {
    if !world.writers_overlap {
        return;
    }
    let mut reader = world.reader().await;
    let mut slow = world.begin().await;
    let small = slow.enqueue(&event("a", "slow")).await.unwrap();
    let large = world.write(&[event("b", "fast")]).await[0];
    assert!(small < large);
    assert_eq!(texts(&reader.batch().await), ["fast"]);
    assert!(reader.batch().await.is_empty(), "nothing new while it is open");
    slow.commit().await;
    assert_eq!(texts(&reader.batch().await), ["slow"]);
    assert!(reader.batch().await.is_empty());
}

/// Law: T1 does something else first, T2 locks the key and commits "first", T1 locks the key and writes "second".
/// The order is that of the key's lock, not of the transactions' beginning.
pub async fn a_key_keeps_its_order_when_a_transaction_begins_early_and_writes_late(world: &World) {
    if !world.writers_overlap {
        return;
    }
    let mut reader = world.reader().await;
    let mut early = world.begin().await;
    early.enqueue(&event("elsewhere", "other")).await.unwrap();
    let mut late = world.begin().await;
    late.lock("k").await;
    late.enqueue(&event("k", "first")).await.unwrap();
    late.commit().await;
    // A look between the two must not change the order either.
    let mut seen = texts(&reader.batch().await);
    early.lock("k").await;
    early.enqueue(&event("k", "second")).await.unwrap();
    early.commit().await;
    seen.extend(texts(&reader.batch().await));
    seen.retain(|text| text != "other");
    assert_eq!(seen, ["first", "second"]);
}

/// Law, rule O1: a batch half settled when its owner died is finished by the next one as it was opened; a row that
/// committed meanwhile with a smaller number comes after it, and is not lost.
pub async fn a_half_settled_batch_is_finished_under_its_own_mark(world: &World) {
    let mut slow = None;
    let mut reader = world.reader().await;
    if world.writers_overlap {
        let mut tx = world.begin().await;
        tx.enqueue(&event("s", "slow")).await.unwrap();
        slow = Some(tx);
    }
    let events: Vec<Event> = (1..=5).map(|n| event("k", &n.to_string())).collect();
    let rows = world.write(&events).await;
    assert_eq!(texts(&reader.batch().await), ["1", "2", "3", "4", "5"]);
    reader.save(rows[1], false).await;
    let opened = reader.cursor.clone();
    if let Some(tx) = slow.take() {
        tx.commit().await;
    } else {
        world.write(&[event("s", "slow")]).await;
    }
    world.write(&[event("k", "6")]).await;
    world.pass_ms(super::world::LEASE_MS + 1).await;

    let mut next = world.take_over().await.expect("the lease has ended");
    assert_eq!(next.cursor, opened);
    assert_eq!(texts(&next.rest().await), ["3", "4", "5"]);
    assert_eq!(texts(&next.batch().await), ["slow", "6"]);
    assert!(next.batch().await.is_empty());
}

/// Law: many transactions at once, some long, some rolled back, each writing several events of its key under the
/// key's lock: every committed event comes once, in the order of its key.
pub async fn writers_at_once_lose_nothing_and_keep_the_order_of_each_key(world: &World) {
    const WRITERS: usize = 8;
    const ROUNDS: usize = 50;
    const ROWS: usize = 5;
    let mut reader = world.reader().await;
    let write = async |writer: usize| {
        let mut ids = Vec::new();
        for round in 0..ROUNDS {
            // A key for every two writers, so that writers of a key meet.
            let key = format!("key-{}", writer % (WRITERS / 2));
            let mut tx = world.begin().await;
            if round % 3 == 0 {
                let mut early = event(&format!("early-{writer}"), "");
                early.data = None;
                tx.enqueue(&early).await.unwrap();
                ids.push(early.id);
            }
            tx.lock(&key).await;
            for row in 0..ROWS {
                let event = event(&key, &format!("{writer}/{round}/{row}"));
                tx.enqueue(&event).await.unwrap();
                ids.push(event.id);
                if (writer + round + row).is_multiple_of(7) {
                    tokio::task::yield_now().await;
                }
            }
            if (writer + round) % 10 == 9 {
                tx.rollback().await;
                ids.truncate(ids.len() - ROWS - usize::from(round % 3 == 0));
            } else {
                tx.commit().await;
            }
        }
        ids
    };
    let done = Cell::new(false);
    let writers = async {
        let written = futures_util::future::join_all((0..WRITERS).map(write)).await;
        done.set(true);
        written.into_iter().flatten().collect::<BTreeSet<_>>()
    };
    let reading = async {
        let mut rows = Vec::new();
        loop {
            let last_look = done.get();
            let batch = reader.batch().await;
            if batch.is_empty() && last_look {
                break rows;
            }
            rows.extend(batch);
            tokio::task::yield_now().await;
        }
    };
    let (written, rows) = futures_util::future::join(writers, reading).await;
    let mut last: HashMap<String, i64> = HashMap::new();
    let mut seen = BTreeSet::new();
    for row in &rows {
        assert!(seen.insert(row.event.id), "twice: {row:?}");
        let key = String::from_utf8(row.event.key.clone().unwrap().to_vec()).unwrap();
        let before = last.insert(key, row.row);
        assert!(
            before.is_none_or(|before| before < row.row),
            "out of order: {row:?}"
        );
    }
    assert_eq!(seen.len(), written.len());
    assert!(seen == written, "something was lost or came from nowhere");
}
