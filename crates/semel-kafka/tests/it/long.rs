//! Runs of minutes, left out of the usual ones: `cargo test -p semel-kafka --test it -- --ignored long --nocapture`.
//! `SEMEL_LONG_SECONDS` says how long each goes on, `SEMEL_LONG_SEED` repeats what was done to the relays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_core::host::uuid_v7;
use semel_core::relay::Poison;
use semel_core::{Event, OutboxStore as _, Sink, SystemClock};
use semel_kafka::{KafkaLog, KafkaLogConfig, KafkaSink, KafkaSinkConfig};
use semel_outbox::{Relay, RelayConfig};
use semel_postgres::Postgres;
use semel_testkit::crash::{self, Run, Running};
use semel_testkit::servers::{KafkaServer, kafka, postgres};
use sqlx::{Postgres as Driver, Transaction};
use tokio_util::sync::CancellationToken;

use crate::log::settings;
use crate::support::{LIMIT, Record, read_all};

const SHARDS: u16 = 2;
const KEYS: usize = 50;
/// Events written in a second, about.
const RATE: u32 = 200;
/// A transaction in so many stays open while those after it are committed.
const LATE_ONE_IN: u64 = 20;

fn seconds(otherwise: u64) -> Duration {
    let said = std::env::var("SEMEL_LONG_SECONDS").ok();
    Duration::from_secs(said.and_then(|text| text.parse().ok()).unwrap_or(otherwise))
}

/// Numbers that a seed repeats (xorshift64*, Vigna 2016).
struct Random(u64);

impl Random {
    fn new() -> Self {
        let said = std::env::var("SEMEL_LONG_SEED").ok();
        let seed = said.and_then(|text| text.parse().ok()).unwrap_or_else(|| {
            let id = uuid_v7(&SystemClock).as_u128();
            (id as u64) | 1
        });
        println!("SEMEL_LONG_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % end
    }
}

async fn store(url: &str) -> Postgres {
    let db = Postgres::connect(semel_postgres::Config::new(url)).await.unwrap();
    db.migrate().await.unwrap();
    db
}

fn sink(transactions: bool, bootstrap: &str, name: &str) -> Arc<dyn Sink> {
    if transactions {
        let config = KafkaLogConfig {
            rows_max: 50,
            ..KafkaLogConfig::new(bootstrap, name)
        };
        Arc::new(KafkaLog::new(config).unwrap())
    } else {
        Arc::new(KafkaSink::new(KafkaSinkConfig::new(bootstrap)).unwrap())
    }
}

fn config() -> RelayConfig {
    RelayConfig {
        shards: SHARDS,
        ..settings()
    }
}

/// What is written: event after event, each in a transaction of its own, in the order of their commits by key.
struct Written {
    db: Postgres,
    topic: String,
    ids: Vec<String>,
    by_key: BTreeMap<Vec<u8>, Vec<String>>,
}

impl Written {
    fn new(db: Postgres, topic: &str) -> Self {
        Self {
            db,
            topic: topic.to_owned(),
            ids: Vec::new(),
            by_key: BTreeMap::new(),
        }
    }

    async fn begin(&self, key: &str) -> (Transaction<'static, Driver>, Event) {
        let mut tx = self.db.begin().await.unwrap();
        let event = Event::new(uuid_v7(&SystemClock), &self.topic, "e")
            .with_key(key.to_owned())
            .with_data("text/plain", "x");
        semel_postgres::tx::enqueue(&mut tx, &event).await.unwrap();
        (tx, event)
    }

    async fn commit(&mut self, tx: Transaction<'static, Driver>, event: &Event) {
        self.db.commit(tx).await.unwrap();
        let (id, key) = (event.id.to_string(), event.key.clone().unwrap().to_vec());
        self.ids.push(id.clone());
        self.by_key.entry(key).or_default().push(id);
    }

    async fn write(&mut self) {
        let key = format!("k{}", self.ids.len() % KEYS);
        let (tx, event) = self.begin(&key).await;
        self.commit(tx, &event).await;
    }

