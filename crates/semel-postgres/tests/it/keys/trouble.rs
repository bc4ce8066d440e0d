//! Lost replies, held rows and two processes at once.

use std::time::Duration;

use semel_core::claim::{
    Claim, ClaimReply, Completion, LeaseReply, REMOVE_GRACE_MS, Release, State, WITHDRAWN_MS, succeeded,
};
use semel_core::{ErrorKind, Fingerprint, KeyStore, KeyStoreExt, Retry};
use semel_postgres::tx::{Once, OnceOptions, once};
use semel_postgres::{Config, Postgres};
use semel_testkit::laws::keys::{KEEP, duplicate, is_ok};
use semel_testkit::proxy::Proxy;

use super::once::until_someone_waits;
use super::{Lent, request};

/// No answer for longer than is waited for: what was asked is unknown, and the only connection there may be is not kept by it.
#[tokio::test]
async fn a_server_that_falls_silent_costs_a_connection_and_not_its_place() {
    let (lent, direct) = Lent::take().await;
    let mut config = Config::new(&lent.url);
    config.key_connections_max = 1;
    config.key_lock_wait = Duration::from_secs(60);
    config.answer_timeout = Duration::from_millis(500);
    let db = Postgres::connect(config).await.unwrap();
    let claim = request();
    let mut holder = direct.begin().await.unwrap();
    let first = once(&mut holder, &claim.key, claim.fingerprint, OnceOptions::default());
    assert!(matches!(first.await.unwrap(), Once::First(_)));
    for _ in 0..2 {
        let lost = db.claim(&claim).await.unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::ReplyLost, "{lost:?}");
        let other = db.claim(&request()).await.unwrap();
        assert!(matches!(other, ClaimReply::Granted { .. }), "{other:?}");
    }
    holder.rollback().await.unwrap();
}

fn port_of(url: &str) -> u16 {
    let host = url.rsplit_once('/').unwrap().0;
    host.rsplit_once(':').unwrap().1.parse().unwrap()
}

/// The same database through the proxy.
fn behind(url: &str, proxy: &Proxy) -> String {
    url.replace(&format!(":{}/", port_of(url)), &format!(":{}/", proxy.port()))
}

/// Rules K2 and K3 end to end: the reply is lost on the wire, the call is unknown, and repeating it is safe.
#[tokio::test]
async fn lost_replies_of_claim_and_complete_are_asked_for_again() {
    let (lent, direct) = Lent::take().await;
    let proxy = Proxy::to_port(port_of(&lent.url)).await.unwrap();
    let url = behind(&lent.url, &proxy);
    let db = Postgres::connect(Config::new(url)).await.unwrap();
    let claim = request();

    proxy.drop_reply_to(&claim.nonce.0);
    let lost = db.claim(&claim).await.unwrap_err();
    assert_eq!(
        (lost.kind(), lost.retry()),
        (ErrorKind::ReplyLost, Retry::OutcomeUnknown)
    );
    let held = direct
        .read(&claim.key)
        .await
        .unwrap()
        .and_then(|record| record.lease());
    let ClaimReply::Granted { lease, .. } = db.claim(&claim).await.unwrap() else {
        panic!("not granted")
    };
    assert_eq!(Some(lease), held, "the same token as the first time");

    let done = Completion {
        key: claim.key.clone(),
        lease,
        outcome: succeeded("charged"),
        keep: KEEP,
    };
    proxy.drop_reply_to(b"charged");
    assert_eq!(db.complete(&done).await.unwrap_err().kind(), ErrorKind::ReplyLost);
    assert!(is_ok(db.complete(&done).await.unwrap()));
    assert_eq!(proxy.hits(), 2, "two replies were dropped");
}

