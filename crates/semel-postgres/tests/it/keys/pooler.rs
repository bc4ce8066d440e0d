//! Keys behind PgBouncer in transaction mode: the same laws, the same answers, and commits that are flushed; the laws for a role
//! that has only the rights that `docs/sql.md` writes down.

use std::sync::Arc;

use semel_core::claim::{ClaimReply, succeeded};
use semel_core::{Fingerprint, KeyStoreExt as _};
use semel_postgres::tx::{Mark, Once, OnceOptions, OnceOutcome, TxError, once, transact, transact_once};
use semel_postgres::{Config, Postgres};
use semel_testkit::laws::keys::World;
use semel_testkit::laws::keys::history::compare_with_model;
use semel_testkit::servers::pgbouncer;

use super::{Lent, age_ms, request};
use crate::roles::SHOP;

/// A database, the way through the pooler, and the direct one.
async fn pooled() -> (Lent, Postgres, Postgres) {
    let (lent, direct) = Lent::take().await;
    let db = Postgres::connect(Config::new(pgbouncer().url(&lent.url)))
        .await
        .unwrap();
    (lent, db, direct)
}

async fn world() -> World {
    let (lent, direct) = Lent::take().await;
    let db = SHOP.connect(&lent.url).await;
    let lent = Arc::new(lent);
    World::new(Arc::new(db), move |ms| {
        let (db, _kept_while_the_world_is) = (direct.clone(), Arc::clone(&lent));
        async move { age_ms(&db, ms).await }
    })
}

semel_testkit::key_laws!(world);

#[test]
fn generated_histories_through_a_pooler_get_the_answers_of_the_model() {
    compare_with_model(world, 15, 9_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_and_transact_once_work_through_a_pooler() {
    let (_lent, db, direct) = pooled().await;
    let claim = request();
    let (key, asked) = (&claim.key, claim.fingerprint);
    for first in [true, false] {
        let done = transact(&db, |tx| {
            Box::pin(async move {
                match once(tx, key, asked, OnceOptions::default()).await? {
                    Once::First(pending) => {
                        sqlx::query("SELECT $1::int")
                            .bind(1)
                            .persistent(false)
                            .execute(&mut **tx)
                            .await?;
                        pending.complete(tx, succeeded("one")).await?;
                        Ok::<_, TxError<()>>(true)
                    }
                    _ => Ok(false),
                }
            })
        });
        assert_eq!(done.await.unwrap(), first);
    }
    for mark in [Mark::First, Mark::Last] {
        let key = request().key;
        for first in [true, false] {
            let done = transact_once(
                &db,
                &key,
                Fingerprint::of(b"x"),
                mark,
                OnceOptions::default(),
                |tx| {
                    Box::pin(async move {
                        sqlx::query("SELECT $1::int")
                            .bind(1)
                            .persistent(false)
                            .execute(&mut **tx)
                            .await?;
                        Ok::<_, TxError<()>>(succeeded("two"))
                    })
                },
            );
            match done.await.unwrap() {
                OnceOutcome::First(outcome) if first => assert_eq!(outcome, succeeded("two")),
                OnceOutcome::Done { outcome, .. } if !first => assert_eq!(outcome, succeeded("two")),
                other => panic!("{mark:?}: {other:?}"),
            }
        }
    }
    let reply = direct.claim(&claim).await.unwrap();
    assert!(matches!(reply, ClaimReply::Done { outcome, .. } if outcome == succeeded("one")));
}

/// Rule K7: no start-up setting gets through a pooler, so each transaction demands a flushed commit itself.
#[tokio::test]
async fn a_transaction_through_a_pooler_is_durable_where_commits_are_not_by_default() {
    let (lent, db, direct) = pooled().await;
    let (_, database) = lent.url.rsplit_once('/').unwrap();
    let set = |value: &str| format!("ALTER DATABASE {database} SET synchronous_commit = {value}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(set("off")))
        .execute(direct.pool())
        .await
        .unwrap();
    // Server connections that were made before the setting are closed by the pooler after a while: make sure of a new one.
    let ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = $1 AND pid <> pg_backend_pid()
        AND application_name <> 'direct'";
    sqlx::query(ended)
        .bind(database)
        .execute(direct.pool())
        .await
        .unwrap();
    let setting = async || {
        let mut tx = db.begin().await?;
        let show = sqlx::query_scalar("SHOW synchronous_commit").persistent(false);
        let setting: String = show
            .fetch_one(&mut *tx)
            .await
            .map_err(|error| semel_postgres::classify("show", error))?;
        Ok::<_, semel_core::StoreError>(setting)
    };
    // The pooler may hand out the connections that were just ended, each of them once.
    let mut seen = setting().await;
    for _ in 0..20 {
        if seen.is_ok() {
            break;
        }
        seen = setting().await;
    }
    // So may the pool beside it.
    let mut back = Err(sqlx::Error::PoolClosed);
    for _ in 0..20 {
        if back.is_ok() {
            break;
        }
        back = sqlx::raw_sql(sqlx::AssertSqlSafe(set("on")))
            .execute(direct.pool())
            .await;
    }
    back.unwrap();
    assert_eq!(seen.unwrap(), "on");
}

#[tokio::test]
async fn a_pooler_that_nobody_mentioned_is_named() {
    let (lent, _direct) = Lent::take().await;
    let error = Postgres::connect(Config::new(pgbouncer().plain_url(&lent.url)))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("pooler=transaction"), "{error}");
}