    async fn until_sent(&self) {
        let deadline = Instant::now() + LIMIT * 3;
        loop {
            let backlog = self.db.backlog().await.unwrap();
            if backlog.shards.iter().all(|shard| shard.rows == 0) {
                return;
            }
            assert!(Instant::now() < deadline, "{backlog:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Everything is there, each key in order once repeats are dropped; returns how many repeats there are.
    fn audit(&self, records: &[Record]) -> usize {
        let mut seen = BTreeSet::new();
        let mut came: BTreeMap<Vec<u8>, Vec<String>> = BTreeMap::new();
        for record in records {
            let id = std::str::from_utf8(record.header("ce_id")).unwrap().to_owned();
            if seen.insert(id.clone()) {
                came.entry(record.key.clone().unwrap()).or_default().push(id);
            }
        }
        let lost = self.ids.iter().filter(|id| !seen.contains(*id)).count();
        assert_eq!(lost, 0, "lost");
        assert!(came == self.by_key, "keys are not in order");
        records.len() - seen.len()
    }
}

/// The child: a relay until it is killed.
async fn relay(argument: &str) {
    let [mode, url, bootstrap, name] = argument.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{argument}")
    };
    let sink = sink(mode == "transactions", bootstrap, name);
    let relay = Relay::new(Arc::new(store(url).await), sink, config());
    relay.run(CancellationToken::new()).await.unwrap();
}

/// One of the two relays, and when it is to be woken.
struct Victim {
    running: Running,
    sleeps_until: Option<Instant>,
}

async fn minutes(test: &str, transactions: bool) -> usize {
    let (url, topic, name) = (
        postgres().fresh_database(),
        kafka().fresh_topic(3),
        kafka().fresh_name("long"),
    );
    let length = seconds(180);
    let mode = if transactions {
        "transactions"
    } else {
        "idempotent"
    };
    let argument = format!("{mode} {url} {} {name}", kafka().bootstrap());
    let spawn = || Victim {
        running: Run::test(test, "relay", &argument)
            .limit(length * 2 + LIMIT)
            .start(),
        sleeps_until: None,
    };
    let mut written = Written::new(store(&url).await, &topic);
    let mut random = Random::new();
    let mut relays = [spawn(), spawn()];
    let (mut killed, mut stopped) = (0, 0);
    let mut late: Vec<(Instant, Transaction<'static, Driver>, Event)> = Vec::new();
    let begun = Instant::now();
    let mut next_blow = begun + Duration::from_secs(3);
    let mut number = 0_u32;
    while begun.elapsed() < length {
        number += 1;
        tokio::time::sleep_until((begun + Duration::from_secs(1) * number / RATE).into()).await;
        if random.below(LATE_ONE_IN) == 0 && late.len() < 4 {
            // Keys of their own: among transactions that overlap only the business's locks say what comes first.
            let (tx, event) = written.begin(&format!("late{number}")).await;
            late.push((
                Instant::now() + Duration::from_millis(random.below(3_000)),
                tx,
                event,
            ));
        } else {
            written.write().await;
        }
        let now = Instant::now();
        if let Some(at) = late.iter().position(|(until, ..)| *until <= now) {
            let (_, tx, event) = late.swap_remove(at);
            written.commit(tx, &event).await;
        }
        for relay in &mut relays {
            if relay.sleeps_until.is_some_and(|until| until <= now) {
                relay.running.process.resume();
                relay.sleeps_until = None;
            }
        }
        if now >= next_blow {
            next_blow = now + Duration::from_millis(700 + random.below(2_500));
            let victim = &mut relays[random.below(2) as usize];
            if victim.sleeps_until.is_none() && random.below(3) == 0 {
                // From far within the lease to far beyond it.
                victim.running.process.pause();
                victim.sleeps_until = Some(now + Duration::from_millis(200 + random.below(5_000)));
                stopped += 1;
            } else {
                victim.running.process.kill();
                *victim = spawn();
                killed += 1;
            }
        }
    }
    for (_, tx, event) in late {
        written.commit(tx, &event).await;
    }
    for relay in &relays {
        relay.running.process.resume();
    }
    written.until_sent().await;
    for relay in &mut relays {
        relay.running.process.kill();
    }
    let repeats = written.audit(&read_all(&kafka().bootstrap(), &topic));
    println!(
        "{mode}: {} events in {} s, {killed} kill -9, {stopped} SIGSTOP: 0 lost, 0 reordered, {repeats} repeats",
        written.ids.len(),
        length.as_secs(),
    );
    assert!(killed + stopped > 0, "nothing was done to the relays");
    repeats
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes"]
async fn two_relays_in_transactions_double_nothing_under_minutes_of_kill_9_and_sigstop() {
    if let Some(argument) = crash::role("relay") {
        return relay(&argument).await;
    }
    let test = "long::two_relays_in_transactions_double_nothing_under_minutes_of_kill_9_and_sigstop";
    assert_eq!(minutes(test, true).await, 0, "doubled");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes"]
async fn two_relays_lose_and_reorder_nothing_under_minutes_of_kill_9_and_sigstop() {
    if let Some(argument) = crash::role("relay") {
        return relay(&argument).await;
    }
    let test = "long::two_relays_lose_and_reorder_nothing_under_minutes_of_kill_9_and_sigstop";
    minutes(test, false).await;
}

/// Both modes, with the strictest policy there is: the first refusal of an event would set it aside.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes"]
async fn a_broker_that_is_away_for_a_minute_costs_no_attempt() {
    let mut server = KafkaServer::start();
    let mut outboxes = Vec::new();
    for transactions in [false, true] {
        let topic = server.fresh_topic(3);
        let mut config = config();
        config.policy.poison = Poison::Skip;
        config.policy.retry.attempts_max = 1;
        let mut written = Written::new(store(&postgres().fresh_database()).await, &topic);
        let sink = sink(transactions, &server.bootstrap(), &server.fresh_name("away"));
        let relay = Relay::new(Arc::new(written.db.clone()), sink, config);
        let (handle, stop) = (relay.handle(), CancellationToken::new());
        let token = stop.clone();
        let running = tokio::spawn(async move { relay.run(token).await });
        for _ in 0..100 {
            written.write().await;
        }
        written.until_sent().await;
        outboxes.push((written, topic, handle, stop, running));
    }
    server.kill();
    let away = Instant::now();
    let length = seconds(60);
    while away.elapsed() < length {
        for (written, ..) in &mut outboxes {
            written.write().await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    server.restart();
    for (written, topic, handle, stop, running) in outboxes {
        written.until_sent().await;
        stop.cancel();
        running.await.unwrap().unwrap();
        let repeats = written.audit(&read_all(&server.bootstrap(), &topic));
        println!("{} events, {repeats} repeats", written.ids.len());
        let stats = handle.stats();
        assert_eq!((stats.refused, stats.excepted), (0, 0), "{stats:?}");
        let aside = written.db.exceptions("default", 0, 10).await.unwrap();
        assert!(aside.is_empty(), "{aside:?}");
    }
}
