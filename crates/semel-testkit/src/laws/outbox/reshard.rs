//! Another number of shards, while they are read (rule O12).

use std::collections::HashMap;

use semel_core::Event;
use semel_core::relay::OwnedShard;
use semel_core::store::{
    CursorSave, Exception, ExceptionKind, Guarded, Opening, OutboxRow, RESHARD_HOLD_MS, RESHARD_REST_MS,
};

use super::world::{LEASE_MS, PAGE, Reader, World, event};

/// What was read, and whether the reader still owns its shard.
pub(super) async fn drain(reader: &mut Reader, seen: &mut Vec<OutboxRow>) -> bool {
    loop {
        let store = reader.store.clone();
        let reply = store
            .open_batch(&reader.owned.lease, &reader.cursor, false, PAGE)
            .await;
        match reply.unwrap() {
            Guarded::Done(Opening::Opened(cursor, _)) => {
                reader.cursor = cursor;
                seen.extend(reader.rest().await);
                // Every other batch ends with the opening of the next, as relays do it.
                if reader.cursor.batch_no % 2 == 0 {
                    reader.save(i64::MAX, true).await;
                }
            }
            Guarded::Done(Opening::Moved(cursor)) => reader.cursor = cursor,
            Guarded::Done(Opening::Empty) if reader.cursor.open.is_some() => {
                reader.save(i64::MAX, true).await;
            }
            Guarded::Done(Opening::Empty) => return true,
            Guarded::Lost => return false,
            Guarded::Reload => panic!("nobody else writes this cursor"),
        }
    }
}

pub(super) async fn own(world: &World) -> Vec<Reader> {
    let owned: Vec<OwnedShard> = world.store.acquire(&world.wish()).await.unwrap();
    owned
        .into_iter()
        .map(|owned| Reader::new(world.store.clone(), owned))
        .collect()
}

/// Writes events in one transaction.
async fn write(world: &World, events: &[Event]) {
    let mut tx = world.begin().await;
    tx.enqueue_many(events).await.unwrap();
    tx.commit().await;
}

fn some(from: usize, to: usize) -> Vec<Event> {
    (from..to)
        .map(|n| event(&format!("key-{}", n % 11), &n.to_string()))
        .collect()
}

/// Every event once, and those of a key in the order of writing; its places grow (rule O16).
fn check(seen: &[OutboxRow], written: usize) {
    assert_eq!(seen.len(), written);
    let mut last: HashMap<&[u8], (i64, Option<String>)> = HashMap::new();
    for row in seen {
        let key = row.event.key.as_deref().unwrap();
        let place = (row.row, row.sequence());
        let before = last.insert(key, place.clone());
        assert!(
            before.is_none_or(|before| before.0 < place.0 && before.1 < place.1),
            "{row:?}"
        );
    }
}

