//! Rows per second out of an outbox.
//!
//! Each run begins with a full outbox in a new database and ends when the sink has acknowledged the last row.

#[cfg(feature = "brokers")]
mod brokers;
#[cfg(feature = "kafka")]
mod by_hand;
#[cfg(feature = "kafka")]
mod by_hand_tx;
#[cfg(feature = "kafka")]
mod drain;
mod enqueue;
mod mysql;
#[cfg(feature = "kafka")]
mod peers;
mod redis;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use axum::Router;
use axum::routing::post;
use bytes::Bytes;
use futures_util::stream::{StreamExt as _, iter};
use http::{Request, StatusCode};
use semel_client::{HttpClient, Limits};
use semel_core::host::uuid_v7;
use semel_core::limits::{BATCH_ITEMS_MAX, LimitExceeded};
use semel_core::relay::{LogPlace, ShardId};
use semel_core::store::{
    LogSink, OutboxRow, SinkError, SinkFuture, SinkOrder, TransactionEnd, TransactionFuture,
};
use semel_core::{Clock as _, Event, OutboxStore, Sink, SystemClock};
use semel_outbox::{Relay, RelayConfig};
use semel_sqlite::Sqlite;
use semel_webhook::{WebhookConfig, WebhookSink};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::Plan;
use crate::harness::{Sample, Table};

/// Ordering keys of the events.
const KEYS: u32 = 1_000;
/// Requests at once, by the relay and by the bare client.
const IN_FLIGHT: usize = 64;
/// Calls to a sink at once, as a relay makes them.
const CALLS: usize = 4;

pub(crate) async fn run(plan: Plan) {
    enqueue::enqueue(plan, None).await;
    webhook(plan, None).await;
    redis(plan, None).await;
    mysql::mariadb_to_nowhere(plan).await;
    #[cfg(feature = "kafka")]
    kafka(plan, None).await;
    #[cfg(not(feature = "kafka"))]
    println!("\nPostgreSQL to Kafka: build with --features kafka");
    #[cfg(feature = "brokers")]
    brokers::run(plan, None).await;
    #[cfg(not(feature = "brokers"))]
    println!("\nSQLite to RabbitMQ and NATS: build with --features brokers");
}

/// What writing an event costs (a part of `relay`).
pub(crate) async fn enqueue(plan: Plan, only: Option<&str>) {
    enqueue::enqueue(plan, only).await;
}

/// PostgreSQL to Kafka alone (a part of `relay`): the contenders whose name holds a text, or all of them.
#[cfg(feature = "kafka")]
pub(crate) async fn kafka(plan: Plan, only: Option<&str>) {
    drain::postgresql_to_kafka(plan, only).await;
}

/// The daemon beside relays of others.
#[cfg(feature = "kafka")]
pub(crate) async fn peers(plan: Plan) {
    peers::beside_peers(plan).await;
}

/// RabbitMQ and NATS alone (a part of `relay`).
#[cfg(feature = "brokers")]
pub(crate) async fn brokers(plan: Plan, only: Option<&str>) {
    brokers::run(plan, only).await;
}

/// From PostgreSQL to Redis alone (a part of `relay`).
pub(crate) async fn redis(plan: Plan, only: Option<&str>) {
    redis::postgresql_to_redis(plan, only).await;
}

/// From SQLite to a webhook alone (a part of `relay`).
pub(crate) async fn webhook(plan: Plan, only: Option<&str>) {
    sqlite_to_webhook(plan, only).await;
}

/// A sample of a run that began then.
fn sample(rows: u32, begun: Instant) -> Sample {
    Sample {
        done: u64::from(rows),
        elapsed: begun.elapsed(),
        ..Sample::default()
    }
}

/// Rows in memory, each with a place of its own.
fn rows_of(events: Vec<Event>) -> Vec<Arc<OutboxRow>> {
    let now = SystemClock.now();
    (1..)
        .zip(events)
        .map(|(row, event)| {
            Arc::new(OutboxRow {
                row,
                created_at: now,
                batch_no: 1,
                event,
            })
        })
        .collect()
}

/// Calls to a sink as a relay makes them: so many rows each, up to four at once, none of them with a key of another.
async fn sink_alone(sink: &dyn Sink, events: Vec<Event>, call: usize) -> Sample {
    let count = events.len() as u32;
    let rows = rows_of(events);
    sink.probe().await.unwrap();
    // Keys come in turn, so that neighbours have none in common.
    let at_once = (KEYS as usize / call).clamp(1, CALLS);
    let begun = Instant::now();
    iter(rows.chunks(call))
        .map(|rows| sink.publish_many(rows, Duration::from_secs(30)))
        .buffered(at_once)
        .for_each(|results| {
            assert!(results.iter().all(Result::is_ok));
            std::future::ready(())
        })
        .await;
    sample(count, begun)
}

