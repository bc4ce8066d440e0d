//! A key inside the user's own transaction.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel_core::claim::{ClaimReply, Completion, Keep, LeaseReply, succeeded};
use semel_core::{
    Clock, ErrorKind, Fingerprint, Key, KeyStore, KeyStoreExt, StoreError, StoredOutcome, Timestamp,
};
use semel_sqlite::tx::{Once, OnceOptions, TxError, once, transact};
use semel_sqlite::{Config, Sqlite};
use semel_testkit::clock::ManualClock;
use semel_testkit::laws::keys::{KEEP, LEASE_MS, duplicate};
use sqlx::{Sqlite as Driver, Transaction};

use super::{open, request, rerun_request, store};

const ASKED: &[u8] = b"what was asked";

async fn shop(db: &Sqlite) {
    let mut tx = db.begin().await.unwrap();
    sqlx::raw_sql("CREATE TABLE effect (id BLOB) STRICT")
        .execute(&mut *tx)
        .await
        .unwrap();
    db.commit(tx).await.unwrap();
}

async fn effects(db: &Sqlite) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM effect")
        .fetch_one(db.readers())
        .await
        .unwrap()
}

async fn effect(tx: &mut Transaction<'_, Driver>, key: &Key) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO effect (id) VALUES (?1)")
        .bind(key.id())
        .execute(&mut **tx)
        .await?;
    Ok(())
}

async fn ask(tx: &mut Transaction<'_, Driver>, key: &Key, now: Timestamp) -> Result<Once, StoreError> {
    let options = OnceOptions {
        keep: KEEP,
        now: Some(now),
    };
    once(tx, key, Fingerprint::of(ASKED), options).await
}

/// Runs the effect if it is the first, and commits.
async fn run(db: &Sqlite, key: &Key) -> Result<Once, TxError<()>> {
    transact(db, |tx| {
        Box::pin(async move {
            match ask(tx, key, db.now()).await? {
                Once::First(pending) => {
                    effect(tx, key).await?;
                    pending.complete(tx, succeeded("charged")).await?;
                    Ok(Once::Done {
                        outcome: succeeded("first"),
                        retain_until: Timestamp(0),
                    })
                }
                other => Ok(other),
            }
        })
    })
    .await
}

