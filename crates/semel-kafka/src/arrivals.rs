//! What a topic holds, read once from its beginning to its end: for audits.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use rdkafka::config::FromClientConfigAndContext as _;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers as _};
use rdkafka::metadata::Metadata;
use rdkafka::{Message as _, Offset, TopicPartitionList};
pub use semel_core::store::Arrived;
use semel_core::store::{ARRIVED_UNREADABLE, SinkError, SinkErrorClass};
use semel_core::{Clock as _, ErrorKind, StoreError, SystemClock};

use crate::access::KafkaAccess;
use crate::client::{self, Ears};
use crate::sink::class::class;

/// How long one question may take.
const ASK: Duration = Duration::from_secs(10);
/// How long what the client said outside of its answers is taken in.
const HEAR: Duration = Duration::from_millis(200);
/// How long nothing may come before the broker counts as away.
const SILENCE: Duration = Duration::from_secs(30);

/// Which topic to read, and how.
#[derive(Clone)]
pub struct ArrivalsConfig {
    /// `host:port` of some brokers, with commas between them.
    pub bootstrap: String,
    /// How to get in: TLS, and who the client is. Default: neither.
    pub access: KafkaAccess,
    /// The topic.
    pub topic: String,
    /// Reads what is in open and broken-off transactions, too. Default false: only what readers with
    /// `isolation.level=read_committed` see.
    pub uncommitted: bool,
    /// Further settings of librdkafka.
    pub properties: BTreeMap<String, String>,
}

impl ArrivalsConfig {
    /// The defaults for this topic.
    #[must_use]
    pub fn new(bootstrap: impl Into<String>, topic: impl Into<String>) -> Self {
        Self {
            bootstrap: bootstrap.into(),
            access: KafkaAccess::default(),
            topic: topic.into(),
            uncommitted: false,
            properties: BTreeMap::new(),
        }
    }
}

impl std::fmt::Debug for ArrivalsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Properties may hold passwords.
        f.debug_struct("ArrivalsConfig")
            .field("bootstrap", &self.bootstrap)
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}

/// How far was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ArrivalsRead {
    /// Records.
    pub records: u64,
    /// The topic's partitions.
    pub partitions: usize,
    /// Partitions in which a transaction was open: what is behind its beginning was not read.
    pub open: Vec<i32>,
}

/// Reads all partitions of a topic from their beginning to where they ended when this was called, and hands each record
/// over: those of one partition in order, partitions mixed. Nothing is committed and no group is joined. It blocks.
///
/// # Errors
/// `Invalid` where the topic is missing or forbidden, or a setting is refused; `Unavailable` where no broker answers, or
/// nothing came for half a minute. What was read before was handed over.
///
/// # Limits
/// About 16 MiB of fetched records wait in memory at most.
///
/// ```no_run
/// # fn f() -> Result<(), semel_core::StoreError> {
/// use semel_kafka::{ArrivalsConfig, read_arrivals};
/// let config = ArrivalsConfig::new("localhost:9092", "orders");
/// let read = read_arrivals(&config, |record| println!("{:?}", record.id))?;
/// println!("{} records", read.records);
/// # Ok(()) }
/// ```
pub fn read_arrivals(
    config: &ArrivalsConfig,
    mut each: impl FnMut(Arrived),
) -> Result<ArrivalsRead, StoreError> {
    let reader = reader(config, config.uncommitted)?;
    let partitions = partitions(config, &reader)?;
    let all = if config.uncommitted {
        None
    } else {
        Some(self::reader(config, true)?)
    };
    let mut read = ArrivalsRead {
        partitions: partitions.len(),
        ..ArrivalsRead::default()
    };
    let mut ends = HashMap::new();
    let mut list = TopicPartitionList::new();
    for partition in partitions {
        // The high end first: what comes between the two questions is not taken for a transaction that is open.
        let high = match &all {
            Some(all) => Some(watermarks(config, all, partition)?.1),
            None => None,
        };
        let (low, end) = watermarks(config, &reader, partition)?;
        if high.is_some_and(|high| high > end) {
            read.open.push(partition);
        }
        if low < end {
            ends.insert(partition, end);
            list.add_partition_offset(&config.topic, partition, Offset::Offset(low))
                .map_err(|error| failed(config, "choosing partitions", &error))?;
        }
    }
    reader
        .assign(&list)
        .map_err(|error| failed(config, "choosing partitions", &error))?;
    let mut heard = SystemClock.monotonic();
    while !ends.is_empty() {
        let ended = match reader.poll(Duration::from_millis(100)) {
            Some(Ok(record)) => {
                heard = SystemClock.monotonic();
                let (partition, offset) = (record.partition(), record.offset());
                let Some(end) = ends.get(&partition).copied() else {
                    continue;
                };
                if offset < end {
                    read.records += 1;
                    each(arrived(&record));
                }
                (offset.saturating_add(1) >= end).then_some(partition)
            }
            // Markers of transactions are not records: the last offset may be one.
            Some(Err(KafkaError::PartitionEOF(partition))) => Some(partition),
            Some(Err(error)) => {
                let error = failed(config, "reading", &error);
                if error.kind() == ErrorKind::Invalid {
                    return Err(error);
                }
                tracing::debug!(%error, "reading the topic goes on");
                None
            }
            None => None,
        };
        if let Some(partition) = ended.filter(|partition| ends.remove(partition).is_some()) {
            heard = SystemClock.monotonic();
            let mut list = TopicPartitionList::new();
            list.add_partition(&config.topic, partition);
            // What is written on need not be fetched.
            reader
                .pause(&list)
                .map_err(|error| failed(config, "reading", &error))?;
        }
        if SystemClock.monotonic().saturating_sub(heard) > SILENCE {
            let text = format!(
                "the brokers of {} have sent nothing of topic {} for {} s",
                config.bootstrap,
                config.topic,
                SILENCE.as_secs()
            );
            return Err(
                StoreError::new(ErrorKind::Unavailable, "read topic", text).with_code(ARRIVED_UNREADABLE)
            );
        }
    }
    Ok(read)
}

