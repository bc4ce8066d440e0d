//! Settings of a log.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_core::limits;
use semel_core::relay::ShardId;
use semel_core::{ErrorKind, StoreError, event};

use crate::access::KafkaAccess;

/// Settings of a [`KafkaLog`](super::KafkaLog).
#[derive(Clone)]
pub struct KafkaLogConfig {
    /// `host:port` of some brokers, separated by commas.
    pub bootstrap: String,
    /// How to get in: TLS, and who the client is. Default: neither.
    pub access: KafkaAccess,
    /// Names the outbox among all that publish into this cluster: its transactional ids and its cursor topic are made of
    /// it. Two outboxes under one name fence each other and are found out (SEM0204). 1 to 100 of `a-z A-Z 0-9 . _ -`.
    pub name: String,
    /// The topics that hold the cursors, one per stream, are called this, a dash and the stream. Default
    /// `semel-cursor-NAME`. They must be compacted, and only that.
    pub cursor_topic: Option<String>,
    /// Partitions of a cursor topic when it is made; one per shard is needed. Default 4.
    pub cursor_partitions: u16,
    /// Its replication factor when it is made. Default -1, the broker's own default.
    pub cursor_replication: i32,
    /// Rows of one transaction at most. Default 5 000.
    pub rows_max: usize,
    /// How long rows of a batch wait to be joined by more of it. Default 5 ms. The last rows of a batch never wait.
    pub collect: Duration,
    /// How long a record may wait inside the client to be joined by others in a request. Default 2 ms.
    pub linger: Duration,
    /// After this long the broker ends an open transaction by itself, and until then a dead relay's transaction holds back
    /// the readers of its partitions. Default 10 s.
    pub transaction_timeout: Duration,
    /// Bytes in flight at most, for each of a shard's two producers. Default 64 MiB.
    pub in_flight_bytes_max: usize,
    /// Further settings of librdkafka, such as `compression.type`. Those that
    /// carry a guarantee are refused.
    pub properties: BTreeMap<String, String>,
}

impl std::fmt::Debug for KafkaLogConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The properties may hold a password.
        f.debug_struct("KafkaLogConfig")
            .field("bootstrap", &self.bootstrap)
            .field("name", &self.name)
            .field("cursor_topic", &self.cursor_topic)
            .finish_non_exhaustive()
    }
}

/// Room for the parts of a transactional id and of a topic's name that are added to it.
const NAME_BYTES_MAX: u64 = 100;

impl KafkaLogConfig {
    /// The defaults for these brokers.
    #[must_use]
    pub fn new(bootstrap: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            bootstrap: bootstrap.into(),
            access: KafkaAccess::default(),
            name: name.into(),
            cursor_topic: None,
            cursor_partitions: 4,
            cursor_replication: -1,
            rows_max: 5_000,
            collect: Duration::from_millis(5),
            linger: Duration::from_millis(2),
            transaction_timeout: Duration::from_secs(10),
            in_flight_bytes_max: 64 << 20,
            properties: BTreeMap::new(),
        }
    }

    pub(super) fn check(&self) -> Result<(), StoreError> {
        event::check_name("name", &self.name)?;
        let bytes = self.name.len() as u64;
        limits::check("name", "bytes", bytes, 1, NAME_BYTES_MAX, "use a shorter name")?;
        event::check_name("cursor_topic", &self.topics())?;
        self.access.check(&self.properties)?;
        let rows = self.rows_max as u64;
        limits::check(
            "rows_max",
            "rows",
            rows,
            1,
            100_000,
            "choose rows_max within the limit",
        )?;
        if self.transaction_timeout < Duration::from_secs(1) {
            let text = format!(
                "transaction_timeout is {} ms; it must be at least 1000",
                self.transaction_timeout.as_millis()
            );
            return Err(StoreError::new(ErrorKind::Invalid, "kafka configuration", text));
        }
        Ok(())
    }

    /// What the cursor topics' names begin with.
    pub(super) fn topics(&self) -> String {
        self.cursor_topic
            .clone()
            .unwrap_or_else(|| format!("semel-cursor-{}", self.name))
    }

    /// The cursor topic of a stream.
    pub(super) fn topic(&self, stream: &str) -> String {
        format!("{}-{stream}", self.topics())
    }

    /// The ids of a shard's two producers. They are the same for every owner: whoever comes ends what was left open.
    pub(super) fn transactional_ids(&self, shard: &ShardId) -> [String; 2] {
        ["a", "b"].map(|turn| format!("semel-{}-{}-{}-{turn}", self.name, shard.stream, shard.index))
    }
}
