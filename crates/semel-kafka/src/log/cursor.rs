//! The cursor topic: made when it is missing, checked, written in the transactions of the events, read back.
//!
//! One partition per shard, chosen explicitly: no other shard's open transaction can hide its cursor (rule O19).

use std::sync::Arc;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::{FromClientConfig as _, FromClientConfigAndContext as _};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseProducer, Producer as _};
use rdkafka::{Message as _, Offset, TopicPartitionList};
use semel_core::claim::Nonce;
use semel_core::relay::{LogPlace, ShardId};
use semel_core::store::{SinkError, SinkErrorClass};
use semel_core::{Clock as _, SystemClock, key};
use serde::{Deserialize, Serialize};

use super::config::KafkaLogConfig;
use crate::client::{self, Ears};
use crate::sink::class::class;

/// How long one question may take.
const ASK: Duration = Duration::from_secs(5);
/// How long before a question is asked again.
const AGAIN: Duration = Duration::from_millis(50);
/// How long to listen for why nobody answers.
const LISTEN: Duration = Duration::from_secs(1);
/// How long what was said then is taken in: each line of it is an event of its own.
const HEAR: Duration = Duration::from_millis(200);
/// How long reading back may take in all.
const READ: Duration = Duration::from_secs(15);
/// How far before the end reading begins. The last cursor is nearly always among the last few records: each transaction
/// ends with one, and a marker behind it.
const TAIL: i64 = 64;

/// A place as a record's value.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    version: u8,
    stream: String,
    shard: u16,
    log: String,
    batch_no: i64,
    batch: String,
    last_id: i64,
    finished: bool,
}

/// The record's key: compaction keeps the last of each.
pub(super) fn key_of(shard: &ShardId) -> String {
    shard.to_string()
}

/// The record's value.
pub(super) fn encode(shard: &ShardId, place: &LogPlace) -> Vec<u8> {
    let record = Record {
        version: 1,
        stream: shard.stream.clone(),
        shard: shard.index,
        log: key::hex(&place.log.0),
        batch_no: place.batch_no,
        batch: key::hex(&place.batch.0),
        last_id: place.last_id,
        finished: place.finished,
    };
    // Numbers, texts and a truth value: there is nothing that could fail.
    serde_json::to_vec(&record).unwrap_or_default()
}

fn decode(shard: &ShardId, value: &[u8]) -> Result<LogPlace, String> {
    let record: Record = serde_json::from_slice(value).map_err(|error| error.to_string())?;
    if record.version != 1 {
        return Err(format!(
            "it has version {}, written by a newer semel",
            record.version
        ));
    }
    if record.stream != shard.stream || record.shard != shard.index {
        return Err(format!("it is of shard {}/{}", record.stream, record.shard));
    }
    let nonce = |text: &str| {
        let digits = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let number = digits.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        number
            .map(|it| Nonce(it.to_be_bytes()))
            .ok_or_else(|| format!("{text:?} is no nonce"))
    };
    Ok(LogPlace {
        log: nonce(&record.log)?,
        batch_no: record.batch_no,
        batch: nonce(&record.batch)?,
        last_id: record.last_id,
        finished: record.finished,
    })
}

fn destination(text: impl Into<String>) -> SinkError {
    SinkError::new(SinkErrorClass::Destination, text)
}

fn away(text: impl Into<String>) -> SinkError {
    SinkError::new(SinkErrorClass::Away, text)
}

fn failed(what: &str, error: &KafkaError) -> SinkError {
    let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
    let class = match class(code) {
        SinkErrorClass::Destination => SinkErrorClass::Destination,
        _ => SinkErrorClass::Away,
    };
    SinkError::new(class, format!("{what}: {error}"))
}

