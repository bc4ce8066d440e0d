//! Outbox → relay → Kafka in transactions that hold the cursor: for a reader of committed records every event is there
//! once and each key in order, whatever dies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::producer::Producer as _;
use semel_core::relay::{LogPlace, PauseKind, Poison, ShardId};
use semel_core::store::{ExceptionKind, LogSink as _, SinkErrorClass, TransactionEnd};
use semel_core::{Clock as _, Event, Nonce, OutboxStore, Sink as _, StoreError, SystemClock, host::uuid_v7};
use semel_kafka::{KafkaLog, KafkaLogConfig};
use semel_outbox::{Relay, RelayConfig, RelayHandle};
use semel_postgres::Postgres;
use semel_sqlite::Sqlite;
use semel_testkit::crash::{self, Run, Running};
use semel_testkit::servers::{kafka, postgres};
use tokio_util::sync::CancellationToken;

use crate::support::{LIMIT, flush, producer, read_all, send, until};

const KEYS: u32 = 7;

/// Where an outbox is.
#[derive(Clone)]
enum Store {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

impl Store {
    async fn open(url: &str) -> Self {
        if url.starts_with("postgres://") {
            let db = Postgres::connect(semel_postgres::Config::new(url)).await.unwrap();
            db.migrate().await.unwrap();
            Self::Postgres(db)
        } else {
            let db = Sqlite::open(semel_sqlite::Config::new(url)).await.unwrap();
            db.migrate().await.unwrap();
            Self::Sqlite(db)
        }
    }

    fn outbox(&self) -> Arc<dyn OutboxStore> {
        match self {
            Self::Sqlite(db) => Arc::new(db.clone()),
            Self::Postgres(db) => Arc::new(db.clone()),
        }
    }

    async fn write(&self, events: &[Event]) {
        match self {
            Self::Sqlite(db) => {
                let mut tx = db.begin().await.unwrap();
                semel_sqlite::tx::enqueue_many(&mut tx, events).await.unwrap();
                db.commit(tx).await.unwrap();
            }
            Self::Postgres(db) => {
                let mut tx = db.begin().await.unwrap();
                semel_postgres::tx::enqueue_many(&mut tx, events).await.unwrap();
                db.commit(tx).await.unwrap();
            }
        }
    }

    async fn nothing_left(&self) -> bool {
        let backlog = self.outbox().backlog().await.unwrap();
        backlog.shards.first().is_some_and(|shard| shard.rows == 0)
    }
}

/// An outbox, and the topic that it is published to.
struct World {
    url: String,
    store: Store,
    name: String,
    topic: String,
    written: Vec<Event>,
    _dir: tempfile::TempDir,
}

impl World {
    async fn new(on_postgres: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = if on_postgres {
            postgres().fresh_database()
        } else {
            dir.path().join("test.db").to_str().unwrap().to_owned()
        };
        Self {
            store: Store::open(&url).await,
            url,
            name: kafka().fresh_name("log"),
            topic: kafka().fresh_topic(3),
            written: Vec::new(),
            _dir: dir,
        }
    }

    async fn write(&mut self, count: u32) {
        let events: Vec<_> = (0..count).map(|_| self.event("x")).collect();
        self.store.write(&events).await;
    }

    fn event(&mut self, data: &str) -> Event {
        let key = format!("k{}", self.written.len() as u32 % KEYS);
        let event = Event::new(uuid_v7(&SystemClock), &self.topic, "e")
            .with_key(key)
            .with_data("text/plain", data.to_owned());
        self.written.push(event.clone());
        event
    }

    fn log(&self) -> KafkaLog {
        log(&kafka().bootstrap(), &self.name)
    }

    fn start(&self) -> Started {
        start(&self.store, self.log(), settings())
    }

    /// The child `relay`.
    fn child(&self, test: &str) -> Run {
        let argument = format!("{} {} {}", self.url, kafka().bootstrap(), self.name);
        Run::test(test, "relay", argument).limit(LIMIT)
    }