/// Law: a stream that is registered with another number of shards has them as soon as its owners have come to one place.
/// Whatever was written before, meanwhile and after is read once, in the order of each key; what is set aside is with the
/// shard that has its key now; and former owners can do nothing.
pub async fn shards_are_split_and_merged_while_they_are_read(world: &World) {
    world.store.register_stream("default", 2).await.unwrap();
    let (mut seen, mut written) = (Vec::new(), 0);
    for shards in [4_u16, 1, 3] {
        let mut readers = own(world).await;
        write(world, &some(written, written + 30)).await;
        // One shard is in the middle of a batch when the change is asked for.
        assert!(readers[0].open().await);
        let rows = readers[0].rest().await;
        let half = rows.len() / 2;
        seen.extend(rows[..half].to_vec());
        let parked = CursorSave {
            exceptions: vec![Exception {
                row: rows[0].row,
                event_id: rows[0].event.id,
                kind: ExceptionKind::Parked,
                attempts: 1,
                reason: "refused".to_owned(),
            }],
            ..readers[0].saving(rows[half - 1].row, false)
        };
        let reader = &mut readers[0];
        reader.write(&parked).await;
        let mut open = None;
        if world.writers_overlap {
            let mut tx = world.begin().await;
            tx.enqueue(&event("open", "open")).await.unwrap();
            open = Some(tx);
        }
        world.store.register_stream("default", shards).await.unwrap();
        write(world, &some(written + 30, written + 60)).await;
        written += 60;
        seen.extend(readers[0].rest().await);
        readers[0].save(i64::MAX, true).await;
        let leases: Vec<_> = readers.iter().map(|reader| reader.lease().clone()).collect();
        let mut replaced = false;
        for _ in 0..5 {
            for reader in &mut readers {
                drain(reader, &mut seen).await;
            }
            let renewed = world.store.renew(&leases, LEASE_MS).await.unwrap();
            replaced = renewed.iter().all(|mine| !mine);
            if replaced {
                break;
            }
            // On a machine that is too slow the mark holds no longer: the next one.
            world.pass_ms(RESHARD_HOLD_MS + RESHARD_REST_MS + 1).await;
        }
        assert!(replaced, "the map was not replaced");
        for reader in &mut readers {
            let reply = world.store.load(reader.lease()).await.unwrap();
            assert_eq!(reply, Guarded::Lost);
            // A look that finds nothing may say so to anybody; one that finds rows is a write.
            let before = seen.len();
            drain(reader, &mut seen).await;
            assert_eq!(seen.len(), before, "a former owner reads nothing");
        }
        if let Some(tx) = open {
            tx.commit().await;
            written += 1;
        }
        let mut readers = own(world).await;
        assert_eq!(readers.len(), usize::from(shards));
        let key = rows[0].event.key.clone().unwrap();
        for reader in &mut readers {
            let has = reader.owned.lease.slots.range().contains(&rows[0].event.slot());
            assert_eq!(reader.owned.parked.contains(&key), has);
            assert!(drain(reader, &mut seen).await);
        }
        check(&seen, written);
        let leases: Vec<_> = readers.iter().map(|reader| reader.lease().clone()).collect();
        world.store.release(&leases).await.unwrap();
    }
}

/// Law: a shard that does not get to the mark (its receiver is away) delays the change; the others wait for it now and
/// then for a bounded time, and are read in between. When it comes, the change is made.
pub async fn a_shard_that_lags_holds_up_a_change_and_the_others_only_for_a_while(world: &World) {
    world.store.register_stream("default", 2).await.unwrap();
    let mut readers = own(world).await;
    write(world, &some(0, 30)).await;
    let mut seen = Vec::new();
    assert!(readers[1].open().await);
    world.store.register_stream("default", 1).await.unwrap();
    assert!(drain(&mut readers[0], &mut seen).await);
    let before = seen.len();
    write(world, &some(30, 60)).await;
    assert!(drain(&mut readers[0], &mut seen).await);
    assert_eq!(seen.len(), before, "it waits at the mark");
    world.pass_ms(RESHARD_HOLD_MS + 1).await;
    assert!(drain(&mut readers[0], &mut seen).await);
    assert!(seen.len() > before, "and goes on");

    world.pass_ms(RESHARD_REST_MS + 1).await;
    seen.extend(readers[1].rest().await);
    readers[1].save(i64::MAX, true).await;
    let owns = [
        drain(&mut readers[0], &mut seen).await,
        drain(&mut readers[1], &mut seen).await,
    ];
    assert_eq!(owns, [true, false], "the last one to come makes the change");
    let mut readers = own(world).await;
    assert_eq!(readers.len(), 1);
    assert!(drain(&mut readers[0], &mut seen).await);
    check(&seen, 60);
}

/// Law: whoever asks last is right.
pub async fn a_change_that_nobody_wants_any_more_is_dropped(world: &World) {
    world.store.register_stream("default", 2).await.unwrap();
    let mut readers = own(world).await;
    write(world, &some(0, 30)).await;
    let mut seen = Vec::new();
    for shards in [5, 3, 2] {
        world.store.register_stream("default", shards).await.unwrap();
    }
    for _ in 0..2 {
        for reader in &mut readers {
            assert!(drain(reader, &mut seen).await);
        }
    }
    check(&seen, 30);
    assert_eq!(world.store.backlog().await.unwrap().shards.len(), 2);
}
