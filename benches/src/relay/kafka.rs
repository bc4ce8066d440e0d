//! PostgreSQL to Kafka.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext};
use semel_core::Event;
use semel_core::limits::BATCH_ITEMS_MAX;
use semel_kafka::{KafkaSink, KafkaSinkConfig};
use semel_postgres::Postgres;
use semel_testkit::servers::{kafka, postgres};

use super::{events, relay};
use crate::Plan;
use crate::harness::{Sample, Table};

const PARTITIONS: u16 = 4;

pub(super) async fn postgresql_to_kafka(plan: Plan) {
    Table::new("PostgreSQL to Kafka, acks=all on one broker", "rows")
        .contender("limit: the same records produced from memory", || bare(plan.rows))
        .contender("relay", || relay_rows(plan.rows))
        .measure(plan.rounds)
        .await;
}

async fn relay_rows(rows: u32) -> Sample {
    let topic = kafka().fresh_topic(PARTITIONS);
    let url = postgres().fresh_database();
    let store = Postgres::connect(semel_postgres::Config::new(url)).await.unwrap();
    store.migrate().await.unwrap();
    for events in events(rows, &topic).chunks(BATCH_ITEMS_MAX) {
        let mut tx = store.begin().await.unwrap();
        semel_postgres::tx::enqueue_many(&mut tx, events).await.unwrap();
        store.commit(tx).await.unwrap();
    }
    let sink = KafkaSink::new(KafkaSinkConfig::new(kafka().bootstrap())).unwrap();
    relay(Arc::new(store), sink, rows).await
}

/// Counts deliveries.
struct Delivered(AtomicU64);

impl rdkafka::ClientContext for Delivered {}

impl ProducerContext for Delivered {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        result.as_ref().map_err(|(error, _)| error).unwrap();
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

async fn bare(rows: u32) -> Sample {
    let topic = kafka().fresh_topic(PARTITIONS);
    let events = events(rows, &topic);
    tokio::task::spawn_blocking(move || produce(&events))
        .await
        .unwrap()
}

/// With the settings of the sink, and nothing else to do.
fn produce(events: &[Event]) -> Sample {
    let producer: BaseProducer<Delivered> = ClientConfig::new()
        .set("bootstrap.servers", kafka().bootstrap())
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", "5")
        .create_with_context(Delivered(AtomicU64::new(0)))
        .unwrap();
    let begun = Instant::now();
    for event in events {
        loop {
            let record = BaseRecord::to(&event.topic)
                .key(event.key.as_deref().unwrap_or_default())
                .payload(event.data.as_deref().unwrap_or_default());
            match producer.send(record) {
                Ok(()) => break,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => {
                    producer.poll(Duration::from_millis(1));
                }
                Err((error, _)) => panic!("{error}"),
            }
        }
        producer.poll(Duration::ZERO);
    }
    let delivered = &producer.client().context().0;
    while delivered.load(Ordering::Relaxed) < events.len() as u64 {
        producer.poll(Duration::from_millis(5));
    }
    Sample {
        done: events.len() as u64,
        elapsed: begun.elapsed(),
        latencies: Vec::new(),
    }
}
