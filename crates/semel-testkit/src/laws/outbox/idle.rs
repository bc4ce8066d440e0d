//! One look for many idle shards.

use semel_core::store::{Guarded, Opening};

use super::reshard::{drain, own};
use super::world::{PAGE, Reader, World, event};

async fn worth(world: &World, readers: &[Reader]) -> Vec<bool> {
    let asked: Vec<_> = readers
        .iter()
        .map(|reader| (reader.lease().clone(), reader.cursor.clone()))
        .collect();
    let worth = world.store.worth_opening(&asked).await.unwrap();
    assert_eq!(worth.len(), readers.len());
    worth
}

/// Everything is read, and the marks stand at the end.
async fn come_to_rest(readers: &mut [Reader]) {
    for reader in readers {
        assert!(drain(reader, &mut Vec::new()).await);
        let reply = reader
            .store
            .open_batch(reader.lease(), &reader.cursor, true, PAGE)
            .await;
        match reply.unwrap() {
            Guarded::Done(Opening::Moved(cursor)) => reader.cursor = cursor,
            Guarded::Done(Opening::Empty) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// What one look says is checked by each shard's own; then all is read.
async fn is_found(world: &World, readers: &mut [Reader]) {
    let worth = worth(world, readers).await;
    let mut found = 0;
    for (reader, worth) in readers.iter_mut().zip(worth) {
        let opened = reader.open().await;
        assert!(worth || !opened, "left alone, and there was something to open");
        found += usize::from(opened);
    }
    assert_eq!(found, 1, "one key was written");
    come_to_rest(readers).await;
}

/// Law: what one look for many leaves alone has nothing to open; where nothing happens, it leaves all alone.
pub async fn one_look_for_many_shards_passes_over_nothing(world: &World) {
    world.store.register_stream("default", 4).await.unwrap();
    let mut readers = own(world).await;
    assert_eq!(readers.len(), 4);
    come_to_rest(&mut readers).await;
    assert_eq!(
        worth(world, &readers).await,
        [false; 4],
        "nothing was ever written"
    );
    world.write(&[event("a", "one")]).await;
    is_found(world, &mut readers).await;
    assert_eq!(worth(world, &readers).await, [false; 4], "all is read");
    if world.writers_overlap {
        let mut slow = world.begin().await;
        slow.enqueue(&event("a", "slow")).await.unwrap();
        world.write(&[event("b", "fast")]).await;
        is_found(world, &mut readers).await;
        slow.commit().await;
        is_found(world, &mut readers).await;
        assert_eq!(worth(world, &readers).await, [false; 4]);
    }
    assert!(worth(world, &[]).await.is_empty());
}

/// Law: a cursor that somebody else has written since, and a change of the number of shards that its owners carry out.
pub async fn one_look_for_many_shards_sees_what_else_an_opening_is_for(world: &World) {
    world.store.register_stream("default", 2).await.unwrap();
    let mut readers = own(world).await;
    come_to_rest(&mut readers).await;
    assert_eq!(worth(world, &readers).await, [false, false]);
    readers[0].cursor.version += 1;
    assert_eq!(worth(world, &readers).await, [true, false]);
    readers[0].cursor.version -= 1;
    world.store.register_stream("default", 3).await.unwrap();
    assert_eq!(worth(world, &readers).await, [true, true]);
}
