//! Settings of a consumer.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_core::inbox::Poison;
use semel_core::limits::{self, BATCH_ITEMS_MAX};
use semel_core::{RetryPolicy, Scope, StoreError};
use semel_inbox::BatchOptions;
use uuid::Uuid;

use crate::access::KafkaAccess;

/// How repeats are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dedup {
    /// By position alone: one row per partition, nearly free. A record that its producer wrote twice is handled twice.
    Offsets,
    /// By the id of each message as well: also a producer's own repeats, such as a relay's after a crash.
    Ids,
}

/// What names a message under [`Dedup::Ids`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageId {
    /// CloudEvents `ce_id`, unique within `ce_source`. A message without them is handled by the poison policy: an id is
    /// never made up.
    Event,
    /// The bytes of this header, 1 to 255. A message without it is handled by the poison policy.
    Header(String),
    /// Topic id, partition and offset.
    Position,
}

/// Where a group begins in a partition it has never read. Afterwards only its stored position counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At the oldest record.
    Earliest,
    /// After the newest one.
    Latest,
}

/// Settings of a [`Consumer`](super::Consumer).
#[derive(Clone)]
pub struct ConsumerConfig {
    /// `host:port` of some brokers, separated by commas.
    pub bootstrap: String,
    /// How to get in: TLS, and who the client is. Default: neither.
    pub access: KafkaAccess,
    /// The consumer group. It shares out the partitions; the positions are kept in the database under its name.
    pub group: String,
    /// The topics.
    pub topics: Vec<String>,
    /// Where message ids are unique: the consumer's name, with the handler's where a service has several.
    pub scope: Scope,
    /// How repeats are told. Default [`Dedup::Ids`].
    pub dedup: Dedup,
    /// What names a message under [`Dedup::Ids`]. Default [`MessageId::Event`].
    pub message_id: MessageId,
    /// How long at least ids are remembered: longer than the topic keeps records, plus every retry. Default 30 days.
    pub retention: Duration,
    /// What is done about a message that can never be handled. Default [`Poison::Stop`].
    pub poison: Poison,
    /// Messages in one transaction at most, 1 to [`BATCH_ITEMS_MAX`]. Default 500.
    pub batch_max: usize,
    /// How long a batch waits to fill up. Default 20 ms.
    pub linger: Duration,
    /// Where to begin in a partition that was never read. Default [`Start::Earliest`].
    pub start: Start,
    /// Go on at the oldest record when the stored position is older than it: records were deleted before they were
    /// read, and they are lost. Default `false`: stop and say so.
    pub accept_lost_records: bool,
    /// Pauses between attempts. Default: without end, 0.2 to 10 s.
    pub retry: RetryPolicy,
    /// Topic ids, where the brokers cannot be asked for them because they speak TLS or SASL:
    /// `kafka-topics.sh --describe` prints them.
    pub topic_ids: BTreeMap<String, Uuid>,
    /// Further settings of librdkafka, such as `session.timeout.ms` or `group.instance.id`. Those
    /// that carry a guarantee are refused.
    pub properties: BTreeMap<String, String>,
}

impl std::fmt::Debug for ConsumerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The properties may hold a password.
        f.debug_struct("ConsumerConfig")
            .field("bootstrap", &self.bootstrap)
            .field("group", &self.group)
            .field("topics", &self.topics)
            .field("dedup", &self.dedup)
            .finish_non_exhaustive()
    }
}

impl ConsumerConfig {
    /// The defaults for these topics. The scope is the group's name.
    ///
    /// # Errors
    /// The group's name is empty or longer than a scope may be.
    pub fn new(
        bootstrap: impl Into<String>,
        group: impl Into<String>,
        topics: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Self, StoreError> {
        let group = group.into();
        Ok(Self {
            bootstrap: bootstrap.into(),
            access: KafkaAccess::default(),
            scope: Scope::new(&group)?,
            group,
            topics: topics.into_iter().map(Into::into).collect(),
            dedup: Dedup::Ids,
            message_id: MessageId::Event,
            retention: Duration::from_secs(30 * 86_400),
            poison: Poison::Stop,
            batch_max: 500,
            linger: Duration::from_millis(20),
            start: Start::Earliest,
            accept_lost_records: false,
            retry: RetryPolicy {
                initial_ms: 200,
                cap_ms: 10_000,
                ..RetryPolicy::forever()
            },
            topic_ids: BTreeMap::new(),
            properties: BTreeMap::new(),
        })
    }

    /// How batches of this consumer are settled.
    pub(super) fn batch_options(&self) -> BatchOptions {
        BatchOptions {
            scope: self.scope.clone(),
            marks: self.dedup == Dedup::Ids,
            retention: self.retention,
            poison: self.poison,
        }
    }

    pub(super) fn check(&self) -> Result<(), StoreError> {
        let count = |what, actual: usize, max: usize, help| {
            limits::check(what, "items", actual as u64, 1, max as u64, help)
        };
        count(
            "batch_max",
            self.batch_max,
            BATCH_ITEMS_MAX,
            "choose batch_max within the limit",
        )?;
        count("topics", self.topics.len(), 1_000, "name at least one topic")?;
        semel_core::inbox::mark::retention_ms(self.retention)?;
        self.access.check(&self.properties)
    }
}
