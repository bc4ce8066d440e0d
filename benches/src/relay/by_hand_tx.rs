//! The relay's transactions by hand: the same records and headers, and the cursor, in transactions of Kafka.
//!
//! With one producer everything goes one after the other. Two take turns: while one commits, the other sends.

use std::sync::Arc;
use std::sync::mpsc as threads;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext};
use rdkafka::util::Timeout;
use semel_testkit::servers::kafka;
use sqlx::postgres::PgRow;
use sqlx::{Connection as _, PgConnection, Row as _};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::by_hand::{Limit, headers};

/// Pages read ahead of the producer, at least.
const AHEAD: usize = 4;

struct Reports;

impl rdkafka::ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        result.as_ref().map_err(|(error, _)| error).unwrap();
    }
}

type Producer = Arc<BaseProducer<Reports>>;

/// A transactional producer with the log's settings, polled by a thread of its own.
fn producer(id: &str, linger_ms: u32) -> Producer {
    let producer: BaseProducer<Reports> = ClientConfig::new()
        .set("bootstrap.servers", kafka().bootstrap())
        .set("transactional.id", id)
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", linger_ms.to_string())
        .create_with_context(Reports)
        .unwrap();
    let producer = Arc::new(producer);
    let polled = Arc::downgrade(&producer);
    std::thread::spawn(move || {
        while let Some(producer) = polled.upgrade() {
            producer.poll(Duration::from_millis(50));
        }
    });
    producer.init_transactions(Duration::from_secs(10)).unwrap();
    producer
}

/// How it runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transactions {
    pub(super) rows_max: usize,
    pub(super) producers: usize,
    pub(super) linger_ms: u32,
}

impl Transactions {
    /// Relays everything until it is dropped; `done` grows with what is committed.
    pub(super) async fn run(self, url: &str, topic: &str, done: watch::Sender<u64>) {
        let reading = PgConnection::connect(url).await.unwrap();
        let limit = Limit {
            linger_ms: self.linger_ms,
            gate: true,
            whole: true,
        };
        let pages = AHEAD.max(self.rows_max.div_ceil(super::by_hand::PAGE as usize));
        let (pages, read) = mpsc::channel(pages);
        let mut reader = JoinSet::new();
        reader.spawn(limit.read(reading, pages));
        let topic = topic.to_owned();
        std::thread::spawn(move || self.send(read, &topic, &done));
        reader.join_next().await;
    }

    fn send(
        self,
        mut read: mpsc::Receiver<(Vec<PgRow>, Option<String>)>,
        topic: &str,
        done: &watch::Sender<u64>,
    ) {
        let cursor = kafka().fresh_topic(1);
        let (free, idle) = threads::channel();
        for number in 0..self.producers {
            free.send(producer(&format!("{cursor}-{number}"), self.linger_ms))
                .unwrap();
        }
        let (sent, to_commit) = threads::channel::<(Producer, u64)>();
        let done = done.clone();
        std::thread::spawn(move || {
            for (producer, rows) in to_commit {
                producer.commit_transaction(Timeout::Never).unwrap();
                done.send_modify(|done| *done += rows);
                let _ = free.send(producer);
            }
        });
        while let Some((mut rows, mut end)) = read.blocking_recv() {
            // As many as there are, as long as the batch goes on.
            while end.is_none() && rows.len() < self.rows_max {
                let Some((more, at)) = read.blocking_recv() else {
                    return;
                };
                rows.extend(more);
                end = at;
            }
            let Ok(producer) = idle.recv() else { return };
            producer.begin_transaction().unwrap();
            for row in &rows {
                let record = BaseRecord::to(topic)
                    .key(row.get::<&[u8], _>(1))
                    .payload(row.get::<&[u8], _>(2))
                    .headers(headers(row, true));
                producer.send(record).map_err(|(error, _)| error).unwrap();
            }
            let place = format!("{:?} {}", end, rows.last().map_or(0, |row| row.get::<i64, _>(0)));
            let record = BaseRecord::to(&cursor).partition(0).key("cursor").payload(&place);
            producer.send(record).map_err(|(error, _)| error).unwrap();
            // Before the next producer sends, and not by `flush`, which takes 100 ms at least.
            while producer.in_flight_count() > 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
            if sent.send((producer, rows.len() as u64)).is_err() {
                return;
            }
        }
    }
}
