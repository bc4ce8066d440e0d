//! A whole transaction under a key, its mark at the beginning or at the end.

use std::sync::atomic::{AtomicU32, Ordering};

use semel_core::claim::{ClaimReply, succeeded};
use semel_core::{ErrorKind, Fingerprint, Key, KeyStoreExt as _, StoredOutcome};
use semel_postgres::tx::{Mark, Once, OnceOptions, OnceOutcome, TxError, once, transact_once};
use semel_postgres::{Config, Postgres};

use super::transact::{behind_proxy, paid, pay, shop};
use super::{Lent, request, until_someone_waits};

const MARKS: [Mark; 2] = [Mark::First, Mark::Last];

async fn run(
    db: &Postgres,
    key: &Key,
    mark: Mark,
    runs: &AtomicU32,
) -> Result<OnceOutcome, TxError<&'static str>> {
    let asked = Fingerprint::of(b"what was asked");
    transact_once(db, key, asked, mark, OnceOptions::default(), |tx| {
        Box::pin(async move {
            runs.fetch_add(1, Ordering::SeqCst);
            pay(tx, key).await?;
            Ok(succeeded("paid"))
        })
    })
    .await
}

fn first(done: &OnceOutcome) -> bool {
    match done {
        OnceOutcome::First(outcome) => {
            assert_eq!(outcome, &succeeded("paid"));
            true
        }
        OnceOutcome::Done { outcome, .. } => {
            assert_eq!(outcome, &succeeded("paid"));
            false
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn mark_work_and_outcome_commit_together_and_a_duplicate_gets_the_outcome() {
    let (_lent, db) = Lent::take().await;
    shop(&db).await;
    for mark in MARKS {
        let (claim, runs) = (request(), AtomicU32::new(0));
        for n in 0..3 {
            assert_eq!(first(&run(&db, &claim.key, mark, &runs).await.unwrap()), n == 0);
            assert_eq!(paid(&db, &claim.key).await, 1, "{mark:?}");
        }
        // With the mark first a duplicate does no work, with the mark last its work is taken back.
        assert_eq!(runs.into_inner(), if mark == Mark::First { 1 } else { 3 });
        let reply = db.claim(&claim).await.unwrap();
        assert!(matches!(reply, ClaimReply::Done { outcome, .. } if outcome == succeeded("paid")));
    }
    // The connections went back to the pool without an open transaction.
    let open =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'";
    for _ in 0..200 {
        if sqlx::query_scalar::<_, i64>(open)
            .fetch_one(db.pool())
            .await
            .unwrap()
            == 0
        {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("a transaction is left open");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_at_once_one_is_first_and_all_get_its_outcome() {
    let (_lent, db) = Lent::take().await;
    shop(&db).await;
    for mark in MARKS {
        let key = request().key;
        let tasks: Vec<_> = (0..12)
            .map(|_| {
                let (db, key) = (db.clone(), key.clone());
                tokio::spawn(async move { run(&db, &key, mark, &AtomicU32::new(0)).await.unwrap() })
            })
            .collect();
        let mut firsts = 0;
        for task in tasks {
            match task.await.unwrap() {
                // More wait than may: told to come again.
                OnceOutcome::Busy { .. } => {}
                done => firsts += u32::from(first(&done)),
            }
        }
        assert_eq!((firsts, paid(&db, &key).await), (1, 1), "{mark:?}");
    }
}

#[tokio::test]
async fn what_is_claimed_and_what_was_asked_otherwise_is_never_passed() {
    let (_lent, db) = Lent::take().await;
    shop(&db).await;
    for mark in MARKS {
        let (claim, runs) = (request(), AtomicU32::new(0));
        db.claim(&claim).await.unwrap();
        let busy = run(&db, &claim.key, mark, &runs).await.unwrap();
        assert!(
            matches!(busy, OnceOutcome::Busy { lease_left_ms: 1.. }),
            "{busy:?}"
        );
        let other = semel_core::claim::Claim {
            fingerprint: Fingerprint::of(b"something else"),
            ..request()
        };
        db.claim(&other).await.unwrap();
        let mismatch = run(&db, &other.key, mark, &runs).await.unwrap();
        assert!(matches!(mismatch, OnceOutcome::Mismatch), "{mismatch:?}");
        assert_eq!((paid(&db, &claim.key).await, paid(&db, &other.key).await), (0, 0));
    }
}

/// Rule K5: the key is asked, not the transaction's number; a commit that was done is not done again.
#[tokio::test]
async fn lost_commit_replies_are_looked_up() {
    let (lent, direct) = Lent::take().await;
    shop(&direct).await;
    for mark in MARKS {
        let (proxy, db) = behind_proxy(&lent).await;
        let (key, runs) = (request().key, AtomicU32::new(0));
        proxy.drop_reply_to(b"COMMIT AND CHAIN");
        assert!(first(&run(&db, &key, mark, &runs).await.unwrap()));
        assert_eq!(proxy.hits(), 1, "a reply was dropped");
        assert_eq!((runs.into_inner(), paid(&direct, &key).await), (1, 1), "{mark:?}");

        let (proxy, db) = behind_proxy(&lent).await;
        let (key, runs) = (request().key, AtomicU32::new(0));
        proxy.drop_request(b"COMMIT AND CHAIN");
        assert!(first(&run(&db, &key, mark, &runs).await.unwrap()));
        assert_eq!(proxy.hits(), 1, "a request was dropped");
        assert_eq!((runs.into_inner(), paid(&direct, &key).await), (2, 1), "{mark:?}");
    }
}

/// The driver takes the server's ROLLBACK for success; the last statement does not (rule O8).
#[tokio::test]
async fn swallowed_error_is_not_a_commit() {
    let (_lent, db) = Lent::take().await;
    shop(&db).await;
    for mark in MARKS {
        let key = request().key;
        let paying = &key;
        let asked = Fingerprint::of(b"what was asked");
        let done = transact_once(&db, &key, asked, mark, OnceOptions::default(), |tx| {
            Box::pin(async move {
                pay(tx, paying).await?;
                let _swallowed = sqlx::query("SELECT 1 / 0").execute(&mut **tx).await;
                Ok::<_, TxError<()>>(succeeded("paid"))
            })
        });
        let done = done.await;
        assert!(
            matches!(&done, Err(TxError::Store(error)) if error.kind() == ErrorKind::Invalid),
            "{done:?}"
        );
        assert_eq!((paid(&db, &key).await, db.read(&key).await.unwrap()), (0, None));
    }
}

/// Else whoever gets its connection next would commit its mark: a key that is done, and nothing was.
#[tokio::test]
async fn given_up_while_it_waits_for_a_duplicate_it_leaves_no_mark() {
    let (lent, direct) = Lent::take().await;
    shop(&direct).await;
    // The next transaction gets the same connection.
    let mut config = Config::new(&lent.url);
    config.connections_max = 1;
    let db = Postgres::connect(config).await.unwrap();
    let (key, asked) = (request().key, Fingerprint::of(b"what was asked"));
    let mut other = direct.begin().await.unwrap();
    let marked = once(&mut other, &key, asked, OnceOptions::default()).await;
    assert!(matches!(marked.unwrap(), Once::First(_)));
    let waiting = tokio::spawn({
        let (db, key) = (db.clone(), key.clone());
        async move { run(&db, &key, Mark::First, &AtomicU32::new(0)).await.map(drop) }
    });
    until_someone_waits(&direct, 1).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    other.rollback().await.unwrap();
    let done = run(&db, &request().key, Mark::Last, &AtomicU32::new(0)).await;
    assert!(first(&done.unwrap()));
    assert_eq!(direct.read(&key).await.unwrap(), None);
}

/// Rule K6: the connection of one that is given up waits on, so it takes a place as long.
#[tokio::test]
async fn waiters_that_were_given_up_still_count_while_they_wait() {
    let (_lent, db) = Lent::take().await;
    let key = request().key;
    let one = |db: Postgres, key: Key| async move {
        let options = OnceOptions {
            waiters_max: 1,
            ..OnceOptions::default()
        };
        let asked = Fingerprint::of(b"what was asked");
        transact_once(&db, &key, asked, Mark::First, options, |_| {
            Box::pin(async { Ok::<_, TxError<()>>(succeeded("paid")) })
        })
        .await
        .unwrap()
    };
    let mut other = db.begin().await.unwrap();
    let asked = Fingerprint::of(b"what was asked");
    let marked = once(&mut other, &key, asked, OnceOptions::default()).await;
    assert!(matches!(marked.unwrap(), Once::First(_)));
    let waiting = tokio::spawn(one(db.clone(), key.clone()));
    until_someone_waits(&db, 1).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    let told = tokio::time::timeout(std::time::Duration::from_secs(30), one(db.clone(), key.clone()));
    let told = told.await.unwrap();
    assert!(matches!(told, OnceOutcome::Busy { lease_left_ms: 0 }), "{told:?}");
    other.rollback().await.unwrap();
    // It ends with what it waited for.
    let ended = async {
        loop {
            match one(db.clone(), key.clone()).await {
                OnceOutcome::Busy { .. } => tokio::task::yield_now().await,
                done => break done,
            }
        }
    };
    let done = tokio::time::timeout(std::time::Duration::from_secs(30), ended).await;
    assert!(first(&done.unwrap()));
}

/// Each of them would be an error in the server's log.
#[tokio::test]
async fn many_duplicates_in_a_row_ask_before_they_begin() {
    let (lent, direct) = Lent::take().await;
    shop(&direct).await;
    let (proxy, db) = behind_proxy(&lent).await;
    let (key, runs) = (request().key, AtomicU32::new(0));
    for n in 0..3 {
        assert_eq!(first(&run(&db, &key, Mark::First, &runs).await.unwrap()), n == 0);
    }
    // From here on a mark that travels with BEGIN gets no answer.
    proxy.drop_reply_to(b"; BEGIN");
    for _ in 0..20 {
        assert!(!first(&run(&db, &key, Mark::First, &runs).await.unwrap()));
    }
    assert_eq!(proxy.hits(), 0, "none was sent");
}

/// The mark comes last, so the work of a duplicate may fail on what the first one has done: that is no failure.
#[tokio::test]
async fn work_that_fails_on_its_own_duplicate_is_answered_by_the_outcome() {
    let (_lent, db) = Lent::take().await;
    shop(&db).await;
    let unique = "CREATE TABLE IF NOT EXISTS seat (n integer PRIMARY KEY); TRUNCATE seat";
    sqlx::raw_sql(unique).execute(db.pool()).await.unwrap();
    let key = request().key;
    let book = async |key: &Key| {
        let asked = Fingerprint::of(b"seat 4");
        transact_once(&db, key, asked, Mark::Last, OnceOptions::default(), |tx| {
            Box::pin(async move {
                sqlx::query("INSERT INTO seat VALUES (4)")
                    .execute(&mut **tx)
                    .await?;
                Ok::<_, TxError<()>>(succeeded("seat 4"))
            })
        })
        .await
    };
    assert!(matches!(book(&key).await.unwrap(), OnceOutcome::First(_)));
    assert!(
        matches!(book(&key).await.unwrap(), OnceOutcome::Done { outcome, .. } if outcome == succeeded("seat 4"))
    );
    // Another one's failure is a failure.
    let taken = book(&request().key).await.unwrap_err();
    assert!(
        matches!(&taken, TxError::Store(error) if error.kind() == ErrorKind::Constraint),
        "{taken:?}"
    );
}

#[tokio::test]
async fn given_up_and_oversized_work_leaves_nothing() {
    let (_lent, db) = Lent::take().await;
    shop(&db).await;
    for mark in MARKS {
        let key = request().key;
        for large in [false, true] {
            let paying = &key;
            let asked = Fingerprint::of(b"what was asked");
            let done = transact_once(&db, &key, asked, mark, OnceOptions::default(), |tx| {
                Box::pin(async move {
                    pay(tx, paying).await?;
                    if large {
                        Ok(StoredOutcome::Succeeded(vec![0; (1 << 20) + 1].into()))
                    } else {
                        Err(TxError::Own("sold out"))
                    }
                })
            });
            match done.await {
                Err(TxError::Own("sold out")) => assert!(!large),
                Err(TxError::Store(error)) => {
                    assert!(large && error.kind() == ErrorKind::LimitExceeded, "{error}")
                }
                other => panic!("{other:?}"),
            }
            assert_eq!((paid(&db, &key).await, db.read(&key).await.unwrap()), (0, None));
        }
    }
}

/// Too large to travel with the commit.
#[tokio::test]
async fn every_size_of_outcome_is_kept_byte_for_byte() {
    let (_lent, db) = Lent::take().await;
    for mark in MARKS {
        for size in [0, 1, 65_536, 65_537, 1 << 20] {
            let key = request().key;
            let bytes: Vec<u8> = (0..size).map(|n| u8::try_from(n % 256).unwrap()).collect();
            for outcome in [
                StoredOutcome::Succeeded(bytes.clone().into()),
                StoredOutcome::Refused(bytes.into()),
            ] {
                let key = key.child(outcome.code());
                let asked = Fingerprint::of(b"x");
                for first in [true, false] {
                    let stored = outcome.clone();
                    let done = transact_once(&db, &key, asked, mark, OnceOptions::default(), |_| {
                        let stored = stored.clone();
                        Box::pin(async move { Ok::<_, TxError<()>>(stored) })
                    });
                    match done.await.unwrap() {
                        OnceOutcome::First(told) if first => assert_eq!(told, outcome),
                        OnceOutcome::Done { outcome: told, .. } if !first => assert_eq!(told, outcome),
                        other => panic!("{mark:?}, {size}: {other:?}"),
                    }
                }
            }
        }
    }
}

/// Whoever has the key now may hold it for hours: that is no answer, and no reason to wait for one as long.
#[tokio::test]
async fn a_lost_commit_is_looked_up_for_a_limited_time() {
    let (lent, direct) = Lent::take().await;
    shop(&direct).await;
    let (proxy, db) = behind_proxy(&lent).await;
    let key = request().key;
    let asked = Fingerprint::of(b"what was asked");
    proxy.drop_request(b"COMMIT AND CHAIN");
    let other = std::sync::Mutex::new(None);
    let (marked, direct, name) = (&other, &direct, &key);
    let done = transact_once(&db, &key, asked, Mark::Last, OnceOptions::default(), |_| {
        Box::pin(async move {
            let mut tx = direct.begin().await?;
            let once = once(&mut tx, name, asked, OnceOptions::default()).await?;
            drop(once);
            *marked.lock().unwrap() = Some(tx);
            Ok::<_, TxError<()>>(succeeded("paid"))
        })
    });
    let done = tokio::time::timeout(std::time::Duration::from_secs(30), done);
    let done = done.await.expect("an answer");
    assert!(
        matches!(&done, Err(TxError::Store(error)) if error.kind() == ErrorKind::ReplyLost),
        "{done:?}"
    );
}

/// Its statements are prepared when a connection is made: what a session has lost, or never had, it gets.
#[tokio::test]
async fn a_session_without_the_statements_gets_them() {
    let (lent, direct) = Lent::take().await;
    shop(&direct).await;
    let mut config = Config::new(&lent.url);
    config.connections_max = 1;
    let db = Postgres::connect(config).await.unwrap();
    let there = async || -> i64 {
        let sql = "SELECT count(*) FROM pg_prepared_statements WHERE name IN ('semel_mark', 'semel_end')";
        sqlx::query_scalar(sql).fetch_one(db.pool()).await.unwrap()
    };
    let lose = "DEALLOCATE semel_mark; DEALLOCATE semel_end";
    for mark in MARKS {
        assert_eq!(there().await, 2);
        sqlx::raw_sql(lose).execute(db.pool()).await.unwrap();
        let (key, runs) = (request().key, AtomicU32::new(0));
        assert!(first(&run(&db, &key, mark, &runs).await.unwrap()));
        assert_eq!(paid(&db, &key).await, 1, "{mark:?}");
        assert_eq!(there().await, 2);
        // Or loses them while it runs.
        let (key, runs) = (&request().key, &AtomicU32::new(0));
        let asked = Fingerprint::of(b"what was asked");
        let done = transact_once(&db, key, asked, mark, OnceOptions::default(), |tx| {
            Box::pin(async move {
                if runs.fetch_add(1, Ordering::SeqCst) == 0 {
                    sqlx::raw_sql(lose).execute(&mut **tx).await?;
                }
                pay(tx, key).await?;
                Ok::<_, TxError<()>>(succeeded("paid"))
            })
        });
        assert!(first(&done.await.unwrap()));
        assert_eq!(
            (runs.load(Ordering::SeqCst), paid(&db, key).await),
            (2, 1),
            "{mark:?}"
        );
    }
}

/// A row that holds nothing any more, or a claim that may be run again, is no duplicate.
#[tokio::test]
async fn what_was_given_back_and_what_may_run_again_is_first() {
    let (_lent, db) = Lent::take().await;
    shop(&db).await;
    for mark in MARKS {
        for given_back in [true, false] {
            let claim = semel_core::claim::Claim {
                fingerprint: Fingerprint::of(b"what was asked"),
                owner_lost: semel_core::claim::OwnerLost::Rerun,
                lease_ms: if given_back { 30_000 } else { 1 },
                ..request()
            };
            let ClaimReply::Granted { lease, .. } = db.claim(&claim).await.unwrap() else {
                panic!("not granted")
            };
            if given_back {
                let release = semel_core::claim::Release {
                    key: claim.key.clone(),
                    nonce: lease.nonce,
                    token: Some(lease.token),
                };
                db.release(&release).await.unwrap();
            } else {
                let over = "SELECT until <= clock_timestamp() FROM semel.key WHERE id = $1";
                while !sqlx::query_scalar::<_, bool>(over)
                    .bind(claim.key.id())
                    .fetch_one(db.pool())
                    .await
                    .unwrap()
                {}
            }
            let runs = AtomicU32::new(0);
            assert!(first(&run(&db, &claim.key, mark, &runs).await.unwrap()));
            assert_eq!(paid(&db, &claim.key).await, 1, "{mark:?}");
        }
    }
}
