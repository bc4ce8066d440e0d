//! Who may send, and who may say so.

use semel_core::relay::Epoch;
use semel_core::store::{Acquire, Guarded, Opening, PageSize};

use super::world::{LEASE_MS, PAGE, World, event, texts};

/// Law: while a lease runs nobody else gets the shard; when it has ended the next owner has a larger epoch.
pub async fn a_shard_has_one_owner(world: &World) {
    let first = world.reader().await;
    assert!(world.take_over().await.is_none());
    world.pass_ms(LEASE_MS + 1).await;
    let second = world.take_over().await.expect("the lease has ended");
    assert!(second.lease().epoch > first.lease().epoch);
    assert_ne!(second.lease().nonce, first.lease().nonce);
    let backlog = world.store.backlog().await.unwrap();
    assert_eq!(backlog.shards[0].owner.as_deref(), Some("law"));
}

/// Law: who gives a shard back keeps nobody waiting.
pub async fn a_released_shard_is_free_at_once(world: &World) {
    let first = world.reader().await;
    world.store.release(&[first.lease().clone()]).await.unwrap();
    assert_eq!(world.store.backlog().await.unwrap().shards[0].owner, None);
    let second = world.take_over().await.expect("the shard is free");
    // A release that comes late is nothing to the next owner.
    world.store.release(&[first.lease().clone()]).await.unwrap();
    assert_eq!(
        world
            .store
            .renew(&[second.lease().clone()], LEASE_MS)
            .await
            .unwrap(),
        [true]
    );
}

/// Law: time alone takes nothing away.
pub async fn a_lease_that_ended_and_nobody_took_is_prolonged(world: &World) {
    let mut reader = world.reader().await;
    world.pass_ms(LEASE_MS * 2).await;
    assert_eq!(
        world
            .store
            .renew(&[reader.lease().clone()], LEASE_MS)
            .await
            .unwrap(),
        [true]
    );
    assert!(world.take_over().await.is_none());
    world.write(&[event("k", "x")]).await;
    assert_eq!(texts(&reader.batch().await), ["x"]);
}

/// Law: when the answer to a wish is lost, the same wish gets the same shards, without waiting for a lease that nobody
/// holds.
pub async fn a_wish_that_is_repeated_gets_its_shards_again(world: &World) {
    world.store.register_stream("default", 1).await.unwrap();
    let wish = world.wish();
    let lost = world.store.acquire(&wish).await.unwrap();
    let again = world.store.acquire(&wish).await.unwrap();
    assert_eq!((lost.len(), again.len()), (1, 1));
    assert_eq!(
        world
            .store
            .renew(&[again[0].lease.clone()], LEASE_MS)
            .await
            .unwrap(),
        [true]
    );
}

/// Law: however many have become free meanwhile, a wish that is repeated gets the shard of its lost answer, which nobody would
/// serve until its lease ends.
pub async fn a_repeated_wish_prefers_the_shard_that_it_got(world: &World) {
    world.store.register_stream("default", 2).await.unwrap();
    let one = || Acquire {
        max: 1,
        ..world.wish()
    };
    let first = world.store.acquire(&one()).await.unwrap();
    let wish = one();
    let lost = world.store.acquire(&wish).await.unwrap();
    let leases: Vec<_> = first.iter().map(|owned| owned.lease.clone()).collect();
    world.store.release(&leases).await.unwrap();
    let again = world.store.acquire(&wish).await.unwrap();
    assert_eq!(again[0].lease.shard, lost[0].lease.shard);
    assert!(again[0].lease.shard.index > first[0].lease.shard.index);
}