fn refused(what: &str, topic: &str, code: Code) -> SinkError {
    match code {
        Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed => destination(format!(
            "{what} {topic}: not allowed; grant it, or make the topic by hand ({code})"
        )),
        code => SinkError::new(
            match class(code) {
                SinkErrorClass::Away => SinkErrorClass::Away,
                _ => SinkErrorClass::Destination,
            },
            format!("{what} {topic}: {code}"),
        ),
    }
}

type Admin = Arc<AdminClient<DefaultClientContext>>;

fn admin(config: &KafkaLogConfig) -> Result<Admin, SinkError> {
    let settings = client::settings(&config.bootstrap, &config.access, &[], &config.properties)
        .map_err(|error| destination(semel_core::error::chain(&error)))?;
    AdminClient::from_config(&settings)
        .map(Arc::new)
        .map_err(|error| failed("a client for the cursor topic", &error))
}

/// Why nobody answers, as another client hears it: nothing listens to what an administrator's says. Blocks.
fn explained(config: &KafkaLogConfig, error: SinkError) -> SinkError {
    let Ok(settings) = client::settings(&config.bootstrap, &config.access, &[], &config.properties) else {
        return error;
    };
    let Ok(client) = BaseProducer::from_config_and_context(&settings, Ears::default()) else {
        return error;
    };
    let _ = client.client().fetch_metadata(None, LISTEN);
    client.poll(HEAR);
    let error = client.context().0.explain(error);
    client::leave(client);
    error
}

/// Makes the cursor topic of a shard when it is missing, and refuses one that would forget cursors.
pub(super) async fn ensure(config: &KafkaLogConfig, shard: &ShardId) -> Result<(), SinkError> {
    let admin = admin(config)?;
    let ensured = fit(config, &admin, shard).await;
    client::leave(admin);
    ensured
}

async fn fit(config: &KafkaLogConfig, admin: &Admin, shard: &ShardId) -> Result<(), SinkError> {
    let topic = config.topic(&shard.stream);
    let needed = i32::from(shard.index) + 1;
    let partitions = match partitions(config, admin, &topic).await? {
        Some(partitions) => partitions,
        None => make(config, admin, &topic, needed).await?,
    };
    if partitions < needed {
        return Err(destination(format!(
            "the cursor topic {topic} has {partitions} partitions and each shard needs one of its own; add partitions"
        )));
    }
    check(admin, &topic).await
}

/// Whether the brokers answer, and the cursor topics that are there can be used.
pub(super) async fn probe(config: &KafkaLogConfig) -> Result<(), SinkError> {
    let admin = admin(config)?;
    let beginning = format!("{}-", config.topics());
    let looked = check_all(config, &admin, &beginning).await;
    client::leave(admin);
    looked
}

async fn check_all(config: &KafkaLogConfig, admin: &Admin, beginning: &str) -> Result<(), SinkError> {
    for (topic, _) in topics(config, admin).await? {
        if topic.starts_with(beginning) {
            check(admin, &topic).await?;
        }
    }
    Ok(())
}

