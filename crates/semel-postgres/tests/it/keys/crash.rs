//! A process that dies at each named point: what its successor finds.

use semel_core::claim::{Claim, ClaimReply, Completion, Nonce, OwnerLost, succeeded};
use semel_core::{Fingerprint, Key, KeyStoreExt, Scope};
use semel_postgres::tx::{Mark, Once, OnceOptions, OnceOutcome, TxError, once, transact, transact_once};
use semel_postgres::{Config, Postgres};
use semel_testkit::crash::{self, Run};
use semel_testkit::laws::keys::{KEEP, LEASE_MS};

use super::{Lent, age_ms};

async fn open(url: String) -> Postgres {
    Postgres::connect(Config::new(url)).await.unwrap()
}

/// The same request in every process, under a nonce of this attempt.
fn request() -> Claim {
    Claim {
        key: Key::new(Scope::new("tests").unwrap(), "order-7").unwrap(),
        fingerprint: Fingerprint::of(b"40.00"),
        nonce: Nonce::random(),
        owner_lost: OwnerLost::Hold,
        lease_ms: LEASE_MS,
    }
}

/// Claims, charges, completes.
async fn charge(db: &Postgres) {
    let claim = request();
    let ClaimReply::Granted { lease, .. } = db.claim(&claim).await.unwrap() else {
        panic!("not granted")
    };
    let done = Completion {
        key: claim.key,
        lease,
        outcome: succeeded("charged"),
        keep: KEEP,
    };
    db.complete(&done).await.unwrap();
}

#[tokio::test]
async fn a_crash_at_any_point_is_unknown_until_it_is_known_to_be_done() {
    if let Some(url) = crash::role("owner") {
        return charge(&open(url).await).await;
    }
    for (point, done) in [
        ("key.claimed", false),
        ("key.before_complete", false),
        ("key.completed", true),
    ] {
        let (lent, db) = Lent::take().await;
        let name = "keys::crash::a_crash_at_any_point_is_unknown_until_it_is_known_to_be_done";
        let end = Run::test(name, "owner", &lent.url).at(point).run();
        assert!(end.crashed(), "{point}: {end:?}");
        for expired in [false, true] {
            let reply = db.claim(&request()).await.unwrap();
            match (&reply, done, expired) {
                (ClaimReply::Done { outcome, .. }, true, _) => assert_eq!(outcome, &succeeded("charged")),
                (ClaimReply::Busy { .. }, false, false) | (ClaimReply::Unknown { .. }, false, true) => {}
                _ => panic!("{point}, expired {expired}: {reply:?}"),
            }
            age_ms(&db, LEASE_MS).await;
        }
    }
}

/// Asks once, charges, commits.
async fn charge_once(db: &Postgres) -> &'static str {
    let run = transact(db, |tx| {
        Box::pin(async move {
            let request = request();
            match once(tx, &request.key, request.fingerprint, OnceOptions::default()).await? {
                Once::First(pending) => {
                    sqlx::query("INSERT INTO charge (n) VALUES (1)")
                        .execute(&mut **tx)
                        .await?;
                    pending.complete(tx, succeeded("charged")).await?;
                    Ok::<_, TxError<()>>("first")
                }
                Once::Done { .. } => Ok("done"),
                other => panic!("{other:?}"),
            }
        })
    });
    run.await.unwrap()
}

#[tokio::test]
async fn a_crash_of_a_transaction_leaves_all_of_it_or_nothing() {
    if let Some(url) = crash::role("owner") {
        charge_once(&open(url).await).await;
        return;
    }
    for (point, successor) in [("once.before_commit", "first"), ("once.committed", "done")] {
        let (lent, db) = Lent::take().await;
        let table = "CREATE TABLE IF NOT EXISTS charge (n integer); TRUNCATE charge";
        sqlx::raw_sql(table).execute(db.pool()).await.unwrap();
        let name = "keys::crash::a_crash_of_a_transaction_leaves_all_of_it_or_nothing";
        let end = Run::test(name, "owner", &lent.url).at(point).run();
        assert!(end.crashed(), "{point}: {end:?}");
        assert_eq!(charge_once(&db).await, successor, "{point}");
        let charges: i64 = sqlx::query_scalar("SELECT count(*) FROM charge")
            .fetch_one(db.pool())
            .await
            .unwrap();
        assert_eq!(charges, 1, "{point}");
    }
}

/// The same, with the mark at the beginning or at the end.
async fn charge_under_key(db: &Postgres, mark: Mark) -> &'static str {
    let request = request();
    let (key, asked) = (&request.key, request.fingerprint);
    let run = transact_once(db, key, asked, mark, OnceOptions::default(), |tx| {
        Box::pin(async move {
            sqlx::query("INSERT INTO charge (n) VALUES (1)")
                .execute(&mut **tx)
                .await?;
            Ok::<_, TxError<()>>(succeeded("charged"))
        })
    });
    match run.await.unwrap() {
        OnceOutcome::First(_) => "first",
        OnceOutcome::Done { outcome, .. } if outcome == succeeded("charged") => "done",
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_crash_under_a_key_leaves_all_of_the_transaction_or_nothing() {
    for (mark, role) in [(Mark::First, "mark first"), (Mark::Last, "mark last")] {
        if let Some(url) = crash::role(role) {
            charge_under_key(&open(url).await, mark).await;
            return;
        }
    }
    for (mark, role) in [(Mark::First, "mark first"), (Mark::Last, "mark last")] {
        for (point, successor) in [("once.before_commit", "first"), ("once.committed", "done")] {
            let (lent, db) = Lent::take().await;
            let table = "CREATE TABLE IF NOT EXISTS charge (n integer); TRUNCATE charge";
            sqlx::raw_sql(table).execute(db.pool()).await.unwrap();
            let name = "keys::crash::a_crash_under_a_key_leaves_all_of_the_transaction_or_nothing";
            let end = Run::test(name, role, &lent.url).at(point).run();
            assert!(end.crashed(), "{point}: {end:?}");
            assert_eq!(charge_under_key(&db, mark).await, successor, "{role}, {point}");
            let charges: i64 = sqlx::query_scalar("SELECT count(*) FROM charge")
                .fetch_one(db.pool())
                .await
                .unwrap();
            assert_eq!(charges, 1, "{role}, {point}");
        }
    }
}
