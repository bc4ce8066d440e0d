//! Relays that share the shards of a stream: over SQLite, PostgreSQL (through PgBouncer, too) and MariaDB.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel_core::store::{Presence, SinkOrder};
use semel_core::{Event, Nonce, OutboxStore};
use semel_outbox::RelayConfig;
use semel_testkit::servers::{mariadb, pgbouncer, postgres};

use crate::bed::{Receiver, Running, To, config, event, sqlite, start, until};

const SHARDS: u16 = 4;

type Write = Arc<dyn Fn(Vec<Event>) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// A store, and what writes events into it.
struct Bed {
    store: Arc<dyn OutboxStore>,
    write: Write,
    receiver: Arc<Receiver>,
    _keep: Option<tempfile::TempDir>,
}

impl Bed {
    fn new(store: Arc<dyn OutboxStore>, write: Write, keep: Option<tempfile::TempDir>) -> Self {
        Self {
            store,
            write,
            receiver: Receiver::new(SinkOrder::Pipelined { in_flight_max: 16 }),
            _keep: keep,
        }
    }

    async fn on_sqlite() -> Self {
        let (db, dir) = sqlite().await;
        let writer = db.clone();
        let write: Write = Arc::new(move |events| {
            let db = writer.clone();
            Box::pin(async move {
                crate::bed::write(&db, &events).await;
            })
        });
        Self::new(db, write, Some(dir))
    }

    async fn on_postgres() -> Self {
        let db = crate::postgres::connect(&postgres().fresh_database()).await;
        db.migrate().await.unwrap();
        let writer = db.clone();
        let write: Write = Arc::new(move |events| {
            let db = writer.clone();
            Box::pin(async move { crate::postgres::write(&db, &events).await })
        });
        Self::new(db, write, None)
    }

    /// In transaction mode: each statement of a relay may be on another connection.
    async fn behind_pgbouncer() -> Self {
        let url = postgres().fresh_database();
        crate::postgres::connect(&url).await.migrate().await.unwrap();
        let db = crate::postgres::connect(&pgbouncer().url(&url)).await;
        let writer = db.clone();
        let write: Write = Arc::new(move |events| {
            let db = writer.clone();
            Box::pin(async move { crate::postgres::write(&db, &events).await })
        });
        Self::new(db, write, None)
    }

    async fn on_mariadb() -> Self {
        let db = crate::mysql::connect(&mariadb().fresh_database()).await;
        db.migrate().await.unwrap();
        let writer = db.clone();
        let write: Write = Arc::new(move |events| {
            let db = writer.clone();
            Box::pin(async move { crate::mysql::write(&db, &events).await })
        });
        Self::new(db, write, None)
    }

    /// How many have arrived, repeated ones too.
    fn arrived(&self) -> usize {
        self.receiver.arrived.lock().unwrap().len()
    }

    fn relay(&self, lease: Duration) -> Running {
        let config = RelayConfig {
            shards: SHARDS,
            lease,
            ..config()
        };
        start(self.store.clone(), Arc::new(To(self.receiver.clone())), config)
    }
}

fn held(relay: &Running) -> usize {
    relay.handle.stats().shards.len()
}

