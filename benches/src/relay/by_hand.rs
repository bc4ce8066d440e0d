//! What the relay is compared with: the same protocol written by hand for this one case, and the poller that many write.
//!
//! Both read `semel.outbox` as the relay does and produce with the settings of its sink. `Limit` has one shard, one topic
//! and no failures: a snapshot for a cursor, pages by number, the durability gate, the cursor saved beside the sends.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext};
use semel_testkit::servers::kafka;
use sqlx::postgres::{PgPool, PgRow};
use sqlx::{Connection as _, PgConnection, Row as _};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use uuid::Uuid;

pub(super) const PAGE: i64 = 1_000;
/// Pages read ahead of the producer.
const AHEAD: usize = 4;

/// A producer that says which page is acknowledged whole.
pub(super) struct Pages {
    left: Mutex<BTreeMap<usize, usize>>,
    acknowledged: mpsc::UnboundedSender<usize>,
}

impl rdkafka::ClientContext for Pages {}

impl ProducerContext for Pages {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, page: usize) {
        result.as_ref().map_err(|(error, _)| error).unwrap();
        let mut left = self.left.lock().unwrap();
        let rows = left.get_mut(&page).unwrap();
        *rows -= 1;
        if *rows == 0 {
            left.remove(&page);
            let _ = self.acknowledged.send(page);
        }
    }
}

/// A producer with the sink's settings, polled by a thread of its own.
fn producer(linger_ms: u32) -> (Arc<BaseProducer<Pages>>, mpsc::UnboundedReceiver<usize>) {
    let (acknowledged, pages) = mpsc::unbounded_channel();
    let context = Pages {
        left: Mutex::default(),
        acknowledged,
    };
    let producer: BaseProducer<Pages> = ClientConfig::new()
        .set("bootstrap.servers", kafka().bootstrap())
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", linger_ms.to_string())
        .set("queue.buffering.max.messages", "10000")
        .create_with_context(context)
        .unwrap();
    let producer = Arc::new(producer);
    let polled = Arc::downgrade(&producer);
    std::thread::spawn(move || {
        while let Some(producer) = polled.upgrade() {
            producer.poll(Duration::from_millis(100));
        }
    });
    (producer, pages)
}

/// As long as those of the relay's events.
const ATTRIBUTES: [(&str, &str); 6] = [
    ("ce_specversion", "1.0"),
    ("ce_source", "/semel"),
    ("ce_type", "order.placed"),
    ("ce_time", "2026-01-01T00:00:00.000000Z"),
    ("ce_sequence", "0000000000000000001-0000000000000000001"),
    ("content-type", "application/json"),
];

/// The event's id, and with `whole` all attributes of an event.
pub(super) fn headers(row: &PgRow, whole: bool) -> OwnedHeaders {
    let id = row.get::<Uuid, _>(3).to_string();
    let mut headers = OwnedHeaders::new_with_capacity(8).insert(Header {
        key: "ce_id",
        value: Some(&id),
    });
    if whole {
        for (key, value) in ATTRIBUTES {
            headers = headers.insert(Header {
                key,
                value: Some(value),
            });
        }
    }
    headers
}

