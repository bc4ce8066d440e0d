//! Waiters are told by the database (rule K11).

use std::time::Duration;

use semel_core::claim::{Abandonment, Claim, ClaimReply, Completion, Lease, Release, succeeded};
use semel_core::{KeyStore as _, KeyStoreExt as _};
use semel_postgres::{Config, Postgres};
use semel_testkit::laws::keys::KEEP;
use sqlx::postgres::PgListener;
use tokio::time::timeout;

use super::{Lent, request};

const LONG: Duration = Duration::from_secs(20);

async fn two() -> (Lent, Postgres, Postgres) {
    let (lent, one) = Lent::take().await;
    let two = Postgres::connect(Config::new(&lent.url)).await.unwrap();
    (lent, one, two)
}

async fn granted(db: &Postgres, claim: &Claim) -> Lease {
    match db.claim(claim).await.unwrap() {
        ClaimReply::Granted { lease, .. } => lease,
        other => panic!("{other:?}"),
    }
}

fn done(claim: &Claim, lease: Lease) -> Completion {
    Completion {
        key: claim.key.clone(),
        lease,
        outcome: succeeded("done"),
        keep: KEEP,
    }
}

#[tokio::test]
async fn a_waiter_is_told_by_the_end_of_the_run_in_another_process() {
    let (_lent, owner, waiter) = two().await;
    // However the run ends.
    for n in 0..4 {
        let claim = request();
        let lease = granted(&owner, &claim).await;
        let (first, second) = (
            waiter.subscribe(&claim.key).await.unwrap(),
            waiter.subscribe(&claim.key).await.unwrap(),
        );
        let other = waiter.subscribe(&claim.key.child("other")).await.unwrap();
        timeout(LONG, other).await.expect("nobody runs it: look at once");
        match n {
            0 => drop(owner.complete(&done(&claim, lease)).await.unwrap()),
            1 => drop(
                owner
                    .release(&Release {
                        key: claim.key.clone(),
                        nonce: lease.nonce,
                        token: Some(lease.token),
                    })
                    .await
                    .unwrap(),
            ),
            2 => drop(
                owner
                    .abandon(&Abandonment {
                        key: claim.key.clone(),
                        lease,
                    })
                    .await
                    .unwrap(),
            ),
            _ => {
                let sql = "SELECT verdict FROM semel.complete($1, $2, $3, $4, 'done')";
                let call = sqlx::query(sql)
                    .bind(claim.key.scope().as_bytes())
                    .bind(claim.key.id())
                    .bind(lease.token.0)
                    .bind(lease.nonce.0);
                call.execute(owner.pool()).await.unwrap();
            }
        }
        timeout(LONG, first).await.expect("told");
        timeout(LONG, second).await.expect("told, too");
    }
}

/// The next owner's end is told, too, though only the first one's row was marked.
#[tokio::test]
async fn the_mark_survives_a_take_over() {
    let (_lent, owner, waiter) = two().await;
    let claim = super::rerun_request();
    granted(&owner, &claim).await;
    let hint = waiter.subscribe(&claim.key).await.unwrap();
    super::age_ms(&owner, semel_testkit::laws::keys::LEASE_MS).await;
    let next = semel_testkit::laws::keys::duplicate(&claim);
    let lease = granted(&owner, &next).await;
    owner.complete(&done(&next, lease)).await.unwrap();
    timeout(LONG, hint).await.expect("told");
}

/// NOTIFY makes commits take turns: it is sent only where somebody waits.
#[tokio::test]
async fn nobody_is_told_where_nobody_waits() {
    let (_lent, owner, waiter) = two().await;
    let mut listener = PgListener::connect_with(owner.pool()).await.unwrap();
    listener.listen("semel_key").await.unwrap();
    let (silent, waited) = (request(), request());
    let leases = (granted(&owner, &silent).await, granted(&owner, &waited).await);
    let hint = waiter.subscribe(&waited.key).await.unwrap();
    owner.complete(&done(&silent, leases.0)).await.unwrap();
    owner.complete(&done(&waited, leases.1)).await.unwrap();
    timeout(LONG, hint).await.expect("told");
    timeout(LONG, listener.recv())
        .await
        .expect("one notification")
        .unwrap();
    let more = timeout(Duration::from_millis(200), listener.recv()).await;
    assert!(more.is_err(), "{more:?}");
}

/// Hints may be lost with the connection: then everybody looks, and the next ones come again.
#[tokio::test]
async fn a_broken_connection_wakes_everybody_and_is_made_again() {
    let (lent, owner, waiter) = two().await;
    let claim = request();
    let lease = granted(&owner, &claim).await;
    let hint = waiter.subscribe(&claim.key).await.unwrap();
    let (_, database) = lent.url.rsplit_once('/').unwrap();
    let broken = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = $1 AND application_name = 'semel listen'";
    let broken: i64 = sqlx::query_scalar(broken)
        .bind(database)
        .fetch_one(owner.pool())
        .await
        .unwrap();
    assert_eq!(broken, 1, "one connection listens");
    timeout(LONG, hint).await.expect("woken without an end");
    let listening =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND application_name = 'semel listen'
        AND state = 'idle' AND query ILIKE 'LISTEN%'";
    while sqlx::query_scalar::<_, i64>(listening)
        .bind(database)
        .fetch_one(owner.pool())
        .await
        .unwrap()
        == 0
    {
        tokio::task::yield_now().await;
    }
    let hint = waiter.subscribe(&claim.key).await.unwrap();
    owner.complete(&done(&claim, lease)).await.unwrap();
    timeout(LONG, hint).await.expect("told");
}

/// Ready at once it would make the waiter ask again and again for as long as the row is locked.
#[tokio::test]
async fn a_row_that_somebody_holds_is_asked_for_from_time_to_time() {
    let (_lent, owner, waiter) = two().await;
    let claim = request();
    granted(&owner, &claim).await;
    let mut tx = owner.begin().await.unwrap();
    sqlx::query("SELECT FROM semel.key WHERE id = $1 FOR UPDATE")
        .bind(claim.key.id())
        .execute(&mut *tx)
        .await
        .unwrap();
    assert!(waiter.subscribe(&claim.key).await.is_none());
    tx.rollback().await.unwrap();
    assert!(waiter.subscribe(&claim.key).await.is_some());
}
