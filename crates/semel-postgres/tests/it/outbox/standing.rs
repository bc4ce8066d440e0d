//! What the operator's desk sees of PostgreSQL itself.

use std::time::{Duration, Instant};

use semel_core::store::{Hold, OutboxDesk as _, OutboxStore as _, Standing};
use semel_core::{ErrorKind, Fingerprint, Key};
use semel_postgres::tx::OnceOptions;
use semel_postgres::{Config, Postgres, tx};
use semel_testkit::servers::PostgresServer;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Transaction};
use uuid::Uuid;

use super::{batch, event, fresh, own, write};
use crate::keys::{request, until_someone_waits};

async fn hold(db: &Postgres, kind: &str) -> Option<Hold> {
    let standing = db.standing().await.unwrap();
    standing.holds.into_iter().find(|hold| hold.kind == kind)
}

/// Looks until the standing has what is wanted. Younger transactions are not told; nobody is waited for but the clock of the
/// server.
async fn until<T>(db: &Postgres, wanted: impl Fn(Standing) -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let standing = db.standing().await.unwrap();
        let seen = format!("{standing:?}");
        if let Some(found) = wanted(standing) {
            return found;
        }
        assert!(Instant::now() < deadline, "not in time: {seen}");
        tokio::task::yield_now().await;
    }
}

fn of(standing: Standing, who: &str) -> Option<Hold> {
    standing.holds.into_iter().find(|hold| hold.who == who)
}

async fn pid_of(connection: &mut PgConnection) -> String {
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(connection)
        .await
        .unwrap();
    format!("pid {pid}")
}

/// Prepares a transaction that has written these events; returns its name.
pub(super) async fn prepare(db: &Postgres, texts: &[&str]) -> String {
    let mut open = db.pool().acquire().await.unwrap();
    sqlx::raw_sql("BEGIN").execute(&mut *open).await.unwrap();
    for text in texts {
        let sql = "SELECT semel.enqueue('orders', 'placed', key => 'k', data => $1)";
        sqlx::query(sql)
            .bind(text.as_bytes())
            .execute(&mut *open)
            .await
            .unwrap();
    }
    if texts.is_empty() {
        // A number, and no lock on anything of Semel's.
        sqlx::raw_sql("SELECT pg_current_xact_id()")
            .execute(&mut *open)
            .await
            .unwrap();
    }
    let name = format!("it's {}", Uuid::from_u128(rand()));
    let sql = format!("PREPARE TRANSACTION '{}'", name.replace('\'', "''"));
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut *open)
        .await
        .unwrap();
    name
}

fn rand() -> u128 {
    u128::from_be_bytes(semel_core::host::random_16())
}

pub(super) async fn end(db: &Postgres, how: &str, name: &str) {
    let sql = format!("{how} PREPARED '{}'", name.replace('\'', "''"));
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(db.pool())
        .await
        .unwrap();
}

/// Rule O1: what others commit meanwhile does not wait for it.
#[tokio::test]
async fn a_prepared_transactions_events_come_when_it_is_committed() {
    let (_lent, db) = fresh().await;
    let mut owned = own(&db).await;
    let (kept, dropped) = (prepare(&db, &["kept"]).await, prepare(&db, &["dropped"]).await);
    write(&db, &[event("k", "passes")]).await;
    assert_eq!(batch(&db, &mut owned).await, ["passes"]);
    end(&db, "COMMIT", &kept).await;
    assert_eq!(batch(&db, &mut owned).await, ["kept"]);
    end(&db, "ROLLBACK", &dropped).await;
    write(&db, &[event("k", "after")]).await;
    assert_eq!(batch(&db, &mut owned).await, ["after"]);
}

