//! Settings of a processor.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_core::limits;
use semel_core::{ErrorKind, RetryPolicy, StoreError};

use crate::access::KafkaAccess;
use crate::consumer::Start;

/// What is done about a message that cannot be transformed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Refused {
    /// What is before it commits, then the processor stops at it, backs off and tries again. The default.
    #[default]
    Stop,
    /// It goes to this topic, unchanged but for headers that say why and where it was, in the same transaction. Later
    /// messages of its key are *not* held back.
    DeadLetter(String),
}

/// Settings of a [`Processor`](super::Processor).
#[derive(Clone)]
pub struct ProcessorConfig {
    /// `host:port` of some brokers, separated by commas.
    pub bootstrap: String,
    /// How to get in: TLS, and who the client is. Default: neither.
    pub access: KafkaAccess,
    /// The consumer group.
    pub group: String,
    /// The topics to read.
    pub topics: Vec<String>,
    /// Names this instance's place in the group, the same after every restart, and used by no other instance: for
    /// example `enricher-0`, with the ordinal of a stateful set. A restarted instance ends by it what its predecessor
    /// left open, in about a second; a changing id would leave readers waiting for the transaction's time-out.
    pub transactional_id: String,
    /// Messages in one transaction at most. Default 5 000.
    pub batch_max: usize,
    /// How long messages are collected for one transaction. Default 100 ms; smaller means sooner seen, and more
    /// transactions.
    pub interval: Duration,
    /// After this long the broker gives up an open transaction. Must be shorter than the group's session time-out
    /// (`session.timeout.ms`, 45 s unless set). Default 10 s.
    pub transaction_timeout: Duration,
    /// Where to begin in a partition that the group has never read. Default [`Start::Earliest`].
    pub start: Start,
    /// What is done about a message that cannot be transformed. Default [`Refused::Stop`].
    pub refused: Refused,
    /// Pauses between attempts. Default: without end, 0.2 to 10 s.
    pub retry: RetryPolicy,
    /// Further settings of librdkafka for consumer and producer alike, such as `reconnect.backoff.max.ms`.
    pub properties: BTreeMap<String, String>,
    /// Further settings for the consumer alone, such as `session.timeout.ms` or `group.instance.id`.
    pub consumer_properties: BTreeMap<String, String>,
    /// Further settings for the producer alone, such as `compression.type`.
    pub producer_properties: BTreeMap<String, String>,
}

impl std::fmt::Debug for ProcessorConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The properties may hold a password.
        f.debug_struct("ProcessorConfig")
            .field("bootstrap", &self.bootstrap)
            .field("group", &self.group)
            .field("topics", &self.topics)
            .field("transactional_id", &self.transactional_id)
            .finish_non_exhaustive()
    }
}

impl ProcessorConfig {
    /// The defaults for these topics.
    #[must_use]
    pub fn new(
        bootstrap: impl Into<String>,
        group: impl Into<String>,
        topics: impl IntoIterator<Item = impl Into<String>>,
        transactional_id: impl Into<String>,
    ) -> Self {
        Self {
            bootstrap: bootstrap.into(),
            access: KafkaAccess::default(),
            group: group.into(),
            topics: topics.into_iter().map(Into::into).collect(),
            transactional_id: transactional_id.into(),
            batch_max: 5_000,
            interval: Duration::from_millis(100),
            transaction_timeout: Duration::from_secs(10),
            start: Start::Earliest,
            refused: Refused::Stop,
            retry: RetryPolicy {
                initial_ms: 200,
                cap_ms: 10_000,
                ..RetryPolicy::forever()
            },
            properties: BTreeMap::new(),
            consumer_properties: BTreeMap::new(),
            producer_properties: BTreeMap::new(),
        }
    }

    pub(super) fn check(&self) -> Result<(), StoreError> {
        let check = |what, unit, actual: usize, max: u64, help| {
            limits::check(what, unit, actual as u64, 1, max, help)
        };
        check(
            "batch_max",
            "items",
            self.batch_max,
            100_000,
            "choose batch_max within the limit",
        )?;
        check(
            "topics",
            "items",
            self.topics.len(),
            1_000,
            "name at least one topic",
        )?;
        check("group", "bytes", self.group.len(), 255, "name the group")?;
        check(
            "transactional_id",
            "bytes",
            self.transactional_id.len(),
            255,
            "name this instance's place in the group",
        )?;
        for alone in [&self.consumer_properties, &self.producer_properties] {
            let mut properties = self.properties.clone();
            properties.extend(alone.clone());
            self.access.check(&properties)?;
        }
        let session = self
            .consumer_properties
            .get("session.timeout.ms")
            .or_else(|| self.properties.get("session.timeout.ms"))
            .and_then(|text| text.parse().ok())
            .unwrap_or(45_000);
        let transaction = self.transaction_timeout.as_millis();
        // A dead member's transaction must not outlive its membership.
        if transaction < 1_000 || transaction >= session {
            let text = format!(
                "transaction_timeout is {transaction} ms; it must be at least 1000 and below session.timeout.ms = {session}"
            );
            return Err(StoreError::new(ErrorKind::Invalid, "processor", text));
        }
        Ok(())
    }
}
