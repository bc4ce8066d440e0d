//! A replica is promoted that has not seen the last writes: what Redis forgets, and what holds all the same (rule K9).

use semel_core::claim::{Claim, ClaimReply, Lease, LeaseReply};
use semel_core::{KeyStore, KeyStoreExt};
use semel_redis::{Config, Redis};
use semel_testkit::laws::keys::{duplicate, is_ok};
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::RedisServer;

use super::world::{completion, request};

async fn granted(store: &Redis, claim: &Claim) -> Lease {
    match store.claim(claim).await.unwrap() {
        ClaimReply::Granted { lease, .. } => lease,
        other => panic!("not granted: {other:?}"),
    }
}

/// Waits until the replica's log is as long as the primary's.
fn until_it_has_all(primary: &RedisServer) {
    for _ in 0..6_000 {
        // Of so many replicas; asked for one, it answers as soon as that has everything.
        if primary.cli(&["WAIT", "1", "1000"]) == "1" {
            return;
        }
    }
    panic!("the replica does not follow");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_promoted_before_it_has_seen_a_key_gives_that_key_away_again() {
    let mut primary = RedisServer::start(&[]);
    let link = Proxy::to_port(primary.port()).await.unwrap();
    let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &link.port().to_string()]);
    let store = Redis::connect(Config::new(primary.url())).await.unwrap();
    assert!(!store.capabilities().token_survives_failover);

    let seen = request();
    let lease = granted(&store, &seen).await;
    assert!(is_ok(
        store.complete(&completion(&seen, lease, "seen")).await.unwrap()
    ));
    tokio::task::block_in_place(|| until_it_has_all(&primary));

    // From here on nothing reaches the replica, and nobody is told.
    link.pause();
    let (done, running) = (request(), request());
    let lease = granted(&store, &done).await;
    assert!(is_ok(
        store.complete(&completion(&done, lease, "done")).await.unwrap()
    ));
    let late = granted(&store, &running).await;
    primary.kill();
    replica.cli(&["REPLICAOF", "NO", "ONE"]);

    let store = Redis::connect(Config::new(replica.url())).await.unwrap();
    let answer = store.claim(&duplicate(&seen)).await.unwrap();
    assert!(matches!(answer, ClaimReply::Done { .. }), "{answer:?}");
    for (claim, what) in [(&done, "was done and acknowledged"), (&running, "runs still")] {
        assert_eq!(store.read(&claim.key).await.unwrap(), None, "{what}");
        let again = granted(&store, &duplicate(claim)).await;
        assert_ne!(again.nonce, claim.nonce, "{what}");
    }
    // The owner of before is a stranger here, by its nonce, whatever tokens were handed out.
    let refused = store.complete(&completion(&running, late, "late")).await.unwrap();
    assert_eq!(refused, LeaseReply::LeaseLost);
    let kept = store.read(&running.key).await.unwrap().unwrap().lease().unwrap();
    assert_ne!(kept.nonce, late.nonce);
}
