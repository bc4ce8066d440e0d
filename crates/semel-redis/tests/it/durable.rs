//! What a Redis that dies remembers, and what the capabilities say of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use semel_core::claim::{Claim, ClaimReply, Lease};
use semel_core::{KeyStore, KeyStoreExt};
use semel_redis::{Config, Redis};
use semel_testkit::laws::keys::duplicate;
use semel_testkit::servers::RedisServer;

use super::world::{completion, request};

const ALWAYS: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];
const EVERYSEC: &[&str] = &["--appendonly", "yes", "--appendfsync", "everysec"];

/// Claims and completes until told to stop or the server is gone; what it was told.
async fn work(store: Redis, stop: Arc<AtomicBool>) -> Vec<(Claim, Lease, bool)> {
    let mut told = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let claims: Vec<Claim> = (0..20).map(|_| request()).collect();
        let mut done = Vec::new();
        for (n, (claim, reply)) in claims.iter().zip(store.claim_many(&claims).await).enumerate() {
            let Ok(ClaimReply::Granted { lease, .. }) = reply else {
                return told;
            };
            told.push((claim.clone(), lease, false));
            // Half of them stay claimed.
            if n % 2 == 0 {
                done.push((told.len() - 1, completion(claim, lease, "done")));
            }
        }
        let (places, done): (Vec<usize>, Vec<_>) = done.into_iter().unzip();
        for (place, reply) in places.into_iter().zip(store.complete_many(&done).await) {
            if reply.is_err() {
                return told;
            }
            told[place].2 = true;
        }
    }
    told
}

/// `kill -9` in the middle of the work. Nothing that was acknowledged is gone, and no token comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_kill_9_of_a_redis_that_flushes_always_nothing_acknowledged_is_lost() {
    let mut server = RedisServer::start(ALWAYS);
    let store = Redis::connect(Config::new(server.url())).await.unwrap();
    assert!(store.capabilities().durable);
    let mut largest = 0;
    for _ in 0..3 {
        let stop = Arc::new(AtomicBool::new(false));
        let workers: Vec<_> = (0..4)
            .map(|_| tokio::spawn(work(store.clone(), Arc::clone(&stop))))
            .collect();
        // Until there is something to lose.
        loop {
            let names: u64 = server.cli(&["DBSIZE"]).parse().unwrap();
            if names > 400 {
                break;
            }
        }
        server.kill();
        stop.store(true, Ordering::Relaxed);
        let mut told = Vec::new();
        for worker in workers {
            told.extend(worker.await.unwrap());
        }
        server.restart();
        assert!(told.len() > 100, "{} claims", told.len());
        for (claim, lease, done) in &told {
            assert!(lease.token.0 > largest, "a token came back");
            let reply = store.claim(&duplicate(claim)).await.unwrap();
            match (&reply, done) {
                (ClaimReply::Done { .. }, _) | (ClaimReply::Busy { .. }, false) => {}
                _ => panic!("{claim:?} was {done}, now {reply:?}"),
            }
        }
        largest = told.iter().map(|(_, lease, _)| lease.token.0).max().unwrap();
        server.cli(&["FLUSHALL"]);
    }
}

/// The promise follows the settings, and nothing better than what is known is promised.
#[tokio::test]
async fn only_a_redis_that_is_known_to_flush_always_is_called_durable() {
    for (arguments, durable, warning) in [
        (ALWAYS, true, ""),
        (EVERYSEC, false, "about the last second of keys"),
        (
            &["--appendonly", "yes", "--appendfsync", "no"],
            false,
            "appendfsync is no",
        ),
        (&["--appendonly", "no"], false, "appendonly yes"),
        (
            &[
                "--appendonly",
                "yes",
                "--appendfsync",
                "always",
                "--rename-command",
                "CONFIG",
                "",
            ],
            false,
            "CONFIG is barred",
        ),
    ] {
        let server = RedisServer::start(arguments);
        let store = Redis::connect(Config::new(server.url())).await.unwrap();
        assert_eq!(store.capabilities().durable, durable, "{arguments:?}");
        assert!(!store.capabilities().token_survives_failover);
        let said = store.facts().await.unwrap()[0].warning().unwrap_or_default();
        assert!(said.contains(warning) && said.is_empty() == durable, "{said}");
    }
}

/// What the documentation says of a Redis without an append-only file is so: it forgets. That is why it is not called
/// durable, and warned of.
#[tokio::test]
async fn a_redis_without_an_append_only_file_forgets_everything() {
    let mut server = RedisServer::start(&["--appendonly", "no"]);
    let store = Redis::connect(Config::new(server.url())).await.unwrap();
    let claim = request();
    let ClaimReply::Granted { lease, .. } = store.claim(&claim).await.unwrap() else {
        panic!("not granted")
    };
    server.kill();
    server.restart();
    let again = loop {
        // The connection's end may come later than the server's.
        if let Ok(reply) = store.claim(&duplicate(&claim)).await {
            break reply;
        }
    };
    let ClaimReply::Granted { lease: second, .. } = again else {
        panic!("{again:?}")
    };
    assert!(
        second.token > lease.token,
        "tokens follow the clock, so they grew even so"
    );
}