fn outcome(once: &Once) -> &StoredOutcome {
    match once {
        Once::Done { outcome, .. } => outcome,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn mark_outcome_and_effect_commit_together() {
    let (db, _clock, _dir) = store().await;
    shop(&db).await;
    let claim = request();
    assert_eq!(outcome(&run(&db, &claim.key).await.unwrap()), &succeeded("first"));
    assert_eq!(
        outcome(&run(&db, &claim.key).await.unwrap()),
        &succeeded("charged")
    );
    assert_eq!(effects(&db).await, 1);
    // The key store sees the same record.
    let reply = db.claim(&claim).await.unwrap();
    assert!(matches!(reply, ClaimReply::Done { outcome, .. } if outcome == succeeded("charged")));
}

#[tokio::test]
async fn rollback_leaves_nothing() {
    let (db, clock, _dir) = store().await;
    shop(&db).await;
    let claim = request();
    for _ in 0..2 {
        let mut tx = db.begin().await.unwrap();
        let Once::First(pending) = ask(&mut tx, &claim.key, clock.now()).await.unwrap() else {
            panic!("not the first")
        };
        effect(&mut tx, &claim.key).await.unwrap();
        pending.complete(&mut tx, succeeded("charged")).await.unwrap();
        tx.rollback().await.unwrap();
    }
    assert_eq!(db.read(&claim.key).await.unwrap(), None);
    assert_eq!(effects(&db).await, 0);
}

/// The effect is there although the answer was never stored: the key must not run again.
#[tokio::test]
async fn committed_without_an_outcome_is_done_with_the_outcome_forgotten() {
    let (db, clock, _dir) = store().await;
    shop(&db).await;
    let key = request().key;
    let mut tx = db.begin().await.unwrap();
    assert!(matches!(
        ask(&mut tx, &key, clock.now()).await.unwrap(),
        Once::First(_)
    ));
    db.commit(tx).await.unwrap();
    assert_eq!(outcome(&run(&db, &key).await.unwrap()), &StoredOutcome::Forgotten);
}

/// Rule K6: the same expiry rule as a claim.
#[tokio::test]
async fn what_is_claimed_or_unknown_is_never_passed() {
    let (db, clock, _dir) = store().await;
    shop(&db).await;
    let (held, rerun) = (request(), rerun_request());
    let ClaimReply::Granted { lease, .. } = db.claim(&held).await.unwrap() else {
        panic!("not granted")
    };
    let ClaimReply::Granted { lease: slow, .. } = db.claim(&rerun).await.unwrap() else {
        panic!("not granted")
    };
    for key in [&held.key, &rerun.key] {
        let busy = run(&db, key).await.unwrap();
        assert!(
            matches!(
                busy,
                Once::Busy {
                    lease_left_ms: LEASE_MS
                }
            ),
            "{busy:?}"
        );
    }
    clock.advance_ms(LEASE_MS);
    let unknown = run(&db, &held.key).await.unwrap();
    assert!(matches!(unknown, Once::Unknown { token } if token == lease.token));
    db.sweep(100).await.unwrap();
    let unknown = run(&db, &held.key).await.unwrap();
    assert!(matches!(unknown, Once::Unknown { token } if token == lease.token));
    assert_eq!(effects(&db).await, 0);

    // Declared as one that may run again, and the old owner is refused from then on.
    assert_eq!(outcome(&run(&db, &rerun.key).await.unwrap()), &succeeded("first"));
    let late = Completion {
        key: rerun.key.clone(),
        lease: slow,
        outcome: succeeded("late"),
        keep: KEEP,
    };
    assert_eq!(db.complete(&late).await.unwrap(), LeaseReply::LeaseLost);
}

#[tokio::test]
async fn mismatch_and_tombstone_are_told() {
    let (db, clock, _dir) = store().await;
    shop(&db).await;
    let key = request().key;
    assert_eq!(outcome(&run(&db, &key).await.unwrap()), &succeeded("first"));
    let mut tx = db.begin().await.unwrap();
    let options = OnceOptions {
        keep: KEEP,
        now: Some(clock.now()),
    };
    let other = once(&mut tx, &key, Fingerprint::of(b"other"), options).await;
    assert!(matches!(other.unwrap(), Once::Mismatch));
    tx.rollback().await.unwrap();
    clock.advance_ms(60_000);
    assert!(matches!(run(&db, &key).await.unwrap(), Once::Gone { .. }));
    clock.advance_ms(60_000);
    assert_eq!(outcome(&run(&db, &key).await.unwrap()), &succeeded("first"));
}

#[tokio::test]
async fn tokens_of_transactions_and_of_claims_grow_together() {
    let (db, clock, _dir) = store().await;
    let claim = rerun_request();
    let ClaimReply::Granted { lease, .. } = db.claim(&claim).await.unwrap() else {
        panic!("not granted")
    };
    clock.advance_ms(LEASE_MS);
    let mut tx = db.begin().await.unwrap();
    let Once::First(pending) = ask(&mut tx, &claim.key, clock.now()).await.unwrap() else {
        panic!("not the first")
    };
    let token = pending.token();
    assert!(token > lease.token);
    pending.complete(&mut tx, succeeded("done")).await.unwrap();
    db.commit(tx).await.unwrap();
    clock.advance_ms(1_000_000);
    let ClaimReply::Granted { lease, .. } = db.claim(&duplicate(&claim)).await.unwrap() else {
        panic!("not granted")
    };
    assert!(lease.token > token);
}

#[tokio::test]
async fn complete_after_its_transaction_is_refused() {
    let (db, clock, _dir) = store().await;
    let key = request().key;
    let mut tx = db.begin().await.unwrap();
    let Once::First(pending) = ask(&mut tx, &key, clock.now()).await.unwrap() else {
        panic!("not the first")
    };
    tx.rollback().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    let error = pending.complete(&mut tx, succeeded("lost")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let keep = Keep {
        retention_ms: 0,
        ..KEEP
    };
    let options = OnceOptions { keep, now: None };
    let error = once(&mut tx, &key, Fingerprint::of(ASKED), options)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
}

/// 32 tasks over two openings of the file, as of two processes, all at once: one effect, 32 equal answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_duplicates_have_one_effect() {
    let (db, clock, dir) = store().await;
    shop(&db).await;
    let other = open(&dir, clock).await;
    let key = request().key;
    let tasks: Vec<_> = (0..32)
        .map(|n| {
            let (db, key) = (if n % 2 == 0 { db.clone() } else { other.clone() }, key.clone());
            tokio::spawn(async move { outcome(&run(&db, &key).await.unwrap()).clone() })
        })
        .collect();
    let mut first = 0;
    for task in tasks {
        let outcome = task.await.unwrap();
        if outcome == succeeded("first") {
            first += 1;
        } else {
            assert_eq!(outcome, succeeded("charged"));
        }
    }
    assert_eq!((first, effects(&db).await), (1, 1));
}

/// Another process holds the file: it is certain that nothing was done, so the transaction is repeated until it is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_file_repeats_the_transaction() {
    let (db, clock, dir) = store().await;
    shop(&db).await;
    let mut config = Config::new(dir.path().join("test.db"));
    config.clock = clock;
    config.busy_timeout = Duration::ZERO;
    let impatient = Sqlite::open(config).await.unwrap();
    let holds = db.begin().await.unwrap();
    let error = impatient.begin().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotApplied);
    let key = request().key;
    let waiting = tokio::spawn({
        let key = key.clone();
        async move { outcome(&run(&impatient, &key).await.unwrap()).clone() }
    });
    holds.rollback().await.unwrap();
    assert_eq!(waiting.await.unwrap(), succeeded("first"));
    assert_eq!(effects(&db).await, 1);
}

