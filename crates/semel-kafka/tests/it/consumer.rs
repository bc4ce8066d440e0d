//! The inbox consumer: real Kafka into SQLite.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::Producer as _;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use semel_core::inbox::{AssignPosition, Poison, PositionKey};
use semel_core::store::InboxStore as _;
use semel_core::{ErrorKind, Nonce, StoreError};
use semel_inbox::{Handler, HandlerError, Message};
use semel_kafka::{Consumer, ConsumerConfig, Dedup, MessageId, Start};
use semel_sqlite::{Config, InboxTx, Sqlite, classify};
use semel_testkit::servers::kafka;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{LIMIT, flush, producer, send, until};

/// Writes each message as a row; nothing but Semel keeps it from doing so twice.
struct Log;

#[async_trait]
impl Handler<Sqlite> for Log {
    async fn handle(&self, tx: &mut InboxTx, messages: &[&Message]) -> Result<(), HandlerError> {
        for message in messages {
            let text = std::str::from_utf8(message.data.as_deref().unwrap()).unwrap();
            if text == "refuse" {
                return Err(HandlerError::Refused("no".to_owned()));
            }
            sqlx::query("INSERT INTO log (part, body) VALUES (?1, ?2)")
                .bind(message.partition)
                .bind(text)
                .execute(tx.conn())
                .await
                .map_err(|error| classify("log", error))?;
        }
        Ok(())
    }
}

struct World {
    db: Arc<Sqlite>,
    handler: Arc<Log>,
    config: ConsumerConfig,
    topic: String,
    _dir: tempfile::TempDir,
}

struct Running {
    stop: CancellationToken,
    task: JoinHandle<Result<(), StoreError>>,
}

impl Running {
    async fn stop(self) {
        self.stop.cancel();
        self.ended().await.unwrap();
    }

    async fn ended(self) -> Result<(), StoreError> {
        tokio::time::timeout(LIMIT, self.task).await.unwrap().unwrap()
    }
}

impl World {
    async fn new(partitions: u16, dedup: Dedup) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let db = Sqlite::open(Config::new(dir.path().join("log.db")))
            .await
            .unwrap();
        db.migrate().await.unwrap();
        let mut tx = db.begin().await.unwrap();
        sqlx::query("CREATE TABLE log (n INTEGER PRIMARY KEY, part INTEGER, body TEXT)")
            .execute(&mut *tx)
            .await
            .unwrap();
        db.commit(tx).await.unwrap();
        let topic = kafka().fresh_topic(partitions);
        let group = kafka().fresh_name("g");
        let mut config = ConsumerConfig::new(kafka().bootstrap(), group, [&topic]).unwrap();
        config.dedup = dedup;
        config.retry.initial_ms = 10;
        config.retry.cap_ms = 50;
        Self {
            db: Arc::new(db),
            handler: Arc::new(Log),
            config,
            topic,
            _dir: dir,
        }
    }

    fn start(&self) -> Running {
        let consumer = Consumer::new(
            self.config.clone(),
            Arc::clone(&self.db),
            Arc::clone(&self.handler),
        )
        .unwrap();
        let stop = CancellationToken::new();
        let token = stop.clone();
        let task = tokio::spawn(async move { consumer.run(token).await });
        Running { stop, task }
    }

    fn write(&self, partition: i32, texts: &[&str]) {
        let producer = producer(&kafka().bootstrap(), &[]);
        for text in texts {
            send(&producer, &self.topic, partition, Some(text), text);
        }
        flush(&producer);
    }

    async fn log(&self, partition: i32) -> Vec<String> {
        sqlx::query_scalar("SELECT body FROM log WHERE part = ?1 ORDER BY n")
            .bind(partition)
            .fetch_all(self.db.readers())
            .await
            .unwrap()
    }

    async fn logged(&self, partition: i32, count: usize) {
        until("the log is written", async || {
            self.log(partition).await.len() >= count
        })
        .await;
    }

    async fn position(&self, partition: i32) -> i64 {
        let position: Option<i64> = sqlx::query_scalar(
            "SELECT next_offset FROM semel_position WHERE part = ?1 ORDER BY updated_at DESC",
        )
        .bind(partition)
        .fetch_optional(self.db.readers())
        .await
        .unwrap();
        position.unwrap_or(-1)
    }
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

