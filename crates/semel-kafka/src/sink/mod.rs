//! The Kafka sink of a relay.

pub(crate) mod class;
mod page;
mod producer;
pub(crate) mod record;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use semel_core::limits::LimitExceeded;
use semel_core::store::{OutboxRow, Sink, SinkError, SinkErrorClass, SinkFuture, SinkOrder};
use semel_core::{Event, StoreError};
use tokio::sync::{Notify, oneshot};

use self::page::Page;
use self::producer::Producer;
use crate::access::KafkaAccess;
use crate::client;

/// Settings of a [`KafkaSink`].
#[derive(Clone)]
pub struct KafkaSinkConfig {
    /// `host:port` of some brokers, separated by commas.
    pub bootstrap: String,
    /// How to get in: TLS, and who the client is. Default: neither.
    pub access: KafkaAccess,
    /// Rows in flight at most. Default 5 000.
    pub in_flight_max: usize,
    /// Bytes in flight at most; above it the broker counts as away for a moment. Default 128 MiB.
    pub in_flight_bytes_max: usize,
    /// How long a record may wait to be joined by others in a batch. Default 1 ms.
    pub linger: Duration,
    /// After this long a record counts as not delivered. The deadline of a relay's call ends earlier. Default 2 minutes.
    pub message_timeout: Duration,
    /// How long a topic may be unknown to the brokers before it counts as missing. Below the time that a relay waits for a
    /// send, or nobody ever hears of it. Default 2 s; the property `topic.metadata.propagation.max.ms` is the same.
    pub topic_wait: Duration,
    /// Further settings of librdkafka, such as `compression.type`. Those that
    /// carry a guarantee are refused.
    pub properties: BTreeMap<String, String>,
}

impl std::fmt::Debug for KafkaSinkConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The properties may hold a password.
        f.debug_struct("KafkaSinkConfig")
            .field("bootstrap", &self.bootstrap)
            .field("in_flight_max", &self.in_flight_max)
            .finish_non_exhaustive()
    }
}

impl KafkaSinkConfig {
    /// The defaults for these brokers.
    #[must_use]
    pub fn new(bootstrap: impl Into<String>) -> Self {
        Self {
            bootstrap: bootstrap.into(),
            access: KafkaAccess::default(),
            in_flight_max: 5_000,
            in_flight_bytes_max: 128 << 20,
            linger: Duration::from_millis(1),
            message_timeout: Duration::from_secs(120),
            topic_wait: client::TOPIC_WAIT,
            properties: BTreeMap::new(),
        }
    }

    /// What librdkafka takes of one record: by default as much as a broker does, a little less than 1 MiB.
    fn record_bytes_max(&self) -> u64 {
        record::bytes_max(&self.properties)
    }
}

/// Publishes events to the Kafka topics that they name.
///
/// # Guarantees
/// - `Ok` means that all in-sync replicas have the record (`acks=all`), once per hand-over (idempotent producer).
/// - Order: records of one ordering key go to one partition in the order handed over, and when one of them fails, no
///   later one of its key is sent before the caller has heard of the failure. A producer that failed to deliver a
///   record is thrown away with everything it held; the next one begins with what is handed over then.
/// - Only the record at fault is blamed: when a broker refuses a batch for its size, its records go again one by one.
///   Where that happens often, set the property `batch.size` below the topic's `max.message.bytes`.
/// - The event's id is the same on every attempt (`ce_id`), so that a consumer can drop repeats.
///
/// # On the wire
/// CloudEvents 1.0 in binary mode: `ce_` headers, the ordering key as the record's key, the data as its value, byte
/// for byte; no data is a tombstone. `traceparent` and the event's own headers follow. The partition is that of the
/// Java client (murmur2). The record's time is that of the hand-over, `ce_time` that of the event: an old event in a
/// young topic must not fall to the topic's retention at once.
///
/// # Not guaranteed
/// - Exactly once into the log: after a crash between a send and the cursor the record is there twice, with one id.
/// - With replication factor 1, or `min.insync.replicas` 1, `acks=all` is one broker's page cache.
///
/// [`KafkaLog`](crate::KafkaLog) publishes exactly once: events and cursor in one Kafka transaction.
#[derive(Debug)]
pub struct KafkaSink {
    shared: Arc<Shared>,
    name: &'static str,
}

