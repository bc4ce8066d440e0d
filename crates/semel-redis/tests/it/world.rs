//! What the tests run in.

use std::sync::Arc;

use semel_core::claim::{Claim, Completion, Lease, Nonce, OwnerLost, succeeded};
use semel_core::host::random_16;
use semel_core::{Fingerprint, Key, Scope};
use semel_redis::{Config, Redis};
use semel_testkit::laws::keys::{KEEP, LEASE_MS, World};
use semel_testkit::servers::redis;

/// A handle of the driver's own, for what tests do behind the store's back.
pub(crate) struct Raw(::redis::aio::MultiplexedConnection);

impl Raw {
    pub(crate) async fn open(url: &str) -> Self {
        let client = ::redis::Client::open(url).unwrap();
        Self(client.get_multiplexed_async_connection().await.unwrap())
    }

    pub(crate) async fn ask<R: ::redis::FromRedisValue>(&mut self, words: &[&[u8]]) -> R {
        let mut command = ::redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        command.query_async(&mut self.0).await.unwrap()
    }

    /// Lets time pass for all records with this prefix in the database, and the rest of the millisecond that a lease may be
    /// longer.
    pub(crate) async fn age_ms(&mut self, prefix: &str, ms: i64) {
        let micros = (ms * 1_000 + 999).to_string();
        let age = include_str!("age.lua");
        let _: ::redis::Value = self
            .ask(&[
                b"EVAL",
                age.as_bytes(),
                b"0",
                prefix.as_bytes(),
                micros.as_bytes(),
            ])
            .await;
    }
}

/// An empty database and its URL.
pub(crate) async fn fresh() -> (String, Redis) {
    let url = redis().fresh_database();
    let store = Redis::connect(Config::new(&url)).await.unwrap();
    (url, store)
}

/// The laws' world over a database.
pub(crate) async fn world() -> World {
    let (url, store) = fresh().await;
    World::new(Arc::new(store), move |ms| {
        let url = url.clone();
        async move { Raw::open(&url).await.age_ms("semel", ms).await }
    })
}

/// A request that nobody has made before.
pub(crate) fn request() -> Claim {
    Claim {
        key: Key::new(Scope::new("tests").unwrap(), random_16()).unwrap(),
        fingerprint: Fingerprint::of(b"what was asked"),
        nonce: Nonce::random(),
        owner_lost: OwnerLost::Hold,
        lease_ms: LEASE_MS,
    }
}

/// Its end.
pub(crate) fn completion(claim: &Claim, lease: Lease, output: &'static str) -> Completion {
    Completion {
        key: claim.key.clone(),
        lease,
        outcome: succeeded(output),
        keep: KEEP,
    }
}
