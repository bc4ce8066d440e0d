//! Relays over MariaDB.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use semel_core::store::SinkOrder;
use semel_core::{Event, OutboxStore};
use semel_mysql::{Config, Mysql, tx};
use semel_outbox::RelayConfig;
use semel_testkit::servers::{MariadbServer, mariadb};
use uuid::Uuid;

use crate::bed::{Receiver, To, clean_at_once, config, event, start, until};

pub(crate) async fn connect(url: &str) -> Arc<Mysql> {
    let mut config = Config::new(url);
    config.connections_max = 12;
    config.acquire_timeout = Duration::from_secs(5);
    Arc::new(Mysql::connect(config).await.unwrap())
}

async fn fresh() -> Arc<Mysql> {
    let db = connect(&mariadb().fresh_database()).await;
    db.migrate().await.unwrap();
    db
}

pub(crate) async fn write(db: &Mysql, events: &[Event]) {
    let mut tx = db.begin().await.unwrap();
    tx::enqueue_many(&mut tx, events).await.unwrap();
    db.commit(tx).await.unwrap();
}

/// Writers of a key take turns, hold their transactions open for odd times, and sometimes roll back.
async fn writer(db: Arc<Mysql>, number: usize) -> BTreeSet<Uuid> {
    let mut written = BTreeSet::new();
    for round in 0..50 {
        let key = format!("key-{}", number / 2);
        let mut tx = db.begin().await.unwrap();
        let alone = event(&format!("alone-{number}"), "");
        tx::enqueue(&mut tx, &alone).await.unwrap();
        tx::lock_key(&mut tx, key.as_bytes()).await.unwrap();
        let mut ids = vec![alone.id];
        for row in 0..4 {
            let event = event(&key, &format!("{round}/{row}"));
            tx::enqueue(&mut tx, &event).await.unwrap();
            ids.push(event.id);
            if (number * 7 + round * 3 + row).is_multiple_of(11) {
                tokio::time::sleep(Duration::from_millis(15)).await;
            }
        }
        if (number + round) % 9 == 8 {
            tx.rollback().await.unwrap();
        } else {
            db.commit(tx).await.unwrap();
            written.extend(ids);
        }
    }
    written
}

/// 2,000 events of 8 writers at once; two relays, each with connections of its own, share four shards; one of them dies in
/// the middle, cleaning goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_relays_share_the_shards_one_dies_and_everything_arrives_in_order() {
    let url = mariadb().fresh_database();
    let db = connect(&url).await;
    db.migrate().await.unwrap();
    let receiver = Receiver::new(SinkOrder::Pipelined { in_flight_max: 100 });
    let config = RelayConfig {
        shards: 4,
        clean: Some(clean_at_once()),
        ..config()
    };
    let first = start(
        connect(&url).await,
        Arc::new(To(receiver.clone())),
        config.clone(),
    );
    let second = start(connect(&url).await, Arc::new(To(receiver.clone())), config);
    let writers: Vec<_> = (0..8)
        .map(|number| tokio::spawn(writer(db.clone(), number)))
        .collect();
    until("the shards are shared", async || {
        first.handle.stats().shards.len() + second.handle.stats().shards.len() == 4
    })
    .await;
    until("some have arrived", async || receiver.ids().len() > 200).await;
    first.abort().await;
    let mut wanted = BTreeSet::new();
    for writer in writers {
        wanted.extend(writer.await.unwrap());
    }
    until("all have arrived", async || receiver.ids().len() >= wanted.len()).await;
    assert!(wanted.len() > 1_500, "{}", wanted.len());
    assert_eq!(second.handle.stats().shards.len(), 4);
    second.stop().await.unwrap();
    assert_eq!(receiver.ids(), wanted, "lost, or from nowhere");
    receiver.check_order();
    assert!(db.exceptions("default", 0, 10).await.unwrap().is_empty());
}

/// Rule O12: relays that are told different numbers run side by side while writers hold their transactions open. Nothing
/// is lost or sent twice for it, each key keeps its order, and whoever came last is right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_shards_changes_while_transactions_are_open() {
    let db = fresh().await;
    let receiver = Receiver::new(SinkOrder::Pipelined { in_flight_max: 100 });
    let relay = |shards| {
        let config = RelayConfig {
            shards,
            clean: Some(clean_at_once()),
            ..config()
        };
        start(db.clone(), Arc::new(To(receiver.clone())), config)
    };
    let shards_are = async |count: usize| {
        let backlog = db.backlog().await.unwrap();
        backlog.shards.len() == count && backlog.shards.iter().all(|shard| shard.owner.is_some())
    };
    let two = relay(2);
    until("two shards are owned", async || shards_are(2).await).await;
    let writers: Vec<_> = (0..6)
        .map(|number| tokio::spawn(writer(db.clone(), number)))
        .collect();
    until("some have arrived", async || receiver.ids().len() > 50).await;
    let four = relay(4);
    until("four shards are owned", async || shards_are(4).await).await;
    two.stop().await.unwrap();
    let one = relay(1);
    until("one shard is owned", async || shards_are(1).await).await;
    four.stop().await.unwrap();
    let mut wanted = BTreeSet::new();
    for writer in writers {
        wanted.extend(writer.await.unwrap());
    }
    until("all have arrived", async || receiver.ids().len() >= wanted.len()).await;
    one.stop().await.unwrap();
    assert_eq!(receiver.ids(), wanted, "lost, or from nowhere");
    receiver.check_order();
}

