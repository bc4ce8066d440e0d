//! Transactions that are repeated, and commits whose reply is lost.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel_core::claim::succeeded;
use semel_core::{ErrorKind, Fingerprint, Key, Retry};
use semel_mysql::tx::{Once, OnceOptions, TxError, once, transact};
use semel_mysql::{Config, Mysql};
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::MariadbServer;
use sqlx::mysql::MySqlPool;
use sqlx::{MySql as Driver, Transaction};

use super::{Lent, at_port, port, request, until_someone_waits};

/// The statement as it goes over the wire; sessions begin with one that has the word in it, too.
const COMMIT: &[u8] = b"\x03COMMIT";

async fn shop(db: &Mysql) {
    let table = "CREATE TABLE IF NOT EXISTS paid (id VARBINARY(255)) ENGINE = InnoDB; DELETE FROM paid";
    sqlx::raw_sql(table).execute(db.pool()).await.unwrap();
}

async fn pay(tx: &mut Transaction<'_, Driver>, key: &Key) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO paid (id) VALUES (?)")
        .bind(key.id())
        .execute(&mut **tx)
        .await?;
    Ok(())
}

async fn paid(db: &Mysql, key: &Key) -> i64 {
    let count = sqlx::query_scalar("SELECT count(*) FROM paid WHERE id = ?").bind(key.id());
    count.fetch_one(db.pool()).await.unwrap()
}

/// A database behind a proxy.
async fn behind_proxy(lent: &Lent) -> (Proxy, Mysql) {
    let proxy = Proxy::to_port(port(&lent.url)).await.unwrap();
    let db = Mysql::connect(Config::new(at_port(&lent.url, proxy.port())))
        .await
        .unwrap();
    (proxy, db)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadlock_repeats_the_whole_transaction() {
    let (_lent, db) = Lent::take().await;
    shop(&db).await;
    let (a, b) = (request().key, request().key);
    let both = std::sync::Arc::new(tokio::sync::Barrier::new(2));
    let tasks = [(a.clone(), b.clone()), (b.clone(), a.clone())].map(|(one, two)| {
        let (db, both) = (db.clone(), both.clone());
        tokio::spawn(async move {
            let runs = AtomicU32::new(0);
            let (one, two, both, ran) = (&one, &two, &both, &runs);
            let done = transact(&db, |tx| {
                Box::pin(async move {
                    let asked = Fingerprint::of(b"asked");
                    let mut first = 0;
                    for (n, key) in [one, two].into_iter().enumerate() {
                        if let Once::First(pending) = once(tx, key, asked, OnceOptions::default()).await? {
                            pay(tx, key).await?;
                            pending.complete(tx, succeeded("paid")).await?;
                            first += 1;
                        }
                        if n == 0 && ran.fetch_add(1, Ordering::SeqCst) == 0 {
                            both.wait().await;
                        }
                    }
                    Ok::<i32, TxError<()>>(first)
                })
            })
            .await
            .unwrap();
            (done, runs.into_inner())
        })
    });
    let mut ran = 0;
    let mut first = 0;
    for task in tasks {
        let (done, runs) = task.await.unwrap();
        first += done;
        ran += runs;
    }
    assert_eq!((first, ran), (2, 3), "one of the two was repeated");
    assert_eq!((paid(&db, &a).await, paid(&db, &b).await), (1, 1));
}

/// The server committed and the reply got lost: the wrapper finds out, the body does not run again (rule K5).
#[tokio::test]
async fn lost_commit_reply_is_looked_up() {
    let (lent, direct) = Lent::take().await;
    shop(&direct).await;
    let (proxy, db) = behind_proxy(&lent).await;
    let key = request().key;
    let runs = AtomicU32::new(0);
    proxy.drop_reply_to(COMMIT);
    let (ran, paying) = (&runs, &key);
    transact(&db, |tx| {
        Box::pin(async move {
            ran.fetch_add(1, Ordering::SeqCst);
            Ok::<_, TxError<()>>(pay(tx, paying).await?)
        })
    })
    .await
    .unwrap();
    assert_eq!(proxy.hits(), 1, "a reply was dropped");
    assert_eq!((runs.into_inner(), paid(&direct, &key).await), (1, 1));
}

/// The commit never arrived: the server rolled back, the wrapper finds out and runs the body again.
#[tokio::test]
async fn commit_that_never_arrived_is_repeated() {
    let (lent, direct) = Lent::take().await;
    shop(&direct).await;
    let (proxy, db) = behind_proxy(&lent).await;
    let key = request().key;
    let runs = AtomicU32::new(0);
    proxy.drop_request(COMMIT);
    let (ran, paying) = (&runs, &key);
    transact(&db, |tx| {
        Box::pin(async move {
            ran.fetch_add(1, Ordering::SeqCst);
            Ok::<_, TxError<()>>(pay(tx, paying).await?)
        })
    })
    .await
    .unwrap();
    assert_eq!(proxy.hits(), 1, "a request was dropped");
    assert_eq!((runs.into_inner(), paid(&direct, &key).await), (2, 1));
}

/// The server dies with the commit on its way, and comes back: the id in the database tells which it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_commit_reply_is_looked_up_after_a_restart_of_the_server() {
    let mut server = MariadbServer::start();
    let url = server.fresh_database();
    let proxy = Proxy::to_port(server.port()).await.unwrap();
    let mut config = Config::new(at_port(&url, proxy.port()));
    config.acquire_timeout = Duration::from_secs(3);
    let db = Mysql::connect(config).await.unwrap();
    db.migrate().await.unwrap();
    shop(&db).await;
    let key = request().key;
    let runs = AtomicU32::new(0);
    let (ran, paying) = (&runs, &key);
    proxy.drop_reply_to(COMMIT);
    let run = transact(&db, |tx| {
        Box::pin(async move {
            ran.fetch_add(1, Ordering::SeqCst);
            Ok::<_, TxError<()>>(pay(tx, paying).await?)
        })
    });
    let crash = async {
        proxy.hit(1).await;
        proxy.refuse(true);
        tokio::task::block_in_place(|| {
            server.kill();
            server.restart();
        });
        proxy.refuse(false);
    };
    let (done, ()) = tokio::join!(run, crash);
    done.unwrap();
    assert_eq!((runs.into_inner(), paid(&db, &key).await), (1, 1));
}