#[tokio::test]
async fn given_up_body_is_rolled_back_and_not_repeated() {
    let (db, _clock, _dir) = store().await;
    shop(&db).await;
    let key = request().key;
    let runs = AtomicU32::new(0);
    let (ran, effecting) = (&runs, &key);
    let done: Result<(), _> = transact(&db, |tx| {
        Box::pin(async move {
            ran.fetch_add(1, Ordering::SeqCst);
            effect(tx, effecting).await?;
            Err(TxError::Own("sold out"))
        })
    })
    .await;
    assert!(matches!(done, Err(TxError::Own("sold out"))));
    assert_eq!((runs.into_inner(), effects(&db).await), (1, 0));
}

/// What was acknowledged is there when the file is opened again.
#[tokio::test]
async fn records_and_tokens_survive_a_restart() {
    let (db, _clock, dir) = store().await;
    let (claim, rerun) = (request(), rerun_request());
    let ClaimReply::Granted { lease, .. } = db.claim(&claim).await.unwrap() else {
        panic!("not granted")
    };
    let done = Completion {
        key: claim.key.clone(),
        lease,
        outcome: succeeded("charged"),
        keep: KEEP,
    };
    db.complete(&done).await.unwrap();
    db.close().await;
    let again = open(&dir, std::sync::Arc::new(ManualClock::default())).await;
    let reply = again.claim(&duplicate(&claim)).await.unwrap();
    assert!(matches!(reply, ClaimReply::Done { outcome, .. } if outcome == succeeded("charged")));
    let ClaimReply::Granted { lease: next, .. } = again.claim(&rerun).await.unwrap() else {
        panic!("not granted")
    };
    assert!(next.token > lease.token);
}