#[tokio::test]
async fn a_prepared_transaction_that_wrote_events_is_named() {
    let (_lent, db) = fresh().await;
    let (wrote, idle) = (prepare(&db, &["x"]).await, prepare(&db, &[]).await);
    for (name, what) in [
        (&wrote, "it has written events"),
        (&idle, "it has written no event"),
    ] {
        let told = until(&db, |standing| of(standing, name)).await;
        assert_eq!(told.kind, "prepared_transaction");
        assert!(told.detail.ends_with(what), "{told:?}");
    }
    let told = until(&db, |standing| of(standing, &wrote)).await;
    let quoted = wrote.replace('\'', "''");
    assert!(
        told.advice.contains(&format!("COMMIT PREPARED '{quoted}'")),
        "{told:?}"
    );
    end(&db, "ROLLBACK", &wrote).await;
    end(&db, "ROLLBACK", &idle).await;
}

async fn once(tx: &mut Transaction<'_, sqlx::Postgres>, key: &Key) {
    let asked = Fingerprint::of(b"x");
    drop(tx::once(tx, key, asked, OnceOptions::default()).await.unwrap());
}

/// Who waits elsewhere, under the same name, holds nothing back: a duplicate of a key waits for the first of it.
#[tokio::test]
async fn a_relay_that_waits_for_a_lock_is_named_and_a_duplicate_is_not() {
    let (_lent, db) = fresh().await;
    own(&db).await;
    let key = request().key;
    let mut first = db.begin().await.unwrap();
    once(&mut first, &key).await;
    let (waiter, same) = (db.clone(), key.clone());
    let duplicate = tokio::spawn(async move {
        let mut second = waiter.begin().await.unwrap();
        once(&mut second, &same).await;
    });
    until_someone_waits(&db, 1).await;
    let mut holder = db.begin().await.unwrap();
    sqlx::query("SELECT FROM semel.outbox_shard FOR UPDATE")
        .execute(&mut *holder)
        .await
        .unwrap();
    let pid = pid_of(&mut holder).await;
    let waiter = db.clone();
    let relay = tokio::spawn(async move { waiter.rescan(None, "ann", "x", false).await });
    until_someone_waits(&db, 2).await;
    let waits = until(&db, |standing| {
        let waits: Vec<_> = standing
            .holds
            .into_iter()
            .filter(|hold| hold.kind == "relay_waits")
            .collect();
        (!waits.is_empty()).then_some(waits)
    })
    .await;
    assert_eq!(waits.len(), 1, "{waits:?}");
    assert!(waits[0].advice.contains(&format!("{pid} holds")), "{waits:?}");
    // The duplicate began before the relay, so it is old enough, too.
    holder.rollback().await.unwrap();
    relay.await.unwrap().unwrap();
    first.rollback().await.unwrap();
    duplicate.await.unwrap();
}

/// It has a number and, between two statements, no snapshot.
#[tokio::test]
async fn an_idle_transaction_that_keeps_deleted_rows_is_named() {
    let (_lent, db) = fresh().await;
    own(&db).await;
    let mut numbered = db.begin().await.unwrap();
    sqlx::query("SELECT FROM semel.outbox_shard FOR UPDATE")
        .execute(&mut *numbered)
        .await
        .unwrap();
    let mut snapshot = db.begin().await.unwrap();
    sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        .execute(&mut *snapshot)
        .await
        .unwrap();
    for open in [&mut numbered, &mut snapshot] {
        let pid = pid_of(open).await;
        let told = until(&db, |standing| of(standing, &pid)).await;
        assert_eq!(told.kind, "held_snapshot");
        assert!(told.advice.contains("vacuumed"), "{told:?}");
    }
    numbered.rollback().await.unwrap();
    snapshot.rollback().await.unwrap();
}

