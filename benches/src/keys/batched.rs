//! Many tasks that claim and complete one key at a time, on SQLite: the batcher against a group commit written by hand.
//!
//! The one by hand is what a good engineer writes for one table and one process: a writer thread, whatever has queued up
//! (at most 256 operations) in one `BEGIN IMMEDIATE` transaction, `synchronous=FULL`, one prepared conditional statement
//! for each operation. It keeps no policy, nonce, withdrawal, retention or tombstone.
//!
//! That is less than a correct store keeps: its tokens would come back once a row is removed, a claim whose reply was lost
//! waits for its own lease, and nothing finds the rows that may go. The second one by hand has just that: a counter for
//! tokens, the nonce, and an index of when a row is due.
//!
//! Every run has a file of its own, and only one of them is open: connections of one process share what SQLite keeps in
//! memory, and the idle ones do not give their part back.

use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use rusqlite::{Connection, OptionalExtension as _, params};
use semel_core::claim::{ClaimReply, Completion, Keep, LeaseReply, succeeded};
use semel_core::{Claim, KeyStore, KeyStoreExt as _, Nonce, Timestamp};
use semel_keys::Batched;
use semel_sqlite::Sqlite;
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::Ids;
use crate::Plan;
use crate::harness::{Sample, Table, callers};

/// Tasks at once.
const TASKS: usize = 64;
/// Bytes of an outcome.
const OUTCOME: &[u8] = &[b'x'; 200];
/// Finished keys among which replays choose.
const FINISHED: usize = 1_000;

pub(super) async fn sqlite(plan: Plan, only: Option<&str>) {
    let ids = Ids::default();
    for tasks in [TASKS, 256] {
        let by_hand = |keeps| by_hand(plan, tasks, ids.clone(), keeps);
        Table::new(
            format!("Keys on SQLite, claim and complete one by one, {tasks} tasks"),
            "keys",
        )
        .contender("limit: group commit by hand", || by_hand(Keeps::Least))
        .contender("by hand, with a counter of tokens, nonce and due index", || {
            by_hand(Keeps::Enough)
        })
        .contender("Batched<Sqlite>", || keys(plan, tasks, ids.clone()))
        .only(only)
        .measure(plan.rounds)
        .await;
    }
    Table::new(format!("Replays on SQLite, {TASKS} tasks"), "replays")
        .contender("limit: group commit by hand", || {
            replays_by_hand(plan, ids.clone())
        })
        .contender("Batched<Sqlite>", || replays(plan, ids.clone()))
        .only(only)
        .measure(plan.rounds)
        .await;
}

async fn open() -> (Sqlite, Batched<Sqlite>, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let config = semel_sqlite::Config::new(dir.path().join("keys.db"));
    let store = Sqlite::open(config).await.unwrap();
    store.migrate().await.unwrap();
    (store.clone(), Batched::new(store), dir)
}

async fn keys(plan: Plan, tasks: usize, ids: Ids) -> Sample {
    let (store, batched, _dir) = open().await;
    let shared: Arc<dyn KeyStore> = Arc::new(batched.clone());
    let sample = callers(tasks, plan.run, move |_| one(Arc::clone(&shared), ids.clone())).await;
    batched.close().await;
    store.close().await;
    sample
}

async fn by_hand(plan: Plan, tasks: usize, ids: Ids, keeps: Keeps) -> Sample {
    let (by_hand, thread, _dir) = ByHand::open(keeps);
    let sample = callers(tasks, plan.run, move |_| by_hand.clone().one(ids.clone())).await;
    thread.join().unwrap();
    sample
}

/// Duplicates of finished keys.
async fn replays(plan: Plan, ids: Ids) -> Sample {
    let (store, batched, _dir) = open().await;
    let claims: Arc<[Claim]> = ids.claims(FINISHED).into();
    let shared: Arc<dyn KeyStore> = Arc::new(batched.clone());
    for claim in claims.iter() {
        complete(&shared, claim.clone()).await;
    }
    let replay = move |_| {
        let (store, claim) = (Arc::clone(&shared), pick(&claims));
        async move {
            let reply = store.claim(&claim).await.unwrap();
            assert!(matches!(reply, ClaimReply::Done { .. }));
            1
        }
    };
    let sample = callers(TASKS, plan.run, replay).await;
    batched.close().await;
    store.close().await;
    sample
}

async fn replays_by_hand(plan: Plan, ids: Ids) -> Sample {
    let (by_hand, thread, _dir) = ByHand::open(Keeps::Least);
    let claims: Arc<[Claim]> = ids.claims(FINISHED).into();
    for claim in claims.iter() {
        by_hand.clone().run(claim.clone()).await;
    }
    let replay = move |_| {
        let (by_hand, claim) = (by_hand.clone(), pick(&claims));
        async move {
            assert_eq!(by_hand.claim(claim).await, None);
            1
        }
    };
    let sample = callers(TASKS, plan.run, replay).await;
    thread.join().unwrap();
    sample
}

fn pick(claims: &[Claim]) -> Claim {
    let n = semel_core::host::random_16();
    let n = usize::from(u16::from_le_bytes([n[0], n[1]])) % claims.len();
    Claim {
        nonce: Nonce::random(),
        ..claims[n].clone()
    }
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
    Complete(Vec<u8>, Nonce, i64, oneshot::Sender<bool>),
}

/// What an operation came to, told after the commit.
enum Answer {
    Claimed(oneshot::Sender<Option<i64>>, Option<i64>),
    Completed(oneshot::Sender<bool>, bool),
}