/// Hands a page over, waiting where the queue is full.
fn send(producer: &BaseProducer<Pages>, topic: &str, page: usize, rows: &[PgRow], whole: bool) {
    producer.context().left.lock().unwrap().insert(page, rows.len());
    for row in rows {
        let mut record = BaseRecord::with_opaque_to(topic, page)
            .key(row.get::<&[u8], _>(1))
            .payload(row.get::<&[u8], _>(2))
            .headers(headers(row, whole));
        while let Err((error, back)) = producer.send(record) {
            assert!(
                matches!(error, KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull)),
                "{error}"
            );
            record = back;
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

/// How the limit runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    pub(super) linger_ms: u32,
    /// Waits until what it read is on disk.
    pub(super) gate: bool,
    /// All attributes of an event, as the sink sends them, and not its id alone.
    pub(super) whole: bool,
}

/// A page on its way: its number, its last row and the cursor when all of it is acknowledged.
type Sent = (usize, i64, Option<String>, u64);

impl Limit {
    /// Relays everything until it is dropped; `done` grows with what is acknowledged and saved.
    pub(super) async fn run(self, url: &str, topic: &str, done: tokio::sync::watch::Sender<u64>) {
        let mut saving = PgConnection::connect(url).await.unwrap();
        sqlx::raw_sql(
            "CREATE TABLE IF NOT EXISTS hand_cursor (prev text, last_id bigint); TRUNCATE hand_cursor; \
             INSERT INTO hand_cursor VALUES ('1:1:', 0)",
        )
        .execute(&mut saving)
        .await
        .unwrap();
        let reading = PgConnection::connect(url).await.unwrap();
        let (producer, mut acknowledged) = producer(self.linger_ms);
        let (pages, mut read) = mpsc::channel(AHEAD);
        // Ends with this future: it would go on asking the server while others are measured.
        let mut reader = JoinSet::new();
        reader.spawn(self.read(reading, pages));
        let (sent, mut on_the_way) = mpsc::unbounded_channel::<Sent>();
        let topic = topic.to_owned();
        let sender = std::thread::spawn(move || {
            let mut number = 0;
            while let Some((rows, prev)) = read.blocking_recv() {
                let rows: Vec<PgRow> = rows;
                let last = rows.last().map_or(0, |row| row.get::<i64, _>(0));
                if sent.send((number, last, prev, rows.len() as u64)).is_err() {
                    return;
                }
                send(&producer, &topic, number, &rows, self.whole);
                number += 1;
            }
        });
        let mut waiting: VecDeque<(Sent, bool)> = VecDeque::new();
        loop {
            let Some(page) = acknowledged.recv().await else {
                break;
            };
            let mut pages = vec![page];
            while let Ok(page) = acknowledged.try_recv() {
                pages.push(page);
            }
            while let Ok(sent) = on_the_way.try_recv() {
                waiting.push_back((sent, false));
            }
            for page in pages {
                let at = waiting.iter_mut().find(|((number, ..), _)| *number == page);
                at.unwrap().1 = true;
            }
            let (mut last_id, mut prev, mut rows) = (0, None, 0);
            while waiting.front().is_some_and(|(_, settled)| *settled) {
                let ((_, last, new, count), _) = waiting.pop_front().unwrap();
                (last_id, prev, rows) = (last, new.or(prev), rows + count);
            }
            if rows > 0 {
                sqlx::query("UPDATE hand_cursor SET last_id = $1, prev = coalesce($2, prev)")
                    .bind(last_id)
                    .bind(prev)
                    .execute(&mut saving)
                    .await
                    .unwrap();
                done.send_modify(|done| *done += rows);
            }
        }
        drop((reader, sender));
    }

    /// Reads batch after batch, a page at a time.
    pub(super) async fn read(self, mut db: PgConnection, pages: mpsc::Sender<(Vec<PgRow>, Option<String>)>) {
        let mut prev = "1:1:".to_owned();
        loop {
            let (cur, lsn): (String, String) =
                sqlx::query_as("SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text")
                    .fetch_one(&mut db)
                    .await
                    .unwrap();
            let (mut last, mut shut, mut found) = (0_i64, self.gate, 0);
            let batch = batch(&prev, &cur);
            while cur != prev {
                let rows = sqlx::query(sqlx::AssertSqlSafe(batch.as_str()))
                    .bind(last)
                    .bind(PAGE)
                    .fetch_all(&mut db)
                    .await
                    .unwrap();
                let end = (rows.len() as i64) < PAGE;
                found += rows.len();
                while shut && !rows.is_empty() {
                    shut = !sqlx::query_scalar::<_, bool>("SELECT pg_current_wal_flush_lsn() >= $1::pg_lsn")
                        .bind(&lsn)
                        .fetch_one(&mut db)
                        .await
                        .unwrap();
                }
                if let Some(row) = rows.last() {
                    last = row.get(0);
                    if pages.send((rows, end.then(|| cur.clone()))).await.is_err() {
                        return;
                    }
                }
                if end {
                    prev = cur;
                    break;
                }
            }
            if (found as i64) < PAGE {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
}

/// A page of the rows that are visible in `cur` and not in `prev`. The snapshots stand in the text: with parameters for
/// them the planner does not see how much lies between, and sorts the rest of the backlog for each page.
fn batch(prev: &str, cur: &str) -> String {
    const COLUMNS: &str = "id, key, data, event_id";
    let part = |snapshot: &str, at: usize| snapshot.split(':').nth(at).unwrap_or_default().to_owned();
    let (first, end, open) = (part(prev, 1), part(cur, 1), part(prev, 2));
    let visible = format!("pg_visible_in_snapshot(xid, '{cur}') AND id > $1");
    let late = if open.is_empty() {
        String::new()
    } else {
        format!(
            "UNION ALL SELECT {COLUMNS} FROM semel.outbox WHERE xid = ANY('{{{open}}}'::xid8[]) AND {visible}"
        )
    };
    format!(
        "SELECT {COLUMNS} FROM (SELECT {COLUMNS} FROM semel.outbox
           WHERE xid >= '{first}'::xid8 AND xid < '{end}'::xid8 AND {visible} {late}) batch ORDER BY id LIMIT $2"
    )
}

/// What many write: a status column, `SKIP LOCKED`, send, wait, mark. Ends when nothing is left.
pub(super) async fn skip_locked(db: &PgPool, topic: &str, batch: i64) -> u64 {
    let (producer, mut acknowledged) = producer(5);
    let (mut number, mut total) = (0, 0);
    loop {
        let mut tx = db.begin().await.unwrap();
        let rows = sqlx::query(
            "SELECT id, key, data, event_id FROM hand_status WHERE status = 'new' ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED",
        )
        .bind(batch)
        .fetch_all(&mut *tx)
        .await
        .unwrap();
        if rows.is_empty() {
            return total;
        }
        let (producer, topic) = (Arc::clone(&producer), topic.to_owned());
        let rows = tokio::task::spawn_blocking(move || {
            send(&producer, &topic, number, &rows, false);
            rows
        })
        .await
        .unwrap();
        acknowledged.recv().await.unwrap();
        let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        sqlx::query("UPDATE hand_status SET status = 'sent' WHERE id = ANY($1)")
            .bind(ids)
            .execute(&mut *tx)
            .await
            .unwrap();
        tx.commit().await.unwrap();
        number += 1;
        total += rows.len() as u64;
    }
}