    /// Everything written is in the topic once, in the order of each key, but for these.
    fn audit(&self, but: &BTreeSet<String>) {
        let wanted: Vec<String> = self.written.iter().map(|it| it.id.to_string()).collect();
        let order: BTreeMap<&str, usize> = wanted
            .iter()
            .enumerate()
            .map(|(n, id)| (id.as_str(), n))
            .collect();
        let records = read_all(&kafka().bootstrap(), &self.topic);
        let mut seen = BTreeSet::new();
        let mut last: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        for record in &records {
            let id = std::str::from_utf8(record.header("ce_id")).unwrap().to_owned();
            let number = order[id.as_str()];
            assert!(seen.insert(id.clone()), "twice: {id}");
            let before = last.insert(record.key.clone().unwrap(), number);
            assert!(before < Some(number), "{number} after {before:?}");
        }
        let wanted: BTreeSet<String> = wanted.into_iter().filter(|id| !but.contains(id)).collect();
        let lost: Vec<_> = wanted.difference(&seen).collect();
        assert!(lost.is_empty(), "lost: {lost:?}");
        assert_eq!(seen.len(), wanted.len(), "sent though set aside");
    }
}

fn log(bootstrap: &str, name: &str) -> KafkaLog {
    let config = KafkaLogConfig {
        rows_max: 10,
        ..KafkaLogConfig::new(bootstrap, name)
    };
    KafkaLog::new(config).unwrap()
}

fn shard() -> ShardId {
    shard_of(0)
}

fn shard_of(index: u16) -> ShardId {
    ShardId {
        stream: "default".to_owned(),
        index,
    }
}

pub(crate) fn settings() -> RelayConfig {
    let mut config = RelayConfig {
        lease: Duration::from_secs(2),
        ..RelayConfig::default()
    };
    config.policy.send_timeout_ms = 1_500;
    config.policy.page_rows = 25;
    config.policy.away.cap_ms = 300;
    config.policy.destination.initial_ms = 100;
    config.policy.destination.cap_ms = 300;
    config
}

struct Started {
    handle: RelayHandle,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), StoreError>>,
}

impl Started {
    async fn stop(self) -> Result<(), StoreError> {
        self.stop.cancel();
        self.task.await.unwrap()
    }
}

fn start(store: &Store, log: KafkaLog, config: RelayConfig) -> Started {
    let relay = Relay::new(store.outbox(), Arc::new(log), config);
    let (handle, stop) = (relay.handle(), CancellationToken::new());
    let token = stop.clone();
    let task = tokio::spawn(async move { relay.run(token).await });
    Started { handle, stop, task }
}

/// The child: a relay that runs until nothing is left, or until it dies.
async fn relay(argument: &str) {
    let [url, bootstrap, name] = argument.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{argument}")
    };
    let store = Store::open(url).await;
    let started = start(&store, log(bootstrap, name), settings());
    until("nothing is left", async || store.nothing_left().await).await;
    started.stop().await.unwrap();
}