fn texts(numbers: &[String]) -> Vec<&str> {
    numbers.iter().map(String::as_str).collect()
}

#[tokio::test]
async fn a_consumer_goes_on_where_the_last_one_stopped() {
    for dedup in [Dedup::Ids, Dedup::Offsets] {
        let w = World::new(2, dedup).await;
        let all = numbers(0..1_200);
        w.write(0, &texts(&all[..700]));
        w.write(1, &["x"]);
        let running = w.start();
        w.logged(0, 700).await;
        running.stop().await;
        w.write(0, &texts(&all[700..]));
        let running = w.start();
        w.logged(0, 1_200).await;
        w.logged(1, 1).await;
        running.stop().await;
        assert_eq!(w.log(0).await, all);
        assert_eq!(w.log(1).await, ["x"]);
        assert_eq!((w.position(0).await, w.position(1).await), (1_200, 1));
    }
}

/// The producer wrote "a" twice: one event, two records.
#[tokio::test]
async fn ids_tell_a_producer_s_own_repeats_and_offsets_do_not() {
    for (dedup, expected) in [
        (Dedup::Ids, vec!["a", "b", "c"]),
        (Dedup::Offsets, vec!["a", "b", "a", "c"]),
    ] {
        let w = World::new(1, dedup).await;
        w.write(0, &["a", "b", "a", "c"]);
        let running = w.start();
        until("all is read", async || w.position(0).await == 4).await;
        running.stop().await;
        assert_eq!(w.log(0).await, expected);
    }
}

/// svix#2429: the same offset in partitions 0 and 1 is two records.
#[tokio::test]
async fn a_position_names_its_partition_too() {
    let mut w = World::new(2, Dedup::Ids).await;
    w.config.message_id = MessageId::Position;
    w.write(0, &["same"]);
    w.write(1, &["same"]);
    let running = w.start();
    w.logged(0, 1).await;
    w.logged(1, 1).await;
    running.stop().await;
}

#[tokio::test]
async fn latest_begins_after_what_is_there() {
    let mut w = World::new(1, Dedup::Offsets).await;
    w.config.start = Start::Latest;
    w.write(0, &["old"]);
    let running = w.start();
    until("the position is taken", async || w.position(0).await == 1).await;
    w.write(0, &["new"]);
    w.logged(0, 1).await;
    running.stop().await;
    assert_eq!(w.log(0).await, ["new"]);
}

/// Rule I1: offset 3 is a control record. All was read, so deleting all loses nothing.
#[tokio::test]
async fn a_partition_that_ends_in_a_control_record_is_read_to_its_end() {
    let w = World::new(1, Dedup::Offsets).await;
    let transactional = producer(
        &kafka().bootstrap(),
        &[("transactional.id", &kafka().fresh_name("tx"))],
    );
    transactional.init_transactions(LIMIT).unwrap();
    transactional.begin_transaction().unwrap();
    for text in ["0", "1", "2"] {
        send(&transactional, &w.topic, 0, Some(text), text);
    }
    flush(&transactional);
    transactional.commit_transaction(LIMIT).unwrap();

    let running = w.start();
    until("the control record is passed", async || w.position(0).await == 4).await;
    running.stop().await;

    delete_records(&w.topic, 4).await;
    let running = w.start();
    w.write(0, &["3"]);
    w.logged(0, 4).await;
    running.stop().await;
    assert_eq!(w.log(0).await, numbers(0..4));
}

async fn delete_records(topic: &str, before: i64) {
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, 0, Offset::Offset(before))
        .unwrap();
    admin().delete_records(&list, &AdminOptions::new()).await.unwrap();
}

fn admin() -> AdminClient<DefaultClientContext> {
    ClientConfig::new()
        .set("bootstrap.servers", kafka().bootstrap())
        .create()
        .unwrap()
}

