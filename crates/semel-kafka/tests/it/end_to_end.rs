//! PostgreSQL → relay → Kafka → consumer → PostgreSQL: nothing lost, nothing doubled, each key in order, while both
//! programs are killed and the broker holds duplicates.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use semel_core::{Event, SystemClock, host::uuid_v7};
use semel_inbox::{Handler, HandlerError, Message};
use semel_kafka::{Consumer, ConsumerConfig, KafkaSink, KafkaSinkConfig};
use semel_outbox::{Relay, RelayConfig};
use semel_postgres::{Config, InboxTx, Postgres, classify, tx};
use semel_testkit::crash::{self, Run, Running};
use semel_testkit::servers::{kafka, postgres};
use tokio_util::sync::CancellationToken;

use crate::support::{LIMIT, read_all, until};

const TEST: &str = "end_to_end::nothing_is_lost_or_doubled_while_relay_and_consumer_are_killed";
const KEYS: u32 = 20;

/// Two services, each with its own database, and the topic between them.
#[derive(Clone)]
struct Shop {
    orders: String,
    shipping: String,
    bootstrap: String,
    topic: String,
    group: String,
}

impl Shop {
    fn argument(&self) -> String {
        [
            &self.orders,
            &self.shipping,
            &self.bootstrap,
            &self.topic,
            &self.group,
        ]
        .map(String::as_str)
        .join(" ")
    }

    fn parse(argument: &str) -> Self {
        let mut parts = argument.split(' ').map(str::to_owned);
        let mut part = || parts.next().unwrap();
        Self {
            orders: part(),
            shipping: part(),
            bootstrap: part(),
            topic: part(),
            group: part(),
        }
    }

    fn child(&self, role: &str) -> Run {
        Run::test(TEST, role, self.argument()).limit(LIMIT)
    }
}

async fn connect(url: &str) -> Postgres {
    let db = Postgres::connect(Config::new(url)).await.unwrap();
    db.migrate().await.unwrap();
    db
}

/// The child `relay`.
async fn relay(shop: Shop) {
    let store = Arc::new(connect(&shop.orders).await);
    let sink = KafkaSink::new(KafkaSinkConfig::new(&shop.bootstrap)).unwrap();
    let mut config = RelayConfig {
        lease: Duration::from_secs(2),
        ..RelayConfig::default()
    };
    config.policy.send_timeout_ms = 1_000;
    // Small pages, so that a kill meets one half way.
    config.policy.page_rows = 50;
    Relay::new(store, Arc::new(sink), config)
        .run(CancellationToken::new())
        .await
        .unwrap();
}

/// The child `consumer`: one row per event that it is handed. Nothing but Semel keeps it from writing two.
struct Shipping;

#[async_trait]
impl Handler<Postgres> for Shipping {
    async fn handle(&self, tx: &mut InboxTx, messages: &[&Message]) -> Result<(), HandlerError> {
        let text = |name: &str| -> Vec<String> {
            let of = |message: &&Message| String::from_utf8(message.header(name).unwrap().to_vec()).unwrap();
            messages.iter().map(of).collect()
        };
        let keys: Vec<&[u8]> = messages.iter().map(|m| m.key.as_deref().unwrap()).collect();
        let bodies: Vec<&[u8]> = messages.iter().map(|m| m.data.as_deref().unwrap()).collect();
        sqlx::query(
            "INSERT INTO parcel (event, key, body)
             SELECT e, convert_from(k, 'UTF8'), convert_from(b, 'UTF8')::int
             FROM unnest($1::text[], $2::bytea[], $3::bytea[]) WITH ORDINALITY AS u(e, k, b, n) ORDER BY n",
        )
        .bind(text("ce_id"))
        .bind(keys)
        .bind(bodies)
        .execute(tx.conn())
        .await
        .map_err(|error| classify("ship", error))?;
        Ok(())
    }
}

async fn consumer(shop: Shop) {
    let store = Arc::new(connect(&shop.shipping).await);
    let mut config = ConsumerConfig::new(&shop.bootstrap, &shop.group, [&shop.topic]).unwrap();
    config.batch_max = 60;
    for (name, value) in [("session.timeout.ms", "6000"), ("group.instance.id", "0")] {
        config.properties.insert(name.to_owned(), value.to_owned());
    }
    Consumer::new(config, store, Arc::new(Shipping))
        .unwrap()
        .run(CancellationToken::new())
        .await
        .unwrap();
}

/// What the parent knows and does.
struct World {
    shop: Shop,
    orders: Postgres,
    shipping: Postgres,
    /// Events committed so far, by id: their key and number.
    placed: BTreeMap<String, (String, u32)>,
    next: u32,
}

impl World {
    async fn new() -> Self {
        let shop = Shop {
            orders: postgres().fresh_database(),
            shipping: postgres().fresh_database(),
            bootstrap: kafka().bootstrap(),
            topic: kafka().fresh_topic(3),
            group: kafka().fresh_name("g"),
        };
        let (orders, shipping) = (connect(&shop.orders).await, connect(&shop.shipping).await);
        sqlx::raw_sql("CREATE TABLE placed (event text PRIMARY KEY)")
            .execute(orders.pool())
            .await
            .unwrap();
        sqlx::raw_sql(
            "CREATE TABLE parcel (n bigint GENERATED ALWAYS AS IDENTITY, event text, key text, body int)",
        )
        .execute(shipping.pool())
        .await
        .unwrap();
        Self {
            shop,
            orders,
            shipping,
            placed: BTreeMap::new(),
            next: 0,
        }
    }

