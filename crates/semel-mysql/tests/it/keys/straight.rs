//! Batches that are written without a look: new keys, and ends of runs.

use semel_core::claim::{Claim, ClaimReply, Completion, Lease, LeaseReply, Release, succeeded};
use semel_core::key::hex;
use semel_core::{KeyStore, KeyStoreExt};
use semel_mysql::{Config, Mysql};
use semel_testkit::laws::keys::{KEEP, LEASE_MS, duplicate, is_ok};
use semel_testkit::proxy::Proxy;

use super::{Lent, age_ms, at_port, port, request, until_someone_waits};

/// More than the store looks at before it believes that keys are new.
const BATCHES: usize = 40;

/// Lets the store see new keys only, until it claims without a look.
async fn new_keys_only(db: &Mysql) {
    for _ in 0..BATCHES {
        for reply in db.claim_many(&[request(), request()]).await {
            lease_of(reply.unwrap());
        }
    }
}

fn lease_of(reply: ClaimReply) -> Lease {
    match reply {
        ClaimReply::Granted { lease, .. } => lease,
        other => panic!("not granted: {other:?}"),
    }
}

async fn granted(db: &Mysql, claims: &[Claim]) -> Vec<Lease> {
    let replies = db.claim_many(claims).await;
    replies
        .into_iter()
        .map(|reply| lease_of(reply.unwrap()))
        .collect()
}

fn end(claim: &Claim, lease: Lease, outcome: &'static str) -> Completion {
    Completion {
        key: claim.key.clone(),
        lease,
        outcome: succeeded(outcome),
        keep: KEEP,
    }
}

/// One by one, a few, and many: what is stored is what was answered.
#[tokio::test]
async fn what_is_written_without_a_look_is_what_was_answered() {
    let (_lent, db) = Lent::take().await;
    new_keys_only(&db).await;
    for size in [1, 4, 5, 600] {
        let claims: Vec<Claim> = (0..size).map(|_| request()).collect();
        let leases = granted(&db, &claims).await;
        for (claim, lease) in claims.iter().zip(&leases) {
            let record = db.read(&claim.key).await.unwrap().unwrap();
            assert_eq!(record.lease(), Some(*lease));
            assert_eq!(record.fingerprint, Some(claim.fingerprint));
            // Its own nonce again: the same right.
            assert_eq!(lease_of(db.claim(claim).await.unwrap()), *lease);
        }
        new_keys_only(&db).await;
        let ends = claims
            .iter()
            .zip(&leases)
            .map(|(claim, lease)| end(claim, *lease, "charged"));
        let replies = db.complete_many(&ends.collect::<Vec<_>>()).await;
        for (claim, reply) in claims.iter().zip(replies) {
            let LeaseReply::Ok(until) = reply.unwrap() else {
                panic!("not completed")
            };
            match db.claim(&duplicate(claim)).await.unwrap() {
                ClaimReply::Done {
                    outcome,
                    retain_until,
                } => assert_eq!((outcome, retain_until), (succeeded("charged"), until)),
                other => panic!("{other:?}"),
            }
        }
        new_keys_only(&db).await;
    }
}

