//! A claim that waits for a row is judged again when it has it.

use semel_core::claim::{Claim, ClaimReply, Completion, OwnerLost, Release, succeeded};
use semel_core::{KeyStore as _, KeyStoreExt as _};
use semel_testkit::laws::keys::{KEEP, duplicate, other_request};
use sqlx::{PgConnection, Row as _};

use super::once::until_someone_waits;
use super::{Lent, request, rerun_request};

const CLAIM: &str = include_str!("../../../src/sql/key_claim.sql");

/// The store's own statement, inside a transaction.
async fn claim_text(tx: &mut PgConnection, sql: &str, claim: &Claim) -> Result<Option<i64>, sqlx::Error> {
    let row = sqlx::query(sqlx::AssertSqlSafe(sql.to_owned()))
        .bind(vec![claim.key.scope().as_bytes()])
        .bind(vec![claim.key.id()])
        .bind(vec![claim.fingerprint.to_bytes()])
        .bind(vec![claim.nonce.0])
        .bind(vec![claim.owner_lost == OwnerLost::Hold])
        .bind(vec![claim.lease_ms])
        .bind("10s")
        .fetch_one(tx)
        .await?;
    row.try_get("won_token")
}

/// The row was free when it was looked at. Under its lock it is an expired claim for something else: a mismatch, not a
/// take-over.
#[tokio::test]
async fn the_fingerprint_is_compared_under_the_rows_lock_at_take_over() {
    let (_lent, db) = Lent::take().await;
    let claim = rerun_request();
    // A row that is free to be claimed.
    let before = duplicate(&claim);
    let free = Release {
        key: before.key.clone(),
        nonce: before.nonce,
        token: None,
    };
    db.release(&free).await.unwrap();
    let mut tx = db.begin().await.unwrap();
    let short = Claim { lease_ms: 1, ..claim };
    assert!(claim_text(&mut tx, CLAIM, &short).await.unwrap().is_some());
    let waiting = tokio::spawn({
        let (db, other) = (db.clone(), other_request(&short));
        async move { db.claim(&other).await.unwrap() }
    });
    until_someone_waits(&db, 1).await;
    sqlx::raw_sql("SELECT pg_sleep(0.01)")
        .execute(&mut *tx)
        .await
        .unwrap();
    db.commit(tx).await.unwrap();
    assert_eq!(waiting.await.unwrap(), ClaimReply::Mismatch);
    // Asked for the same, it is taken over.
    let again = db.claim(&duplicate(&short)).await.unwrap();
    assert!(
        matches!(again, ClaimReply::Granted { attempt: 2, .. }),
        "{again:?}"
    );
}

/// A token that was drawn before a long wait may be older than one that has come and gone meanwhile: the claim starts
/// again. (The wait of the text is shortened here; the rest is the store's own statement.)
#[tokio::test]
async fn a_claim_that_waited_too_long_after_its_token_was_drawn_starts_again() {
    let (_lent, db) = Lent::take().await;
    let shortened = CLAIM.replace("interval '30 seconds'", "interval '100 milliseconds'");
    assert_ne!(shortened, CLAIM);
    for (statement, refused) in [(CLAIM.to_owned(), false), (shortened, true)] {
        let claim = request();
        let mut first = db.begin().await.unwrap();
        assert!(claim_text(&mut first, CLAIM, &claim).await.unwrap().is_some());
        let waiting = tokio::spawn({
            let (db, late) = (db.clone(), duplicate(&claim));
            async move {
                let mut tx = db.begin().await.unwrap();
                let token = claim_text(&mut tx, &statement, &late).await;
                db.commit(tx).await.ok();
                token
            }
        });
        until_someone_waits(&db, 1).await;
        sqlx::raw_sql("SELECT pg_sleep(0.15)")
            .execute(&mut *first)
            .await
            .unwrap();
        // Nothing is left of it: the one who waits inserts the token that it drew before.
        first.rollback().await.unwrap();
        match waiting.await.unwrap() {
            Ok(token) => assert!(!refused && token.is_some()),
            Err(error) => {
                let code = error
                    .as_database_error()
                    .and_then(|error| error.code())
                    .unwrap()
                    .into_owned();
                assert_eq!((code.as_str(), refused), ("40001", true), "{error}");
            }
        }
    }
}

/// What is seen before a wait is judged by the time before it: the owner may have ended its run meanwhile.
#[tokio::test]
async fn a_run_that_ended_during_a_wait_for_another_key_is_not_unknown() {
    let (_lent, db) = Lent::take().await;
    let held = request();
    let running = Claim {
        lease_ms: 3_000,
        ..request()
    };
    let mut tx = db.begin().await.unwrap();
    assert!(claim_text(&mut tx, CLAIM, &held).await.unwrap().is_some());
    let ClaimReply::Granted { lease, .. } = db.claim(&running).await.unwrap() else {
        panic!("not granted")
    };
    let waiting = tokio::spawn({
        let (db, both) = (db.clone(), [duplicate(&held), duplicate(&running)]);
        async move { db.claim_many(&both).await }
    });
    until_someone_waits(&db, 1).await;
    let done = Completion {
        key: running.key.clone(),
        lease,
        outcome: succeeded("done"),
        keep: KEEP,
    };
    db.complete(&done).await.unwrap();
    sqlx::raw_sql("SELECT pg_sleep(3)")
        .execute(&mut *tx)
        .await
        .unwrap();
    tx.rollback().await.unwrap();
    let replies = waiting.await.unwrap();
    assert!(
        matches!(replies[1], Ok(ClaimReply::Busy { .. } | ClaimReply::Done { .. })),
        "{replies:?}"
    );
}