/// A commit waits for a standby that does not come, and so does the relay's own, in front of everything that it would send.
#[tokio::test]
async fn a_commit_that_waits_for_a_standby_is_named_and_nothing_of_it_is_sent() {
    let server = PostgresServer::start();
    let db = Postgres::connect(Config::new(server.fresh_database()))
        .await
        .unwrap();
    db.migrate().await.unwrap();
    let mut owned = own(&db).await;
    let mut admin = PgConnection::connect(&server.url("postgres")).await.unwrap();
    write(&db, &[event("k", "before")]).await;
    let mut writer = db.begin().await.unwrap();
    tx::enqueue(&mut writer, &event("k", "waits")).await.unwrap();
    let pid = pid_of(&mut writer).await;
    for sql in [
        "ALTER SYSTEM SET synchronous_standby_names = 'nobody'",
        "SELECT pg_reload_conf()",
    ] {
        sqlx::raw_sql(sql).execute(&mut admin).await.unwrap();
    }
    // The server takes the setting up when it comes to it.
    let mut other = PgConnection::connect(&server.url("postgres")).await.unwrap();
    let probing = tokio::spawn(async move {
        loop {
            sqlx::raw_sql("SELECT pg_logical_emit_message(true, 'probe', '')")
                .execute(&mut other)
                .await
                .unwrap();
        }
    });
    commits_that_wait(&mut admin, 1).await;
    let committing = tokio::spawn({
        let db = db.clone();
        async move { db.commit(writer).await }
    });
    let told = until(&db, |standing| {
        of(standing, &pid).filter(|hold| hold.kind == "standby_behind")
    })
    .await;
    assert!(told.advice.contains("pg_stat_replication"), "{told:?}");
    let reading = tokio::spawn(async move {
        let mut read = batch(&db, &mut owned).await;
        while read.len() < 2 {
            read.extend(batch(&db, &mut owned).await);
        }
        read
    });
    // The probe's, the writer's and the relay's own.
    commits_that_wait(&mut admin, 3).await;
    assert!(!committing.is_finished() && !reading.is_finished());
    for sql in [
        "ALTER SYSTEM RESET synchronous_standby_names",
        "SELECT pg_reload_conf()",
    ] {
        sqlx::raw_sql(sql).execute(&mut admin).await.unwrap();
    }
    committing.await.unwrap().unwrap();
    assert_eq!(reading.await.unwrap(), ["before", "waits"]);
    probing.abort();
}

async fn commits_that_wait(admin: &mut PgConnection, wanted: i64) {
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    let deadline = Instant::now() + Duration::from_secs(60);
    while sqlx::query_scalar::<_, i64>(waiting)
        .fetch_one(&mut *admin)
        .await
        .unwrap()
        < wanted
    {
        assert!(Instant::now() < deadline, "{wanted} commits do not wait");
        tokio::task::yield_now().await;
    }
}

/// A transaction that has written events and stays open is named by its process; it holds back nothing else.
#[tokio::test]
async fn an_open_writer_is_named_by_its_process() {
    let (_lent, db) = fresh().await;
    own(&db).await;
    let mut open = db.begin().await.unwrap();
    tx::enqueue(&mut open, &event("k", "x")).await.unwrap();
    let pid = pid_of(&mut open).await;
    let named = until(&db, |standing| of(standing, &pid)).await;
    assert_eq!(named.kind, "open_transaction");
    assert!(
        named.age_ms >= Some(1_000) && named.detail.contains("idle in transaction"),
        "{named:?}"
    );
    let number = pid.trim_start_matches("pid ");
    assert!(named.advice.contains(&format!("pg_terminate_backend({number})")));
    open.rollback().await.unwrap();
}

/// Another cluster is named, and only a rescan of all streams makes it the outbox's home (rule O9).
#[tokio::test]
async fn a_restored_database_is_named_and_a_rescan_of_all_streams_adopts_it() {
    let (_lent, db) = fresh().await;
    let owned = own(&db).await;
    assert_eq!(hold(&db, "identity_changed").await, None);
    sqlx::query("UPDATE semel.outbox_incarnation SET system_id = 1")
        .execute(db.pool())
        .await
        .unwrap();
    let named = hold(&db, "identity_changed")
        .await
        .expect("it is another cluster");
    assert!(named.advice.contains("semel outbox rescan"), "{named:?}");
    let refused = db.rescan(Some("default"), "ann", "x", false).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::IdentityChanged);
    db.rescan(None, "ann", "a restore", true).await.unwrap();
    assert!(
        hold(&db, "identity_changed").await.is_some(),
        "a dry run changes nothing"
    );
    assert_eq!(
        db.rescan(None, "ann", "a restore", false).await.unwrap().shards,
        1
    );
    assert_eq!(hold(&db, "identity_changed").await, None);
    assert_eq!(db.renew(&[owned.lease], 1_000).await.unwrap(), [false]);
}
