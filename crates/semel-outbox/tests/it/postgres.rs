//! Relays over PostgreSQL.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use semel_core::store::{SinkOrder, StreamLimit};
use semel_core::{Event, OutboxStore};
use semel_outbox::RelayConfig;
use semel_postgres::{Config, Postgres, tx};
use semel_testkit::servers::{PostgresServer, postgres};
use uuid::Uuid;

use crate::bed::{Receiver, To, clean_at_once, config, event, start, until};

pub(crate) async fn connect(url: &str) -> Arc<Postgres> {
    let mut config = Config::new(url);
    config.connections_max = 12;
    config.acquire_timeout = Duration::from_secs(5);
    Arc::new(Postgres::connect(config).await.unwrap())
}

async fn fresh() -> Arc<Postgres> {
    let db = connect(&postgres().fresh_database()).await;
    db.migrate().await.unwrap();
    db
}

pub(crate) async fn write(db: &Postgres, events: &[Event]) {
    let mut tx = db.begin().await.unwrap();
    tx::enqueue_many(&mut tx, events).await.unwrap();
    db.commit(tx).await.unwrap();
}

/// Writers of a key take turns, hold their transactions open for odd times, and sometimes roll back.
async fn writer(db: Arc<Postgres>, number: usize) -> BTreeSet<Uuid> {
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

/// 2,000 events of 8 writers at once; two relays share four shards; one of them dies in the middle, cleaning goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_relays_share_the_shards_one_dies_and_everything_arrives_in_order() {
    for order in [
        SinkOrder::OnePerKey { in_flight_max: 16 },
        SinkOrder::Pipelined { in_flight_max: 100 },
    ] {
        let db = fresh().await;
        let receiver = Receiver::new(order);
        let config = RelayConfig {
            shards: 4,
            clean: Some(clean_at_once()),
            ..config()
        };
        let relays = [(); 2].map(|()| start(db.clone(), Arc::new(To(receiver.clone())), config.clone()));
        let writers: Vec<_> = (0..8)
            .map(|number| tokio::spawn(writer(db.clone(), number)))
            .collect();
        let owned = || relays.each_ref().map(|relay| relay.handle.stats().shards.len());
        until("the shards are shared", async || {
            owned().iter().sum::<usize>() == 4
        })
        .await;
        until("some have arrived", async || receiver.ids().len() > 200).await;
        let [first, second] = relays;
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
}

/// The outbox is put into partitions under writers and relays, and then partitions come and go several times a second: nothing
/// is lost, doubled or out of order, and writers meet no error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_that_come_and_go_under_writers_and_relays_lose_nothing() {
    let db = fresh().await;
    let receiver = Receiver::new(SinkOrder::OnePerKey { in_flight_max: 16 });
    let config = RelayConfig {
        shards: 2,
        clean: Some(clean_at_once()),
        ..config()
    };
    let relays = [(); 2].map(|()| start(db.clone(), Arc::new(To(receiver.clone())), config.clone()));
    let writers: Vec<_> = (0..6)
        .map(|number| tokio::spawn(writer(db.clone(), number)))
        .collect();
    until("some have arrived", async || receiver.ids().len() > 100).await;
    db.partition_outbox(Duration::from_secs(60)).await.unwrap();
    sqlx::raw_sql("UPDATE semel.outbox_partitioning SET width_ms = 100")
        .execute(db.pool())
        .await
        .unwrap();
    let mut wanted = BTreeSet::new();
    for writer in writers {
        wanted.extend(writer.await.unwrap());
    }
    until("all have arrived", async || receiver.ids().len() >= wanted.len()).await;
    assert_eq!(receiver.ids(), wanted, "lost, or from nowhere");
    receiver.check_order();
    until("the partition of before is gone", async || {
        let found = db.partitions().await.unwrap().unwrap();
        found.parts.iter().all(|part| part.name != "outbox_before")
    })
    .await;
    for relay in relays {
        relay.stop().await.unwrap();
    }
}

