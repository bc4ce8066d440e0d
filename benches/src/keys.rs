//! Claims per second.

mod batched;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use semel_core::claim::{Claim, ClaimReply, Completion, Keep, LeaseReply, Nonce, OwnerLost, succeeded};
use semel_core::model::MemoryKeys;
use semel_core::{Fingerprint, Key, KeyStore, Scope};
use semel_postgres::Postgres;
use semel_sqlite::Sqlite;
use semel_testkit::servers::postgres;

use crate::Plan;
use crate::harness::{Sample, Table, callers};

/// Keys in a batch.
const BATCH: usize = 256;
/// Callers at once on PostgreSQL, one connection each.
const CALLERS: usize = 8;

/// Ids that no run has used before, growing.
#[derive(Clone, Default)]
struct Ids(Arc<AtomicU64>);

impl Ids {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    fn claims(&self, count: usize) -> Vec<Claim> {
        let scope = Scope::new("bench/tenant-1").unwrap();
        let claim = |_| Claim {
            key: Key::new(scope.clone(), format!("order-{:012}", self.next())).unwrap(),
            fingerprint: Fingerprint::of(b"an order"),
            nonce: Nonce::random(),
            owner_lost: OwnerLost::Hold,
            lease_ms: 30_000,
        };
        (0..count).map(claim).collect()
    }
}

pub(crate) async fn run(plan: Plan) {
    memory(plan).await;
    sqlite(plan).await;
    batched::sqlite(plan, None).await;
    postgresql(plan).await;
}

pub(crate) async fn batched(plan: Plan, only: Option<&str>) {
    batched::sqlite(plan, only).await;
}

/// Claims and, if wished, completes them; the whole life of that many keys.
async fn keys(store: Arc<dyn KeyStore>, ids: Ids, batch: usize, complete: bool) -> u64 {
    let claims = ids.claims(batch);
    let replies = store.claim_many(&claims).await;
    if complete {
        let completions: Vec<Completion> = claims
            .into_iter()
            .zip(replies)
            .map(|(claim, reply)| {
                let Ok(ClaimReply::Granted { lease, .. }) = reply else {
                    panic!("a fresh key was not granted: {reply:?}");
                };
                Completion {
                    key: claim.key,
                    lease,
                    outcome: succeeded("charged 40.00"),
                    keep: Keep::default(),
                }
            })
            .collect();
        let done = store.complete_many(&completions).await;
        assert!(done.iter().all(|reply| matches!(reply, Ok(LeaseReply::Ok(_)))));
    } else {
        assert!(
            replies
                .iter()
                .all(|reply| matches!(reply, Ok(ClaimReply::Granted { .. })))
        );
    }
    batch as u64
}

async fn keys_for(
    plan: Plan,
    store: Arc<dyn KeyStore>,
    ids: Ids,
    at_once: usize,
    batch: usize,
    complete: bool,
) -> Sample {
    callers(at_once, plan.run, move |_| {
        keys(Arc::clone(&store), ids.clone(), batch, complete)
    })
    .await
}

async fn memory(plan: Plan) {
    let ids = Ids::default();
    let store = || Arc::new(MemoryKeys::default());
    Table::new("Keys in memory (what the protocol itself costs)", "keys")
        .contender("claim, one at a time", || {
            keys_for(plan, store(), ids.clone(), 1, 1, false)
        })
        .contender("claim and complete, one at a time", || {
            keys_for(plan, store(), ids.clone(), 1, 1, true)
        })
        .measure(plan.rounds)
        .await;
}