/// A key that somebody's open transaction runs: its neighbours in the batch are not held up for long.
#[tokio::test]
async fn row_held_by_a_transaction_does_not_fail_the_batch() {
    let (lent, direct) = Lent::take().await;
    let mut config = Config::new(&lent.url);
    config.key_lock_wait = Duration::from_millis(50);
    let db = Postgres::connect(config).await.unwrap();
    let claims: Vec<Claim> = (0..5).map(|_| request()).collect();
    let mut tx = direct.begin().await.unwrap();
    let asked = Fingerprint::of(b"what was asked");
    let first = once(&mut tx, &claims[2].key, asked, OnceOptions::default())
        .await
        .unwrap();
    assert!(matches!(first, Once::First(_)));

    for (n, reply) in db.claim_many(&claims).await.into_iter().enumerate() {
        match reply.unwrap() {
            ClaimReply::Granted { .. } => assert_ne!(n, 2),
            ClaimReply::Busy { .. } => assert_eq!(n, 2),
            other => panic!("{other:?}"),
        }
    }
    tx.rollback().await.unwrap();
    assert!(matches!(
        db.claim(&claims[2]).await.unwrap(),
        ClaimReply::Granted { .. }
    ));
}

/// Replays and duplicates of running keys lock nothing: they are answered while the row is locked by somebody.
#[tokio::test]
async fn what_is_done_is_replayed_without_a_lock() {
    let (_lent, db) = Lent::take().await;
    let claim = request();
    let ClaimReply::Granted { lease, .. } = db.claim(&claim).await.unwrap() else {
        panic!("not granted")
    };
    let mut tx = db.begin().await.unwrap();
    let lock = "SELECT FROM semel.key WHERE scope = $1 AND id = $2 FOR UPDATE";
    let lock = sqlx::query(lock)
        .bind(claim.key.scope().as_bytes())
        .bind(claim.key.id());
    lock.execute(&mut *tx).await.unwrap();
    assert!(matches!(
        db.claim(&duplicate(&claim)).await.unwrap(),
        ClaimReply::Busy {
            lease_left_ms: 10_000..
        }
    ));
    tx.rollback().await.unwrap();

    let done = Completion {
        key: claim.key.clone(),
        lease,
        outcome: succeeded("done"),
        keep: KEEP,
    };
    assert!(is_ok(db.complete(&done).await.unwrap()));
    let before: String = version(&db, &claim).await;
    for _ in 0..3 {
        assert!(matches!(
            db.claim(&duplicate(&claim)).await.unwrap(),
            ClaimReply::Done { .. }
        ));
        assert!(is_ok(db.complete(&done).await.unwrap()));
    }
    assert_eq!(version(&db, &claim).await, before, "no new row version, no lock");
}

async fn version(db: &Postgres, claim: &Claim) -> String {
    let row = "SELECT concat(ctid, ' ', xmin, ' ', xmax) FROM semel.key WHERE scope = $1 AND id = $2";
    let row = sqlx::query_scalar(row)
        .bind(claim.key.scope().as_bytes())
        .bind(claim.key.id());
    row.fetch_one(db.pool()).await.unwrap()
}

/// Two pools, as of two processes, 32 tasks each claim, complete and replay: every key has one owner and one outcome.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_pools_grant_each_key_once() {
    let (lent, one) = Lent::take().await;
    let two = Postgres::connect(Config::new(&lent.url)).await.unwrap();
    // Batches that overlap in different orders.
    let keys: Vec<Claim> = (0..50).map(|_| request()).collect();
    let tasks: Vec<_> = (0..32)
        .map(|n| {
            let db = if n % 2 == 0 { one.clone() } else { two.clone() };
            let mut claims: Vec<Claim> = keys.iter().map(duplicate).collect();
            if n % 3 == 0 {
                claims.reverse();
            }
            tokio::spawn(async move {
                let mut done = Vec::new();
                for (claim, reply) in claims.iter().zip(db.claim_many(&claims).await) {
                    if let ClaimReply::Granted { lease, .. } = reply.unwrap() {
                        done.push(Completion {
                            key: claim.key.clone(),
                            lease,
                            outcome: succeeded(n.to_string()),
                            keep: KEEP,
                        });
                    }
                }
                for reply in db.complete_many(&done).await {
                    assert!(matches!(reply.unwrap(), LeaseReply::Ok(_)));
                }
                done.len()
            })
        })
        .collect();
    let mut granted = 0;
    for task in tasks {
        granted += task.await.unwrap();
    }
    assert_eq!(granted, keys.len());
}

