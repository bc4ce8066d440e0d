//! Who waits is told by whoever ends the run, in another process, too (rule K11).

use std::time::Duration;

use semel_core::claim::{
    Abandonment, ClaimReply, Lease, LeaseReply, Release, Settlement, Verdict, succeeded,
};
use semel_core::{Claim, KeyStore, KeyStoreExt};
use semel_redis::{Config, Redis};
use semel_testkit::laws::keys::{KEEP, LEASE_MS};
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::redis;

use super::world::{Raw, completion, fresh, request};

async fn granted(store: &Redis, claim: &Claim) -> Lease {
    match store.claim(claim).await.unwrap() {
        ClaimReply::Granted { lease, .. } => lease,
        other => panic!("{other:?}"),
    }
}

async fn published(url: &str) -> u64 {
    let stats: String = Raw::open(url).await.ask(&[b"INFO", b"commandstats"]).await;
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_publish:calls="));
    line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

/// Each way in which a run ends wakes the waiter of another handle; extending it does not.
#[tokio::test]
async fn a_waiter_on_another_handle_is_woken_by_every_end() {
    let (url, owner) = fresh().await;
    let waiter = Redis::connect(Config::new(&url)).await.unwrap();
    for way in ["complete", "release", "abandon", "settle"] {
        let claim = request();
        let lease = granted(&owner, &claim).await;
        let mut hint = waiter.subscribe(&claim.key).await.unwrap();
        let wish = semel_core::Extension {
            key: claim.key.clone(),
            lease,
            lease_ms: LEASE_MS,
        };
        owner.extend(&wish).await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(50), &mut hint).await;
        assert!(early.is_err(), "an extension is no end");
        let key = claim.key.clone();
        let reply = match way {
            "complete" => owner.complete(&completion(&claim, lease, "done")).await,
            "release" => {
                let (nonce, token) = (lease.nonce, Some(lease.token));
                owner.release(&Release { key, nonce, token }).await
            }
            "abandon" => owner.abandon(&Abandonment { key, lease }).await,
            _ => {
                Raw::open(&url).await.age_ms("semel", 2 * LEASE_MS).await;
                let settlement = Settlement {
                    key,
                    token: lease.token,
                    verdict: Verdict::Happened(succeeded("found")),
                    keep: KEEP,
                };
                owner.settle(&settlement).await
            }
        };
        assert!(matches!(reply, Ok(LeaseReply::Ok(_))), "{way}: {reply:?}");
        tokio::time::timeout(Duration::from_secs(10), hint)
            .await
            .unwrap_or_else(|_| panic!("{way} woke nobody"));
    }
}

/// Nothing is published for a run for which nobody waits.
#[tokio::test]
async fn a_run_that_nobody_waits_for_publishes_nothing() {
    let server = semel_testkit::servers::RedisServer::start(&[]);
    let store = Redis::connect(Config::new(server.url())).await.unwrap();
    for wait in [false, true] {
        let claim = request();
        let lease = granted(&store, &claim).await;
        if wait {
            let _hint = store.subscribe(&claim.key).await.unwrap();
        }
        store.complete(&completion(&claim, lease, "done")).await.unwrap();
        assert_eq!(published(&server.url()).await, u64::from(wait));
    }
}

/// With the connection hints are lost: those who wait look again, and can wait again.
#[tokio::test]
async fn a_cut_connection_wakes_those_who_wait_and_they_can_wait_again() {
    let url = redis().fresh_database();
    let owner = Redis::connect(Config::new(&url)).await.unwrap();
    let proxy = Proxy::to_port(redis().port()).await.unwrap();
    let through = url.replace(&format!(":{}/", redis().port()), &format!(":{}/", proxy.port()));
    let waiter = Redis::connect(Config::new(through)).await.unwrap();
    let claim = request();
    let lease = granted(&owner, &claim).await;
    let hint = waiter.subscribe(&claim.key).await.unwrap();
    proxy.cut();
    hint.await;
    let hint = waiter.subscribe(&claim.key).await.unwrap();
    owner.complete(&completion(&claim, lease, "done")).await.unwrap();
    hint.await;
}
