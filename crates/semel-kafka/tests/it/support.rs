//! What the tests share: reading a topic to its end, and waiting for something to become true.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

/// Longer than anything healthy takes on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// One record as a consumer sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Record {
    pub(crate) fn header(&self, name: &str) -> &[u8] {
        let found = self.headers.iter().find(|(n, _)| n == name);
        found.and_then(|(_, value)| value.as_deref()).unwrap_or_default()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.value.clone().unwrap_or_default()).unwrap()
    }
}

/// Polls until `done`; a panic after [`LIMIT`].
pub(crate) async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !done().await {
        assert!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A plain producer, for what a sink would not write.
pub(crate) fn producer(bootstrap: &str, settings: &[(&str, &str)]) -> BaseProducer {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap)
        .set("acks", "all")
        .set("linger.ms", "0");
    for (name, value) in settings {
        config.set(*name, *value);
    }
    config.create().unwrap()
}

/// Sends one event to one partition.
pub(crate) fn send(producer: &BaseProducer, topic: &str, partition: i32, id: Option<&str>, text: &str) {
    let mut headers = OwnedHeaders::new();
    for (key, value) in [("ce_id", id), ("ce_source", Some("/test"))] {
        let value = value.map(str::as_bytes);
        headers = headers.insert(Header { key, value });
    }
    let record: BaseRecord<'_, str, str> = BaseRecord::to(topic)
        .partition(partition)
        .key("k")
        .payload(text)
        .headers(headers);
    producer.send(record).map_err(|(error, _)| error).unwrap();
}

/// Waits until everything sent is acknowledged.
pub(crate) fn flush(producer: &BaseProducer) {
    while producer.in_flight_count() > 0 {
        producer.poll(Duration::from_millis(1));
    }
}

/// Asks until there is an answer: a partition that was just made, or whose broker has just come back, has no leader for
/// a moment.
pub(crate) fn asked<T>(mut ask: impl FnMut() -> Result<T, rdkafka::error::KafkaError>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(error) => assert!(Instant::now() < deadline, "no answer: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Everything in a topic now that `read_committed` shows, partition by partition.
pub(crate) fn read_all(bootstrap: &str, topic: &str) -> Vec<Record> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", "semel-test-reader")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("isolation.level", "read_committed")
        .set("auto.offset.reset", "error")
        .create()
        .unwrap();
    let metadata = asked(|| consumer.fetch_metadata(Some(topic), LIMIT));
    let partitions = i32::try_from(metadata.topics()[0].partitions().len()).unwrap();
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition_offset(topic, partition, Offset::Beginning)
            .unwrap();
    }
    consumer.assign(&list).unwrap();
    let (mut ended, mut records) = (0, Vec::new());
    let deadline = Instant::now() + LIMIT;
    while ended < partitions {
        assert!(Instant::now() < deadline, "{topic} has no end");
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => records.push(Record {
                partition: message.partition(),
                offset: message.offset(),
                key: message.key().map(<[u8]>::to_vec),
                value: message.payload().map(<[u8]>::to_vec),
                headers: message.headers().map_or_else(Vec::new, |headers| {
                    headers
                        .iter()
                        .map(|h| (h.key.to_owned(), h.value.map(<[u8]>::to_vec)))
                        .collect()
                }),
            }),
            Some(Err(rdkafka::error::KafkaError::PartitionEOF(_))) => ended += 1,
            Some(Err(error)) => panic!("{topic}: {error}"),
            None => {}
        }
    }
    records.sort_by_key(|record| (record.partition, record.offset));
    records
}
