//! A key inside the user's own transaction.

use semel_core::claim::{ClaimReply, Completion, Keep, LeaseReply, succeeded};
use semel_core::{ErrorKind, Fingerprint, KeyStore, KeyStoreExt, StoreError, StoredOutcome};
use semel_mysql::Mysql;
use semel_mysql::tx::{Once, OnceOptions, TxError, once, transact};
use semel_testkit::laws::keys::{KEEP, LEASE_MS, duplicate};
use sqlx::{MySql as Driver, Transaction};

use super::{Lent, age_ms, request, rerun_request, until_someone_waits};

type Tx<'e> = Transaction<'e, Driver>;

const ASKED: &[u8] = b"what was asked";

async fn shop() -> (Lent, Mysql) {
    let (lent, db) = Lent::take().await;
    let table = "CREATE TABLE IF NOT EXISTS effect (id VARBINARY(255)) ENGINE = InnoDB; DELETE FROM effect";
    sqlx::raw_sql(table).execute(db.pool()).await.unwrap();
    (lent, db)
}

async fn effects(db: &Mysql) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM effect")
        .fetch_one(db.pool())
        .await
        .unwrap()
}

async fn effect(tx: &mut Tx<'_>, key: &semel_core::Key) {
    let effect = sqlx::query("INSERT INTO effect (id) VALUES (?)").bind(key.id());
    effect.execute(&mut **tx).await.unwrap();
}

async fn ask(tx: &mut Tx<'_>, key: &semel_core::Key) -> Result<Once, StoreError> {
    let options = OnceOptions {
        keep: KEEP,
        ..OnceOptions::default()
    };
    once(tx, key, Fingerprint::of(ASKED), options).await
}