/// Rows one by one to a sink that takes one of a key at a time, each a task of its own, as a relay makes them.
async fn rows_alone(sink: impl Sink, events: Vec<Event>) -> Sample {
    let count = events.len() as u32;
    let rows = rows_of(events);
    sink.probe().await.unwrap();
    let begun = Instant::now();
    // On a thread of the runtime, as a relay is.
    let all = tokio::spawn(async move {
        iter(rows)
            .map(|row| tokio::spawn(sink.publish_many(&[row], Duration::from_secs(30))))
            .buffer_unordered(IN_FLIGHT)
            .for_each(|results| {
                assert!(results.unwrap().iter().all(Result::is_ok));
                std::future::ready(())
            })
            .await;
    });
    all.await.unwrap();
    sample(count, begun)
}

/// That many events of some hundred bytes.
fn events(count: u32, topic: &str) -> Vec<Event> {
    let event = |number: u32| {
        let data = format!(
            r#"{{"order":"order-{number:09}","customer":"c-{}","total":"40.00","note":"{:-<120}"}}"#,
            number % KEYS,
            ""
        );
        Event::new(uuid_v7(&SystemClock), topic, "order.placed")
            .with_key(format!("c-{}", number % KEYS))
            .with_data("application/json", data)
    };
    (0..count).map(event).collect()
}

/// A sink that counts what was acknowledged, and tells when it is all of it: to wake somebody for every row is work, too.
struct Counted<S> {
    inner: S,
    all: u64,
    done: watch::Sender<u64>,
}

fn count(done: &watch::Sender<u64>, more: u64, all: u64) {
    done.send_if_modified(|done| {
        *done += more;
        *done >= all
    });
}

#[async_trait]
impl<S: Sink> Sink for Counted<S> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn order(&self) -> SinkOrder {
        self.inner.order()
    }

    fn check(&self, event: &Event) -> Result<(), LimitExceeded> {
        self.inner.check(event)
    }

    fn publish_many(&self, rows: &[Arc<OutboxRow>], deadline: Duration) -> SinkFuture {
        let sent = self.inner.publish_many(rows, deadline);
        let (done, all) = (self.done.clone(), self.all);
        Box::pin(async move {
            let results = sent.await;
            let acknowledged = results.iter().filter(|result| result.is_ok()).count() as u64;
            count(&done, acknowledged, all);
            results
        })
    }

    async fn probe(&self) -> Result<(), SinkError> {
        self.inner.probe().await
    }

    fn log(&self) -> Option<&dyn LogSink> {
        self.inner.log().map(|_| self as &dyn LogSink)
    }
}

#[async_trait]
impl<S: Sink> LogSink for Counted<S> {
    async fn resume(&self, shard: &ShardId) -> Result<Option<LogPlace>, SinkError> {
        self.inner.log().unwrap().resume(shard).await
    }

    fn commit(
        &self,
        shard: &ShardId,
        rows: &[Arc<OutboxRow>],
        place: LogPlace,
        deadline: Duration,
    ) -> TransactionFuture {
        let sent = self.inner.log().unwrap().commit(shard, rows, place, deadline);
        let (done, all, acknowledged) = (self.done.clone(), self.all, rows.len() as u64);
        Box::pin(async move {
            let end = sent.await;
            if matches!(end, TransactionEnd::Committed) {
                count(&done, acknowledged, all);
            }
            end
        })
    }

    fn go_on(&self, shard: &ShardId) {
        self.inner.log().unwrap().go_on(shard);
    }

    fn close(&self, shard: &ShardId) {
        self.inner.log().unwrap().close(shard);
    }
}

/// A sink that takes everything at once.
struct Everything;

#[async_trait]
impl Sink for Everything {
    fn name(&self) -> &'static str {
        "everything"
    }

    fn order(&self) -> SinkOrder {
        SinkOrder::Pipelined {
            in_flight_max: 10_000,
        }
    }

    fn check(&self, _: &Event) -> Result<(), LimitExceeded> {
        Ok(())
    }

    fn publish_many(&self, rows: &[Arc<OutboxRow>], _: Duration) -> SinkFuture {
        let results = rows.iter().map(|_| Ok(())).collect();
        Box::pin(std::future::ready(results))
    }

    async fn probe(&self) -> Result<(), SinkError> {
        Ok(())
    }
}

