//! The processing loop. One life is one consumer; producers may come and go within it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rdkafka::config::{FromClientConfigAndContext as _, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::BaseRecord;
use rdkafka::{ClientContext, Message as _, Offset, TopicPartitionList};
use semel_core::{Clock as _, ErrorKind, Retry, StoreError, SystemClock, crash_point, error, host};
use semel_inbox::Message;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::config::{ProcessorConfig, Refused};
use super::{Output, Transform, TransformError};
use crate::client;
use crate::consumer::Start;
use crate::consumer::record::plain;
use crate::offsets::{Place, next_offsets};
use crate::transaction::producer::{Producer, Record, Settings, Trouble};
use crate::transaction::verdict::{Verdict, fenced};

const POLL: Duration = Duration::from_millis(100);
const ASK: Duration = Duration::from_secs(10);
/// Headers of a dead letter: why it is one, and where it was. A letter that dies again has them replaced, not added.
const ERROR_HEADER: &str = "semel_error";
const ORIGIN_HEADER: &str = "semel_origin";

pub(super) struct Life<T> {
    pub(super) config: Arc<ProcessorConfig>,
    pub(super) transform: Arc<T>,
    pub(super) shutdown: CancellationToken,
}

/// Which partitions are assigned, each under the number of its assignment.
#[derive(Debug, Default)]
struct Seats {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    round: u64,
    owned: HashMap<Place, u64>,
}

impl Seats {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Seats {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        client::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        client::global_error(&error, reason);
    }
}

/// Runs inside of `poll`, when no transaction is open: there is nothing to abort, only records to be forgotten.
impl ConsumerContext for Seats {
    fn pre_rebalance(&self, _consumer: &BaseConsumer<Self>, change: &Rebalance<'_>) {
        let mut state = self.lock();
        state.round += 1;
        let round = state.round;
        match change {
            Rebalance::Assign(list) => {
                for element in list.elements() {
                    let place = (element.topic().to_owned(), element.partition());
                    state.owned.insert(place, round);
                }
            }
            Rebalance::Revoke(list) => {
                for element in list.elements() {
                    state
                        .owned
                        .remove(&(element.topic().to_owned(), element.partition()));
                }
            }
            Rebalance::Error(_) => state.owned.clear(),
        }
        tracing::info!(?change, "partitions of the processor change");
    }
}

impl<T: Transform> Life<T> {
    /// Life after life, until shutdown or an error that only a person can mend.
    pub(super) fn lives(&self) -> Result<(), StoreError> {
        let mut failures = 0;
        while !self.shutdown.is_cancelled() {
            let begun = SystemClock.monotonic();
            match self.one() {
                Ok(()) => {}
                Err(error) if error.retry() == Retry::Never => return Err(error),
                Err(error) => {
                    tracing::warn!(error = error::chain(&error), "the processor begins anew");
                    if SystemClock.monotonic() - begun > Duration::from_secs(60) {
                        failures = 0;
                    }
                    failures += 1;
                    let until = SystemClock.monotonic() + self.pause(failures);
                    while SystemClock.monotonic() < until && !self.shutdown.is_cancelled() {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                }
            }
        }
        Ok(())
    }

    fn pause(&self, failures: u32) -> Duration {
        let policy = self.config.retry;
        Duration::from_millis(
            policy
                .delay_ms(failures, 0, host::dice())
                .unwrap_or(policy.cap_ms),
        )
    }

    fn one(&self) -> Result<(), StoreError> {
        let config = &self.config;
        // First the fence, then the group: otherwise the offsets of the predecessor's open transaction keep this
        // member from its partitions until the broker gives it up.
        let producer = Producer::start(&settings(config), false)?;
        let reset = match config.start {
            Start::Earliest => "earliest",
            Start::Latest => "latest",
        };
        let own = [
            ("group.id", config.group.clone()),
            ("enable.auto.commit", "false".to_owned()),
            ("enable.auto.offset.store", "false".to_owned()),
            ("auto.offset.reset", reset.to_owned()),
            // Also makes the coordinator tell stable offsets only.
            ("isolation.level", "read_committed".to_owned()),
            ("fetch.queue.backoff.ms", "10".to_owned()),
            ("enable.partition.eof", "false".to_owned()),
        ];
        let mut user = config.properties.clone();
        user.extend(config.consumer_properties.clone());
        let settings = client::settings(&config.bootstrap, &config.access, &own, &user)?;
        let consumer =
            BaseConsumer::from_config_and_context(&settings, Seats::default()).map_err(client::not_made)?;
        let topics: Vec<&str> = config.topics.iter().map(String::as_str).collect();
        consumer
            .subscribe(&topics)
            .map_err(|error| away("subscribe", error))?;
        Processing {
            life: self,
            consumer,
            producer,
            messages: Vec::new(),
            rounds: Vec::new(),
            first_read: HashMap::new(),
            condemned: HashMap::new(),
            failures: 0,
            fences: 0,
        }
        .until_shutdown()
    }
}

struct Processing<'a, T> {
    life: &'a Life<T>,
    consumer: BaseConsumer<Seats>,
    producer: Producer,
    /// Read and not processed, in the order read.
    messages: Vec<Message>,
    /// Under which assignment each of them was read.
    rounds: Vec<u64>,
    /// The first offset read of each partition under its assignment: where a partition that has no committed offset is
    /// taken back to.
    first_read: HashMap<Place, (u64, i64)>,
    /// Inputs whose outputs the broker refuses, and why.
    condemned: HashMap<(Place, i64), String>,
    /// Since the last commit.
    failures: u32,
    /// Since the last commit.
    fences: u32,
}

