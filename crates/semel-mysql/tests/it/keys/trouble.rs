//! Lost replies, held rows and two processes at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel_core::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, LeaseReply, REMOVE_GRACE_MS, Release, succeeded,
};
use semel_core::key::hex;
use semel_core::store::{KeyQuery, MixedBatch};
use semel_core::{ErrorKind, Fingerprint, KeyStore, KeyStoreExt, Retry, StoredOutcome, limits};
use semel_mysql::tx::{Once, OnceOptions, once};
use semel_mysql::{Config, Mysql};
use semel_testkit::laws::keys::{KEEP, LEASE_MS, duplicate, is_ok};
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::{MariadbServer, mariadb};

use super::{Lent, age_ms, at_port, port, request, until_someone_waits};

/// Rules K2 and K3 end to end: the reply is lost on the wire, the call is unknown, and repeating it is safe.
#[tokio::test]
async fn lost_replies_of_claim_and_complete_are_asked_for_again() {
    let (lent, direct) = Lent::take().await;
    let proxy = Proxy::to_port(port(&lent.url)).await.unwrap();
    let db = Mysql::connect(Config::new(at_port(&lent.url, proxy.port())))
        .await
        .unwrap();
    let claim = request();

    proxy.drop_reply_to(hex(&claim.nonce.0).as_bytes());
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
    proxy.drop_reply_to(hex(b"charged").as_bytes());
    assert_eq!(db.complete(&done).await.unwrap_err().kind(), ErrorKind::ReplyLost);
    assert!(is_ok(db.complete(&done).await.unwrap()));
    assert_eq!(proxy.hits(), 2, "two replies were dropped");
}

/// The server's clock was set back by an hour after a key was run and forgotten: tokens go on above those of removed rows.
#[tokio::test]
async fn tokens_are_above_those_of_rows_that_are_gone_when_the_clock_was_set_back() {
    let db = Mysql::connect(Config::new(mariadb().fresh_database()))
        .await
        .unwrap();
    db.migrate().await.unwrap();
    let claim = request();
    let ClaimReply::Granted { lease, .. } = db.claim(&claim).await.unwrap() else {
        panic!("not granted")
    };
    let done = Completion {
        key: claim.key.clone(),
        lease,
        outcome: succeeded("charged"),
        keep: KEEP,
    };
    assert!(is_ok(db.complete(&done).await.unwrap()));
    let ahead = lease.token.0 + 3_600_000_000;
    sqlx::query("UPDATE semel_key SET token = ?, token_last = ?")
        .bind(ahead)
        .bind(ahead)
        .execute(db.pool())
        .await
        .unwrap();
    age_ms(
        &db,
        KEEP.retention_ms + KEEP.tombstone_ms + REMOVE_GRACE_MS + 1_000,
    )
    .await;
    assert_eq!(db.sweep(10).await.unwrap().removed, 1);
    // By itself, and in a batch that is more than one statement asks for.
    let mut claims: Vec<Claim> = (0..600).map(|_| request()).collect();
    claims[7] = duplicate(&claim);
    let alone = db.claim_many(&[request()]).await;
    for reply in db.claim_many(&claims).await.into_iter().chain(alone) {
        let ClaimReply::Granted { lease, .. } = reply.unwrap() else {
            panic!("not granted")
        };
        assert!(lease.token.0 > ahead, "a token went back");
    }
}

