//! PostgreSQL to Kafka beside the same by hand: how fast a backlog drains, with a transaction held open elsewhere too, and
//! how long an event takes from its commit to a consumer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{ClientConfig, Message as _};
use semel_core::host::uuid_v7;
use semel_core::limits::BATCH_ITEMS_MAX;
use semel_core::relay::RelayPolicy;
use semel_core::{Event, Sink, SystemClock};
use semel_kafka::{KafkaLog, KafkaLogConfig, KafkaSink, KafkaSinkConfig};
use semel_outbox::{Relay, RelayConfig};
use semel_postgres::Postgres;
use semel_testkit::servers::{kafka, postgres, processor_time};
use sqlx::{Connection as _, PgConnection};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::by_hand::{Limit, skip_locked};
use super::by_hand_tx::Transactions;
use super::{Everything, relay};
use crate::Plan;
use crate::harness::{Sample, Table, timed};

pub(super) const PARTITIONS: u16 = 4;
const KEYS: u32 = 10_000;
/// Transactions a second while the latency is measured.
const RATE: u32 = 500;

pub(super) async fn postgresql_to_kafka(plan: Plan, only: Option<&str>) {
    drain(plan, false, only).await;
    drain(plan, true, only).await;
    latency(plan, only).await;
}

/// Who takes processor time: this process, which is the relay or what was written by hand, the database and the broker.
const PROCESSORS: &[&str] = &["this process", "PostgreSQL", "Kafka"];

/// The processor time of each of [`PROCESSORS`] so far.
fn processors() -> [Duration; 3] {
    [
        processor_time(std::process::id()),
        postgres().processor_time(),
        kafka().processor_time(),
    ]
}

/// 500 bytes each.
fn events(from: u32, count: u32, topic: &str) -> Vec<Event> {
    let event = |number: u32| {
        let data = format!(
            r#"{{"order":"{number:012}","customer":"c-{:05}","note":"{:-<430}"}}"#,
            number % KEYS,
            ""
        );
        Event::new(uuid_v7(&SystemClock), topic, "order.placed")
            .with_key(format!("c-{:05}", number % KEYS))
            .with_data("application/json", data)
    };
    (from..from + count).map(event).collect()
}

/// A database with a backlog, and perhaps a transaction that stays open for as long as this lives.
pub(super) struct Backlog {
    pub(super) url: String,
    pub(super) topic: String,
    pub(super) store: Postgres,
    _held: Option<PgConnection>,
}

impl Backlog {
    pub(super) async fn new(rows: u32, held: bool) -> Self {
        Self::prepared(rows, held, &[]).await
    }

