//! Real stores that have no room, or take no writes: they are there, so nothing passes them, and what they hold is still
//! answered.

use std::sync::Arc;

use futures_util::future::join_all;
use semel_core::claim::{Claim, ClaimReply, Completion, Nonce, OwnerLost, succeeded};
use semel_core::store::MixedBatch;
use semel_core::{Fingerprint, Key, KeyStore, KeyStoreExt as _, Scope, StoreError};
use semel_http::{Event, IdempotencyLayer, Outage};
use semel_keys::Batched;
use semel_testkit::laws::keys::{KEEP, LEASE_MS};
use semel_testkit::servers::RedisServer;

use super::support::*;

/// A Redis that has no room as soon as it is told so.
struct Narrow(RedisServer);

impl Narrow {
    fn start() -> Self {
        Self(RedisServer::start(&[]))
    }

    async fn store(&self) -> semel_redis::Redis {
        let config = semel_redis::Config::new(self.0.url());
        semel_redis::Redis::connect(config).await.unwrap()
    }

    fn is_full(&self) {
        self.0.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    }
}

fn layer(store: &(impl KeyStore + Clone), outage: Outage) -> IdempotencyLayer {
    let config = semel_http::Config {
        outage,
        ..semel_http::Config::default()
    };
    IdempotencyLayer::builder(Arc::new(store.clone()) as Arc<dyn KeyStore>)
        .config(config)
        .anonymous_scope("tests")
        .build()
        .unwrap()
}

async fn sqlite(dir: &tempfile::TempDir, pages_max: Option<u32>) -> semel_sqlite::Sqlite {
    let mut config = semel_sqlite::Config::new(dir.path().join("keys.db"));
    config.pages_max = pages_max;
    let db = semel_sqlite::Sqlite::open(config).await.unwrap();
    if pages_max.is_none() {
        db.migrate().await.unwrap();
    }
    db
}

fn claim(id: &str) -> Claim {
    Claim {
        key: Key::new(Scope::new("full").unwrap(), id).unwrap(),
        fingerprint: Fingerprint::of(id.as_bytes()),
        nonce: Nonce::random(),
        owner_lost: OwnerLost::Hold,
        lease_ms: LEASE_MS,
    }
}

/// Claims these keys and stores their outcomes.
async fn done(store: &impl KeyStore, ids: &[String]) {
    for id in ids {
        let claim = claim(id);
        let ClaimReply::Granted { lease, .. } = store.claim(&claim).await.unwrap() else {
            panic!("not granted")
        };
        let done = Completion {
            key: claim.key,
            lease,
            outcome: succeeded("kept"),
            keep: KEEP,
        };
        store.complete(&done).await.unwrap();
    }
}

fn ids(name: &str, n: usize) -> Vec<String> {
    (0..n)
        .map(|n| format!("{name}-{n}-{}", "x".repeat(200)))
        .collect()
}

/// Runs the request whose answer is asked for again later.
async fn keep(store: &(impl KeyStore + Clone)) {
    let app = counting(&layer(store, Outage::Closed), &Runs::default());
    assert_eq!(send(&app, post("kept")).await.status, 201);
}

/// stregsystemet-rs#54, on the store itself: whatever `open` says, somebody may be running the key.
async fn nothing_passes_a_full_store(store: impl KeyStore + Clone) {
    for outage in [Outage::Closed, Outage::Open] {
        let runs = Runs::default();
        let layer = layer(&store, outage);
        let app = counting(&layer, &runs);
        // A file has room in its last pages.
        let mut n = 0;
        let full = loop {
            let answer = send(&app, post(&format!("{outage:?}-{n}-{}", "x".repeat(200)))).await;
            if answer.status != 201 {
                break answer;
            }
            n += 1;
            assert_ne!(answer.header("semel-guarantee"), Some("none"));
        };
        assert_eq!(
            (
                full.status,
                full.code().as_str(),
                full.outcome(),
                full.header("retry-after")
            ),
            (503, "SEM0430", "refused", Some("60")),
            "{outage:?}"
        );
        assert_eq!((runs.count(), layer.counts().get(Event::OpenPassed)), (n, 0));
        let replay = send(&app, post("kept")).await;
        assert!(replay.replayed(), "{outage:?}: {replay:?}");
    }
}

#[tokio::test]
async fn nothing_passes_a_full_redis() {
    let server = Narrow::start();
    let store = server.store().await;
    keep(&store).await;
    server.is_full();
    nothing_passes_a_full_store(store).await;
}

#[tokio::test]
async fn nothing_passes_a_full_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let store = sqlite(&dir, None).await;
    keep(&store).await;
    store.close().await;
    nothing_passes_a_full_store(sqlite(&dir, Some(1)).await).await;
}

/// A server that answers "not now" to each write is there, too.
#[tokio::test]
async fn nothing_passes_a_redis_that_takes_no_writes() {
    let server = Narrow::start();
    let store = server.store().await;
    server.0.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let runs = Runs::default();
    let answer = send(&counting(&layer(&store, Outage::Open), &runs), post("a")).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "SEM0411"));
    assert!(answer.detail().contains("SEM0237"), "{}", answer.detail());
    assert_eq!(runs.count(), 0);
}

/// What comes while a batch is on its way goes together in the next one: here all but the first.
async fn replays_beside_new_keys(store: &Batched<impl KeyStore>, kept: &[String]) {
    let fresh = ids("fresh", 40);
    let claims: Vec<Claim> = fresh
        .iter()
        .zip(kept.iter().cycle())
        .flat_map(|(fresh, kept)| [claim(fresh), claim(kept)])
        .collect();
    let replies = join_all(claims.iter().map(|claim| store.claim(claim))).await;
    let full = replies
        .iter()
        .filter(|reply| matches!(reply, Err(error) if error.is_full()))
        .count();
    assert!(full > 0, "no room for so many: {replies:?}");
    for (claim, reply) in claims.iter().zip(&replies).skip(1).step_by(2) {
        assert!(
            matches!(reply, Ok(ClaimReply::Done { .. })),
            "{}: {reply:?}",
            claim.key
        );
    }
}

#[tokio::test]
async fn a_full_redis_still_replays_beside_new_keys() {
    let server = Narrow::start();
    let store = Batched::new(server.store().await);
    let kept = ids("kept", 10);
    done(&store, &kept).await;
    server.is_full();
    replays_beside_new_keys(&store, &kept).await;
}

#[tokio::test]
async fn a_full_sqlite_still_replays_beside_new_keys() {
    let dir = tempfile::tempdir().unwrap();
    let store = sqlite(&dir, None).await;
    let kept = ids("kept", 10);
    done(&store, &kept).await;
    store.close().await;
    let store = sqlite(&dir, Some(1)).await;
    // As a batcher sends them that does not look first; together they need more room than the last pages have.
    let fresh = ids("fresh", 200);
    let claims: Vec<Claim> = fresh.iter().chain(&kept).map(|id| claim(id)).collect();
    let batch = MixedBatch {
        claims: claims.clone(),
        ..MixedBatch::default()
    };
    for replies in [
        store.transact_many(&batch).await.claims,
        store.claim_many(&claims).await,
    ] {
        let (fresh, kept) = replies.split_at(fresh.len());
        let full = |reply: &Result<_, StoreError>| matches!(reply, Err(error) if error.is_full());
        assert!(fresh.iter().all(full), "{fresh:?}");
        for reply in kept {
            assert!(matches!(reply, Ok(ClaimReply::Done { .. })), "{reply:?}");
        }
    }
}