/// Runs a relay until that many rows are acknowledged.
async fn relay(store: Arc<dyn OutboxStore>, sink: impl Sink, rows: u32, config: RelayConfig) -> Sample {
    let (done, mut seen) = watch::channel(0);
    let all = u64::from(rows);
    let sink = Arc::new(Counted {
        inner: sink,
        all,
        done,
    });
    let relay = Relay::new(store, sink, config);
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let begun = Instant::now();
    let running = tokio::spawn(async move { relay.run(stop).await });
    seen.wait_for(|done| *done >= all).await.unwrap();
    let elapsed = begun.elapsed();
    shutdown.cancel();
    running.await.unwrap().unwrap();
    Sample {
        done: u64::from(rows),
        elapsed,
        ..Sample::default()
    }
}

async fn sqlite_to_webhook(plan: Plan, only: Option<&str>) {
    // An answer a row makes this slower than Kafka by an order; fewer rows take as long.
    let rows = plan.rows.div_ceil(5);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/events", listener.local_addr().unwrap());
    let app = Router::new().route("/events", post(|_: Bytes| async { StatusCode::NO_CONTENT }));
    let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    Table::new(
        format!("SQLite to a webhook, {IN_FLIGHT} requests at once"),
        "rows",
    )
    .contender("limit: the same bodies posted by a bare client", || {
        bare_posts(&url, rows, false)
    })
    .contender("bare client, all attributes of an event", || {
        bare_posts(&url, rows, true)
    })
    .contender("the sink alone, from memory", || async {
        rows_alone(webhook_sink(&url), events(rows, "orders")).await
    })
    .contender("relay", || sqlite_relay(&url, rows))
    .only(only)
    .measure(plan.rounds)
    .await;
    server.abort();
}

async fn sqlite_relay(url: &str, rows: u32) -> Sample {
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open(semel_sqlite::Config::new(dir.path().join("shop.db")))
        .await
        .unwrap();
    store.migrate().await.unwrap();
    for events in events(rows, "orders").chunks(BATCH_ITEMS_MAX) {
        let mut tx = store.begin().await.unwrap();
        semel_sqlite::tx::enqueue_many(&mut tx, events).await.unwrap();
        store.commit(tx).await.unwrap();
    }
    relay(Arc::new(store), webhook_sink(url), rows, RelayConfig::default()).await
}

fn webhook_sink(url: &str) -> WebhookSink {
    let mut config = WebhookConfig::new(url);
    config.in_flight_max = IN_FLIGHT;
    WebhookSink::new(config).unwrap()
}

/// Names and values of the headers that the sink sends beside the id, where an event has a key.
fn attributes(row: &OutboxRow) -> [(&'static str, String); 9] {
    let event = &row.event;
    [
        ("ce-specversion", "1.0".to_owned()),
        ("ce-id", event.id.to_string()),
        ("ce-source", event.source.clone()),
        ("ce-type", event.kind.clone()),
        ("ce-time", row.created_at.rfc3339()),
        (
            "ce-partitionkey",
            String::from_utf8_lossy(event.key.as_deref().unwrap_or_default()).into_owned(),
        ),
        ("ce-sequence", row.sequence().unwrap_or_default()),
        ("semel-topic", event.topic.clone()),
        ("content-type", event.content_type.clone().unwrap_or_default()),
    ]
}

async fn bare_posts(url: &str, rows: u32, whole: bool) -> Sample {
    let client = HttpClient::new(Limits {
        idle_per_host_max: IN_FLIGHT,
        ..Limits::default()
    });
    let rows = Arc::new(rows_of(events(rows, "orders")));
    let next = Arc::new(AtomicUsize::new(0));
    let begun = Instant::now();
    let tasks: Vec<_> = (0..IN_FLIGHT)
        .map(|_| {
            let (client, rows, next) = (client.clone(), Arc::clone(&rows), Arc::clone(&next));
            let url = url.to_owned();
            tokio::spawn(async move {
                while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let event = &row.event;
                    let mut request = Request::post(&url).header("idempotency-key", event.id.to_string());
                    if whole {
                        request = request
                            .header("webhook-id", event.id.to_string())
                            .header("webhook-timestamp", "1796083200");
                        for (name, value) in attributes(row) {
                            request = request.header(name, value);
                        }
                    } else {
                        request = request.header("content-type", "application/json");
                    }
                    let request = request.body(event.data.clone().unwrap_or_default()).unwrap();
                    let answer = client.send(request, Duration::from_secs(30)).await.unwrap();
                    assert_eq!(answer.status(), StatusCode::NO_CONTENT);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    sample(rows.len() as u32, begun)
}
