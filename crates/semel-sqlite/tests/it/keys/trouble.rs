//! Two processes at once, and readers beside a writer.

use semel_core::claim::{Claim, ClaimReply, Completion, LeaseReply, succeeded};
use semel_core::{Clock as _, KeyStore, KeyStoreExt};
use semel_sqlite::Sqlite;
use semel_sqlite::tx::{Once, OnceOptions, once};
use semel_testkit::laws::keys::{KEEP, LEASE_MS, duplicate};
use sqlx::{Connection as _, SqliteConnection};

use super::{open, request, store};

/// Two openings of the file, as of two processes, 32 tasks each claim and complete: every key has one owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_grant_each_key_once() {
    let (one, clock, dir) = store().await;
    let two = open(&dir, clock).await;
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

/// What needs no write does not wait for a writer.
#[tokio::test]
async fn what_is_done_is_replayed_while_somebody_writes() {
    let (db, _clock, _dir) = store().await;
    let (done, running) = (request(), request());
    for claim in [&done, &running] {
        let ClaimReply::Granted { lease, .. } = db.claim(claim).await.unwrap() else {
            panic!("not granted")
        };
        if claim == &done {
            let done = Completion {
                key: claim.key.clone(),
                lease,
                outcome: succeeded("done"),
                keep: KEEP,
            };
            db.complete(&done).await.unwrap();
        }
    }
    let writes = db.begin().await.unwrap();
    let replies = db.claim_many(&[duplicate(&done), duplicate(&running)]).await;
    assert!(matches!(replies[0], Ok(ClaimReply::Done { .. })));
    assert!(matches!(replies[1], Ok(ClaimReply::Busy { .. })));
    writes.rollback().await.unwrap();
}

/// A row written by something else must not keep all others from being swept.
#[tokio::test]
async fn a_row_that_cannot_be_read_is_passed_over_by_the_sweep() {
    let (db, clock, _dir) = store().await;
    let claims = [request(), request()];
    for claim in &claims {
        assert!(matches!(
            db.claim(claim).await.unwrap(),
            ClaimReply::Granted { .. }
        ));
    }
    // Its lease ends first.
    let mut tx = db.begin().await.unwrap();
    sqlx::query("UPDATE semel_key SET record = x'01', due_at = due_at - 1000 WHERE id = ?1")
        .bind(claims[0].key.id())
        .execute(&mut *tx)
        .await
        .unwrap();
    db.commit(tx).await.unwrap();
    clock.advance_ms(LEASE_MS);
    assert_eq!(db.sweep(1).await.unwrap().unknown, 0, "put off");
    assert_eq!(db.sweep(1).await.unwrap().unknown, 1, "the other's turn");
}

/// Without it nothing says which tokens were handed out, and no record may be taken for it.
#[tokio::test]
async fn a_file_without_its_token_grants_nothing() {
    let (db, _clock, _dir) = store().await;
    let done = request();
    let ClaimReply::Granted { lease, .. } = db.claim(&done).await.unwrap() else {
        panic!("not granted")
    };
    let completion = Completion {
        key: done.key.clone(),
        lease,
        outcome: succeeded("done"),
        keep: KEEP,
    };
    db.complete(&completion).await.unwrap();
    let mut tx = db.begin().await.unwrap();
    sqlx::query("DELETE FROM semel_token")
        .execute(&mut *tx)
        .await
        .unwrap();
    db.commit(tx).await.unwrap();
    for claims in [vec![duplicate(&done), request()], vec![request()]] {
        for reply in db.claim_many(&claims).await {
            match reply {
                Ok(ClaimReply::Done { .. }) => {}
                Err(error) => assert!(error.to_string().contains("lost its row"), "{error}"),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Yesterday's copy has forgotten the tokens of today; whoever compares them outside must not meet one again.
#[tokio::test]
async fn a_file_put_back_from_a_copy_hands_no_token_out_twice() {
    let (db, clock, dir) = store().await;
    let token = async |db: &Sqlite| match db.claim(&request()).await.unwrap() {
        ClaimReply::Granted { lease, .. } => lease.token,
        other => panic!("{other:?}"),
    };
    token(&db).await;
    let yesterday = tempfile::tempdir().unwrap();
    let mut file = SqliteConnection::connect(&format!("sqlite:{}", dir.path().join("test.db").display()))
        .await
        .unwrap();
    sqlx::query("VACUUM INTO ?1")
        .bind(yesterday.path().join("test.db").to_str().unwrap())
        .execute(&mut file)
        .await
        .unwrap();
    let mut given = token(&db).await;
    for _ in 0..100 {
        let next = token(&db).await;
        assert!(next > given);
        given = next;
    }
    clock.advance_ms(1);
    let back = open(&yesterday, clock).await;
    assert!(token(&back).await > given);
}

/// The same for keys in transactions.
#[tokio::test]
async fn a_key_in_a_transaction_draws_no_token_of_the_past_either() {
    let (db, clock, _dir) = store().await;
    let claim = request();
    let mut tx = db.begin().await.unwrap();
    let options = OnceOptions {
        keep: KEEP,
        now: Some(clock.now()),
    };
    let Once::First(pending) = once(&mut tx, &claim.key, claim.fingerprint, options)
        .await
        .unwrap()
    else {
        panic!("not first")
    };
    assert!(pending.token().0 > clock.now().0);
}