/// Into partitions and back, twice, under writers and relays: nothing is lost, doubled or out of order, and nobody meets an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_goes_into_partitions_and_back_under_writers_and_relays() {
    let db = fresh().await;
    let receiver = Receiver::new(SinkOrder::OnePerKey { in_flight_max: 16 });
    let config = RelayConfig {
        shards: 2,
        clean: Some(clean_at_once()),
        ..config()
    };
    let relays = [(); 2].map(|()| start(db.clone(), Arc::new(To(receiver.clone())), config.clone()));
    let writers: Vec<_> = (0..6)
        .map(|number| tokio::spawn(writer(db.clone(), number)))
        .collect();
    for _ in 0..2 {
        for parted in [true, false] {
            let before = receiver.ids().len();
            until("more have arrived", async || receiver.ids().len() > before + 50).await;
            if parted {
                db.partition_outbox(Duration::from_secs(60)).await.unwrap();
            } else {
                db.unpartition_outbox(10_000).await.unwrap();
            }
            assert_eq!(db.partitions().await.unwrap().is_some(), parted);
        }
    }
    assert!(
        writers.iter().any(|writer| !writer.is_finished()),
        "all of it under writers"
    );
    let mut wanted = BTreeSet::new();
    for writer in writers {
        wanted.extend(writer.await.unwrap());
    }
    until("all have arrived", async || receiver.ids().len() >= wanted.len()).await;
    for relay in relays {
        assert_eq!(relay.handle.stats().trouble, None);
        relay.stop().await.unwrap();
    }
    assert_eq!(receiver.ids(), wanted, "lost, or from nowhere");
    assert_eq!(receiver.arrived.lock().unwrap().len(), wanted.len(), "doubled");
    receiver.check_order();
}

/// The server is killed under a running relay: it says so, waits, reads its cursor back and goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_and_comes_back_loses_nothing() {
    let mut server = tokio::task::spawn_blocking(PostgresServer::start).await.unwrap();
    let url = server.fresh_database();
    let db = connect(&url).await;
    db.migrate().await.unwrap();
    let receiver = Receiver::new(SinkOrder::OnePerKey { in_flight_max: 8 });
    let relay = start(db.clone(), Arc::new(To(receiver.clone())), config());
    let before: Vec<_> = (0..200).map(|n| event(&format!("k{}", n % 5), "")).collect();
    write(&db, &before).await;
    until("some have arrived", async || receiver.ids().len() > 20).await;
    server.kill();
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
    until("all have arrived", async || receiver.ids().len() == 250).await;
    relay.stop().await.unwrap();
    receiver.check_order();
    drop(server);
}

/// nisshi#713, marten#4953: a transaction that stays open holds up its own events and nobody else's.
#[tokio::test]
async fn an_open_transaction_holds_up_nobody_else() {
    let db = fresh().await;
    let receiver = Receiver::new(SinkOrder::OnePerKey { in_flight_max: 8 });
    let relay = start(db.clone(), Arc::new(To(receiver.clone())), config());
    let mut open = db.begin().await.unwrap();
    tx::enqueue(&mut open, &event("a", "slow")).await.unwrap();
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
    relay.stop().await.unwrap();
    assert_eq!(receiver.arrived.lock().unwrap().len(), 6, "once each");
}

/// A cluster that is not the cursors' own ends the relay with an error that says what to do.
#[tokio::test]
async fn another_cluster_ends_the_relay() {
    let db = fresh().await;
    sqlx::raw_sql("UPDATE semel.outbox_incarnation SET system_id = 1")
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

/// Setting a limit waits for writers; relaying does not wait for that. It is set once they are done.
#[tokio::test]
async fn a_limit_that_cannot_be_set_yet_holds_no_event_back() {
    let db = fresh().await;
    let mut open = db.begin().await.unwrap();
    tx::enqueue(&mut open, &event("other", "open")).await.unwrap();
    write(&db, &[event("k", "sent")]).await;
    let config = RelayConfig {
        limit: Some(StreamLimit {
            rows_max: Some(10),
            age_max_ms: None,
        }),
        ..config()
    };
    let receiver = Receiver::new(SinkOrder::OnePerKey { in_flight_max: 1 });
    let relay = start(db.clone(), Arc::new(To(receiver.clone())), config);
    until("it is sent", async || receiver.texts() == ["sent"]).await;
    assert_eq!(
        db.measure("default").await.unwrap(),
        None,
        "no limit can be there yet"
    );
    db.commit(open).await.unwrap();
    until("the limit is set", async || {
        db.measure("default").await.unwrap().is_some()
    })
    .await;
    relay.stop().await.unwrap();
}
