//! Many tasks that claim and complete one key at a time, on SQLite: the batcher against a group commit written by hand.
//!
//! The one by hand is what a good engineer writes for one table and one process: a writer thread, whatever has queued up
//! (at most 256 operations) in one `BEGIN IMMEDIATE` transaction, `synchronous=FULL`, one prepared conditional statement
//! for each operation. It keeps no policy, nonce, withdrawal, retention or tombstone.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, params};
use semel_core::claim::{ClaimReply, Completion, Keep, LeaseReply, succeeded};
use semel_core::{Claim, KeyStore, KeyStoreExt as _, Nonce};
use semel_keys::{BatchConfig, Batched};
use semel_sqlite::Sqlite;
use tokio::sync::oneshot;

use super::Ids;
use crate::Plan;
use crate::harness::{Table, callers};

/// Tasks at once.
const TASKS: usize = 64;
/// Bytes of an outcome.
const OUTCOME: &[u8] = &[b'x'; 200];

pub(super) async fn sqlite(plan: Plan) {
    let dir = tempfile::tempdir().unwrap();
    let by_hand = ByHand::open(&dir.path().join("by_hand.db"));
    let store = Sqlite::open(semel_sqlite::Config::new(dir.path().join("keys.db")))
        .await
        .unwrap();
    store.migrate().await.unwrap();
    let batched = Batched::new(store.clone());
    let with = |lanes, linger_us| {
        let config = BatchConfig {
            lanes: Some(lanes),
            linger: Duration::from_micros(linger_us),
            ..BatchConfig::default()
        };
        Batched::with(store.clone(), &config).unwrap()
    };
    let (two, lingering) = (with(2, 0), with(1, 500));
    let ids = Ids::default();
    let keys = |store: &Batched<Sqlite>, tasks| {
        let (store, ids): (Arc<dyn KeyStore>, _) = (Arc::new(store.clone()), ids.clone());
        callers(tasks, plan.run, move |_| one(Arc::clone(&store), ids.clone()))
    };
    for tasks in [TASKS, 256] {
        Table::new(
            format!("Keys on SQLite, claim and complete one by one, {tasks} tasks"),
            "keys",
        )
        .contender("limit: group commit by hand", || {
            let (by_hand, ids) = (by_hand.clone(), ids.clone());
            callers(tasks, plan.run, move |_| by_hand.clone().one(ids.clone()))
        })
        .contender("Batched<Sqlite>", || keys(&batched, tasks))
        .contender("two lanes", || keys(&two, tasks))
        .contender("lingering 0.5 ms", || keys(&lingering, tasks))
        .measure(plan.rounds)
        .await;
    }
    replays(plan, &by_hand, &batched, &ids).await;
}

/// Duplicates of finished keys.
async fn replays(plan: Plan, by_hand: &ByHand, batched: &Batched<Sqlite>, ids: &Ids) {
    let claims: Arc<[Claim]> = ids.claims(1_000).into();
    for claim in claims.iter() {
        let key: Arc<dyn KeyStore> = Arc::new(batched.clone());
        complete(&key, claim.clone()).await;
        by_hand.clone().run(claim.clone()).await;
    }
    let pick = |claims: &[Claim]| {
        let n = semel_core::host::random_16();
        let n = usize::from(u16::from_le_bytes([n[0], n[1]])) % claims.len();
        Claim {
            nonce: Nonce::random(),
            ..claims[n].clone()
        }
    };
    Table::new(format!("Replays on SQLite, {TASKS} tasks"), "replays")
        .contender("limit: group commit by hand", || {
            let (by_hand, claims) = (by_hand.clone(), Arc::clone(&claims));
            callers(TASKS, plan.run, move |_| {
                let (by_hand, claim) = (by_hand.clone(), pick(&claims));
                async move {
                    assert_eq!(by_hand.claim(claim).await, None);
                    1
                }
            })
        })
        .contender("Batched<Sqlite>", || {
            let (store, claims) = (batched.clone(), Arc::clone(&claims));
            callers(TASKS, plan.run, move |_| {
                let (store, claim) = (store.clone(), pick(&claims));
                async move {
                    let reply = store.claim(&claim).await.unwrap();
                    assert!(matches!(reply, ClaimReply::Done { .. }));
                    1
                }
            })
        })
        .measure(plan.rounds)
        .await;
}

