//! Who lives, and who holds what.

use semel_core::Nonce;
use semel_core::host::random_16;
use semel_core::relay::{Holding, Roster};
use semel_core::store::{ABSENT_KEPT_MS, Acquire, Presence};

use super::world::{LEASE_MS, World};

fn presence(stream: &str) -> Presence {
    Presence {
        stream: stream.to_owned(),
        relay: Nonce(random_16()),
        owner: "law".to_owned(),
        ms: LEASE_MS,
    }
}

async fn relays(world: &World) -> Vec<Nonce> {
    world.store.roster("default").await.unwrap().relays
}

/// Law: a relay is there from when it says so until its word ends or it takes it back; those of other streams are not.
pub async fn a_relay_lives_for_as_long_as_it_says(world: &World) {
    let store = &world.store;
    assert_eq!(store.roster("default").await.unwrap(), Roster::default());
    let (first, second, other) = (presence("default"), presence("default"), presence("other"));
    for it in [&first, &other] {
        store.attend(it).await.unwrap();
    }
    assert_eq!(relays(world).await, [first.relay]);
    world.pass_ms(LEASE_MS / 2).await;
    store.attend(&first).await.unwrap();
    store.attend(&second).await.unwrap();
    world.pass_ms(LEASE_MS / 2 + 1).await;
    let both = relays(world).await;
    assert!(both.len() == 2 && both.contains(&first.relay) && both.contains(&second.relay));
    store.leave("default", first.relay).await.unwrap();
    store.leave("default", other.relay).await.unwrap();
    assert_eq!(relays(world).await, [second.relay]);
    world.pass_ms(LEASE_MS).await;
    assert!(relays(world).await.is_empty());
    // Long gone: cleaned up by whoever is there, and back when it says so.
    world.pass_ms(ABSENT_KEPT_MS + 1).await;
    store.attend(&first).await.unwrap();
    assert_eq!(relays(world).await, [first.relay]);
    store.attend(&second).await.unwrap();
    assert_eq!(relays(world).await.len(), 2);
}

/// Law: a shard is free until it is taken, then it is that relay's until its lease ends or it is given back.
pub async fn a_roster_tells_who_holds_which_shard(world: &World) {
    let store = &world.store;
    store.register_stream("default", 2).await.unwrap();
    store.register_stream("other", 1).await.unwrap();
    let holdings = async || {
        let mut shards = store.roster("default").await.unwrap().shards;
        shards.sort_by_key(|(index, _)| *index);
        let (indexes, holdings): (Vec<_>, Vec<_>) = shards.into_iter().unzip();
        assert_eq!(indexes, [0, 1]);
        holdings
    };
    assert_eq!(holdings().await, [Holding::Free, Holding::Free]);
    let wish = Acquire {
        max: 1,
        ..world.wish()
    };
    let first = store.acquire(&wish).await.unwrap().remove(0);
    assert_eq!(holdings().await, [Holding::Relay(wish.relay), Holding::Free]);
    let wish_of_another = Acquire {
        max: 1,
        ..world.wish()
    };
    let second = store.acquire(&wish_of_another).await.unwrap().remove(0);
    let another = Holding::Relay(wish_of_another.relay);
    assert_eq!(holdings().await, [Holding::Relay(wish.relay), another]);
    store.release(&[first.lease]).await.unwrap();
    assert_eq!(holdings().await, [Holding::Free, another]);
    world.pass_ms(LEASE_MS + 1).await;
    assert_eq!(holdings().await, [Holding::Free, Holding::Free]);
    store.renew(&[second.lease], LEASE_MS).await.unwrap();
    assert_eq!(holdings().await, [Holding::Free, another]);
}
