//! Kafka as a log that holds the relay's cursor: events and cursor in one Kafka transaction.

mod config;
mod cursor;
mod line;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use semel_core::limits::LimitExceeded;
use semel_core::relay::{LogPlace, ShardId};
use semel_core::store::{
    LogSink, OutboxRow, Sink, SinkError, SinkErrorClass, SinkFuture, SinkOrder, TransactionEnd,
    TransactionFuture,
};
use semel_core::{Event, StoreError, crash_point};

pub use self::config::KafkaLogConfig;
use self::line::Line;
use crate::sink::record;

/// Publishes events to the Kafka topics that they name, exactly once.
///
/// # Guarantees
/// - For a reader with `isolation.level=read_committed` each event is in the log once, and events of one key in order,
///   whatever dies: the cursor is a record of the same Kafka transaction.
/// - A relay that takes a shard over ends what the last one left open and fences it before it reads anything
///   (`init_transactions` of the same transactional ids, then the cursor topic to its high watermark).
/// - A producer with a result that is not definite is thrown away; the next one ends its transaction, and the cursor in
///   the log says how.
///
/// # Not guaranteed
/// - Anything for readers with `read_uncommitted`.
/// - With replication factor 1, or `min.insync.replicas` 1, Kafka itself can lose what it has acknowledged. The cursor
///   topic is made with the broker's default factor; set `cursor_replication`.
/// - Brokers before 4.0, and this client's older transaction protocol with any broker: a request that was delayed on the
///   network past its transaction can end up in the next one (KIP-890).
/// - An event that is refused holds its shard back until it is sent or set aside: there are no gaps in a log.
///
/// # Costs
/// Two producers, each with threads of its own, for every shard: a few shards go a long way. Each transaction takes some
/// milliseconds, whatever its size.
#[derive(Debug)]
pub struct KafkaLog {
    config: Arc<KafkaLogConfig>,
    lines: Mutex<HashMap<ShardId, Line>>,
}

impl KafkaLog {
    /// A log on these brokers. Does not wait for them.
    ///
    /// # Errors
    /// `Invalid` for a setting that cannot work.
    pub fn new(config: KafkaLogConfig) -> Result<Self, StoreError> {
        config.check()?;
        Ok(Self {
            config: Arc::new(config),
            lines: Mutex::default(),
        })
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<ShardId, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn interrupted() -> SinkError {
    SinkError::new(SinkErrorClass::Away, "it was interrupted")
}

#[async_trait]
impl Sink for KafkaLog {
    fn name(&self) -> &'static str {
        "kafka in transactions"
    }

    fn order(&self) -> SinkOrder {
        SinkOrder::Transactional {
            rows_max: self.config.rows_max,
            ahead: 2,
            linger_ms: u64::try_from(self.config.collect.as_millis()).unwrap_or(u64::MAX),
        }
    }

    fn check(&self, event: &Event) -> Result<(), LimitExceeded> {
        record::check(event, record::bytes_max(&self.config.properties))
    }

    fn publish_many(&self, rows: &[Arc<OutboxRow>], _deadline: Duration) -> SinkFuture {
        let text = "this sink publishes in transactions only";
        let error = SinkError::new(SinkErrorClass::Destination, text);
        let results = rows.iter().map(|_| Err(error.clone())).collect();
        Box::pin(std::future::ready(results))
    }

    async fn probe(&self) -> Result<(), SinkError> {
        cursor::probe(&self.config).await
    }

    fn log(&self) -> Option<&dyn LogSink> {
        Some(self)
    }
}

#[async_trait]
impl LogSink for KafkaLog {
    async fn resume(&self, shard: &ShardId) -> Result<Option<LogPlace>, SinkError> {
        let old = self.lines().remove(shard);
        let single = old.as_ref().is_some_and(Line::too_large);
        drop(old);
        cursor::ensure(&self.config, shard).await?;
        let (config, of) = (Arc::clone(&self.config), shard.clone());
        // First the fence, of both producers; then the cursor.
        let started = tokio::task::spawn_blocking(move || {
            let line = Line::start(&config, &of, single)?;
            crash_point("log.fenced");
            let place = cursor::read(&config, &of)?;
            Ok((line, place))
        });
        let (line, place) = started.await.unwrap_or_else(|_| Err(interrupted()))?;
        self.lines().insert(shard.clone(), line);
        Ok(place)
    }

    fn commit(
        &self,
        shard: &ShardId,
        rows: &[Arc<OutboxRow>],
        place: LogPlace,
        deadline: Duration,
    ) -> TransactionFuture {
        let lines = self.lines();
        let Some(line) = lines.get(shard) else {
            let error = SinkError::new(SinkErrorClass::Away, "the shard has no producers");
            return Box::pin(std::future::ready(TransactionEnd::Unknown(error)));
        };
        let answer = line.hand_over(rows, place);
        Box::pin(line::end_of(answer, deadline))
    }

    fn go_on(&self, shard: &ShardId) {
        if let Some(line) = self.lines().get(shard) {
            line.go_on();
        }
    }

    fn close(&self, shard: &ShardId) {
        self.lines().remove(shard);
    }
}