async fn sqlite(plan: Plan) {
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open(semel_sqlite::Config::new(dir.path().join("keys.db")))
        .await
        .unwrap();
    store.migrate().await.unwrap();
    let mut tx = store.begin().await.unwrap();
    sqlx::query("CREATE TABLE bare (id BLOB PRIMARY KEY, fingerprint BLOB, at INTEGER) STRICT")
        .execute(&mut *tx)
        .await
        .unwrap();
    store.commit(tx).await.unwrap();
    let ids = Ids::default();
    let bare = |batch| {
        let (store, ids) = (store.clone(), ids.clone());
        callers(1, plan.run, move |_| {
            bare_sqlite(store.clone(), ids.clone(), batch)
        })
    };
    let keys = |batch, complete| keys_for(plan, Arc::new(store.clone()), ids.clone(), 1, batch, complete);
    Table::new("Keys on SQLite, a commit for each", "keys")
        .contender("limit: bare INSERT and commit", || bare(1))
        .contender("claim", || keys(1, false))
        .contender("claim, then complete", || keys(1, true))
        .measure(plan.rounds)
        .await;
    Table::new(format!("Keys on SQLite, {BATCH} in a commit"), "keys")
        .contender("limit: bare INSERTs and commit", || bare(BATCH))
        .contender("claim", || keys(BATCH, false))
        .contender("claim, then complete", || keys(BATCH, true))
        .measure(plan.rounds)
        .await;
}

async fn bare_sqlite(store: Sqlite, ids: Ids, batch: usize) -> u64 {
    let mut tx = store.begin().await.unwrap();
    for claim in ids.claims(batch) {
        sqlx::query("INSERT INTO bare (id, fingerprint, at) VALUES (?, ?, ?)")
            .bind(claim.key.id().to_vec())
            .bind(claim.nonce.0.to_vec())
            .bind(0_i64)
            .execute(&mut *tx)
            .await
            .unwrap();
    }
    store.commit(tx).await.unwrap();
    batch as u64
}

async fn postgresql(plan: Plan) {
    let url = postgres().fresh_database();
    let store = Postgres::connect(semel_postgres::Config::new(url)).await.unwrap();
    store.migrate().await.unwrap();
    sqlx::query("CREATE TABLE bare (id bytea PRIMARY KEY, fingerprint bytea, at timestamptz DEFAULT clock_timestamp())")
        .execute(store.pool())
        .await
        .unwrap();
    let ids = Ids::default();
    let bare = |at_once, batch| {
        let (store, ids) = (store.clone(), ids.clone());
        callers(at_once, plan.run, move |_| {
            bare_postgresql(store.clone(), ids.clone(), batch)
        })
    };
    let keys = |at_once, batch, complete| {
        keys_for(
            plan,
            Arc::new(store.clone()),
            ids.clone(),
            at_once,
            batch,
            complete,
        )
    };
    for at_once in [1, CALLERS] {
        Table::new(
            format!("Keys on PostgreSQL, a commit for each, {at_once} at once"),
            "keys",
        )
        .contender("limit: bare INSERT", || bare(at_once, 1))
        .contender("claim", || keys(at_once, 1, false))
        .contender("claim, then complete", || keys(at_once, 1, true))
        .measure(plan.rounds)
        .await;
    }
    Table::new(
        format!("Keys on PostgreSQL, {BATCH} in a commit, 2 at once"),
        "keys",
    )
    .contender("limit: bare INSERT of an array", || bare(2, BATCH))
    .contender("claim", || keys(2, BATCH, false))
    .contender("claim, then complete", || keys(2, BATCH, true))
    .measure(plan.rounds)
    .await;
}

async fn bare_postgresql(store: Postgres, ids: Ids, batch: usize) -> u64 {
    let claims = ids.claims(batch);
    let keys: Vec<&[u8]> = claims.iter().map(|claim| claim.key.id()).collect();
    let nonces: Vec<&[u8]> = claims.iter().map(|claim| claim.nonce.0.as_slice()).collect();
    sqlx::query("INSERT INTO bare (id, fingerprint) SELECT * FROM unnest($1::bytea[], $2::bytea[])")
        .bind(keys)
        .bind(nonces)
        .execute(store.pool())
        .await
        .unwrap();
    batch as u64
}