/// A key that somebody's open transaction runs: its neighbours in the batch are not held up for long.
#[tokio::test]
async fn row_held_by_a_transaction_does_not_fail_the_batch() {
    let (lent, direct) = Lent::take().await;
    let mut config = Config::new(&lent.url);
    config.lock_wait = Duration::from_secs(1);
    let db = Mysql::connect(config).await.unwrap();
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

/// Keys that go one by one wait for a second only; whoever gets the connection next waits for as long as the setting says.
#[tokio::test]
async fn a_batch_that_was_given_up_leaves_no_shorter_patience_behind() {
    let (lent, direct) = Lent::take().await;
    let mut config = Config::new(&lent.url);
    config.lock_wait = Duration::from_secs(3);
    // The next call gets the same connection.
    config.key_connections_max = 1;
    let db = Mysql::connect(config).await.unwrap();
    let claims = [request(), request()];
    let mut tx = direct.begin().await.unwrap();
    let asked = Fingerprint::of(b"what was asked");
    let held = once(&mut tx, &claims[1].key, asked, OnceOptions::default()).await;
    assert!(matches!(held.unwrap(), Once::First(_)));
    let batch = tokio::spawn({
        let (db, claims) = (db.clone(), claims.clone());
        async move { db.claim_many(&claims).await }
    });
    // The first of them is there: now each goes by itself.
    while direct.read(&claims[0].key).await.unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    until_someone_waits(&direct, 1).await;
    batch.abort();
    assert!(batch.await.unwrap_err().is_cancelled());
    let begun = std::time::Instant::now();
    let late = db.claim(&claims[1]).await.unwrap();
    assert!(matches!(late, ClaimReply::Busy { .. }), "{late:?}");
    let waited = begun.elapsed();
    // With the others, and a second by itself.
    assert!(waited >= Duration::from_secs(3), "{waited:?}");
    tx.rollback().await.unwrap();
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
    let lock = "SELECT 1 FROM semel_key WHERE key_bytes = ? FOR UPDATE";
    let lock = sqlx::query(lock).bind(claim.key.to_bytes());
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
    let mut tx = db.begin().await.unwrap();
    let lock = "SELECT 1 FROM semel_key WHERE key_bytes = ? FOR UPDATE";
    let lock = sqlx::query(lock).bind(claim.key.to_bytes());
    lock.execute(&mut *tx).await.unwrap();
    for _ in 0..3 {
        assert!(matches!(
            db.claim(&duplicate(&claim)).await.unwrap(),
            ClaimReply::Done { .. }
        ));
        assert!(is_ok(db.complete(&done).await.unwrap()));
    }
    tx.rollback().await.unwrap();
}

/// Two pools, as of two processes, 32 tasks each claim, complete and replay: every key has one owner and one outcome.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_pools_grant_each_key_once() {
    let (lent, one) = Lent::take().await;
    let two = Mysql::connect(Config::new(&lent.url)).await.unwrap();
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

/// The claim has looked and waits for the row; its withdrawal is committed first. What counts is what is there once it
/// holds the lock (rule K4).
#[tokio::test]
async fn claim_that_waits_behind_its_own_withdrawal_is_not_granted() {
    let (lent, db) = Lent::take().await;
    let late = request();
    // A row that is free to be claimed.
    withdraw(&db, &duplicate(&late)).await;

    let mut tx = db.begin().await.unwrap();
    let hold = "SELECT 1 FROM semel_key WHERE key_bytes = ? FOR UPDATE";
    sqlx::query(hold)
        .bind(late.key.to_bytes())
        .execute(&mut *tx)
        .await
        .unwrap();
    let both = Mysql::connect(Config::new(&lent.url)).await.unwrap();
    let release = tokio::spawn({
        let (both, late) = (both.clone(), late.clone());
        async move { withdraw(&both, &late).await }
    });
    until_someone_waits(&db, 1).await;
    let claim = tokio::spawn({
        let (db, late) = (db.clone(), late.clone());
        async move { db.claim(&late).await.unwrap() }
    });
    until_someone_waits(&db, 2).await;
    tx.rollback().await.unwrap();
    release.await.unwrap();
    // Whoever came first: after the withdrawal nobody holds the key under that nonce.
    let reply = claim.await.unwrap();
    assert!(
        matches!(reply, ClaimReply::Withdrawn | ClaimReply::Granted { .. }),
        "{reply:?}"
    );
    assert_eq!(db.read(&late.key).await.unwrap(), None);
    assert_eq!(db.claim(&late).await.unwrap(), ClaimReply::Withdrawn);
}

async fn withdraw(db: &Mysql, claim: &Claim) {
    let release = Release {
        key: claim.key.clone(),
        nonce: claim.nonce,
        token: None,
    };
    db.release(&release).await.unwrap();
}

/// A sweep never waits for a row, nor makes others wait for one that it does not get.
#[tokio::test]
async fn sweep_passes_over_rows_that_somebody_works_on() {
    let (_lent, db) = Lent::take().await;
    let (held, free) = (request(), request());
    for reply in db.claim_many(&[held.clone(), free.clone()]).await {
        assert!(matches!(reply.unwrap(), ClaimReply::Granted { .. }));
    }
    age_ms(&db, LEASE_MS).await;
    let mut tx = db.begin().await.unwrap();
    let hold = "SELECT 1 FROM semel_key WHERE key_bytes = ? FOR UPDATE";
    sqlx::query(hold)
        .bind(held.key.to_bytes())
        .execute(&mut *tx)
        .await
        .unwrap();
    assert_eq!(db.sweep(100).await.unwrap().unknown, 1);
    tx.rollback().await.unwrap();
    assert_eq!(db.sweep(100).await.unwrap().unknown, 1);
}

/// All kinds in one batch: one commit, and each item its own answer.
#[tokio::test]
async fn kinds_are_mixed_in_one_commit() {
    let (_lent, db) = Lent::take().await;
    let claims: Vec<Claim> = (0..3).map(|_| request()).collect();
    let mut leases = Vec::new();
    for reply in db.claim_many(&claims).await {
        let ClaimReply::Granted { lease, .. } = reply.unwrap() else {
            panic!("not granted")
        };
        leases.push(lease);
    }
    let new = request();
    let batch = MixedBatch {
        claims: vec![new.clone(), duplicate(&claims[0])],
        completions: vec![Completion {
            key: claims[0].key.clone(),
            lease: leases[0],
            outcome: succeeded("charged"),
            keep: KEEP,
        }],
        extensions: vec![Extension {
            key: claims[1].key.clone(),
            lease: leases[1],
            lease_ms: 2 * LEASE_MS,
        }],
        abandonments: vec![Abandonment {
            key: claims[2].key.clone(),
            lease: leases[2],
        }],
        ..MixedBatch::default()
    };
    let replies = db.transact_many(&batch).await;
    assert_eq!(commits(&db).await, 1, "one statement, one commit");
    assert!(matches!(replies.claims[0], Ok(ClaimReply::Granted { .. })));
    assert!(
        matches!(&replies.claims[1], Ok(ClaimReply::Done { outcome, .. }) if *outcome == succeeded("charged"))
    );
    assert!(is_ok(*replies.completions[0].as_ref().unwrap()));
    assert!(is_ok(*replies.extensions[0].as_ref().unwrap()));
    assert!(is_ok(*replies.abandonments[0].as_ref().unwrap()));
    let unknown = db.claim(&duplicate(&claims[2])).await.unwrap();
    assert!(matches!(unknown, ClaimReply::Unknown { .. }));
}

/// Versions of rows tell statements apart: how many wrote what is there now.
async fn commits(db: &Mysql) -> i64 {
    let versions = "SELECT COUNT(DISTINCT version) FROM semel_key";
    sqlx::query_scalar(versions).fetch_one(db.pool()).await.unwrap()
}

/// Outcomes of the largest size, more of them than one statement can carry.
#[tokio::test]
async fn outcomes_that_do_not_fit_into_one_statement_go_in_several() {
    let (_lent, db) = Lent::take().await;
    let claims: Vec<Claim> = (0..12).map(|_| request()).collect();
    let large = StoredOutcome::Succeeded(vec![0xff; limits::OUTCOME_BYTES_MAX].into());
    let mut done = Vec::new();
    for (claim, reply) in claims.iter().zip(db.claim_many(&claims).await) {
        let ClaimReply::Granted { lease, .. } = reply.unwrap() else {
            panic!("not granted")
        };
        done.push(Completion {
            key: claim.key.clone(),
            lease,
            outcome: large.clone(),
            keep: KEEP,
        });
    }
    for reply in db.complete_many(&done).await {
        assert!(is_ok(reply.unwrap()));
    }
    let again: Vec<Claim> = claims.iter().map(duplicate).collect();
    for reply in db.claim_many(&again).await {
        assert!(matches!(reply.unwrap(), ClaimReply::Done { outcome, .. } if outcome == large));
    }
}

/// `kill -9` of the server in the middle of a load: whatever was acknowledged is there afterwards, nothing is granted
/// twice, and what was unknown is one or the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_the_server_forgets_nothing_that_was_acknowledged() {
    let mut server = MariadbServer::start();
    let mut config = Config::new(server.fresh_database());
    config.acquire_timeout = Duration::from_secs(2);
    let db = Mysql::connect(config).await.unwrap();
    db.migrate().await.unwrap();
    let count = Arc::new(AtomicU32::new(0));
    let load: Vec<_> = (0..4)
        .map(|_| {
            let (db, count) = (db.clone(), Arc::clone(&count));
            tokio::spawn(async move {
                let (mut granted, mut done) = (Vec::new(), Vec::new());
                loop {
                    let claims: Vec<Claim> = (0..10).map(|_| request()).collect();
                    let mut completions = Vec::new();
                    let mut ended = false;
                    for (claim, reply) in claims.iter().zip(db.claim_many(&claims).await) {
                        match reply {
                            Ok(ClaimReply::Granted { lease, .. }) => {
                                granted.push((claim.clone(), lease));
                                completions.push(Completion {
                                    key: claim.key.clone(),
                                    lease,
                                    outcome: succeeded("charged"),
                                    keep: KEEP,
                                });
                            }
                            Ok(other) => panic!("{other:?}"),
                            Err(error) => {
                                assert_ne!(error.retry(), Retry::Never, "{error}");
                                ended = true;
                            }
                        }
                    }
                    for (completion, reply) in completions.iter().zip(db.complete_many(&completions).await) {
                        match reply {
                            Ok(reply) => {
                                assert!(is_ok(reply));
                                done.push(completion.clone());
                            }
                            Err(error) => {
                                assert_ne!(error.retry(), Retry::Never, "{error}");
                                ended = true;
                            }
                        }
                    }
                    if ended {
                        return (granted, done);
                    }
                    count.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    while count.load(Ordering::SeqCst) < 40 {
        tokio::task::yield_now().await;
    }
    tokio::task::block_in_place(|| server.kill());
    let mut ends = Vec::new();
    for task in load {
        ends.push(task.await.unwrap());
    }
    tokio::task::block_in_place(|| server.restart());
    let mut acknowledged = 0;
    for (granted, done) in ends {
        for completion in &done {
            let record = db.read(&completion.key).await.unwrap();
            let lease = record.and_then(|record| record.lease());
            assert_eq!(lease, Some(completion.lease));
        }
        for (claim, lease) in granted {
            match db.claim(&duplicate(&claim)).await.unwrap() {
                ClaimReply::Busy { .. } => {
                    let record = db.read(&claim.key).await.unwrap();
                    assert_eq!(record.and_then(|record| record.lease()), Some(lease));
                }
                ClaimReply::Done { outcome, .. } => assert_eq!(outcome, succeeded("charged")),
                other => panic!("{other:?}"),
            }
        }
        acknowledged += done.len();
    }
    assert!(acknowledged >= 400, "{acknowledged}");
}

/// A connection that breaks while nobody uses it costs nobody an error: a look is sent again.
#[tokio::test]
async fn broken_idle_connections_are_replaced() {
    let (lent, _direct) = Lent::take().await;
    let proxy = Proxy::to_port(port(&lent.url)).await.unwrap();
    let db = Mysql::connect(Config::new(at_port(&lent.url, proxy.port())))
        .await
        .unwrap();
    for _ in 0..3 {
        assert!(matches!(
            db.claim(&request()).await.unwrap(),
            ClaimReply::Granted { .. }
        ));
        proxy.cut();
    }
}

/// A row written by something else must not keep all others from being swept, nor a page from being listed.
#[tokio::test]
async fn a_row_that_cannot_be_read_is_passed_over_by_the_sweep_and_the_list() {
    let (_lent, db) = Lent::take().await;
    let claims = [request(), request()];
    for claim in &claims {
        assert!(matches!(
            db.claim(claim).await.unwrap(),
            ClaimReply::Granted { .. }
        ));
    }
    // Its lease ends first.
    sqlx::query("UPDATE semel_key SET nonce = x'01', due_us = due_us - 1000 WHERE key_bytes = ?")
        .bind(claims[0].key.to_bytes())
        .execute(db.pool())
        .await
        .unwrap();
    age_ms(&db, LEASE_MS).await;
    assert_eq!(db.sweep(1).await.unwrap().unknown, 0, "put off");
    assert_eq!(db.sweep(1).await.unwrap().unknown, 1, "the other's turn");
    let listed = db
        .list(&KeyQuery {
            limit: 10,
            ..KeyQuery::default()
        })
        .await
        .unwrap()
        .records;
    let keys: Vec<_> = listed.iter().map(|(key, _)| key).collect();
    assert_eq!(keys, [&claims[1].key]);
}

/// What the server says while it is there is no outage: `Outage::Open` must not pass it. And what says that there is no room.
#[tokio::test]
async fn a_server_that_answers_is_not_away() {
    let (_lent, db) = Lent::take().await;
    for (number, outage, full) in [
        (1021, false, true),
        (1114, false, true),
        (1041, false, true),
        (1205, false, false),
        (1213, false, false),
        (1040, true, false),
    ] {
        let mut tx = db.begin().await.unwrap();
        let signal = format!("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {number}, MESSAGE_TEXT = 'no'");
        let error = sqlx::query(sqlx::AssertSqlSafe(signal))
            .execute(&mut *tx)
            .await
            .unwrap_err();
        let error = semel_mysql::classify("claim", error);
        assert_eq!(
            (error.is_outage(), error.is_full()),
            (outage, full),
            "{number}: {error}"
        );
        tx.rollback().await.unwrap();
    }
    let broke = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    assert!(semel_mysql::classify("claim", sqlx::Error::Io(broke)).is_outage());
}