    /// With something done before the first row is written.
    pub(super) async fn prepared(rows: u32, held: bool, before: &[&'static str]) -> Self {
        let topic = kafka().fresh_topic(PARTITIONS);
        let url = postgres().fresh_database();
        let store = Postgres::connect(semel_postgres::Config::new(&url))
            .await
            .unwrap();
        store.migrate().await.unwrap();
        for text in before {
            sqlx::raw_sql(*text).execute(store.pool()).await.unwrap();
        }
        let mut held = if held {
            Some(PgConnection::connect(&url).await.unwrap())
        } else {
            None
        };
        if let Some(held) = &mut held {
            // Two texts: one text is one transaction, whose level cannot change after its first query.
            for text in [
                "CREATE TABLE held (v int)",
                "BEGIN ISOLATION LEVEL REPEATABLE READ; INSERT INTO held VALUES (1)",
            ] {
                sqlx::raw_sql(text).execute(&mut *held).await.unwrap();
            }
        }
        for events in events(0, rows, &topic).chunks(BATCH_ITEMS_MAX.min(100)) {
            let mut tx = store.begin().await.unwrap();
            semel_postgres::tx::enqueue_many(&mut tx, events).await.unwrap();
            store.commit(tx).await.unwrap();
        }
        sqlx::query("VACUUM ANALYZE semel.outbox")
            .execute(store.pool())
            .await
            .unwrap();
        Self {
            url,
            topic,
            store,
            _held: held,
        }
    }
}

async fn drain(plan: Plan, held: bool, only: Option<&str>) {
    let title = if held {
        "The same while another transaction is held open"
    } else {
        "A backlog from PostgreSQL to Kafka, events of 500 bytes, 10,000 keys, 4 partitions"
    };
    let rows = plan.rows;
    let shards = |shards: u16| async move {
        let backlog = Backlog::new(rows, held).await;
        relay_sharded(backlog, rows, shards).await
    };
    Table::new(title, "rows")
        .processors(PROCESSORS)
        .contender("limit: by hand, durability gate", || {
            by_hand(rows, held, true, false)
        })
        .contender("by hand, no gate", || by_hand(rows, held, false, false))
        .contender("by hand, durability gate, all attributes of an event", || {
            by_hand(rows, held, true, true)
        })
        .contender("relay into a sink that takes everything at once", || async move {
            let backlog = Backlog::new(rows, held).await;
            let store = Arc::new(backlog.store.clone());
            timed(processors, relay(store, Everything, rows, RelayConfig::default())).await
        })
        .contender("relay, one shard", || shards(1))
        .contender("relay, 4 shards", || shards(4))
        .contender("relay, in transactions of 5,000", || {
            relay_in_transactions(rows, held, 5_000)
        })
        .contender("relay, in transactions of 1,000", || {
            relay_in_transactions(rows, held, 1_000)
        })
        .contender("by hand, in transactions of 5,000, one producer", || {
            by_hand_in_transactions(rows, held, 1)
        })
        .contender("by hand, in transactions of 5,000, two producers", || {
            by_hand_in_transactions(rows, held, 2)
        })
        .contender("by hand, SKIP LOCKED 1,000", || poller(rows.min(50_000), held))
        .only(only)
        .measure(plan.rounds)
        .await;
}

async fn by_hand(rows: u32, held: bool, gate: bool, whole: bool) -> Sample {
    let backlog = Backlog::new(rows, held).await;
    let limit = Limit {
        linger_ms: 2,
        gate,
        whole,
    };
    let (url, topic) = (backlog.url.clone(), backlog.topic.clone());
    timed(
        processors,
        until_done(rows, async move |done| {
            limit.run(&url, &topic, done).await;
        }),
    )
    .await
}

async fn by_hand_in_transactions(rows: u32, held: bool, producers: usize) -> Sample {
    let backlog = Backlog::new(rows, held).await;
    let transactions = Transactions {
        rows_max: 5_000,
        producers,
        linger_ms: 2,
    };
    let (url, topic) = (backlog.url.clone(), backlog.topic.clone());
    timed(
        processors,
        until_done(rows, async move |done| {
            transactions.run(&url, &topic, done).await;
        }),
    )
    .await
}

/// What was written by hand has no end of its own.
async fn until_done(rows: u32, run: impl AsyncFnOnce(watch::Sender<u64>)) -> Sample {
    let (done, mut seen) = watch::channel(0);
    let begun = Instant::now();
    tokio::select! {
        () = run(done) => {}
        seen = seen.wait_for(|done| *done >= u64::from(rows)) => { seen.unwrap(); }
    }
    Sample {
        done: u64::from(rows),
        elapsed: begun.elapsed(),
        ..Sample::default()
    }
}

async fn relay_sharded(backlog: Backlog, rows: u32, shards: u16) -> Sample {
    let sink = KafkaSink::new(KafkaSinkConfig::new(kafka().bootstrap())).unwrap();
    let config = RelayConfig {
        shards,
        ..RelayConfig::default()
    };
    timed(
        processors,
        relay(Arc::new(backlog.store.clone()), sink, rows, config),
    )
    .await
}

fn log(rows_max: usize) -> KafkaLog {
    let name = kafka().fresh_name("bench");
    KafkaLog::new(KafkaLogConfig {
        rows_max,
        ..KafkaLogConfig::new(kafka().bootstrap(), name)
    })
    .unwrap()
}

async fn relay_in_transactions(rows: u32, held: bool, rows_max: usize) -> Sample {
    let backlog = Backlog::new(rows, held).await;
    // As the daemon does it.
    let mut config = RelayConfig::default();
    config.policy.window_rows = (rows_max * 4).max(config.policy.window_rows);
    config.policy.page_rows = 1_000;
    let store = Arc::new(backlog.store.clone());
    timed(processors, relay(store, log(rows_max), rows, config)).await
}

async fn poller(rows: u32, held: bool) -> Sample {
    let backlog = Backlog::new(rows, held).await;
    let pool = backlog.store.pool();
    sqlx::raw_sql(
        "CREATE TABLE hand_status (id bigint PRIMARY KEY, key bytea, data bytea, event_id uuid, \
           status text NOT NULL DEFAULT 'new'); \
         CREATE INDEX ON hand_status (id) WHERE status = 'new'; \
         INSERT INTO hand_status SELECT id, key, data, event_id FROM semel.outbox; \
         ANALYZE hand_status",
    )
    .execute(pool)
    .await
    .unwrap();
    let begun = Instant::now();
    timed(processors, async {
        let done = skip_locked(pool, &backlog.topic, 1_000).await;
        assert_eq!(done, u64::from(rows));
        Sample {
            done,
            elapsed: begun.elapsed(),
            ..Sample::default()
        }
    })
    .await
}

async fn latency(plan: Plan, only: Option<&str>) {
    let low = || {
        let policy = RelayPolicy {
            idle_max_ms: 1,
            ..RelayPolicy::default()
        };
        (policy, Duration::ZERO)
    };
    let run = plan.run;
    Table::new(
        format!("From commit to consumer, {RATE} transactions a second"),
        "events",
    )
    .contender("limit: produced directly after the commit", || {
        steady(run, |_, _| Box::pin(std::future::pending()), Some(0))
    })
    // With the linger of the drivers that the goal was measured with.
    .contender("produced directly, linger 2 ms", || {
        steady(run, |_, _| Box::pin(std::future::pending()), Some(2))
    })
    .contender("by hand, 1 ms tick, no linger", || {
        let limit = Limit {
            linger_ms: 0,
            gate: true,
            whole: false,
        };
        steady(
            run,
            move |backlog, _| {
                let (url, topic) = (backlog.url.clone(), backlog.topic.clone());
                Box::pin(async move { limit.run(&url, &topic, watch::channel(0).0).await })
            },
            None,
        )
    })
    .contender("relay, as it comes", || {
        steady(
            run,
            |backlog, stop| relaying(backlog, RelayPolicy::default(), None, stop),
            None,
        )
    })
    .contender("relay, low latency", || {
        let (policy, linger) = low();
        steady(
            run,
            move |backlog, stop| relaying(backlog, policy.clone(), Some(linger), stop),
            None,
        )
    })
    .contender("by hand, in transactions, two producers", || {
        let transactions = Transactions {
            rows_max: 1_000,
            producers: 2,
            linger_ms: 0,
        };
        steady(
            run,
            move |backlog, _| {
                let (url, topic) = (backlog.url.clone(), backlog.topic.clone());
                Box::pin(async move { transactions.run(&url, &topic, watch::channel(0).0).await })
            },
            None,
        )
    })
    .contender("relay, in transactions", || {
        steady(
            run,
            |backlog, stop| running(backlog, log(1_000), RelayPolicy::default(), stop),
            None,
        )
    })
    .only(only)
    .measure(plan.rounds)
    .await;
}

pub(super) type Running = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

pub(super) fn relaying(
    backlog: &Backlog,
    policy: RelayPolicy,
    linger: Option<Duration>,
    stop: CancellationToken,
) -> Running {
    let mut sink = KafkaSinkConfig::new(kafka().bootstrap());
    if let Some(linger) = linger {
        sink.linger = linger;
    }
    running(backlog, KafkaSink::new(sink).unwrap(), policy, stop)
}

fn running(backlog: &Backlog, sink: impl Sink, policy: RelayPolicy, stop: CancellationToken) -> Running {
    let config = RelayConfig {
        policy,
        ..RelayConfig::default()
    };
    let relay = Relay::new(Arc::new(backlog.store.clone()), Arc::new(sink), config);
    Box::pin(async move { relay.run(stop).await.unwrap() })
}

/// Business transactions at a steady rate, and a consumer that notes when it sees each event. With `direct` they produce
/// themselves, with so many milliseconds of linger.
pub(super) async fn steady(
    run: Duration,
    relay: impl FnOnce(&Backlog, CancellationToken) -> Running,
    direct: Option<u32>,
) -> Sample {
    let count = (run.as_secs_f64() * f64::from(RATE)) as u32;
    let backlog = Backlog::new(0, false).await;
    let stop = CancellationToken::new();
    let mut running = tokio::spawn(relay(&backlog, stop.clone()));
    sqlx::raw_sql("CREATE TABLE account (id int PRIMARY KEY, cents int); INSERT INTO account SELECT i, 0 FROM generate_series(0, 9999) i")
        .execute(backlog.store.pool())
        .await
        .unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let consumer = {
        let (topic, over) = (backlog.topic.clone(), Arc::clone(&over));
        tokio::task::spawn_blocking(move || consume(&topic, count, &over))
    };
    // A consumer that has just come takes a while to get its first record.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", kafka().bootstrap())
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", direct.unwrap_or_default().to_string())
        .create()
        .unwrap();
    let producer = Arc::new(producer);
    let mut writers = tokio::task::JoinSet::new();
    let events = events(0, count, &backlog.topic);
    let begun = Instant::now();
    for (number, event) in events.into_iter().enumerate() {
        let at = begun + Duration::from_secs(1) * number as u32 / RATE;
        tokio::time::sleep_until(at.into()).await;
        let (store, producer) = (backlog.store.clone(), Arc::clone(&producer));
        writers.spawn(async move {
            let mut tx = store.begin().await.unwrap();
            sqlx::query("UPDATE account SET cents = cents + 1 WHERE id = $1")
                .bind(number as i32 % KEYS as i32)
                .execute(&mut *tx)
                .await
                .unwrap();
            if direct.is_some() {
                store.commit(tx).await.unwrap();
                let committed = Instant::now();
                let key = event.key.as_deref().unwrap_or_default();
                let data = event.data.as_deref().unwrap_or_default();
                producer
                    .send(BaseRecord::to(&event.topic).key(key).payload(data))
                    .map_err(|(error, _)| error)
                    .unwrap();
                producer.poll(Duration::ZERO);
                return (number, committed);
            }
            semel_postgres::tx::enqueue(&mut tx, &event).await.unwrap();
            store.commit(tx).await.unwrap();
            (number, Instant::now())
        });
    }
    let mut committed = vec![begun; count as usize];
    while let Some(done) = writers.join_next().await {
        let (number, at) = done.unwrap();
        committed[number] = at;
    }
    let seen = consumer.await.unwrap();
    over.store(true, Ordering::Relaxed);
    let elapsed = begun.elapsed();
    stop.cancel();
    if direct.is_some() {
        producer.flush(Duration::from_secs(5)).unwrap();
        running.abort();
    } else if tokio::time::timeout(Duration::from_millis(500), &mut running)
        .await
        .is_err()
    {
        // What was written by hand has no end of its own.
        running.abort();
    }
    let latencies = seen
        .iter()
        .enumerate()
        .map(|(number, at)| at.saturating_duration_since(committed[number]).as_micros() as u32)
        .collect();
    Sample {
        done: u64::from(count),
        elapsed,
        latencies,
        ..Sample::default()
    }
}

/// When each event was seen.
fn consume(topic: &str, count: u32, over: &AtomicBool) -> Vec<Instant> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", kafka().bootstrap())
        .set("group.id", topic)
        .set("auto.offset.reset", "earliest")
        .set("fetch.wait.max.ms", "5")
        .create()
        .unwrap();
    let mut list = rdkafka::TopicPartitionList::new();
    for partition in 0..i32::from(PARTITIONS) {
        list.add_partition_offset(topic, partition, rdkafka::Offset::Beginning)
            .unwrap();
    }
    consumer.assign(&list).unwrap();
    let mut seen = vec![None; count as usize];
    let mut left = count;
    while left > 0 && !over.load(Ordering::Relaxed) {
        let Some(record) = consumer.poll(Duration::from_millis(100)) else {
            continue;
        };
        let record = record.unwrap();
        let now = Instant::now();
        let text = std::str::from_utf8(&record.payload().unwrap()[10..22]).unwrap();
        let number: usize = text.parse().unwrap();
        if seen[number].is_none() {
            seen[number] = Some(now);
            left -= 1;
        }
    }
    seen.into_iter().map(Option::unwrap).collect()
}