/// A stored position outside of the log is a stop with an answer, not a jump.
#[tokio::test]
async fn records_deleted_before_they_were_read_stop_the_consumer_until_that_is_accepted() {
    let mut w = World::new(1, Dedup::Offsets).await;
    w.write(0, &["0"]);
    let running = w.start();
    w.logged(0, 1).await;
    running.stop().await;
    w.write(0, &["lost", "lost too", "3"]);
    delete_records(&w.topic, 3).await;

    let error = w.start().ended().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IdentityChanged);
    assert!(error.to_string().contains("accept_lost_records"), "{error}");
    assert_eq!(w.log(0).await, ["0"]);

    w.config.accept_lost_records = true;
    let running = w.start();
    w.logged(0, 2).await;
    running.stop().await;
    assert_eq!(w.log(0).await, ["0", "3"]);
    assert_eq!(w.position(0).await, 4);
}

/// A topic under an old name is another topic, though its offsets look like a continuation.
#[tokio::test]
async fn a_topic_made_anew_is_read_from_its_beginning() {
    let w = World::new(1, Dedup::Offsets).await;
    w.write(0, &["old 0", "old 1"]);
    let running = w.start();
    w.logged(0, 2).await;
    running.stop().await;

    let results = admin()
        .delete_topics(&[&w.topic], &AdminOptions::new())
        .await
        .unwrap();
    results[0].as_ref().unwrap();
    let again = || std::panic::catch_unwind(|| kafka().create_topic(&w.topic, 1, &[])).is_ok();
    until("the old topic is gone", async || again()).await;
    w.write(0, &["new 0", "new 1", "new 2"]);
    let running = w.start();
    w.logged(0, 5).await;
    running.stop().await;
    assert_eq!(w.log(0).await, ["old 0", "old 1", "new 0", "new 1", "new 2"]);
}

/// Rules I3 and O11: somebody else claims the partition, such as a zombie. The next batch leaves nothing; as the group
/// still gives the partition to this consumer, it claims it again and goes on from the stored position.
#[tokio::test]
async fn a_stolen_partition_is_claimed_again_and_nothing_is_doubled_or_skipped() {
    let w = World::new(1, Dedup::Offsets).await;
    w.write(0, &["0", "1", "2"]);
    let running = w.start();
    w.logged(0, 3).await;
    let topic_id: Vec<u8> = sqlx::query_scalar("SELECT topic_id FROM semel_position")
        .fetch_one(w.db.readers())
        .await
        .unwrap();
    let theft = AssignPosition {
        key: PositionKey {
            group: w.config.group.clone(),
            topic_id: Uuid::from_slice(&topic_id).unwrap(),
            partition: 0,
        },
        topic: w.topic.clone(),
        owner: Nonce::random(),
        initial: 0,
    };
    let stolen = w.db.assign_positions(&[theft]).await.unwrap()[0];
    w.write(0, &["3", "4"]);
    w.logged(0, 5).await;
    running.stop().await;
    assert_eq!(w.log(0).await, numbers(0..5));
    let last: i64 = sqlx::query_scalar("SELECT epoch FROM semel_position")
        .fetch_one(w.db.readers())
        .await
        .unwrap();
    assert!(last > stolen.epoch, "the consumer claimed it again");
}

#[tokio::test]
async fn a_message_without_its_id_is_never_given_a_random_one() {
    let mut w = World::new(1, Dedup::Ids).await;
    let raw = producer(&kafka().bootstrap(), &[]);
    send(&raw, &w.topic, 0, Some("0"), "0");
    send(&raw, &w.topic, 0, None, "nameless");
    flush(&raw);
    let running = w.start();
    w.logged(0, 1).await;
    running.stop().await;
    assert_eq!((w.log(0).await, w.position(0).await), (numbers(0..1), 1));

    w.config.message_id = MessageId::Position;
    let running = w.start();
    w.logged(0, 2).await;
    running.stop().await;
    assert_eq!(w.log(0).await, ["0", "nameless"]);
}

