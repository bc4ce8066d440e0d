//! PostgreSQL to Redis Streams.

use std::sync::Arc;
use std::time::Instant;

use futures_util::stream::{StreamExt as _, iter};
use redis::aio::ConnectionLike as _;
use semel_core::limits::BATCH_ITEMS_MAX;
use semel_core::{Clock as _, SystemClock};
use semel_postgres::Postgres;
use semel_redis::{RedisSink, RedisSinkConfig};
use semel_testkit::servers::{RedisServer, postgres};

use super::{events, relay, rows_of, sample, sink_alone};
use crate::Plan;
use crate::harness::{Sample, Table};

/// Commands of one pipeline, and pipelines on their way, of the bare publisher.
const PIPELINE: usize = 256;
const AHEAD: usize = 4;
/// Rows of one call, as a relay makes them.
const CALL: usize = 250;

pub(super) async fn postgresql_to_redis(plan: Plan, only: Option<&str>) {
    let server = RedisServer::start(&[]);
    let title = "PostgreSQL to a Redis stream, each answer awaited, no append-only file";
    Table::new(title, "rows")
        .contender("limit: the same entries in pipelines, from memory", || {
            bare(&server, plan.rows, false)
        })
        .contender("in pipelines, with the sequence", || {
            bare(&server, plan.rows, true)
        })
        .contender("the sink alone, from memory", || async {
            let sink = RedisSink::new(RedisSinkConfig::new(emptied(&server))).unwrap();
            sink_alone(&sink, events(plan.rows, "orders"), CALL).await
        })
        .contender("relay", || relay_rows(&server, plan.rows))
        .only(only)
        .measure(plan.rounds)
        .await;
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

/// The fields of the sink's entries, in pipelines without transactions.
async fn bare(server: &RedisServer, rows: u32, whole: bool) -> Sample {
    let client = redis::Client::open(emptied(server)).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let all = rows_of(events(rows, "orders"));
    let time = SystemClock.now().rfc3339();
    let begun = Instant::now();
    iter(all.chunks(PIPELINE))
        .map(|rows| {
            let mut pipeline = redis::Pipeline::with_capacity(rows.len());
            for row in rows {
                let event = &row.event;
                let command = pipeline
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
                if whole {
                    command.arg("ce_sequence").arg(row.sequence());
                }
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
