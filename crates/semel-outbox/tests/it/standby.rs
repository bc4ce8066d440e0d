//! Relays over a primary with a real standby: what is sent while the standby is away, and after it took over.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use semel_core::OutboxStore as _;
use semel_core::store::{OutboxDesk as _, SinkOrder};
use semel_outbox::RelayConfig;
use semel_postgres::{Postgres, tx};
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::PostgresServer;
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use crate::bed::{Receiver, To, config, event, start, until};
use crate::postgres::{connect, write};

const ORDER: SinkOrder = SinkOrder::OnePerKey { in_flight_max: 16 };

async fn pair() -> (PostgresServer, PostgresServer) {
    let start = || {
        let primary = PostgresServer::start();
        let standby = primary.standby();
        (primary, standby)
    };
    tokio::task::spawn_blocking(start).await.unwrap()
}

async fn restarted(mut server: PostgresServer) -> PostgresServer {
    let restart = move || {
        server.restart();
        server
    };
    tokio::task::spawn_blocking(restart).await.unwrap()
}

/// A standby that was killed takes the place of its primary, which dies.
async fn promoted(primary: PostgresServer, standby: PostgresServer) -> PostgresServer {
    primary.kill();
    let standby = restarted(standby).await;
    let promote = move || {
        standby.promote();
        standby
    };
    tokio::task::spawn_blocking(promote).await.unwrap()
}

fn database(url: &str) -> String {
    url.rsplit('/').next().unwrap().to_owned()
}

/// From now on each commit waits for the standby.
async fn wait_for_standby(primary: &PostgresServer) {
    let mut admin = PgConnection::connect(&primary.url("postgres")).await.unwrap();
    for sql in [
        "ALTER SYSTEM SET synchronous_standby_names = '*'",
        "SELECT pg_reload_conf()",
    ] {
        sqlx::raw_sql(sql).execute(&mut admin).await.unwrap();
    }
    until("the standby is synchronous", async || {
        count(
            &mut admin,
            "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'",
        )
        .await
            == 1
    })
    .await;
}

async fn count(connection: &mut PgConnection, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
}

/// The relay waits for the standby in front of what it has found.
const OPENING_WAITS: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%batch_no = $%'";

/// Committed here, visible to everybody, and not yet at the standby.
async fn write_locally(db: &Postgres, text: &str) -> Uuid {
    let event = event("k", text);
    let mut tx = db.begin().await.unwrap();
    sqlx::query("SET LOCAL synchronous_commit = local")
        .execute(&mut *tx)
        .await
        .unwrap();
    tx::enqueue(&mut tx, &event).await.unwrap();
    // Its own COMMIT: that of the handle would wait.
    tx.commit().await.unwrap();
    event.id
}

/// Rules O2, O18: what only the primary has could be forgotten by a fail-over, and its event would be of nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o18_nothing_is_sent_before_the_synchronous_standby_has_it() {
    let (primary, standby) = pair().await;
    let url = primary.fresh_database();
    let db = connect(&url).await;
    db.migrate().await.unwrap();
    wait_for_standby(&primary).await;
    let mut admin = PgConnection::connect(&primary.url("postgres")).await.unwrap();
    let receiver = Receiver::new(ORDER);
    // Renewals wait for the standby, too.
    let config = RelayConfig {
        lease: Duration::from_secs(120),
        ..config()
    };
    let relay = start(db.clone(), Arc::new(To(receiver.clone())), config);
    write(&db, &[event("k", "before")]).await;
    until("it has arrived", async || receiver.texts() == ["before"]).await;
    standby.kill();
    write_locally(&db, "local").await;
    until("the relay waits for the standby", async || {
        count(&mut admin, OPENING_WAITS).await == 1
    })
    .await;
    let writing = tokio::spawn({
        let db = db.clone();
        async move { write(&db, &[event("k", "waits")]).await }
    });
    assert_eq!(receiver.texts(), ["before"]);
    let standby = restarted(standby).await;
    writing.await.unwrap();
    until("all have arrived", async || receiver.texts().len() == 3).await;
    assert_eq!(receiver.texts(), ["before", "local", "waits"]);

    // The same again, and this time the primary does not live to tell the standby.
    standby.kill();
    let lost = write_locally(&db, "lost").await;
    until("the relay waits for the standby", async || {
        count(&mut admin, OPENING_WAITS).await == 1
    })
    .await;
    let primary = promoted(primary, standby).await;
    relay.abort().await;
    let db = connect(&primary.url(&database(&url))).await;
    let found: i64 = sqlx::query_scalar("SELECT count(*) FROM semel.outbox WHERE event_id = $1")
        .bind(lost)
        .fetch_one(db.pool())
        .await
        .unwrap();
    assert_eq!(found, 0, "the new primary has never heard of it");
    assert!(!receiver.ids().contains(&lost), "and nobody else has");
}