async fn make(config: &KafkaLogConfig, admin: &Admin, topic: &str, needed: i32) -> Result<i32, SinkError> {
    let count = i32::from(config.cursor_partitions).max(needed);
    let new = NewTopic::new(topic, count, TopicReplication::Fixed(config.cursor_replication))
        .set("cleanup.policy", "compact")
        // One record per transaction: small segments are compacted early.
        .set("segment.bytes", "16777216")
        .set("min.cleanable.dirty.ratio", "0.1");
    let options = AdminOptions::new().request_timeout(Some(ASK));
    let made = admin
        .create_topics([&new], &options)
        .await
        .map_err(|error| failed("making the cursor topic", &error))?;
    match made.into_iter().next() {
        Some(Err((_, code))) if code != Code::TopicAlreadyExists => {
            return Err(refused("making the cursor topic", topic, code));
        }
        _ => tracing::info!(topic, partitions = count, "the cursor topic is there"),
    }
    let until = SystemClock.monotonic() + ASK;
    loop {
        match partitions(config, admin, topic).await? {
            Some(partitions) if partitions > 0 => return Ok(partitions),
            _ if SystemClock.monotonic() > until => {
                return Err(away(format!(
                    "the cursor topic {topic} was made and is not there yet"
                )));
            }
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// Refuses a topic that would forget cursors.
async fn check(admin: &Admin, topic: &str) -> Result<(), SinkError> {
    let options = AdminOptions::new().request_timeout(Some(ASK));
    let told = admin
        .describe_configs([&ResourceSpecifier::Topic(topic)], &options)
        .await
        .map_err(|error| failed("looking at the cursor topic", &error))?;
    match told.into_iter().next() {
        Some(Ok(found)) => match found.get("cleanup.policy").and_then(|entry| entry.value.clone()) {
            Some(policy) if policy == "compact" => Ok(()),
            policy => Err(destination(format!(
                "the cursor topic {topic} has cleanup.policy={}, which forgets cursors: set it to compact alone",
                policy.unwrap_or_default()
            ))),
        },
        Some(Err(code)) => Err(refused(
            "looking at the settings of the cursor topic",
            topic,
            code,
        )),
        None => Err(away("the broker says nothing about the cursor topic")),
    }
}

/// How many partitions a topic has; `None` where there is no such topic.
async fn partitions(config: &KafkaLogConfig, admin: &Admin, topic: &str) -> Result<Option<i32>, SinkError> {
    let found = topics(config, admin).await?;
    Ok(found
        .into_iter()
        .find(|(name, _)| name == topic)
        .map(|(_, count)| count))
}

/// All topics: asking for one by name could make it, with the broker's defaults.
async fn topics(config: &KafkaLogConfig, admin: &Admin) -> Result<Vec<(String, i32)>, SinkError> {
    let (admin, config) = (Arc::clone(admin), config.clone());
    let asked = tokio::task::spawn_blocking(move || {
        let answer = admin.inner().fetch_metadata(None, ASK);
        answer.map_err(|error| explained(&config, failed("looking for the cursor topic", &error)))
    });
    let metadata = asked
        .await
        .map_err(|_| away("looking for the cursor topic was interrupted"))??;
    let count = |partitions: usize| i32::try_from(partitions).unwrap_or(i32::MAX);
    let topics = metadata.topics().iter();
    Ok(topics
        .map(|it| (it.name().to_owned(), count(it.partitions().len())))
        .collect())
}

fn reader(config: &KafkaLogConfig, isolation: &str) -> Result<BaseConsumer, SinkError> {
    let own = [
        // A group is never joined; librdkafka wants a name for one.
        ("group.id", format!("semel-cursor-{}", config.name)),
        ("enable.auto.commit", "false".to_owned()),
        ("enable.auto.offset.store", "false".to_owned()),
        ("enable.partition.eof", "true".to_owned()),
        ("auto.offset.reset", "earliest".to_owned()),
        ("isolation.level", isolation.to_owned()),
        ("fetch.wait.max.ms", "10".to_owned()),
    ];
    let settings = client::settings(&config.bootstrap, &config.access, &own, &config.properties)
        .map_err(|error| destination(semel_core::error::chain(&error)))?;
    BaseConsumer::from_config(&settings).map_err(|error| failed("a reader of the cursor topic", &error))
}

/// The last committed place of a shard. Whatever was open of it must have been ended before. Blocks.
pub(super) fn read(config: &KafkaLogConfig, shard: &ShardId) -> Result<Option<LogPlace>, SinkError> {
    let topic = config.topic(&shard.stream);
    // A reader of committed records alone would take an open transaction for the end, and an old cursor for the last.
    let any = reader(config, "read_uncommitted")?;
    let asked = ends(&any, &topic, shard);
    client::leave(any);
    let (low, high) = asked?;
    if high <= low {
        return Ok(None);
    }
    let committed = reader(config, "read_committed")?;
    let place = read_to(&committed, &topic, shard, (low, high));
    client::leave(committed);
    place
}

/// The first offset of a shard's partition and the one behind the last, for this reader.
fn ends(reader: &BaseConsumer, topic: &str, shard: &ShardId) -> Result<(i64, i64), SinkError> {
    let until = SystemClock.monotonic() + ASK;
    loop {
        match reader.fetch_watermarks(topic, i32::from(shard.index), ASK) {
            Ok(ends) => return Ok(ends),
            // Of a partition that was made or moved just now, which its broker has not heard of.
            Err(error)
                if error.rdkafka_error_code() == Some(Code::NotLeaderForPartition)
                    && SystemClock.monotonic() < until =>
            {
                std::thread::sleep(AGAIN);
            }
            Err(error) => return Err(failed("asking for the cursor topic's end", &error)),
        }
    }
}

fn read_to(
    committed: &BaseConsumer,
    topic: &str,
    shard: &ShardId,
    (low, high): (i64, i64),
) -> Result<Option<LogPlace>, SinkError> {
    let until = SystemClock.monotonic() + READ;
    loop {
        let (_, stable) = ends(committed, topic, shard)?;
        if stable >= high {
            break;
        }
        if SystemClock.monotonic() > until {
            return Err(away(format!(
                "a transaction of another producer is open in partition {} of the cursor topic {topic}",
                shard.index
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut back = TAIL;
    loop {
        let from = (high - back).max(low);
        if let Some(place) = last_from(committed, topic, shard, from, until)? {
            return Ok(Some(place));
        }
        if from <= low {
            return Ok(None);
        }
        back = back.saturating_mul(64);
    }
}

/// The last place at or after this offset.
fn last_from(
    reader: &BaseConsumer,
    topic: &str,
    shard: &ShardId,
    from: i64,
    until: Duration,
) -> Result<Option<LogPlace>, SinkError> {
    let what = "reading the cursor topic";
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, i32::from(shard.index), Offset::Offset(from))
        .and_then(|()| reader.assign(&list))
        .map_err(|error| failed(what, &error))?;
    let mut last = None;
    loop {
        match reader.poll(Duration::from_millis(100)) {
            Some(Ok(record)) => {
                let Some(value) = record.payload() else { continue };
                let place = decode(shard, value).map_err(|why| {
                    destination(format!(
                        "the cursor at offset {} of partition {} of {topic} cannot be used: {why}",
                        record.offset(),
                        record.partition()
                    ))
                })?;
                last = Some(place);
            }
            Some(Err(KafkaError::PartitionEOF(_))) => return Ok(last),
            Some(Err(error)) => {
                let error = failed(what, &error);
                if error.class == SinkErrorClass::Destination {
                    return Err(error);
                }
                tracing::debug!(%error, "reading the cursor topic goes on");
            }
            None => {}
        }
        if SystemClock.monotonic() > until {
            return Err(away(format!(
                "the cursor topic {topic} has no end within {} s",
                READ.as_secs()
            )));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(index: u16) -> ShardId {
        ShardId {
            stream: "orders".to_owned(),
            index,
        }
    }

    #[test]
    fn a_place_survives_the_way_into_a_record_and_back_and_no_other_is_taken_for_it() {
        let place = LogPlace {
            log: Nonce([1; 16]),
            batch_no: 7,
            batch: Nonce([0; 16]),
            last_id: i64::MAX,
            finished: true,
        };
        let value = encode(&shard(3), &place);
        assert_eq!(decode(&shard(3), &value), Ok(place));
        assert!(decode(&shard(4), &value).unwrap_err().contains("orders/3"));
        let newer = String::from_utf8(value)
            .unwrap()
            .replace("\"version\":1", "\"version\":2");
        assert!(decode(&shard(3), newer.as_bytes()).unwrap_err().contains("newer"));
        assert!(decode(&shard(3), b"{}").is_err());
    }
}
