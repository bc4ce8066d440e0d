//! Transactions that are repeated, and commits whose reply is lost.

use std::sync::atomic::{AtomicU32, Ordering};

use semel_core::claim::succeeded;
use semel_core::{ErrorKind, Fingerprint, Key, Retry};
use semel_postgres::tx::{Once, OnceOptions, TxError, once, transact};
use semel_postgres::{Config, Postgres};
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::PostgresServer;
use sqlx::{Connection as _, Postgres as Driver, Transaction};

use super::once::until_someone_waits;
use super::{Lent, request};

pub(super) async fn shop(db: &Postgres) {
    let table = "CREATE TABLE IF NOT EXISTS paid (id bytea); TRUNCATE paid";
    sqlx::raw_sql(table).execute(db.pool()).await.unwrap();
}

pub(super) async fn pay(tx: &mut Transaction<'_, Driver>, key: &Key) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO paid (id) VALUES ($1)")
        .bind(key.id())
        .execute(&mut **tx)
        .await?;
    Ok(())
}

pub(super) async fn paid(db: &Postgres, key: &Key) -> i64 {
    let count = sqlx::query_scalar("SELECT count(*) FROM paid WHERE id = $1").bind(key.id());
    count.fetch_one(db.pool()).await.unwrap()
}

/// A database behind a proxy; the direct way in, too.
pub(super) async fn behind_proxy(lent: &Lent) -> (Proxy, Postgres) {
    let url = &lent.url;
    let port: u16 = url
        .rsplit_once('/')
        .unwrap()
        .0
        .rsplit_once(':')
        .unwrap()
        .1
        .parse()
        .unwrap();
    let proxy = Proxy::to_port(port).await.unwrap();
    let url = url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
    let db = Postgres::connect(Config::new(url)).await.unwrap();
    (proxy, db)
}

/// Rule K6: above READ COMMITTED a concurrent duplicate costs the whole transaction; the wrapper repeats it.
#[tokio::test]
async fn serialisation_failure_repeats_the_whole_transaction() {
    let (_lent, db) = Lent::take().await;
    shop(&db).await;
    let key = request().key;
    let mut first = db.begin().await.unwrap();
    let asked = Fingerprint::of(b"asked");
    let Once::First(pending) = once(&mut first, &key, asked, OnceOptions::default())
        .await
        .unwrap()
    else {
        panic!("not the first")
    };
    let second = tokio::spawn({
        let (db, key) = (db.clone(), key.clone());
        async move {
            let runs = AtomicU32::new(0);
            let (key, ran) = (&key, &runs);
            let once = transact(&db, |tx| {
                Box::pin(async move {
                    ran.fetch_add(1, Ordering::SeqCst);
                    sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                        .execute(&mut **tx)
                        .await?;
                    // Other work fixes the snapshot.
                    sqlx::query("SELECT count(*) FROM paid")
                        .execute(&mut **tx)
                        .await?;
                    Ok::<_, TxError<()>>(once(tx, key, asked, OnceOptions::default()).await?)
                })
            })
            .await;
            (once.unwrap(), runs.into_inner())
        }
    });
    until_someone_waits(&db, 1).await;
    pending.complete(&mut first, succeeded("paid")).await.unwrap();
    db.commit(first).await.unwrap();
    let (second, runs) = second.await.unwrap();
    assert!(matches!(second, Once::Done { outcome, .. } if outcome == succeeded("paid")));
    assert_eq!(runs, 2);
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
    proxy.drop_reply_to(b"COMMIT");
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
    proxy.drop_request(b"COMMIT");
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

/// After a restart a transaction number says nothing: the outcome is unknown, and `once` tells which it was (rule K5).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_commit_reply_is_unknown_after_a_restart_and_once_tells() {
    unknown_after(|server, _| {
        server.kill();
        server.restart();
    })
    .await;
}

/// One killed session makes the server recover from its log and hand out numbers again, in the same first process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_commit_reply_is_unknown_after_one_session_was_killed() {
    unknown_after(|_, session| {
        let killed = std::process::Command::new("kill")
            .args(["-KILL", &session.to_string()])
            .status()
            .unwrap();
        assert!(killed.success());
    })
    .await;
}

async fn unknown_after(crash: impl FnOnce(&mut PostgresServer, i32)) {
    let mut server = PostgresServer::start();
    let lent_url = server.fresh_database();
    let (proxy, db) = {
        let proxy = Proxy::to_port(server.port()).await.unwrap();
        let url = lent_url.replace(&format!(":{}/", server.port()), &format!(":{}/", proxy.port()));
        let mut config = Config::new(url);
        config.acquire_timeout = std::time::Duration::from_secs(3);
        (proxy, Postgres::connect(config).await.unwrap())
    };
    db.migrate().await.unwrap();
    shop(&db).await;
    let key = request().key;
    let run = async |db: &Postgres| {
        let key = &key;
        transact(db, |tx| {
            Box::pin(async move {
                let asked = Fingerprint::of(b"asked");
                match once(tx, key, asked, OnceOptions::default()).await? {
                    Once::First(pending) => {
                        pay(tx, key).await?;
                        pending.complete(tx, succeeded("paid")).await?;
                        Ok::<_, TxError<()>>("first")
                    }
                    Once::Done { .. } => Ok("done"),
                    other => panic!("{other:?}"),
                }
            })
        })
        .await
    };
    proxy.drop_reply_to(b"COMMIT");
    let mut victim = sqlx::PgConnection::connect(&lent_url).await.unwrap();
    let session: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(&mut victim)
        .await
        .unwrap();
    let crash = async {
        proxy.hit(1).await;
        proxy.refuse(true);
        tokio::task::block_in_place(|| crash(&mut server, session));
        // Its session ends with the server's life.
        while sqlx::query("SELECT pg_sleep(0.01)")
            .execute(&mut victim)
            .await
            .is_ok()
        {}
        while sqlx::PgConnection::connect(&lent_url).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        proxy.refuse(false);
    };
    let (lost, ()) = tokio::join!(run(&db), crash);
    let Err(TxError::Store(error)) = lost else {
        panic!("{lost:?}")
    };
    assert_eq!(
        (error.kind(), error.retry()),
        (ErrorKind::ReplyLost, Retry::OutcomeUnknown)
    );
    assert_eq!(run(&db).await.unwrap(), "done", "it was committed");
    assert_eq!(paid(&db, &key).await, 1);
}

/// The driver takes the server's ROLLBACK for success; the wrapper does not (rule O8).
#[tokio::test]
async fn swallowed_error_is_not_a_commit() {
    let (_lent, db) = Lent::take().await;
    shop(&db).await;
    let key = request().key;
    let paying = &key;
    let done = transact(&db, |tx| {
        Box::pin(async move {
            pay(tx, paying).await?;
            let _swallowed = sqlx::query("SELECT 1 / 0").execute(&mut **tx).await;
            Ok::<_, TxError<()>>(())
        })
    })
    .await;
    assert!(
        matches!(&done, Err(TxError::Store(error)) if error.kind() == ErrorKind::Invalid),
        "{done:?}"
    );
    assert_eq!(paid(&db, &key).await, 0);
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