const RELEASE: &str = include_str!("../../../src/sql/key_release.sql");

/// The claim has looked and waits for the row; its withdrawal is committed first. What counts is what is there once it
/// holds the lock (rule K4).
#[tokio::test]
async fn claim_that_waits_behind_its_own_withdrawal_is_not_granted() {
    let (_lent, db) = Lent::take().await;
    let late = request();
    // A row that is free to be claimed.
    let before = duplicate(&late);
    let withdraw = Release {
        key: before.key.clone(),
        nonce: before.nonce,
        token: None,
    };
    db.release(&withdraw).await.unwrap();

    let mut tx = db.begin().await.unwrap();
    sqlx::query(RELEASE)
        .bind(vec![late.key.scope().as_bytes()])
        .bind(vec![late.key.id()])
        .bind(vec![None::<i64>])
        .bind(vec![late.nonce.0])
        .bind("5s")
        .bind(WITHDRAWN_MS)
        .bind(REMOVE_GRACE_MS)
        .bind(8)
        .execute(&mut *tx)
        .await
        .unwrap();
    let claim = tokio::spawn({
        let (db, late) = (db.clone(), late.clone());
        async move { db.claim(&late).await.unwrap() }
    });
    until_someone_waits(&db, 1).await;
    db.commit(tx).await.unwrap();
    assert_eq!(claim.await.unwrap(), ClaimReply::Withdrawn);
}

/// Grants come back by their keys, whichever of a batch were there before.
#[tokio::test]
async fn each_of_a_batch_gets_its_own_grant_or_the_answer_of_what_was_there() {
    let (_lent, db) = Lent::take().await;
    let mut claims: Vec<Claim> = (0..20).map(|_| request()).collect();
    claims.sort_by(|a, b| a.key.cmp(&b.key));
    let old = [0, 7];
    for n in old {
        db.claim(&claims[n]).await.unwrap();
        claims[n] = duplicate(&claims[n]);
    }
    for (n, reply) in db.claim_many(&claims).await.into_iter().enumerate() {
        let record = db.read(&claims[n].key).await.unwrap().unwrap();
        let State::Claimed { lease: stored, .. } = record.state else {
            panic!("{record:?}")
        };
        match reply.unwrap() {
            ClaimReply::Granted { lease, .. } => assert_eq!(lease, stored, "{n}"),
            ClaimReply::Busy { .. } => assert!(old.contains(&n)),
            other => panic!("{n}: {other:?}"),
        }
        assert_eq!(stored.nonce == claims[n].nonce, !old.contains(&n));
    }
}

/// What the server says while it is there is no outage: `Outage::Open` must not pass it. And what says that there is no room.
#[tokio::test]
async fn a_server_that_answers_is_not_away() {
    let (_lent, db) = Lent::take().await;
    for (state, outage, full) in [
        ("53100", false, true),
        ("53200", false, true),
        ("40001", false, false),
        ("40P01", false, false),
        ("55P03", false, false),
        ("57014", false, false),
        ("53300", true, false),
        ("57P03", true, false),
        ("08006", true, false),
    ] {
        let mut tx = db.begin().await.unwrap();
        let raise = format!("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$");
        let error = sqlx::query(sqlx::AssertSqlSafe(raise))
            .execute(&mut *tx)
            .await
            .unwrap_err();
        let error = semel_postgres::classify("claim", error);
        assert_eq!(
            (error.is_outage(), error.is_full()),
            (outage, full),
            "{state}: {error}"
        );
        tx.rollback().await.unwrap();
    }
    let broke = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    assert!(semel_postgres::classify("claim", sqlx::Error::Io(broke)).is_outage());
}