impl<T: Transform> Processing<'_, T> {
    fn config(&self) -> &ProcessorConfig {
        &self.life.config
    }

    fn stopping(&self) -> bool {
        self.life.shutdown.is_cancelled()
    }

    fn until_shutdown(&mut self) -> Result<(), StoreError> {
        while !self.stopping() {
            self.fill()?;
            if !self.messages.is_empty() {
                self.process()?;
            }
        }
        Ok(())
    }

    /// Collects messages for one transaction.
    fn fill(&mut self) -> Result<(), StoreError> {
        let mut until = None;
        while self.messages.len() < self.config().batch_max && !self.stopping() {
            let now = SystemClock.monotonic();
            let wait = match until {
                None if self.messages.is_empty() => POLL,
                None => Duration::ZERO,
                Some(until) if now >= until => break,
                Some(until) => until - now,
            };
            self.poll(wait)?;
            if self.messages.is_empty() {
                break;
            }
            until.get_or_insert(now + self.config().interval);
        }
        self.forget_what_is_not_owned();
        Ok(())
    }

    fn poll(&mut self, wait: Duration) -> Result<(), StoreError> {
        let polled = match self.consumer.poll(wait) {
            None => return Ok(()),
            Some(Ok(record)) => {
                let place = (record.topic().to_owned(), record.partition());
                let round = self.consumer.context().lock().owned.get(&place).copied();
                Ok(round.map(|round| (place, round, plain(&record, Uuid::nil()))))
            }
            Some(Err(error)) => Err(error),
        };
        match polled {
            Ok(None) => Ok(()),
            Ok(Some((place, round, message))) => {
                let first = self.first_read.entry(place).or_insert((round, message.offset));
                if first.0 != round {
                    *first = (round, message.offset);
                }
                self.messages.push(message);
                self.rounds.push(round);
                Ok(())
            }
            Err(error) => match error.rdkafka_error_code() {
                Some(Code::FencedInstanceId) => {
                    let text = "another process uses the same group.instance.id; give each instance its own";
                    Err(StoreError::new(ErrorKind::Invalid, "poll", text).with_source(error))
                }
                _ if matches!(error, KafkaError::MessageConsumptionFatal(_)) => Err(away("poll", error)),
                _ => {
                    tracing::warn!(%error, "the Kafka client reports an error");
                    Ok(())
                }
            },
        }
    }

    fn forget_what_is_not_owned(&mut self) {
        let state = self.consumer.context().lock();
        let keep: Vec<bool> = self
            .messages
            .iter()
            .zip(&self.rounds)
            .map(|(message, round)| {
                state.owned.get(&(message.topic.clone(), message.partition)) == Some(round)
            })
            .collect();
        drop(state);
        if keep.iter().all(|keep| *keep) {
            return;
        }
        let mut each = keep.iter();
        self.messages.retain(|_| each.next().copied().unwrap_or(false));
        let mut each = keep.iter();
        self.rounds.retain(|_| each.next().copied().unwrap_or(false));
    }

    /// One transaction over what was collected.
    fn process(&mut self) -> Result<(), StoreError> {
        let (outputs, stop) = self.transform();
        let upto = outputs.len();
        if upto > 0 {
            match self.transact(upto, &outputs) {
                Ok(()) => {
                    self.messages.drain(..upto);
                    self.rounds.drain(..upto);
                    self.failures = 0;
                    self.fences = 0;
                    self.condemned.clear();
                    if self.producer.single() {
                        self.producer = Producer::start(&settings(self.config()), false)?;
                    }
                }
                Err(trouble) => return self.recover(trouble),
            }
        }
        match stop {
            None => Ok(()),
            Some(why) => {
                if let Some(message) = self.messages.first() {
                    tracing::error!(
                        topic = message.topic,
                        partition = message.partition,
                        offset = message.offset,
                        why,
                        "the processor stops at a message"
                    );
                }
                self.wait()
            }
        }
    }

    /// The outputs of each message, up to the first at which to stop, and why.
    fn transform(&self) -> (Vec<Vec<Output>>, Option<String>) {
        let mut outputs = Vec::with_capacity(self.messages.len());
        for message in self.messages.iter().take(self.config().batch_max) {
            let place = (message.topic.clone(), message.partition);
            let condemned = self.condemned.get(&(place, message.offset));
            let result = match condemned {
                Some(why) => Err(TransformError::Refused(why.clone())),
                None => self.life.transform.transform(message),
            };
            match (result, &self.config().refused) {
                (Ok(these), _) => outputs.push(these),
                (Err(TransformError::Refused(why)), Refused::DeadLetter(topic)) => {
                    tracing::warn!(
                        topic = message.topic,
                        partition = message.partition,
                        offset = message.offset,
                        why,
                        "a message becomes a dead letter"
                    );
                    outputs.push(vec![dead_letter(message, topic, &why)]);
                }
                (Err(error), _) => return (outputs, Some(error.to_string())),
            }
        }
        (outputs, None)
    }

    fn transact(&mut self, upto: usize, outputs: &[Vec<Output>]) -> Result<(), Trouble> {
        let positions = self.positions();
        let mut offsets = TopicPartitionList::new();
        for ((topic, partition), next) in next_offsets(&self.messages, upto, &positions) {
            // Only a topic name with a zero byte could fail here, and a broker gave this one.
            let _ = offsets.add_partition_offset(&topic, partition, Offset::Offset(next));
        }
        self.producer.begin()?;
        for (input, outputs) in outputs.iter().enumerate() {
            for output in outputs {
                self.producer.send(input, record(input, output))?;
            }
        }
        self.producer.drain()?;
        crash_point("processor.sent");
        // After the last poll, and before every commit: a cooperative group may raise the generation without a word.
        let Some(group) = self.consumer.group_metadata() else {
            return Err(Trouble::lost("there is no group metadata"));
        };
        self.still_member()?;
        self.producer.send_offsets(&offsets, &group)?;
        // A member that was thrown out has no generation, and the broker would not check it: ask again, after the
        // round trip.
        self.still_member()?;
        crash_point("processor.before_commit");
        self.producer.commit()?;
        crash_point("processor.committed");
        Ok(())
    }

    fn still_member(&self) -> Result<(), Trouble> {
        if self.consumer.assignment_lost() {
            return Err(Trouble::lost("the group has given these partitions away"));
        }
        Ok(())
    }

    /// The client's own positions, which count control records (rule I1).
    fn positions(&self) -> HashMap<Place, i64> {
        let Ok(list) = self.consumer.position() else {
            return HashMap::new();
        };
        let offset = |offset| match offset {
            Offset::Offset(offset) => Some(offset),
            _ => None,
        };
        list.elements()
            .iter()
            .filter_map(|e| Some(((e.topic().to_owned(), e.partition()), offset(e.offset())?)))
            .collect()
    }

    fn recover(&mut self, trouble: Trouble) -> Result<(), StoreError> {
        tracing::warn!(why = trouble.why, verdict = ?trouble.verdict, "a transaction failed");
        self.failures += 1;
        if self.config().refused != Refused::Stop
            && let Some(message) = trouble.blames.and_then(|input| self.messages.get(input))
        {
            let place = (message.topic.clone(), message.partition);
            self.condemned
                .insert((place, message.offset), trouble.why.clone());
        }
        match trouble.verdict {
            Verdict::Fatal => return Err(trouble.into_error("transaction")),
            // The next producer ends the transaction and sends record by record.
            _ if trouble.batch_too_large => self.recreate(&trouble)?,
            Verdict::AbortAndRewind => {
                if let Err(trouble) = self.producer.abort() {
                    match trouble.verdict {
                        Verdict::Fatal => return Err(trouble.into_error("abort")),
                        _ => self.recreate(&trouble)?,
                    }
                }
            }
            Verdict::RecreateProducer | Verdict::Retry => self.recreate(&trouble)?,
        }
        self.rewind()?;
        if self.failures > 1 {
            self.wait()?;
        }
        Ok(())
    }

    /// The next producer under the same id. Its predecessor's open transaction is ended by it.
    fn recreate(&mut self, trouble: &Trouble) -> Result<(), StoreError> {
        if fenced(trouble.code) {
            self.fences += 1;
        }
        if self.fences > 1 {
            let text = format!(
                "transactional id {} is used by another process: give each instance its own",
                self.config().transactional_id
            );
            return Err(StoreError::new(ErrorKind::Invalid, "transaction", text));
        }
        self.producer = Producer::start(&settings(self.config()), trouble.batch_too_large)?;
        Ok(())
    }

    /// Takes every partition back to its committed offset and drops what was read.
    fn rewind(&mut self) -> Result<(), StoreError> {
        let read: HashSet<Place> = self
            .messages
            .iter()
            .map(|message| (message.topic.clone(), message.partition))
            .collect();
        self.messages.clear();
        self.rounds.clear();
        let assigned = self
            .consumer
            .assignment()
            .map_err(|error| away("rewind", error))?;
        if assigned.count() == 0 {
            return Ok(());
        }
        let committed = self
            .consumer
            .committed_offsets(assigned, ASK)
            .map_err(|error| away("committed offsets", error))?;
        let mut back = TopicPartitionList::new();
        for element in committed.elements() {
            element
                .error()
                .map_err(|error| away("committed offsets", error))?;
            let place = (element.topic().to_owned(), element.partition());
            let offset = match element.offset() {
                Offset::Offset(offset) => offset,
                // Never committed: to where it began, not to what auto.offset.reset says now.
                _ => match self.first_read.get(&place) {
                    Some((_, first)) => *first,
                    None if read.contains(&place) => {
                        let text = format!("where partition {} of {} began is not known", place.1, place.0);
                        return Err(StoreError::new(ErrorKind::Unavailable, "rewind", text));
                    }
                    None => continue,
                },
            };
            back.add_partition_offset(&place.0, place.1, Offset::Offset(offset))
                .map_err(|error| away("rewind", error))?;
        }
        let sought = self
            .consumer
            .seek_partitions(back, ASK)
            .map_err(|error| away("seek", error))?;
        for element in sought.elements() {
            element.error().map_err(|error| away("seek", error))?;
        }
        Ok(())
    }

    /// Backs off with everything paused, and keeps polling so that the group does not take this member for dead.
    fn wait(&mut self) -> Result<(), StoreError> {
        self.failures += 1;
        let until = SystemClock.monotonic() + self.life.pause(self.failures);
        loop {
            let now = SystemClock.monotonic();
            if now >= until || self.stopping() {
                break;
            }
            let all = self.consumer.assignment().map_err(|error| away("pause", error))?;
            self.consumer.pause(&all).map_err(|error| away("pause", error))?;
            // What still comes is kept: the client's position has passed it.
            self.poll(POLL.min(until - now))?;
        }
        let all = self
            .consumer
            .assignment()
            .map_err(|error| away("resume", error))?;
        self.consumer
            .resume(&all)
            .map_err(|error| away("resume", error))?;
        self.forget_what_is_not_owned();
        Ok(())
    }
}

