//! Real stores that have no room, or take no writes: they are there, so nothing passes them, and what they hold is still
//! answered.

use std::sync::Arc;

use futures_util::future::join_all;
use semel_core::claim::{Claim, ClaimReply, Completion, LeaseReply, Nonce, OwnerLost, succeeded};
use semel_core::store::MixedBatch;
use semel_core::{Fingerprint, Key, KeyStore, KeyStoreExt as _, Scope, StoreError};
use semel_http::{Event, IdempotencyLayer, Outage};
use semel_keys::Batched;
use semel_testkit::laws::keys::{KEEP, LEASE_MS};
use semel_testkit::servers::{MariadbServer, RedisServer, postgres};

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

/// A MariaDB whose tables have one file of 28 MB at most.
struct Small {
    server: MariadbServer,
    rows: usize,
}

impl Small {
    fn start() -> Self {
        let options = [
            "--innodb-file-per-table=0",
            "--innodb-data-file-path=ibdata1:12M:autoextend:max:28M",
            "--innodb-autoextend-increment=4",
        ];
        Self {
            server: MariadbServer::start_with(&options),
            rows: 0,
        }
    }

    async fn store(&self) -> semel_mysql::Mysql {
        let config = semel_mysql::Config::new(self.server.fresh_database());
        let db = semel_mysql::Mysql::connect(config).await.unwrap();
        db.migrate().await.unwrap();
        db
    }

    /// First with large outcomes, then with keys, until neither has room.
    async fn fill(&mut self, store: &impl KeyStore) {
        for bytes in [256 << 10, 16 << 10] {
            loop {
                self.rows += 1;
                let claim = claim(&format!("filler-{}", self.rows));
                let Ok(ClaimReply::Granted { lease, .. }) = store.claim(&claim).await else {
                    break;
                };
                let done = Completion {
                    key: claim.key,
                    lease,
                    outcome: succeeded(vec![b'x'; bytes]),
                    keep: KEEP,
                };
                if let Err(error) = store.complete(&done).await {
                    assert!(error.is_full(), "{error:?}");
                    break;
                }
            }
        }
        loop {
            self.rows += 1;
            let claims: Vec<Claim> = ids(&format!("filler-{}", self.rows), 64)
                .iter()
                .map(|id| claim(id))
                .collect();
            let replies = store.claim_many(&claims).await;
            if let Some(Err(error)) = replies.iter().find(|reply| reply.is_err()) {
                assert!(error.is_full(), "{error:?}");
                return;
            }
        }
    }
}

/// A PostgreSQL that says of new keys what it says where its disk is full; those named `kept` were there before.
async fn full_postgres() -> (String, semel_postgres::Postgres) {
    let url = postgres().fresh_database();
    let db = semel_postgres::Postgres::connect(semel_postgres::Config::new(&url))
        .await
        .unwrap();
    db.migrate().await.unwrap();
    let full = "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION \
                'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$;\
                CREATE TRIGGER no_room BEFORE INSERT ON semel.key FOR EACH ROW \
                WHEN (position('kept'::bytea IN NEW.id) = 0) EXECUTE FUNCTION no_room()";
    postgres().run_sql(&url, full);
    (url, db)
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

#[tokio::test]
async fn nothing_passes_a_full_mariadb() {
    let mut server = Small::start();
    let store = server.store().await;
    keep(&store).await;
    server.fill(&store).await;
    nothing_passes_a_full_store(store).await;
}

#[tokio::test]
async fn nothing_passes_a_full_postgres() {
    let (_url, store) = full_postgres().await;
    keep(&store).await;
    nothing_passes_a_full_store(store).await;
}

#[tokio::test]
async fn a_full_postgres_still_replays_beside_new_keys() {
    let (_url, store) = full_postgres().await;
    let kept = ids("kept", 10);
    done(&store, &kept).await;
    new_keys_are_refused_and_kept_ones_replayed(&store, &kept).await;
    replays_beside_new_keys(&Batched::new(store), &kept).await;
}

/// What changes rows that are there shares a statement with new ones.
#[tokio::test]
async fn a_full_mariadb_still_replays_and_completes_beside_new_keys() {
    let mut server = Small::start();
    let store = server.store().await;
    let kept = ids("kept", 10);
    done(&store, &kept).await;
    let mut runs = Vec::new();
    for id in ids("running", 3) {
        let claim = claim(&id);
        let ClaimReply::Granted { lease, .. } = store.claim(&claim).await.unwrap() else {
            panic!("not granted")
        };
        runs.push((claim.key, lease));
    }
    server.fill(&store).await;
    new_keys_are_refused_and_kept_ones_replayed(&store, &kept).await;
    let batch = MixedBatch {
        claims: ids("fresh", 200).iter().map(|id| claim(id)).collect(),
        completions: runs
            .iter()
            .map(|(key, lease)| Completion {
                key: key.clone(),
                lease: *lease,
                outcome: succeeded("ok"),
                keep: KEEP,
            })
            .collect(),
        ..MixedBatch::default()
    };
    let replies = store.transact_many(&batch).await;
    assert!(replies.claims.iter().all(is_full), "{:?}", replies.claims);
    for reply in &replies.completions {
        assert!(matches!(reply, Ok(LeaseReply::Ok(_))), "{reply:?}");
    }
    replays_beside_new_keys(&Batched::new(store), &kept).await;
}

fn is_full<R>(reply: &Result<R, StoreError>) -> bool {
    matches!(reply, Err(error) if error.is_full())
}

/// All in one batch.
async fn new_keys_are_refused_and_kept_ones_replayed(store: &impl KeyStore, kept: &[String]) {
    let fresh = ids("fresh", 200);
    let claims: Vec<Claim> = fresh.iter().chain(kept).map(|id| claim(id)).collect();
    let replies = store.claim_many(&claims).await;
    let (fresh, kept) = replies.split_at(fresh.len());
    assert!(fresh.iter().all(is_full), "{fresh:?}");
    for reply in kept {
        assert!(matches!(reply, Ok(ClaimReply::Done { .. })), "{reply:?}");
    }
}