/// What the one by hand keeps of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeps {
    Least,
    Enough,
}

/// A group commit as one writes it by hand.
#[derive(Clone)]
struct ByHand(mpsc::Sender<Operation>);

const TABLE: &str =
    "CREATE TABLE claim (k BLOB PRIMARY KEY, fp BLOB, token INT, state INT, lease_until INT, resp BLOB)
WITHOUT ROWID";
const CLAIM: &str = "INSERT INTO claim (k, fp, token, state, lease_until) VALUES (?1, ?2, 1, 0, ?3)
ON CONFLICT (k) DO UPDATE SET token = token + 1, lease_until = ?3
WHERE state = 0 AND lease_until < ?4 AND fp = ?2 RETURNING token";
const LOOK: &str = "SELECT fp, state, resp FROM claim WHERE k = ?1";
const COMPLETE: &str = "UPDATE claim SET state = 1, resp = ?3 WHERE k = ?1 AND token = ?2 AND state = 0";

const ENOUGH_TABLE: &str =
    "CREATE TABLE claim (k BLOB PRIMARY KEY, fp BLOB, token INT, nonce BLOB, state INT, due INT,
resp BLOB) WITHOUT ROWID;
CREATE INDEX claim_due ON claim (due);
CREATE TABLE counter (one INTEGER PRIMARY KEY, token INT);
INSERT INTO counter VALUES (1, 0)";
const ENOUGH_CLAIM: &str =
    "INSERT INTO claim (k, fp, token, nonce, state, due) VALUES (?1, ?2, ?5, ?6, 0, ?3)
ON CONFLICT (k) DO UPDATE SET token = iif(nonce = ?6, token, ?5), due = iif(nonce = ?6, due, ?3), nonce = ?6
WHERE state = 0 AND (due < ?4 OR nonce = ?6) AND fp = ?2 RETURNING token";
const ENOUGH_COMPLETE: &str = "UPDATE claim SET state = 1, resp = ?3, due = ?4 WHERE k = ?1 AND token = ?2 AND nonce = ?5 AND state = 0";
const COUNTER: &str = "UPDATE counter SET token = ?1 WHERE one = 1";

impl ByHand {
    fn open(keeps: Keeps) -> (Self, JoinHandle<()>, TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let db = Connection::open(dir.path().join("by_hand.db")).unwrap();
        db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
            .unwrap();
        db.execute_batch(if keeps == Keeps::Least {
            TABLE
        } else {
            ENOUGH_TABLE
        })
        .unwrap();
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::spawn(move || write(&db, &receiver, keeps));
        (Self(sender), thread, dir)
    }

    async fn one(self, ids: Ids) -> u64 {
        let claim = ids.claims(1).remove(0);
        self.run(claim).await;
        1
    }

    async fn run(self, claim: Claim) {
        let (key, nonce) = (claim.key.to_bytes(), claim.nonce);
        let token = self.claim(claim).await.unwrap();
        let (back, done) = oneshot::channel();
        let _ = self.0.send(Operation::Complete(key, nonce, token, back));
        assert!(done.await.unwrap());
    }

    async fn claim(&self, claim: Claim) -> Option<i64> {
        let (back, token) = oneshot::channel();
        let _ = self.0.send(Operation::Claim(claim.key.to_bytes(), claim, back));
        token.await.unwrap()
    }
}

/// The writer's thread.
fn write(db: &Connection, operations: &mpsc::Receiver<Operation>, keeps: Keeps) {
    let [claim, complete] = match keeps {
        Keeps::Least => [CLAIM, COMPLETE],
        Keeps::Enough => [ENOUGH_CLAIM, ENOUGH_COMPLETE],
    };
    let [mut claim, mut look, mut complete] = [claim, LOOK, complete].map(|sql| db.prepare(sql).unwrap());
    let mut last = 0_i64;
    while let Ok(first) = operations.recv() {
        let batch = std::iter::once(first).chain(operations.try_iter()).take(256);
        db.execute_batch("BEGIN IMMEDIATE").unwrap();
        let now: Timestamp = semel_core::Clock::now(&semel_core::SystemClock);
        let (mut answers, before) = (Vec::new(), last);
        for operation in batch {
            answers.push(match operation {
                Operation::Claim(key, asked, back) => {
                    let fingerprint = asked.fingerprint.to_bytes();
                    let until = now.plus_ms(asked.lease_ms).0;
                    let token = |row: &rusqlite::Row<'_>| row.get(0);
                    let token = match keeps {
                        Keeps::Least => claim.query_row(params![key, fingerprint, until, now.0], token),
                        Keeps::Enough => {
                            last += 1;
                            let values = params![key, fingerprint, until, now.0, last, asked.nonce.0];
                            claim.query_row(values, token)
                        }
                    };
                    let token = token.optional().unwrap();
                    if token.is_none() {
                        let done: (Vec<u8>, i64, Vec<u8>) = look
                            .query_row([&key], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
                            .unwrap();
                        assert_eq!(done.1, 1);
                    }
                    Answer::Claimed(back, token)
                }
                Operation::Complete(key, nonce, token, back) => {
                    let done = match keeps {
                        Keeps::Least => complete.execute(params![key, token, OUTCOME]),
                        Keeps::Enough => {
                            let due = now.plus_ms(Keep::default().retention_ms).0;
                            complete.execute(params![key, token, OUTCOME, due, nonce.0])
                        }
                    };
                    Answer::Completed(back, done.unwrap() == 1)
                }
            });
        }
        if last > before {
            db.prepare_cached(COUNTER).unwrap().execute([last]).unwrap();
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