#[derive(Debug)]
struct Shared {
    config: KafkaSinkConfig,
    state: Mutex<State>,
    /// A page was heard of: what it barred may pass.
    heard: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Absent until the first hand-over, and after a failure.
    producer: Option<Arc<Producer>>,
    /// The next producer makes each record a batch of its own, to find the one that is too large.
    single: bool,
    next_page: u64,
    /// Pages whose future has neither answered nor been dropped.
    open: HashMap<u64, Arc<Page>>,
    /// Slots of pages with failed records that their caller has not heard of: nothing later of these slots may pass.
    barred: HashMap<u64, HashSet<u16>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_current(&self, producer: &Arc<Producer>) -> bool {
        self.producer.as_ref().is_some_and(|it| Arc::ptr_eq(it, producer))
    }

    /// Throws the producer away, if it is still this one. Every open page bars its slots, so that what was handed over
    /// later cannot pass what failed; what it held is given up and its results come as errors.
    fn discard(&mut self, dead: &Arc<Producer>) {
        if self.is_current(dead) {
            self.producer = None;
            self.single |= dead.batch_too_large();
            for (id, page) in &self.open {
                self.barred.insert(*id, page.slots());
            }
        }
        dead.purge();
    }

    /// Whether a failed page that its caller has not heard of, handed over before this one, holds rows of these slots.
    fn bars(&self, id: u64, page: &Page) -> bool {
        let mut others = self.barred.iter().filter(|(other, _)| **other < id).peekable();
        if others.peek().is_none() {
            return false;
        }
        let slots = page.slots();
        others.any(|(_, barred)| !barred.is_disjoint(&slots))
    }
}

impl KafkaSink {
    /// A sink for these brokers. Does not wait for them.
    ///
    /// # Errors
    /// `Invalid` for a setting that is unknown, not allowed, or Semel's own.
    pub fn new(config: KafkaSinkConfig) -> Result<Self, StoreError> {
        let producer = Producer::start(&config, false)?;
        let state = State {
            producer: Some(producer),
            ..State::default()
        };
        let shared = Shared {
            config,
            state: Mutex::new(state),
            heard: Notify::new(),
        };
        Ok(Self {
            shared: Arc::new(shared),
            name: "kafka",
        })
    }
}

#[async_trait]
impl Sink for KafkaSink {
    fn name(&self) -> &'static str {
        self.name
    }

    fn order(&self) -> SinkOrder {
        SinkOrder::Pipelined {
            in_flight_max: self.shared.config.in_flight_max.max(1),
        }
    }

    fn check(&self, event: &Event) -> Result<(), LimitExceeded> {
        record::check(event, self.shared.config.record_bytes_max())
    }

    fn publish_many(&self, rows: &[Arc<OutboxRow>], deadline: Duration) -> SinkFuture {
        let shared = Arc::clone(&self.shared);
        let (page, answer) = Page::new(rows);
        let mut state = shared.lock();
        let id = state.next_page;
        state.next_page += 1;
        state.open.insert(id, Arc::clone(&page));
        let producer = admit(&shared.config, &mut state, id, &page);
        drop(state);
        if let Some(producer) = &producer {
            // The others of such a producer follow one by one.
            let count = if producer.single() { 1 } else { page.rows().len() };
            hand_over(&shared, id, &page, producer, 0..count.min(page.rows().len()));
        }
        let limit = deadline.min(shared.config.message_timeout / 2);
        let open = OpenPage {
            id,
            shared,
            page,
            producer,
        };
        Box::pin(async move { open.wait(answer, limit).await })
    }

    async fn probe(&self) -> Result<(), SinkError> {
        let producer = {
            let mut state = self.shared.lock();
            current(&self.shared.config, &mut state)?
        };
        let limit = Duration::from_secs(5);
        let asked = tokio::task::spawn_blocking(move || producer.probe(limit)).await;
        asked.unwrap_or_else(|_| Err(SinkError::new(SinkErrorClass::Away, "the probe was interrupted")))
    }
}

fn held_back(why: &str) -> SinkError {
    SinkError::new(SinkErrorClass::HeldBack, why)
}

/// The living producer; a new one after the last was thrown away.
fn current(config: &KafkaSinkConfig, state: &mut State) -> Result<Arc<Producer>, SinkError> {
    if let Some(producer) = &state.producer
        && producer.lives()
    {
        return Ok(Arc::clone(producer));
    }
    if let Some(dead) = state.producer.clone() {
        state.discard(&dead);
    }
    let started = Producer::start(config, state.single)
        .map_err(|error| SinkError::new(SinkErrorClass::Away, semel_core::error::chain(&error)))?;
    state.producer = Some(Arc::clone(&started));
    Ok(started)
}