async fn one(store: Arc<dyn KeyStore>, ids: Ids) -> u64 {
    let claim = ids.claims(1).remove(0);
    complete(&store, claim).await;
    1
}

async fn complete(store: &Arc<dyn KeyStore>, claim: Claim) {
    let ClaimReply::Granted { lease, .. } = store.claim(&claim).await.unwrap() else {
        panic!("a fresh key was not granted");
    };
    let done = Completion {
        key: claim.key,
        lease,
        outcome: succeeded(OUTCOME),
        keep: Keep::default(),
    };
    let reply = store.complete(&done).await.unwrap();
    assert!(matches!(reply, LeaseReply::Ok(_)));
}

enum Operation {
    Claim(Vec<u8>, Claim, oneshot::Sender<Option<i64>>),
    Complete(Vec<u8>, i64, oneshot::Sender<bool>),
}

/// What an operation came to, told after the commit.
enum Answer {
    Claimed(oneshot::Sender<Option<i64>>, Option<i64>),
    Completed(oneshot::Sender<bool>, bool),
}

/// A group commit as one writes it by hand.
#[derive(Clone)]
struct ByHand(mpsc::Sender<Operation>);

const CLAIM: &str = "INSERT INTO claim (k, fp, token, state, lease_until) VALUES (?1, ?2, 1, 0, ?3)
ON CONFLICT (k) DO UPDATE SET token = token + 1, lease_until = ?3
WHERE state = 0 AND lease_until < ?4 AND fp = ?2 RETURNING token";
const LOOK: &str = "SELECT fp, state, resp FROM claim WHERE k = ?1";
const COMPLETE: &str = "UPDATE claim SET state = 1, resp = ?3 WHERE k = ?1 AND token = ?2 AND state = 0";

impl ByHand {
    fn open(path: &std::path::Path) -> Self {
        let db = Connection::open(path).unwrap();
        db.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
             CREATE TABLE claim (k BLOB PRIMARY KEY, fp BLOB, token INT, state INT, lease_until INT, resp BLOB)
             WITHOUT ROWID",
        )
        .unwrap();
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || write(&db, &receiver));
        Self(sender)
    }

    async fn one(self, ids: Ids) -> u64 {
        let claim = ids.claims(1).remove(0);
        self.run(claim).await;
        1
    }

    async fn run(self, claim: Claim) {
        let key = claim.key.to_bytes();
        let token = self.claim(claim).await.unwrap();
        let (back, done) = oneshot::channel();
        let _ = self.0.send(Operation::Complete(key, token, back));
        assert!(done.await.unwrap());
    }

    async fn claim(&self, claim: Claim) -> Option<i64> {
        let (back, token) = oneshot::channel();
        let _ = self.0.send(Operation::Claim(claim.key.to_bytes(), claim, back));
        token.await.unwrap()
    }
}

/// The writer's thread.
fn write(db: &Connection, operations: &mpsc::Receiver<Operation>) {
    let [mut claim, mut look, mut complete] = [CLAIM, LOOK, COMPLETE].map(|sql| db.prepare(sql).unwrap());
    while let Ok(first) = operations.recv() {
        let batch = std::iter::once(first).chain(operations.try_iter()).take(256);
        db.execute_batch("BEGIN IMMEDIATE").unwrap();
        let now = semel_core::Clock::now(&semel_core::SystemClock);
        let mut answers = Vec::new();
        for operation in batch {
            answers.push(match operation {
                Operation::Claim(key, asked, back) => {
                    let fingerprint = asked.fingerprint.to_bytes();
                    let until = now.plus_ms(asked.lease_ms).0;
                    let token = claim
                        .query_row(params![key, fingerprint, until, now.0], |row| row.get(0))
                        .optional()
                        .unwrap();
                    if token.is_none() {
                        let done: (Vec<u8>, i64, Vec<u8>) = look
                            .query_row([&key], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
                            .unwrap();
                        assert_eq!(done.1, 1);
                    }
                    Answer::Claimed(back, token)
                }
                Operation::Complete(key, token, back) => {
                    let done = complete.execute(params![key, token, OUTCOME]).unwrap();
                    Answer::Completed(back, done == 1)
                }
            });
        }
        db.execute_batch("COMMIT").unwrap();
        for answer in answers {
            match answer {
                Answer::Claimed(back, token) => drop(back.send(token)),
                Answer::Completed(back, ok) => drop(back.send(ok)),
            }
        }
    }
}