/// A key that is there makes the batch be looked up: each of the others is granted, and it is told what it is.
#[tokio::test]
async fn a_replay_among_new_keys_is_answered_and_the_others_are_granted() {
    let (_lent, db) = Lent::take().await;
    let claims: Vec<Claim> = (0..20).map(|_| request()).collect();
    let leases = granted(&db, &claims[..2]).await;
    assert!(is_ok(
        db.complete(&end(&claims[0], leases[0], "charged")).await.unwrap()
    ));
    new_keys_only(&db).await;
    let again: Vec<Claim> = claims.iter().map(duplicate).collect();
    for (n, reply) in db.claim_many(&again).await.into_iter().enumerate() {
        match (n, reply.unwrap()) {
            (0, ClaimReply::Done { outcome, .. }) => assert_eq!(outcome, succeeded("charged")),
            (1, ClaimReply::Busy { .. }) | (2.., ClaimReply::Granted { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Rules K2 and K3: where the answer got lost, the batch is asked again at once, and nothing is done twice.
#[tokio::test]
async fn an_answer_that_got_lost_is_asked_for_again() {
    let (lent, direct) = Lent::take().await;
    let proxy = Proxy::to_port(port(&lent.url)).await.unwrap();
    let db = Mysql::connect(Config::new(at_port(&lent.url, proxy.port())))
        .await
        .unwrap();
    new_keys_only(&db).await;
    for size in [1, 9] {
        let claims: Vec<Claim> = (0..size).map(|_| request()).collect();
        proxy.drop_reply_to(hex(&claims[0].nonce.0).as_bytes());
        for (claim, lease) in claims.iter().zip(granted(&db, &claims).await) {
            let held = direct
                .read(&claim.key)
                .await
                .unwrap()
                .and_then(|record| record.lease());
            assert_eq!(held, Some(lease));
        }
    }
    let claims = [request(), request()];
    let leases = granted(&db, &claims).await;
    let ends = [
        end(&claims[0], leases[0], "charged"),
        end(&claims[1], leases[1], "sent"),
    ];
    proxy.drop_reply_to(hex(b"charged").as_bytes());
    for reply in db.complete_many(&ends).await {
        assert!(is_ok(reply.unwrap()));
    }
    assert_eq!(proxy.hits(), 3, "three replies were dropped");
    for _ in 0..3 {
        new_keys_only(&db).await;
        proxy.cut();
        granted(&db, &[request()]).await;
        proxy.cut();
        granted(&db, &(0..9).map(|_| request()).collect::<Vec<_>>()).await;
    }
}

/// A sweep raises the floor after the claim has asked for it, and before it is written.
#[tokio::test]
async fn tokens_are_above_a_floor_that_is_raised_meanwhile() {
    let (_lent, db) = Lent::take().await;
    for size in [1, 9] {
        new_keys_only(&db).await;
        let last = granted(&db, &[request()]).await[0];
        let ahead = last.token.0 + 3_600_000_000;
        let mut sweep = db.begin().await.unwrap();
        sqlx::query("UPDATE semel_token SET token = ?")
            .bind(ahead)
            .execute(&mut *sweep)
            .await
            .unwrap();
        let claims = tokio::spawn({
            let db = db.clone();
            async move { granted(&db, &(0..size).map(|_| request()).collect::<Vec<_>>()).await }
        });
        until_someone_waits(&db, 1).await;
        db.commit(sweep).await.unwrap();
        for lease in claims.await.unwrap() {
            assert!(lease.token.0 > ahead, "a token went back");
        }
        sqlx::raw_sql("UPDATE semel_token SET token = 0")
            .execute(db.pool())
            .await
            .unwrap();
    }
}

/// Of a batch of completions in which one is not as it should be, each gets its own answer.
#[tokio::test]
async fn ends_of_runs_that_are_none_leave_the_others_and_no_row_behind() {
    let (_lent, db) = Lent::take().await;
    let claims: Vec<Claim> = (0..8).map(|_| request()).collect();
    let mut leases = granted(&db, &claims).await;
    let absent = request();
    // 1 is done already, 2 done with another outcome, 3 was taken back, 4 is unknown, 5 has a nonce withdrawn.
    for n in [1, 2] {
        assert!(is_ok(
            db.complete(&end(&claims[n], leases[n], "charged")).await.unwrap()
        ));
    }
    let release = |n: usize, claim: &Claim, token| Release {
        key: claims[n].key.clone(),
        nonce: claim.nonce,
        token,
    };
    assert!(is_ok(
        db.release(&release(3, &claims[3], Some(leases[3].token)))
            .await
            .unwrap()
    ));
    let withdrawn = duplicate(&claims[5]);
    assert!(is_ok(db.release(&release(5, &withdrawn, None)).await.unwrap()));
    sqlx::query("UPDATE semel_key SET until_us = until_us - ?, due_us = due_us - ? WHERE key_bytes = ?")
        .bind(LEASE_MS * 1_000)
        .bind(LEASE_MS * 1_000)
        .bind(claims[4].key.to_bytes())
        .execute(db.pool())
        .await
        .unwrap();
    assert_eq!(db.sweep(100).await.unwrap().unknown, 1);
    leases[6].token.0 -= 1;
    leases[7].nonce = request().nonce;
    let mut ends: Vec<Completion> = (claims.iter().zip(&leases))
        .map(|(claim, lease)| end(claim, *lease, "charged"))
        .collect();
    ends[2].outcome = succeeded("another");
    ends.push(end(&absent, leases[0], "charged"));
    let replies: Vec<LeaseReply> = (db.complete_many(&ends).await.into_iter())
        .map(Result::unwrap)
        .collect();
    for (n, reply) in replies.into_iter().enumerate() {
        match (n, reply) {
            (0 | 1 | 4 | 5, LeaseReply::Ok(_)) | (2, LeaseReply::Conflict) => {}
            (3 | 6 | 7 | 8, LeaseReply::LeaseLost) => {}
            other => panic!("{other:?}"),
        }
    }
    // Alone with one that is none: nothing is made of that.
    let (good, lease) = (request(), granted(&db, &[request()]).await[0]);
    let mine = granted(&db, std::slice::from_ref(&good)).await[0];
    let replies = db
        .complete_many(&[end(&good, mine, "charged"), end(&absent, lease, "charged")])
        .await;
    assert!(is_ok(*replies[0].as_ref().unwrap()));
    assert_eq!(*replies[1].as_ref().unwrap(), LeaseReply::LeaseLost);
    assert_eq!(db.read(&absent.key).await.unwrap(), None);
}

/// A batch whose owners were only slow: time takes nothing away from them (rule K1).
#[tokio::test]
async fn late_ends_of_runs_count() {
    let (_lent, db) = Lent::take().await;
    let claims: Vec<Claim> = (0..3).map(|_| request()).collect();
    let leases = granted(&db, &claims).await;
    age_ms(&db, LEASE_MS).await;
    let ends = claims
        .iter()
        .zip(&leases)
        .map(|(claim, lease)| end(claim, *lease, "late"));
    for reply in db.complete_many(&ends.collect::<Vec<_>>()).await {
        assert!(is_ok(reply.unwrap()));
    }
}

/// Two batches with keys in common, one of them in a transaction that stays open.
#[tokio::test]
async fn ends_of_runs_wait_for_a_row_only_so_long() {
    let (lent, direct) = Lent::take().await;
    let mut config = Config::new(&lent.url);
    config.lock_wait = std::time::Duration::from_secs(1);
    let db = Mysql::connect(config).await.unwrap();
    let claims: Vec<Claim> = (0..3).map(|_| request()).collect();
    let leases = granted(&db, &claims).await;
    let mut held = direct.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM semel_key WHERE key_bytes = ? FOR UPDATE")
        .bind(claims[1].key.to_bytes())
        .execute(&mut *held)
        .await
        .unwrap();
    let ends: Vec<Completion> = (claims.iter().zip(&leases))
        .map(|(claim, lease)| end(claim, *lease, "charged"))
        .collect();
    let replies = db.complete_many(&ends).await;
    assert!(replies[1].is_err(), "{replies:?}");
    for n in [0, 2] {
        assert!(is_ok(*replies[n].as_ref().unwrap()));
    }
    held.rollback().await.unwrap();
    // Nothing of the batch that was given up is in the way.
    for reply in db.complete_many(&ends).await {
        assert!(is_ok(reply.unwrap()));
    }
}