async fn dies_at_every_point(test: &str, on_postgres: bool) {
    if let Some(argument) = crash::role("relay") {
        return relay(&argument).await;
    }
    let mut w = World::new(on_postgres).await;
    for point in [
        "log.before_resume",
        "log.fenced",
        "log.resumed",
        // The binding: said by the outbox, by the log, by the outbox again.
        "relay.cursor_saved",
        "log.sent",
        "log.committed",
        "relay.cursor_saved:2",
        "relay.batch_opened",
        "log.sent:2",
        "log.before_commit",
        "log.committed:2",
        "log.answered:3",
        "log.fenced",
        "relay.before_cursor",
        "relay.cursor_saved",
        "relay.batch_finished",
    ] {
        w.write(40).await;
        let end = w.child(test).at(point).run();
        assert!(end.crashed(), "{point}: {end:?}");
    }
    let end = w.child(test).run();
    assert!(end.succeeded(), "{end:?}");
    w.audit(&BTreeSet::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_on_sqlite_dies_at_every_point_and_kafka_has_every_event_once() {
    dies_at_every_point(
        "log::a_relay_on_sqlite_dies_at_every_point_and_kafka_has_every_event_once",
        false,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_on_postgres_dies_at_every_point_and_kafka_has_every_event_once() {
    dies_at_every_point(
        "log::a_relay_on_postgres_dies_at_every_point_and_kafka_has_every_event_once",
        true,
    )
    .await;
}

/// The zombie: stopped in the middle of its transactions until another has taken over, then woken; and kill -9 wherever
/// it meets one.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_sleeps_past_its_lease_and_one_that_is_killed_double_nothing() {
    const TEST: &str = "log::a_relay_that_sleeps_past_its_lease_and_one_that_is_killed_double_nothing";
    if let Some(argument) = crash::role("relay") {
        return relay(&argument).await;
    }
    let mut w = World::new(true).await;
    w.write(200).await;
    let in_topic = |w: &World| read_all(&kafka().bootstrap(), &w.topic).len();
    for round in 0..3 {
        w.write(400).await;
        let before = in_topic(&w);
        let mut first: Running = w.child(TEST).start();
        until("some are there", async || in_topic(&w) > before).await;
        if round == 1 {
            first.process.kill();
            continue;
        }
        first.process.pause();
        let second = w.start();
        until("another has taken over and sent all", async || {
            w.store.nothing_left().await
        })
        .await;
        w.write(100).await;
        first.process.resume();
        until("nothing is left", async || w.store.nothing_left().await).await;
        second.stop().await.unwrap();
        first.process.kill();
    }
    let last = w.start();
    until("nothing is left", async || w.store.nothing_left().await).await;
    last.stop().await.unwrap();
    w.audit(&BTreeSet::new());
}

/// A shard changes hands between two that live: the next owner reads back how far the log has got and goes on behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_is_given_to_a_relay_that_joined_goes_on_in_the_log() {
    let mut w = World::new(true).await;
    let config = RelayConfig {
        shards: 2,
        ..settings()
    };
    w.write(100).await;
    let first = start(&w.store, w.log(), config.clone());
    until("it owns both", async || first.handle.stats().shards.len() == 2).await;
    let second = start(&w.store, w.log(), config);
    until("each owns one while events flow", async || {
        w.write(10).await;
        [&first, &second].map(|it| it.handle.stats().shards.len()) == [1, 1]
    })
    .await;
    w.write(100).await;
    until("nothing is left", async || {
        let backlog = w.store.outbox().backlog().await.unwrap();
        backlog.shards.iter().all(|shard| shard.rows == 0)
    })
    .await;
    for started in [first, second] {
        started.stop().await.unwrap();
    }
    w.audit(&BTreeSet::new());
}

/// Rule O7: the refused event and those behind it are in the exceptions, everything else is in the topic, once.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_the_broker_refuses_is_set_aside_with_its_key() {
    let mut w = World::new(false).await;
    kafka().create_topic(
        &w.topic.clone().replace("t", "small-t"),
        1,
        &[("max.message.bytes", "2000")],
    );
    w.topic = w.topic.replace("t", "small-t");
    let mut events: Vec<Event> = (0..30).map(|_| w.event("x")).collect();
    let bad = w.event(&"y".repeat(4_000));
    events.push(bad.clone());
    events.extend((0..30).map(|_| w.event("z")));
    w.store.write(&events).await;
    let mut config = settings();
    config.policy.poison = Poison::ParkKey;
    config.policy.retry.attempts_max = 2;
    let started = start(&w.store, w.log(), config);
    until("nothing is left", async || w.store.nothing_left().await).await;
    started.stop().await.unwrap();
    let stored = w.store.outbox().exceptions("default", 0, 100).await.unwrap();
    let aside: BTreeSet<String> = stored
        .iter()
        .map(|it| it.exception.event_id.to_string())
        .collect();
    let of_key = events.iter().skip(30).filter(|it| it.key == bad.key).count();
    assert_eq!(aside.len(), of_key, "{stored:?}");
    assert!(
        stored
            .iter()
            .any(|it| it.exception.event_id == bad.id && it.exception.kind == ExceptionKind::Parked)
    );
    w.audit(&aside);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_topic_that_would_forget_is_refused_and_named() {
    let mut w = World::new(false).await;
    w.write(1).await;
    let topic = format!("semel-cursor-{}-default", w.name);
    kafka().create_topic(&topic, 1, &[("cleanup.policy", "compact,delete")]);
    let error = w.log().probe().await.unwrap_err();
    assert!(
        error.message.contains(&topic) && error.message.contains("cleanup.policy"),
        "{error}"
    );
    let started = w.start();
    destination_is_wrong(&started, "cleanup.policy").await;
    started.stop().await.unwrap();
    assert!(read_all(&kafka().bootstrap(), &w.topic).is_empty());
}

/// The shard's pause says that the destination is wrong, in these words.
async fn destination_is_wrong(started: &Started, words: &str) {
    until("the shard says why it stands", async || {
        let stats = started.handle.stats();
        let pause = stats.shards.first().and_then(|shard| shard.paused.clone());
        pause.is_some_and(|it| it.kind == PauseKind::Destination && it.reason.contains(words))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_topic_is_named_and_what_it_held_back_goes_out_once_it_is_made() {
    let mut w = World::new(false).await;
    w.topic = kafka().fresh_name("missing");
    w.write(3).await;
    let mut config = settings();
    config.lease = RelayConfig::default().lease;
    config.policy.send_timeout_ms = RelayConfig::default().policy.send_timeout_ms;
    let started = start(&w.store, w.log(), config);
    destination_is_wrong(&started, &w.topic).await;
    kafka().create_topic(&w.topic, 3, &[]);
    until("nothing is left", async || w.store.nothing_left().await).await;
    started.stop().await.unwrap();
    w.audit(&BTreeSet::new());
}

/// More copies than there are brokers: no cursor topic comes of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_topic_that_cannot_be_made_is_named() {
    let mut w = World::new(false).await;
    w.write(1).await;
    let log = KafkaLog::new(KafkaLogConfig {
        cursor_replication: 3,
        ..KafkaLogConfig::new(kafka().bootstrap(), &w.name)
    });
    let started = start(&w.store, log.unwrap(), settings());
    destination_is_wrong(&started, &format!("semel-cursor-{}-default", w.name)).await;
    started.stop().await.unwrap();
    assert!(read_all(&kafka().bootstrap(), &w.topic).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_not_let_in_says_why() {
    let mut config = KafkaLogConfig::new(kafka().bootstrap(), kafka().fresh_name("log"));
    for (name, value) in [
        ("security.protocol", "sasl_plaintext"),
        ("sasl.mechanisms", "PLAIN"),
    ] {
        config.properties.insert(name.to_owned(), value.to_owned());
    }
    for (name, value) in [("sasl.username", "u"), ("sasl.password", "p")] {
        config.properties.insert(name.to_owned(), value.to_owned());
    }
    let error = KafkaLog::new(config).unwrap().resume(&shard()).await.unwrap_err();
    assert_eq!(error.class, SinkErrorClass::Destination, "{error}");
    assert!(error.message.contains("SASL"), "{error}");
}

/// Two outboxes under one name: the second is told so, and nothing of it is sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_outbox_of_the_same_name_is_found_out() {
    let mut w = World::new(false).await;
    w.write(5).await;
    let started = w.start();
    until("nothing is left", async || w.store.nothing_left().await).await;
    started.stop().await.unwrap();

    let mut other = World::new(false).await;
    other.name.clone_from(&w.name);
    other.write(5).await;
    let error = other.start().task.await.unwrap().unwrap_err();
    assert_eq!(error.code(), "SEM0204", "{error}");
    assert!(read_all(&kafka().bootstrap(), &other.topic).is_empty());
    w.audit(&BTreeSet::new());
}

/// Rule O19: the cursor of a shard is read while a transaction of another one is open in the cursor topic.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_of_one_shard_hides_the_cursor_of_no_other() {
    let name = kafka().fresh_name("log");
    let log = log(&kafka().bootstrap(), &name);
    let place = |index: u16| LogPlace {
        log: Nonce([7; 16]),
        batch_no: 1,
        batch: Nonce([8; 16]),
        last_id: 40 + i64::from(index),
        finished: true,
    };
    for index in [0, 1] {
        let shard = shard_of(index);
        assert_eq!(log.resume(&shard).await.unwrap(), None);
        let end = log.commit(&shard, &[], place(index), LIMIT).await;
        assert!(matches!(end, TransactionEnd::Committed), "{end:?}");
        log.close(&shard);
    }
    let topic = format!("semel-cursor-{name}-default");
    let written = read_all(&kafka().bootstrap(), &topic);
    let of_1 = |record: &&crate::support::Record| record.text().contains("\"shard\":1");
    let partition = written.iter().find(of_1).unwrap().partition;
    let id = kafka().fresh_name("open");
    let open = producer(&kafka().bootstrap(), &[("transactional.id", id.as_str())]);
    open.init_transactions(LIMIT).unwrap();
    open.begin_transaction().unwrap();
    send(&open, &topic, partition, None, "not committed");
    flush(&open);
    assert_eq!(log.resume(&shard_of(0)).await.unwrap(), Some(place(0)));
    open.abort_transaction(LIMIT).unwrap();
    assert_eq!(log.resume(&shard_of(1)).await.unwrap(), Some(place(1)));
}

/// What a take-over reads is what the last transaction wrote, behind any number of others.
#[tokio::test(flavor = "multi_thread")]
async fn the_cursor_read_back_is_that_of_the_last_transaction() {
    let mut w = World::new(false).await;
    w.write(700).await;
    let started = w.start();
    until("nothing is left", async || w.store.nothing_left().await).await;
    started.stop().await.unwrap();
    let place = w.log().resume(&shard()).await.unwrap().unwrap();
    assert!(place.finished && place.last_id == 700, "{place:?}");
}

/// librdkafka looks for the coordinator half a second later when no connection is up at once. One slow answer of a busy
/// machine is none of that.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_over_does_not_wait_half_a_second_for_the_coordinator() {
    let (w, shard) = (World::new(false).await, shard());
    let log = w.log();
    // The first one may have to make topics.
    log.resume(&shard).await.unwrap();
    let mut took = Vec::new();
    for _ in 0..7 {
        let begun = SystemClock.monotonic();
        log.resume(&shard).await.unwrap();
        took.push(SystemClock.monotonic() - begun);
    }
    took.sort();
    assert!(took[3] < Duration::from_millis(450), "{took:?}");
}