/// Runs the effect if it is the first, and commits.
async fn run(db: &Mysql, key: &semel_core::Key) -> Result<Once, TxError<()>> {
    transact(db, |tx| {
        Box::pin(async move {
            match ask(tx, key).await? {
                Once::First(pending) => {
                    effect(tx, key).await;
                    pending.complete(tx, succeeded("charged")).await?;
                    Ok(Once::Done {
                        outcome: succeeded("first"),
                        retain_until: semel_core::Timestamp(0),
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
    let (_lent, db) = shop().await;
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
    let (_lent, db) = shop().await;
    let claim = request();
    for _ in 0..2 {
        let mut tx = db.begin().await.unwrap();
        let Once::First(pending) = ask(&mut tx, &claim.key).await.unwrap() else {
            panic!("not the first")
        };
        effect(&mut tx, &claim.key).await;
        pending.complete(&mut tx, succeeded("charged")).await.unwrap();
        tx.rollback().await.unwrap();
    }
    assert_eq!(db.read(&claim.key).await.unwrap(), None);
    assert_eq!(effects(&db).await, 0);
}

/// The effect is there although the answer was never stored: the key must not run again.
#[tokio::test]
async fn committed_without_an_outcome_is_done_with_the_outcome_forgotten() {
    let (_lent, db) = shop().await;
    let claim = request();
    let mut tx = db.begin().await.unwrap();
    assert!(matches!(ask(&mut tx, &claim.key).await.unwrap(), Once::First(_)));
    db.commit(tx).await.unwrap();
    assert_eq!(
        outcome(&run(&db, &claim.key).await.unwrap()),
        &StoredOutcome::Forgotten
    );
}

#[tokio::test]
async fn duplicate_waits_for_the_first_and_gets_its_outcome() {
    let (_lent, db) = shop().await;
    let claim = request();
    let mut tx = db.begin().await.unwrap();
    let Once::First(pending) = ask(&mut tx, &claim.key).await.unwrap() else {
        panic!("not the first")
    };
    let waiting = tokio::spawn({
        let (db, key) = (db.clone(), claim.key.clone());
        async move { run(&db, &key).await }
    });
    until_someone_waits(&db, 1).await;
    effect(&mut tx, &claim.key).await;
    pending.complete(&mut tx, succeeded("charged")).await.unwrap();
    db.commit(tx).await.unwrap();
    assert_eq!(outcome(&waiting.await.unwrap().unwrap()), &succeeded("charged"));
    assert_eq!(effects(&db).await, 1);
}

/// Rule K6: at the server's default isolation a plain read after the duplicate's error shows no row.
#[tokio::test]
async fn duplicate_at_the_servers_default_isolation_gets_the_outcome() {
    let (lent, db) = shop().await;
    // The user's own pool: REPEATABLE READ, the server's sql_mode and time zone.
    let users = sqlx::MySqlPool::connect(&lent.url).await.unwrap();
    let claim = request();
    let mut late = users.begin().await.unwrap();
    // Other work fixes the snapshot.
    let before: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM semel_key")
        .fetch_one(&mut *late)
        .await
        .unwrap();
    let mut tx = users.begin().await.unwrap();
    let Once::First(pending) = ask(&mut tx, &claim.key).await.unwrap() else {
        panic!("not the first")
    };
    let waiting = tokio::spawn({
        let key = claim.key.clone();
        async move {
            let answer = ask(&mut late, &key).await;
            let after: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM semel_key")
                .fetch_one(&mut *late)
                .await
                .unwrap();
            (answer, after)
        }
    });
    until_someone_waits(&db, 1).await;
    pending.complete(&mut tx, succeeded("charged")).await.unwrap();
    tx.commit().await.unwrap();
    let (answer, after) = waiting.await.unwrap();
    assert_eq!(outcome(&answer.unwrap()), &succeeded("charged"));
    assert_eq!(after, before, "the snapshot still hides it from a plain read");
}

#[tokio::test]
async fn duplicate_of_a_rolled_back_first_is_the_first() {
    let (_lent, db) = shop().await;
    let claim = request();
    let mut tx = db.begin().await.unwrap();
    assert!(matches!(ask(&mut tx, &claim.key).await.unwrap(), Once::First(_)));
    let waiting = tokio::spawn({
        let (db, key) = (db.clone(), claim.key.clone());
        async move { run(&db, &key).await }
    });
    until_someone_waits(&db, 1).await;
    tx.rollback().await.unwrap();
    assert_eq!(outcome(&waiting.await.unwrap().unwrap()), &succeeded("first"));
    assert_eq!(effects(&db).await, 1);
}

/// Rule K6: the same expiry rule as a claim.
#[tokio::test]
async fn what_is_claimed_or_unknown_is_never_passed() {
    let (_lent, db) = shop().await;
    let (held, rerun) = (request(), rerun_request());
    let ClaimReply::Granted { lease, .. } = db.claim(&held).await.unwrap() else {
        panic!("not granted")
    };
    let ClaimReply::Granted { lease: slow, .. } = db.claim(&rerun).await.unwrap() else {
        panic!("not granted")
    };
    for key in [&held.key, &rerun.key] {
        assert!(matches!(
            run(&db, key).await.unwrap(),
            Once::Busy { lease_left_ms: 1.. }
        ));
    }
    age_ms(&db, LEASE_MS).await;
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
    let (_lent, db) = shop().await;
    let key = request().key;
    let first = run(&db, &key).await.unwrap();
    assert_eq!(outcome(&first), &succeeded("first"));
    let mut tx = db.begin().await.unwrap();
    let other = once(&mut tx, &key, Fingerprint::of(b"other"), OnceOptions::default()).await;
    assert!(matches!(other.unwrap(), Once::Mismatch));
    tx.rollback().await.unwrap();
    age_ms(&db, 60_000).await;
    assert!(matches!(run(&db, &key).await.unwrap(), Once::Gone { .. }));
    age_ms(&db, 60_000).await;
    assert_eq!(outcome(&run(&db, &key).await.unwrap()), &succeeded("first"));
}

#[tokio::test]
async fn tokens_of_transactions_and_of_claims_grow_together() {
    let (_lent, db) = shop().await;
    let claim = rerun_request();
    let ClaimReply::Granted { lease, .. } = db.claim(&claim).await.unwrap() else {
        panic!("not granted")
    };
    age_ms(&db, LEASE_MS).await;
    let mut tx = db.begin().await.unwrap();
    let Once::First(pending) = ask(&mut tx, &claim.key).await.unwrap() else {
        panic!("not the first")
    };
    let token = pending.token();
    assert!(token > lease.token);
    pending.complete(&mut tx, succeeded("done")).await.unwrap();
    db.commit(tx).await.unwrap();
    age_ms(&db, 1_000_000).await;
    let ClaimReply::Granted { lease, .. } = db.claim(&duplicate(&claim)).await.unwrap() else {
        panic!("not granted")
    };
    assert!(lease.token > token);
}

#[tokio::test]
async fn complete_in_another_transaction_is_refused() {
    let (_lent, db) = shop().await;
    let key = request().key;
    let mut one = db.begin().await.unwrap();
    let Once::First(pending) = ask(&mut one, &key).await.unwrap() else {
        panic!("not the first")
    };
    one.rollback().await.unwrap();
    let mut two = db.begin().await.unwrap();
    let error = pending.complete(&mut two, succeeded("lost")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let mut one = two;
    let keep = Keep {
        retention_ms: 0,
        ..KEEP
    };
    let options = OnceOptions {
        keep,
        ..OnceOptions::default()
    };
    let error = once(&mut one, &key, Fingerprint::of(ASKED), options)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
}

/// Duplicates of one slow key must not take the whole pool: beyond the cap they are told that it runs (rule K6).
#[tokio::test]
async fn waiters_of_one_key_are_capped() {
    let (_lent, db) = shop().await;
    let claim = request();
    let mut tx = db.begin().await.unwrap();
    let Once::First(_pending) = ask(&mut tx, &claim.key).await.unwrap() else {
        panic!("not the first")
    };
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let (db, key) = (db.clone(), claim.key.clone());
            tokio::spawn(async move { run(&db, &key).await.unwrap() })
        })
        .collect();
    until_someone_waits(&db, 4).await;
    assert!(matches!(
        run(&db, &claim.key).await.unwrap(),
        Once::Busy { lease_left_ms: 0 }
    ));
    let other = request();
    assert_eq!(
        outcome(&run(&db, &other.key).await.unwrap()),
        &succeeded("first"),
        "others go on"
    );
    db.commit(tx).await.unwrap();
    for one in waiting {
        assert_eq!(outcome(&one.await.unwrap()), &StoredOutcome::Forgotten);
    }
}

/// 32 tasks over two pools, all at once: one effect, 32 equal answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_duplicates_have_one_effect() {
    let (lent, db) = shop().await;
    let other = Mysql::connect(semel_mysql::Config::new(&lent.url)).await.unwrap();
    let key = request().key;
    let tasks: Vec<_> = (0..32)
        .map(|n| {
            let (db, key) = (if n % 2 == 0 { db.clone() } else { other.clone() }, key.clone());
            tokio::spawn(async move {
                loop {
                    match run(&db, &key).await.unwrap() {
                        // Too many wait already.
                        Once::Busy { .. } => tokio::task::yield_now().await,
                        once => return outcome(&once).clone(),
                    }
                }
            })
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
