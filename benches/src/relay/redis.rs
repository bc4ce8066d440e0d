//! PostgreSQL to Redis Streams.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{StreamExt as _, iter};
use redis::aio::ConnectionLike as _;
use semel_core::limits::BATCH_ITEMS_MAX;
use semel_core::store::OutboxRow;
use semel_core::{Clock as _, Event, Sink as _, SystemClock};
use semel_postgres::Postgres;
use semel_redis::{RedisSink, RedisSinkConfig};
use semel_testkit::servers::{RedisServer, postgres};

use super::{events, relay};
use crate::Plan;
use crate::harness::{Sample, Table};

/// Commands of one pipeline, and pipelines on their way, of the bare publisher.
const PIPELINE: usize = 256;
const AHEAD: usize = 4;
/// Rows of one call, as a relay's window has them.
const CALL: usize = 1_000;

pub(super) async fn postgresql_to_redis(plan: Plan) {
    let server = RedisServer::start(&[]);
    let title = "PostgreSQL to a Redis stream, each answer awaited, no append-only file";
    Table::new(title, "rows")
        .contender("limit: the same entries in pipelines, from memory", || {
            bare(&server, plan.rows)
        })
        .contender("the sink alone, from memory", || sink_alone(&server, plan.rows))
        .contender("relay", || relay_rows(&server, plan.rows))
        .measure(plan.rounds)
        .await;
}

fn sample(rows: u32, begun: Instant) -> Sample {
    Sample {
        done: u64::from(rows),
        elapsed: begun.elapsed(),
        latencies: Vec::new(),
    }
}

fn emptied(server: &RedisServer) -> String {
    server.cli(&["FLUSHALL"]);
    server.url()
}

async fn relay_rows(server: &RedisServer, rows: u32) -> Sample {
    let store = Postgres::connect(semel_postgres::Config::new(postgres().fresh_database()))
        .await
        .unwrap();
    store.migrate().await.unwrap();
    for events in events(rows, "orders").chunks(BATCH_ITEMS_MAX) {
        let mut tx = store.begin().await.unwrap();
        semel_postgres::tx::enqueue_many(&mut tx, events).await.unwrap();
        store.commit(tx).await.unwrap();
    }
    let sink = RedisSink::new(RedisSinkConfig::new(emptied(server))).unwrap();
    relay(Arc::new(store), sink, rows, semel_outbox::RelayConfig::default()).await
}

async fn sink_alone(server: &RedisServer, rows: u32) -> Sample {
    let sink = RedisSink::new(RedisSinkConfig::new(emptied(server))).unwrap();
    let row = |(number, event): (usize, Event)| {
        Arc::new(OutboxRow {
            row: i64::try_from(number).unwrap(),
            created_at: SystemClock.now(),
            batch_no: 0,
            event,
        })
    };
    let all: Vec<_> = events(rows, "orders").into_iter().enumerate().map(row).collect();
    let begun = Instant::now();
    for rows in all.chunks(CALL) {
        let results = sink.publish_many(rows, Duration::from_secs(30)).await;
        assert!(results.iter().all(Result::is_ok));
    }
    sample(rows, begun)
}

/// The fields of the sink's entries, in pipelines without transactions.
async fn bare(server: &RedisServer, rows: u32) -> Sample {
    let client = redis::Client::open(emptied(server)).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let events = events(rows, "orders");
    let time = SystemClock.now().rfc3339();
    let begun = Instant::now();
    iter(events.chunks(PIPELINE))
        .map(|events| {
            let mut pipeline = redis::Pipeline::with_capacity(events.len());
            for event in events {
                pipeline
                    .cmd("XADD")
                    .arg(&event.topic)
                    .arg("*")
                    .arg("ce_specversion")
                    .arg("1.0")
                    .arg("ce_id")
                    .arg(event.id.to_string())
                    .arg("ce_source")
                    .arg(&event.source)
                    .arg("ce_type")
                    .arg(&event.kind)
                    .arg("ce_time")
                    .arg(&time)
                    .arg("ce_partitionkey")
                    .arg(event.key.as_deref().unwrap_or_default())
                    .arg("topic")
                    .arg(&event.topic)
                    .arg("content-type")
                    .arg(event.content_type.as_deref().unwrap_or_default())
                    .arg("data")
                    .arg(event.data.as_deref().unwrap_or_default());
            }
            let mut connection = connection.clone();
            async move {
                let count = pipeline.len();
                let answers = connection.req_packed_commands(&pipeline, 0, count).await.unwrap();
                assert_eq!(answers.len(), count);
            }
        })
        .buffered(AHEAD)
        .collect::<()>()
        .await;
    sample(rows, begun)
}