/// The producer that takes the page's rows, unless they may not pass now.
fn admit(config: &KafkaSinkConfig, state: &mut State, id: u64, page: &Arc<Page>) -> Option<Arc<Producer>> {
    // Making a new producer can bar slots, when the last one has just failed: this page's own do not count.
    let producer = current(config, state);
    state.barred.remove(&id);
    if state.bars(id, page) {
        // This page, too, is to be heard of before anything later of its slots passes.
        state.barred.insert(id, page.slots());
        page.fill(|| held_back("an earlier record of the same keys failed"), 0);
        return None;
    }
    match producer {
        Ok(producer) => Some(producer),
        Err(error) => {
            state.barred.insert(id, page.slots());
            page.fill(|| error.clone(), 0);
            None
        }
    }
}

/// Whether the producer took these rows, in order. If not, the rest may not overtake the first that it did not take; what was
/// taken before it goes on.
///
/// Shards do this at the same time. Where the producer fails meanwhile, it takes no more, and the page, being open, is barred
/// with the others.
fn hand_over(shared: &Shared, id: u64, page: &Arc<Page>, producer: &Producer, rows: Range<usize>) -> bool {
    let Err((index, error)) = producer.send(page, rows) else {
        return true;
    };
    shared.lock().barred.insert(id, page.slots());
    page.set(index, Err(error));
    page.fill(|| held_back("an earlier record was not taken"), index + 1);
    false
}

/// A page that its caller has not heard of yet. Dropping it counts as hearing, and gives up what is not settled of it: its
/// caller may own the shard no more (rule O17).
struct OpenPage {
    id: u64,
    shared: Arc<Shared>,
    page: Arc<Page>,
    /// What it was handed over to.
    producer: Option<Arc<Producer>>,
}

impl OpenPage {
    /// Hands each row over when the one before it is delivered; the first one is on its way. A broker that does not know a
    /// producer yet takes its first record with any sequence number, so that nothing else keeps what stands behind a
    /// refused record from passing it.
    async fn one_by_one(&self, producer: &Producer) {
        let page = &self.page;
        for index in 0..page.rows().len() {
            if index > 0 && !hand_over(&self.shared, self.id, page, producer, index..index + 1) {
                return;
            }
            if !page.delivered(index).await {
                page.fill(|| held_back("an earlier record failed"), index + 1);
                return;
            }
        }
    }

    async fn wait(self, answer: oneshot::Receiver<()>, limit: Duration) -> Vec<Result<(), SinkError>> {
        let (page, producer) = (&self.page, &self.producer);
        let settled = async {
            // Answered at once, it would come again at once, until the page that bars it is heard of.
            while producer.is_none() {
                let heard = self.shared.heard.notified();
                if !self.shared.lock().bars(self.id, page) {
                    break;
                }
                heard.await;
            }
            if let Some(producer) = producer.as_ref().filter(|producer| producer.single()) {
                self.one_by_one(producer).await;
            }
            // Gone without a word is as good as told: each row has its place for a result.
            let _ = answer.await;
        };
        if tokio::time::timeout(limit, settled).await.is_err()
            && let Some(producer) = producer
        {
            // Before the purge, whose own errors would say less.
            let late = || {
                let text = format!("no acknowledgement within {} ms", limit.as_millis());
                producer.explain(SinkError::new(SinkErrorClass::Away, text))
            };
            page.fill(late, 0);
            // Records that are still on their way may arrive; none handed over later may before these are settled.
            self.shared.lock().discard(producer);
        }
        if let Some(producer) = producer {
            let mut state = self.shared.lock();
            if producer.failed() {
                state.discard(producer);
            } else if producer.single() && state.is_current(producer) {
                // All went through one by one: batches again. What is still on its way by this producer is of other keys.
                state.single = false;
                state.producer = None;
            }
        }
        page.take()
    }
}

impl Drop for OpenPage {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.open.remove(&self.id);
        state.barred.remove(&self.id);
        if let Some(producer) = &self.producer
            && !self.page.is_settled()
        {
            // Left in its queue, the records would go out later, behind those of the shard's next owner.
            state.discard(producer);
        }
        drop(state);
        self.shared.heard.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_producer_whose_thread_has_ended_is_replaced() {
        let sink = KafkaSink::new(KafkaSinkConfig::new("127.0.0.1:1")).unwrap();
        let mut state = sink.shared.lock();
        let first = current(&sink.shared.config, &mut state).unwrap();
        assert!(state.is_current(&first));
        first.end();
        while first.lives() {
            std::thread::yield_now();
        }
        let next = current(&sink.shared.config, &mut state).unwrap();
        assert!(!Arc::ptr_eq(&first, &next) && next.lives());
    }
}