/// Two join while events flow. Each hand-over is drained: nothing is sent twice for it, and no key is reordered.
async fn joining(bed: Bed) {
    let lease = Duration::from_secs(5);
    let first = bed.relay(lease);
    until("the first owns all", async || held(&first) == 4).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (write, stop) = (bed.write.clone(), Arc::clone(&stop));
        async move {
            let mut ids = BTreeSet::new();
            while !stop.load(Ordering::Relaxed) {
                let events: Vec<_> = (0..20).map(|n| event(&format!("k{n}"), "")).collect();
                ids.extend(events.iter().map(|event| event.id));
                write(events).await;
                // A pace, so that they flow for as long as shards move and do not pile up.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            ids
        }
    });
    until("events flow", async || bed.arrived() > 100).await;
    let second = bed.relay(lease);
    until("two share", async || held(&first) == 2 && held(&second) == 2).await;
    let third = bed.relay(lease);
    until("three share", async || {
        let mut shares = [&first, &second, &third].map(held);
        shares.sort_unstable();
        shares == [1, 1, 2]
    })
    .await;
    let arrived = bed.arrived();
    until("events flow", async || bed.arrived() > arrived + 100).await;
    stop.store(true, Ordering::Relaxed);
    let ids = writer.await.unwrap();
    until("all have arrived", async || bed.arrived() >= ids.len()).await;
    let mut given = 0;
    for relay in [first, second, third] {
        let stats = relay.handle.stats();
        assert_eq!(stats.lost, 0);
        given += stats.given;
        relay.stop().await.unwrap();
    }
    assert_eq!(given, 3, "no shard moved that need not");
    assert_eq!(bed.receiver.ids(), ids, "lost, or from nowhere");
    assert_eq!(bed.arrived(), ids.len(), "nothing is sent twice for a hand-over");
    bed.receiver.check_order();
    assert!(bed.store.roster("default").await.unwrap().relays.is_empty());
}

/// Far before any lease ends, the one that stays has everything.
async fn leaving(bed: Bed) {
    let lease = Duration::from_secs(60);
    let first = bed.relay(lease);
    until("the first owns all", async || held(&first) == 4).await;
    let second = bed.relay(lease);
    until("the second has one", async || held(&second) == 1).await;
    first.stop().await.unwrap();
    until("the second has all", async || held(&second) == 4).await;
    let third = bed.relay(lease);
    until("the third has one", async || held(&third) == 1).await;
    third.stop().await.unwrap();
    until("the second has all again", async || held(&second) == 4).await;
    second.stop().await.unwrap();
}

/// One dies: when its lease has ended, those that live share as if it had never been there.
async fn dying(bed: Bed) {
    let lease = Duration::from_millis(1_500);
    let first = bed.relay(lease);
    let second = bed.relay(lease);
    until("they share", async || held(&first) == 2 && held(&second) == 2).await;
    first.abort().await;
    until("the second owns all", async || held(&second) == 4).await;
    let roster = bed.store.roster("default").await.unwrap();
    assert_eq!(roster.relays.len(), 1, "the dead one is forgotten");
    let third = bed.relay(lease);
    until("they share", async || held(&third) == 2 && held(&second) == 2).await;
    for relay in [second, third] {
        relay.stop().await.unwrap();
    }
}

macro_rules! on_each_store {
    ($($name:ident: $run:ident;)*) => {
        mod sqlite_ {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$run(super::Bed::on_sqlite().await).await;
            })*
        }
        mod postgres_ {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$run(super::Bed::on_postgres().await).await;
            })*
        }
        mod pooled_ {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$run(super::Bed::behind_pgbouncer().await).await;
            })*
        }
        mod mariadb_ {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$run(super::Bed::on_mariadb().await).await;
            })*
        }
    };
}

on_each_store! {
    a_relay_that_joins_later_gets_its_share_and_no_key_is_reordered: joining;
    a_relay_that_leaves_gives_its_shards_back_to_those_who_stay: leaving;
    a_relay_that_died_is_forgotten_when_its_lease_has_ended: dying;
}

/// Somebody says that it lives and takes nothing: it is offered one shard, which is taken back a lease later.
#[tokio::test]
async fn a_relay_that_lives_and_takes_nothing_keeps_no_shard_from_the_others() {
    let bed = Bed::on_sqlite().await;
    let relay = bed.relay(Duration::from_millis(1_500));
    until("it owns all", async || held(&relay) == 4).await;
    let ghost = Presence {
        stream: "default".to_owned(),
        relay: Nonce::random(),
        owner: "ghost".to_owned(),
        ms: 600_000,
    };
    bed.store.attend(&ghost).await.unwrap();
    until("one is offered", async || held(&relay) == 3).await;
    until("it is taken back", async || held(&relay) == 4).await;
    (bed.write)((0..40).map(|n| event(&format!("k{n}"), "")).collect()).await;
    until("all have arrived", async || bed.receiver.ids().len() == 40).await;
    assert_eq!(relay.handle.stats().given, 1);
    relay.stop().await.unwrap();
}