#[tokio::test]
async fn a_poisoned_message_is_parked_with_the_later_ones_of_its_key() {
    let mut w = World::new(2, Dedup::Ids).await;
    w.config.poison = Poison::Park;
    // All have the key "k": in partition 1 the key counts as well.
    w.write(0, &["0", "refuse", "2"]);
    let running = w.start();
    until("the partition is passed", async || w.position(0).await == 3).await;
    w.write(0, &["3"]);
    until("the partition is passed", async || w.position(0).await == 4).await;
    running.stop().await;
    assert_eq!(w.log(0).await, ["0"]);
    let parked: Vec<(Vec<u8>, i64)> = sqlx::query_as("SELECT data, at_offset FROM semel_parked ORDER BY n")
        .fetch_all(w.db.readers())
        .await
        .unwrap();
    let parked: Vec<_> = parked
        .iter()
        .map(|(data, at)| (std::str::from_utf8(data).unwrap(), *at))
        .collect();
    assert_eq!(parked, [("refuse", 1), ("2", 2), ("3", 3)]);

    // Mended: the handler of the next version knows what to do.
    let mended = Consumer::new(w.config.clone(), Arc::clone(&w.db), Arc::new(Mended)).unwrap();
    assert_eq!(mended.redrive(2).await.unwrap().settled, 2);
    assert_eq!(mended.redrive(2).await.unwrap().settled, 1);
    assert_eq!(mended.redrive(2).await.unwrap().settled, 0);
    assert_eq!(w.log(0).await, ["0", "mended", "2", "3"]);
}

struct Mended;

#[async_trait]
impl Handler<Sqlite> for Mended {
    async fn handle(&self, tx: &mut InboxTx, messages: &[&Message]) -> Result<(), HandlerError> {
        for message in messages {
            let mut message = (*message).clone();
            if message.data.as_deref() == Some(b"refuse") {
                message.data = Some("mended".into());
            }
            Log.handle(tx, &[&message]).await?;
        }
        Ok(())
    }
}

/// Partitions move while messages flow; each is handled once, in order.
#[tokio::test]
async fn instances_share_the_partitions_and_hand_them_over() {
    let w = World::new(4, Dedup::Offsets).await;
    let all = numbers(0..300);
    let first = w.start();
    for part in 0..4 {
        w.write(part, &texts(&all[..100]));
    }
    w.logged(0, 100).await;
    let second = w.start();
    for part in 0..4 {
        w.write(part, &texts(&all[100..200]));
    }
    w.logged(3, 150).await;
    first.stop().await;
    for part in 0..4 {
        w.write(part, &texts(&all[200..]));
    }
    for part in 0..4 {
        w.logged(part, 300).await;
    }
    second.stop().await;
    for part in 0..4 {
        assert_eq!(w.log(part).await, all, "partition {part}");
    }
}

#[tokio::test]
async fn what_only_a_person_can_mend_ends_the_consumer() {
    let mut w = World::new(1, Dedup::Ids).await;
    w.config
        .properties
        .insert("group.id".to_owned(), "mine".to_owned());
    let error = w.start().ended().await.unwrap_err();
    assert!(error.to_string().contains("set by Semel"), "{error}");

    w.config.properties.clear();
    w.config
        .properties
        .insert("security.protocol".to_owned(), "ssl".to_owned());
    let error = w.start().ended().await.unwrap_err();
    assert!(error.to_string().contains("topic_ids"), "{error}");

    w.config.batch_max = 0;
    let error = Consumer::new(w.config.clone(), Arc::clone(&w.db), Arc::clone(&w.handler)).unwrap_err();
    assert!(error.to_string().contains("batch_max"), "{error}");
}

/// A missing topic is waited for; a dropped future stops the thread.
#[tokio::test]
async fn a_topic_that_does_not_exist_yet_is_waited_for() {
    let mut w = World::new(1, Dedup::Offsets).await;
    w.topic = kafka().fresh_name("late");
    w.config.topics = vec![w.topic.clone()];
    let running = w.start();
    tokio::time::sleep(Duration::from_millis(300)).await;
    kafka().create_topic(&w.topic, 1, &[]);
    w.write(0, &["0"]);
    w.logged(0, 1).await;
    running.task.abort();
}