type Reader = BaseConsumer<Ears>;

fn reader(config: &ArrivalsConfig, uncommitted: bool) -> Result<Reader, StoreError> {
    let isolation = if uncommitted {
        "read_uncommitted"
    } else {
        "read_committed"
    };
    let own = [
        // A group is never joined; librdkafka wants a name for one.
        ("group.id", "semel-audit".to_owned()),
        ("enable.auto.commit", "false".to_owned()),
        ("enable.auto.offset.store", "false".to_owned()),
        ("enable.partition.eof", "true".to_owned()),
        ("auto.offset.reset", "earliest".to_owned()),
        ("allow.auto.create.topics", "false".to_owned()),
        ("isolation.level", isolation.to_owned()),
        ("queued.max.messages.kbytes", "16384".to_owned()),
    ];
    let settings = client::settings(&config.bootstrap, &config.access, &own, &config.properties)
        .map_err(|error| error.with_code(ARRIVED_UNREADABLE))?;
    BaseConsumer::from_config_and_context(&settings, Ears::default())
        .map_err(|error| client::not_made(error).with_code(ARRIVED_UNREADABLE))
}

fn failed(config: &ArrivalsConfig, what: &str, error: &KafkaError) -> StoreError {
    let kind = match error.rdkafka_error_code().map(class) {
        Some(SinkErrorClass::Destination) => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    let text = format!(
        "{what} of topic {} at the brokers {}: {error}",
        config.topic, config.bootstrap
    );
    StoreError::new(kind, "read topic", text).with_code(ARRIVED_UNREADABLE)
}

/// The cluster's metadata. Who is not let in hears of it before the time of a broker that is away is over.
fn metadata(config: &ArrivalsConfig, reader: &Reader) -> Result<Metadata, StoreError> {
    let mut waits = [ASK / 10, ASK * 3 / 10, ASK * 6 / 10].into_iter();
    let mut wait = waits.next();
    loop {
        let error = match reader.fetch_metadata(None, wait.unwrap_or(ASK)) {
            Ok(metadata) => return Ok(metadata),
            Err(error) => error,
        };
        let until = SystemClock.monotonic() + HEAR;
        while SystemClock.monotonic() < until {
            let _ = reader.poll(HEAR / 10);
        }
        let told = SinkError::new(SinkErrorClass::Away, error.to_string());
        let told = reader.context().0.explain(told);
        wait = waits.next();
        let kind = match told.class {
            SinkErrorClass::Destination => ErrorKind::Invalid,
            _ if wait.is_some() => continue,
            _ => ErrorKind::Unavailable,
        };
        let text = format!("no broker of {} answers: {}", config.bootstrap, told.message);
        return Err(StoreError::new(kind, "read topic", text).with_code(ARRIVED_UNREADABLE));
    }
}

/// The topic's partitions. All topics are asked for: asking for one by name could make it.
fn partitions(config: &ArrivalsConfig, reader: &Reader) -> Result<Vec<i32>, StoreError> {
    let metadata = metadata(config, reader)?;
    let topic = metadata.topics().iter().find(|it| it.name() == config.topic);
    let topic = topic.ok_or_else(|| {
        let text = format!(
            "the brokers {} have no topic {}, or it may not be read",
            config.bootstrap, config.topic
        );
        StoreError::new(ErrorKind::Invalid, "read topic", text).with_code(ARRIVED_UNREADABLE)
    })?;
    Ok(topic.partitions().iter().map(|it| it.id()).collect())
}

fn watermarks(config: &ArrivalsConfig, reader: &Reader, partition: i32) -> Result<(i64, i64), StoreError> {
    let found = reader.fetch_watermarks(&config.topic, partition, ASK);
    found.map_err(|error| failed(config, "asking for the end", &error))
}

fn arrived(record: &BorrowedMessage<'_>) -> Arrived {
    let header = |name: &str| {
        let headers = record.headers()?;
        let mut found = headers.iter().filter(|header| header.key == name);
        found.find_map(|header| std::str::from_utf8(header.value?).ok())
    };
    Arrived::read(
        header("ce_id"),
        header("content-type"),
        record.key().map(Bytes::copy_from_slice),
        record.payload(),
    )
}