/// The server is killed under a running relay and its writer: what was acknowledged arrives, what was sent was durable,
/// and the relay says so, waits, reads its cursor back and goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_kill_9_of_the_server_nothing_sent_was_a_phantom_and_nothing_is_lost() {
    let mut server = tokio::task::spawn_blocking(MariadbServer::start).await.unwrap();
    let url = server.fresh_database();
    let db = connect(&url).await;
    db.migrate().await.unwrap();
    let receiver = Receiver::new(SinkOrder::OnePerKey { in_flight_max: 8 });
    let relay = start(db.clone(), Arc::new(To(receiver.clone())), config());
    let writing = {
        let url = url.clone();
        tokio::spawn(async move {
            let db = connect(&url).await;
            let (mut done, mut unknown) = (BTreeSet::new(), BTreeSet::new());
            for n in 0.. {
                let event = event(&format!("k{}", n % 5), "");
                let written = async {
                    let mut tx = db.begin().await?;
                    tx::enqueue(&mut tx, &event).await?;
                    db.commit(tx).await
                };
                match written.await {
                    Ok(()) => done.insert(event.id),
                    Err(_) => {
                        unknown.insert(event.id);
                        break;
                    }
                };
            }
            (done, unknown)
        })
    };
    until("some have arrived", async || receiver.ids().len() > 50).await;
    server.kill();
    let (mut done, unknown) = writing.await.unwrap();
    until("it says so", async || relay.handle.stats().trouble.is_some()).await;
    let server = tokio::task::spawn_blocking(move || {
        server.restart();
        server
    })
    .await
    .unwrap();
    until("the trouble is over", async || {
        relay.handle.stats().trouble.is_none()
    })
    .await;
    let db = connect(&url).await;
    let after: Vec<_> = (0..50).map(|n| event(&format!("k{}", n % 5), "")).collect();
    write(&db, &after).await;
    done.extend(after.iter().map(|event| event.id));
    until("all have arrived", async || done.is_subset(&receiver.ids())).await;
    relay.stop().await.unwrap();
    let more: Vec<_> = receiver.ids().difference(&done).copied().collect();
    assert!(more.iter().all(|id| unknown.contains(id)), "phantoms: {more:?}");
    let kept: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM semel_outbox WHERE stream <> ''")
        .fetch_one(db.pool())
        .await
        .unwrap();
    assert_eq!(
        usize::try_from(kept).unwrap(),
        receiver.ids().len(),
        "what was sent is there"
    );
    receiver.check_order();
    drop(server);
}

/// nisshi#713, marten#4953: a transaction that stays open holds up its own events and nobody else's; nor does one that
/// holds a lock on the outbox's rows, or an old snapshot.
#[tokio::test]
async fn an_open_transaction_holds_up_nobody_else() {
    let db = fresh().await;
    let receiver = Receiver::new(SinkOrder::OnePerKey { in_flight_max: 8 });
    let relay = start(db.clone(), Arc::new(To(receiver.clone())), config());
    let mut open = db.begin().await.unwrap();
    tx::enqueue(&mut open, &event("a", "slow")).await.unwrap();
    let mut locks = db.begin().await.unwrap();
    sqlx::query("SELECT id FROM semel_outbox FOR UPDATE SKIP LOCKED")
        .fetch_all(&mut *locks)
        .await
        .unwrap();
    let mut snapshot = db.pool().acquire().await.unwrap();
    sqlx::raw_sql(
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION WITH CONSISTENT SNAPSHOT",
    )
    .execute(&mut *snapshot)
    .await
    .unwrap();
    for n in 0..5 {
        write(&db, &[event("b", &n.to_string())]).await;
        until("it has arrived", async || {
            receiver.texts().contains(&n.to_string())
        })
        .await;
    }
    db.commit(open).await.unwrap();
    until("it has arrived too", async || {
        receiver.texts().contains(&"slow".to_owned())
    })
    .await;
    locks.rollback().await.unwrap();
    sqlx::raw_sql("ROLLBACK").execute(&mut *snapshot).await.unwrap();
    relay.stop().await.unwrap();
    assert_eq!(receiver.arrived.lock().unwrap().len(), 6, "once each");
}

/// A table that was emptied ends the relay with an error that says what to do.
#[tokio::test]
async fn a_table_that_was_emptied_ends_the_relay() {
    let db = fresh().await;
    sqlx::raw_sql("TRUNCATE TABLE semel_outbox")
        .execute(db.pool())
        .await
        .unwrap();
    let receiver = Receiver::new(SinkOrder::OnePerKey { in_flight_max: 8 });
    write(&db, &[event("k", "1")]).await;
    let error = start(db.clone(), Arc::new(To(receiver.clone())), config())
        .end()
        .await
        .unwrap_err();
    assert!(error.to_string().starts_with("SEM0202"), "{error}");
    assert!(receiver.ids().is_empty());
    assert_eq!(
        db.backlog().await.unwrap().shards[0].owner,
        None,
        "the shard was given back"
    );
}