/// Law, rule O11: after a take-over nothing that the old owner sends has any effect; neither epoch nor nonce alone is
/// enough.
pub async fn a_stale_owner_changes_nothing(world: &World) {
    let mut old = world.reader().await;
    let rows = world.write(&[event("k", "1"), event("k", "2")]).await;
    assert!(old.open().await);
    world.pass_ms(LEASE_MS + 1).await;
    let mut new = world.take_over().await.expect("the lease has ended");

    let mut half = [old.lease().clone(), old.lease().clone(), old.lease().clone()];
    half[1].epoch = new.lease().epoch;
    half[2].nonce = new.lease().nonce;
    half[2].epoch = Epoch(new.lease().epoch.0 - 1);
    for lease in &half {
        let store = &world.store;
        let size = PageSize { rows: 1, bytes: 1 };
        assert_eq!(
            store.renew(std::slice::from_ref(lease), LEASE_MS).await.unwrap(),
            [false]
        );
        assert_eq!(store.load(lease).await.unwrap(), Guarded::Lost);
        assert_eq!(
            store.read_page(lease, &old.cursor, 0, size).await.unwrap(),
            Guarded::Lost
        );
        assert_eq!(
            store
                .save_cursor(lease, &old.saving(rows[1], true))
                .await
                .unwrap(),
            Guarded::Lost
        );
        // A look that finds nothing may say so to anybody; one that finds rows is a write.
        world.write(&[event("k", "x")]).await;
        assert_eq!(
            store.open_batch(lease, &old.cursor, false, PAGE).await.unwrap(),
            Guarded::Lost
        );
        store.release(std::slice::from_ref(lease)).await.unwrap();
    }
    assert_eq!(texts(&new.rest().await), ["1", "2"]);
    new.save(rows[0], false).await;
}

/// Law, rule S3: a write that was decided on an older cursor changes nothing, even when its sender is still the owner.
pub async fn a_late_write_of_the_same_owner_is_refused(world: &World) {
    let mut reader = world.reader().await;
    let rows = world.write(&[event("k", "1"), event("k", "2")]).await;
    assert!(reader.open().await);
    let late = reader.saving(rows[0], false);
    reader.save(rows[1], true).await;
    let (store, lease) = (&world.store, reader.lease());
    assert_eq!(store.save_cursor(lease, &late).await.unwrap(), Guarded::Reload);
    world.write(&[event("k", "3")]).await;
    assert_eq!(
        store.open_batch(lease, &late.from, false, PAGE).await.unwrap(),
        Guarded::Reload
    );
    let size = PageSize { rows: 9, bytes: 999 };
    assert_eq!(
        store.read_page(lease, &late.from, 0, size).await.unwrap(),
        Guarded::Reload
    );
    assert_eq!(
        store.load(lease).await.unwrap(),
        Guarded::Done(reader.cursor.clone())
    );
    assert_eq!(texts(&reader.batch().await), ["3"]);
}

/// Law, rule O22: owners that die on the same row of an open batch are counted; progress, a release, or a death
/// between batches begins anew.
pub async fn deaths_on_one_place_are_counted(world: &World) {
    let mut reader = world.reader().await;
    assert_eq!(reader.owned.takeovers, 0);
    let rows = world.write(&[event("k", "1"), event("k", "2")]).await;
    assert!(reader.open().await);
    for count in [1, 2, 3] {
        world.pass_ms(LEASE_MS + 1).await;
        reader = world.take_over().await.expect("the lease has ended");
        assert_eq!(reader.owned.takeovers, count);
    }
    reader.save(rows[0], false).await;
    world.pass_ms(LEASE_MS + 1).await;
    reader = world.take_over().await.expect("the lease has ended");
    assert_eq!(reader.owned.takeovers, 1);
    world.store.release(&[reader.lease().clone()]).await.unwrap();
    reader = world.take_over().await.expect("the shard is free");
    assert_eq!(reader.owned.takeovers, 0);
    reader.save(rows[1], true).await;
    world.pass_ms(LEASE_MS + 1).await;
    reader = world.take_over().await.expect("the lease has ended");
    assert_eq!(reader.owned.takeovers, 0);
}

/// Law, rule O22: the row that was marked before it was sent is known to the next owner, until the batch ends.
pub async fn a_mark_before_a_send_is_kept_for_the_next_owner(world: &World) {
    let mut reader = world.reader().await;
    let rows = world.write(&[event("k", "1")]).await;
    assert!(reader.open().await);
    let mut save = reader.saving(reader.cursor.last_id, false);
    save.suspect = Some(rows[0]);
    reader.write(&save).await;
    world.pass_ms(LEASE_MS + 1).await;
    let mut next = world.take_over().await.expect("the lease has ended");
    assert_eq!(next.cursor.suspect, Some(rows[0]));
    next.save(rows[0], true).await;
    assert_eq!(next.cursor.suspect, None);
    let reply = world
        .store
        .open_batch(next.lease(), &next.cursor, false, PAGE)
        .await
        .unwrap();
    assert_eq!(reply, Guarded::Done(Opening::Empty));
}