/// After a deadlock the server runs what follows outside of any transaction, and COMMIT succeeds: that is not taken for
/// a commit of the whole (rule K6).
#[tokio::test]
async fn swallowed_deadlock_is_not_a_commit() {
    let (_lent, db) = Lent::take().await;
    shop(&db).await;
    let key = request().key;
    let paying = &key;
    let done = transact(&db, |tx| {
        Box::pin(async move {
            pay(tx, paying).await?;
            // What a deadlock does: the server ends the transaction, and the driver does not hear of it.
            sqlx::raw_sql("ROLLBACK").execute(&mut **tx).await?;
            Ok::<_, TxError<()>>(())
        })
    })
    .await;
    let Err(TxError::Store(error)) = &done else {
        panic!("{done:?}")
    };
    assert_eq!(
        (error.kind(), error.retry()),
        (ErrorKind::ReplyLost, Retry::OutcomeUnknown)
    );
    assert!(
        error.to_string().contains("had ended before its commit"),
        "{error}"
    );
    assert_eq!(paid(&db, &key).await, 0);
}

/// A body that commits by itself is told.
#[tokio::test]
async fn statement_that_commits_by_itself_is_found_out() {
    let (_lent, db) = Lent::take().await;
    shop(&db).await;
    let mut tx = db.begin().await.unwrap();
    sqlx::raw_sql("CREATE TABLE IF NOT EXISTS surprise (n INT)")
        .execute(&mut *tx)
        .await
        .unwrap();
    let error = db.commit(tx).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReplyLost);
}

/// Rule K6: a duplicate that loses its transaction to a deadlock can do nothing more in it, even when it swallows the
/// error: on these servers its next statements would run outside of any transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_transaction_takes_no_more_writes() {
    let (lent, db) = Lent::take().await;
    shop(&db).await;
    let (a, b) = (request().key, request().key);
    let asked = Fingerprint::of(b"asked");
    // The server's default isolation, on a pool that is the user's own.
    let users = MySqlPool::connect(&lent.url).await.unwrap();
    let (mut one, mut two) = (users.begin().await.unwrap(), users.begin().await.unwrap());
    let first = once(&mut one, &a, asked, OnceOptions::default()).await.unwrap();
    assert!(matches!(first, Once::First(_)));
    let first = once(&mut two, &b, asked, OnceOptions::default()).await.unwrap();
    assert!(matches!(first, Once::First(_)));
    let crossed = tokio::spawn({
        let b = b.clone();
        async move {
            let answer = once(&mut one, &b, asked, OnceOptions::default()).await;
            (answer.is_ok(), answer.err(), one)
        }
    });
    until_someone_waits(&db, 1).await;
    let answer = once(&mut two, &a, asked, OnceOptions::default()).await;
    let mut lost = match answer {
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NotApplied, "{error}");
            let (_, _, other) = {
                // The other one goes on now that this one is lost.
                crossed.await.unwrap()
            };
            other.rollback().await.unwrap();
            two
        }
        Ok(_) => {
            two.rollback().await.unwrap();
            let (_, error, one) = crossed.await.unwrap();
            assert_eq!(error.unwrap().kind(), ErrorKind::NotApplied);
            one
        }
    };
    let swallowed = pay(&mut lost, &a).await.unwrap_err();
    assert!(swallowed.to_string().contains("1792"), "{swallowed}");
    lost.commit().await.unwrap();
    assert_eq!(paid(&db, &a).await, 0);
}

#[tokio::test]
async fn given_up_body_is_rolled_back_and_not_repeated() {
    let (_lent, db) = Lent::take().await;
    shop(&db).await;
    let key = request().key;
    let runs = AtomicU32::new(0);
    let ran = &runs;
    let paying = &key;
    let done: Result<(), _> = transact(&db, |tx| {
        Box::pin(async move {
            ran.fetch_add(1, Ordering::SeqCst);
            pay(tx, paying).await?;
            Err(TxError::Own("sold out"))
        })
    })
    .await;
    assert!(matches!(done, Err(TxError::Own("sold out"))));
    assert_eq!((runs.into_inner(), paid(&db, &key).await), (1, 0));
}