    /// Places orders, a few per transaction; every fifth transaction is rolled back.
    async fn place(&mut self, transactions: u32) {
        for n in 0..transactions {
            let mut tx = self.orders.begin().await.unwrap();
            let mut events = Vec::new();
            for _ in 0..5 {
                let number = self.next;
                self.next += 1;
                let key = format!("order-{}", number % KEYS);
                let event = Event::new(uuid_v7(&SystemClock), &self.shop.topic, "order.placed")
                    .with_key(key.clone())
                    .with_data("text/plain", number.to_string());
                tx::enqueue(&mut tx, &event).await.unwrap();
                sqlx::query("INSERT INTO placed VALUES ($1)")
                    .bind(event.id.to_string())
                    .execute(&mut *tx)
                    .await
                    .unwrap();
                events.push((event.id.to_string(), (key, number)));
            }
            if n % 5 == 4 {
                tx.rollback().await.unwrap();
            } else {
                self.orders.commit(tx).await.unwrap();
                self.placed.extend(events);
            }
        }
    }

    async fn shipped(&self) -> usize {
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM parcel")
            .fetch_one(self.shipping.pool())
            .await
            .unwrap();
        usize::try_from(count).unwrap()
    }

    fn start(&self, role: &str) -> Running {
        self.shop.child(role).start()
    }

    /// The difference between what was placed and what was shipped is empty, nothing stands twice, keys are in order.
    async fn audit(&self) {
        let placed: Vec<String> = sqlx::query_scalar("SELECT event FROM placed")
            .fetch_all(self.orders.pool())
            .await
            .unwrap();
        let parcels: Vec<(String, String, i32)> =
            sqlx::query_as("SELECT event, key, body FROM parcel ORDER BY n")
                .fetch_all(self.shipping.pool())
                .await
                .unwrap();
        let placed: BTreeSet<&str> = placed.iter().map(String::as_str).collect();
        let shipped: BTreeSet<&str> = parcels.iter().map(|(event, ..)| event.as_str()).collect();
        let lost: Vec<_> = placed.difference(&shipped).collect();
        let made_up: Vec<_> = shipped.difference(&placed).collect();
        assert!(
            lost.is_empty() && made_up.is_empty(),
            "lost {lost:?}, made up {made_up:?}"
        );
        assert_eq!(parcels.len(), shipped.len(), "shipped twice");
        assert_eq!(self.placed.len(), placed.len(), "the test itself lost count");
        let mut last: BTreeMap<&str, i32> = BTreeMap::new();
        for (_, key, number) in &parcels {
            let before = last.insert(key, *number);
            assert!(before < Some(*number), "{key}: {number} after {before:?}");
        }
    }

    /// Records in the topic, and how many events they are.
    fn in_topic(&self) -> (usize, usize) {
        let records = read_all(&self.shop.bootstrap, &self.shop.topic);
        let events: BTreeSet<_> = records.iter().map(|record| record.header("ce_id")).collect();
        (records.len(), events.len())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled_while_relay_and_consumer_are_killed() {
    if let Some(argument) = crash::role("relay") {
        return relay(Shop::parse(&argument)).await;
    }
    if let Some(argument) = crash::role("consumer") {
        return consumer(Shop::parse(&argument)).await;
    }
    let mut w = World::new().await;
    w.place(50).await;

    // Sent, and not yet noted: the next relay sends the same again. So there are duplicates.
    let end = w.shop.child("relay").at("relay.sent").run();
    assert!(end.crashed(), "{end:?}");
    let end = w.shop.child("relay").at("relay.before_cursor").run();
    assert!(end.crashed(), "{end:?}");
    let (records, events) = w.in_topic();
    assert!(
        records > events,
        "no duplicates: {records} records of {events} events"
    );

    // The consumer dies with a batch marked, before and after its commit.
    for point in ["inbox.marked", "inbox.before_commit", "inbox.committed"] {
        let end = w.shop.child("consumer").at(point).run();
        assert!(end.crashed(), "{point}: {end:?}");
    }

    // And wherever kill -9 meets the two.
    for round in 0..3 {
        let (mut relay, mut consumer) = (w.start("relay"), w.start("consumer"));
        let before = w.shipped().await;
        w.place(20).await;
        until("some parcels", async || {
            w.shipped().await > before + 10 * (round + 1)
        })
        .await;
        if round % 2 == 0 {
            relay.process.kill();
            consumer.process.kill();
        } else {
            consumer.process.kill();
            relay.process.kill();
        }
    }
    let (_relay, _consumer) = (w.start("relay"), w.start("consumer"));
    until("all is shipped", async || w.shipped().await >= w.placed.len()).await;
    w.audit().await;
}