/// Rule O21: relays go to the new primary by themselves, or stop and say that it is behind; a rescan and a new start then send
/// all that is there. Nothing of the new primary is lost, and its keys keep their order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o21_after_a_fail_over_that_lost_commits_all_that_is_left_arrives_in_order() {
    let (primary, standby) = pair().await;
    let url = primary.fresh_database();
    let database = database(&url);
    let proxy = Proxy::to_port(primary.port()).await.unwrap();
    let address = format!("postgres://postgres@127.0.0.1:{}/{database}", proxy.port());
    let db = connect(&address).await;
    db.migrate().await.unwrap();
    let receiver = Receiver::new(ORDER);
    // It outlives the fail-over, so that nobody reads the cursor because of a take-over.
    let settings = RelayConfig {
        shards: 2,
        lease: Duration::from_secs(120),
        ..config()
    };
    let relay = start(db.clone(), Arc::new(To(receiver.clone())), settings.clone());
    let burst = |from: usize| -> Vec<_> {
        (from..from + 100)
            .map(|n| event(&format!("k{}", n % 5), &n.to_string()))
            .collect()
    };
    let ids = |events: &[semel_core::Event]| -> BTreeSet<_> { events.iter().map(|event| event.id).collect() };
    let kept = burst(0);
    write(&db, &kept).await;
    until("all have arrived", async || receiver.ids().len() == 100).await;
    until("the standby has them", async || {
        let settled = "SELECT count(*) FROM semel.outbox_shard WHERE open IS NULL AND prev::text <> '1:1:'";
        shows(&standby, &database, "SELECT count(*) FROM semel.outbox").await == Some(100)
            && shows(&standby, &database, settled).await == Some(2)
    })
    .await;
    standby.kill();
    for n in 0..5 {
        write(&db, &burst(1_000 + n * 100)).await;
    }
    until("they have arrived, too", async || receiver.ids().len() == 600).await;
    let primary = promoted(primary, standby).await;
    proxy.set_upstream(SocketAddr::from(([127, 0, 0, 1], primary.port())));
    proxy.cut();
    let direct = connect(&primary.url(&database)).await;
    let after = burst(5_000);
    write(&direct, &after).await;
    let wanted = ids(&after);
    let has_all = || receiver.ids().is_superset(&wanted);
    until("they have arrived, or it has stopped", async || {
        has_all() || relay.has_ended()
    })
    .await;
    if relay.has_ended() {
        let error = relay.end().await.unwrap_err();
        assert!(error.to_string().starts_with("SEM0202"), "{error}");
        direct.rescan(None, "ann", "fail-over", false).await.unwrap();
    } else {
        relay.stop().await.unwrap();
    }
    let relay = start(db, Arc::new(To(receiver.clone())), settings);
    until("they have arrived", async || has_all()).await;
    relay.stop().await.unwrap();
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM semel.outbox")
        .fetch_one(direct.pool())
        .await
        .unwrap();
    assert_eq!(left, 200, "what the new primary has");
    // Numbers of rows that the old primary had given out alone may come again: only what is left has an order.
    let left: BTreeSet<_> = ids(&kept).union(&wanted).copied().collect();
    receiver
        .arrived
        .lock()
        .unwrap()
        .retain(|row| left.contains(&row.event.id));
    receiver.check_order();
}

/// Rule O5: a relay that was led to a standby sends nothing and says why; when the standby is promoted it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o5_a_relay_that_runs_against_a_standby_says_so_until_it_is_promoted() {
    let (primary, standby) = pair().await;
    let url = primary.fresh_database();
    let db = connect(&url).await;
    db.migrate().await.unwrap();
    db.register_stream("default", 1).await.unwrap();
    write(&db, &[event("k", "1")]).await;
    let database = database(&url);
    until("the standby has it", async || {
        shows(&standby, &database, "SELECT count(*) FROM semel.outbox").await == Some(1)
    })
    .await;
    let led = connect(&standby.url(&database)).await;
    let receiver = Receiver::new(ORDER);
    let relay = start(led.clone(), Arc::new(To(receiver.clone())), config());
    until("it says so", async || {
        let trouble = relay.handle.stats().trouble;
        trouble.is_some_and(|text| text.contains("standby"))
    })
    .await;
    let standing = led.standing().await.unwrap();
    assert!(standing.holds.iter().any(|hold| hold.kind == "standby"));
    assert!(receiver.ids().is_empty());
    primary.kill();
    let promote = move || {
        standby.promote();
        standby
    };
    let standby = tokio::task::spawn_blocking(promote).await.unwrap();
    until("it has arrived", async || receiver.texts() == ["1"]).await;
    until("it says so no longer", async || {
        relay.handle.stats().trouble.is_none()
    })
    .await;
    relay.stop().await.unwrap();
    drop(standby);
}

/// What a standby answers; nothing as long as the database, or the table, has not come to it.
async fn shows(standby: &PostgresServer, database: &str, sql: &'static str) -> Option<i64> {
    let mut there = PgConnection::connect(&standby.url(database)).await.ok()?;
    sqlx::query_scalar(sql).fetch_one(&mut there).await.ok()
}
