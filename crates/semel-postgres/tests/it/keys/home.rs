//! After a restore no token comes back (rules K5, K9).

use semel_core::KeyStoreExt as _;
use semel_core::claim::{ClaimReply, Completion, Lease, LeaseReply, succeeded};
use semel_postgres::Postgres;
use semel_testkit::laws::keys::KEEP;

use super::{Lent, request};

async fn granted(db: &Postgres) -> (semel_core::claim::Claim, Lease) {
    let claim = request();
    match db.claim(&claim).await.unwrap() {
        ClaimReply::Granted { lease, .. } => (claim, lease),
        other => panic!("{other:?}"),
    }
}

/// What a restore leaves: records and the sequence of an hour ago, on another timeline.
#[tokio::test]
async fn after_a_restore_adopted_keys_get_larger_tokens_than_any_before() {
    let (_lent, db) = Lent::take().await;
    assert!(!db.keys_moved().await.unwrap());
    sqlx::raw_sql("SELECT setval('semel.token', 5000, false)")
        .execute(db.pool())
        .await
        .unwrap();
    let (_, before) = granted(&db).await;
    let restored =
        "TRUNCATE semel.key; SELECT setval('semel.token', 1, false); UPDATE semel.key_home SET timeline = 0";
    sqlx::raw_sql(restored).execute(db.pool()).await.unwrap();
    assert!(db.keys_moved().await.unwrap());

    let first: i64 = sqlx::query_scalar("SELECT semel.adopt_keys()")
        .fetch_one(db.pool())
        .await
        .unwrap();
    assert!(!db.keys_moved().await.unwrap());
    let (claim, after) = granted(&db).await;
    assert!(
        after.token > before.token && after.token.0 >= first,
        "{after:?} after {before:?}"
    );
    // Once more is as good, and never goes back.
    sqlx::raw_sql("SELECT semel.adopt_keys()")
        .execute(db.pool())
        .await
        .unwrap();
    assert!(granted(&db).await.1.token > after.token);
    // The owner from before the restore is a stranger by its nonce, whatever its token is.
    let late = Completion {
        key: claim.key,
        lease: Lease {
            token: after.token,
            nonce: before.nonce,
        },
        outcome: succeeded("late"),
        keep: KEEP,
    };
    assert_eq!(db.complete(&late).await.unwrap(), LeaseReply::LeaseLost);
    sqlx::raw_sql("SELECT setval('semel.token', 1, false)")
        .execute(db.pool())
        .await
        .unwrap();
}