fn settings(config: &ProcessorConfig) -> Settings<'_> {
    let mut properties = config.properties.clone();
    properties.extend(config.producer_properties.clone());
    Settings {
        bootstrap: &config.bootstrap,
        access: &config.access,
        transactional_id: config.transactional_id.clone(),
        timeout: config.transaction_timeout,
        own: Vec::new(),
        properties,
        topic: None,
        said: Arc::default(),
    }
}

fn record(input: usize, output: &Output) -> Record<'_> {
    let mut headers = OwnedHeaders::new_with_capacity(output.headers.len());
    for (key, value) in &output.headers {
        headers = headers.insert(Header {
            key,
            value: value.as_deref(),
        });
    }
    let mut record = BaseRecord::with_opaque_to(&output.topic, Box::new(input)).headers(headers);
    if let Some(partition) = output.partition {
        record = record.partition(partition);
    }
    if let Some(key) = &output.key {
        record = record.key(&key[..]);
    }
    if let Some(data) = &output.data {
        record = record.payload(&data[..]);
    }
    record
}

fn dead_letter(message: &Message, topic: &str, why: &str) -> Output {
    let mut headers = message.headers.clone();
    headers.retain(|(name, _)| name != ERROR_HEADER && name != ORIGIN_HEADER);
    let origin = format!("{}/{}/{}", message.topic, message.partition, message.offset);
    let why: String = why.chars().take(1_000).collect();
    headers.push((ERROR_HEADER.to_owned(), Some(Bytes::from(why))));
    headers.push((ORIGIN_HEADER.to_owned(), Some(Bytes::from(origin))));
    Output {
        topic: topic.to_owned(),
        partition: None,
        key: message.key.clone(),
        headers,
        data: message.data.clone(),
    }
}

impl Trouble {
    fn lost(why: &str) -> Self {
        Self {
            verdict: Verdict::AbortAndRewind,
            code: Code::AssignmentLost,
            why: why.to_owned(),
            blames: None,
            input: None,
            batch_too_large: false,
        }
    }
}

fn away(operation: &'static str, error: KafkaError) -> StoreError {
    StoreError::new(ErrorKind::Unavailable, operation, "the broker gave no answer").with_source(error)
}
