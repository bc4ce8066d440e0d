//! The Redis Streams sink of a relay.

mod answer;
mod arrivals;
mod entry;
mod plan;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use redis::Pipeline;
use semel_core::limits::{self, LimitExceeded};
use semel_core::store::{OutboxRow, Sink, SinkError, SinkErrorClass, SinkFuture, SinkOrder};
use semel_core::{ErrorKind, Event, StoreError};

pub use self::arrivals::read_arrivals;
use self::entry::How;
use self::plan::Part;
use crate::config::Config;
use crate::health::{self, Facts};
use crate::link::{Link, Node, wait_ms};

/// Bytes of a stream's key that a template may have.
const TEMPLATE_BYTES_MAX: usize = 512;
/// How long [`Sink::probe`] waits.
const PROBE: Duration = Duration::from_secs(5);

/// Settings of a [`RedisSink`].
#[derive(Debug, Clone)]
pub struct RedisSinkConfig {
    /// How to connect. [`Config::replicas_min`] counts for events, too, and its wait is half of
    /// [`Config::reply_timeout`]; prefix and `check_every` are not used.
    pub redis: Config,
    /// The key of a topic's stream: `{topic}` stands for the topic. Default `{topic}`. In a cluster a hash tag, as in
    /// `events:{{topic}}`, lets a consumer keep its own keys in the stream's slot.
    pub key: String,
    /// About how many entries a stream keeps (`MAXLEN ~`); **what no consumer has read yet goes, too**. Default none:
    /// streams grow until somebody trims them.
    pub entries_max: Option<u64>,
    /// Whether a stream that is missing is made. Default yes; otherwise the shard pauses and says so.
    pub create_streams: bool,
    /// Bytes of one entry at most; Redis' own limit is `proto-max-bulk-len`, 512 MB for each field. Default 4 MiB.
    pub entry_bytes_max: usize,
    /// Rows handed over at once, at most. Default 1 000.
    pub in_flight_max: usize,
}

impl RedisSinkConfig {
    /// The defaults for this URL.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            redis: Config::new(url),
            key: "{topic}".to_owned(),
            entries_max: None,
            create_streams: true,
            entry_bytes_max: 4 << 20,
            in_flight_max: 1_000,
        }
    }

    fn check(&self) -> Result<(), StoreError> {
        self.redis.check()?;
        let invalid = |text: &'static str| StoreError::new(ErrorKind::Invalid, "redis sink", text);
        if self.key.is_empty() || self.key.len() > TEMPLATE_BYTES_MAX {
            return Err(invalid("the key of a stream has 1 to 512 bytes, such as {topic}"));
        }
        if self.entries_max == Some(0) {
            return Err(invalid("entries_max is 0: every event would be trimmed at once"));
        }
        Ok(())
    }
}

/// Appends events to the Redis streams that their topics name.
///
/// # Guarantees
/// - Rows of one call go in parts of at most 256 rows or 1 MiB, one after the other; a part in which a key has two rows, and
///   in a cluster every part, is a transaction (`MULTI`). Order per key is that of the call, and no row passes an earlier one of
///   its key that failed.
/// - `Ok` means that Redis has answered, and that [`Config::replicas_min`] replicas have confirmed it (not in a cluster).
/// - Every part of an event arrives as it was, headers in order with repeats and bytes.
///
/// # In a stream
/// Fields: `ce_specversion`, `ce_id`, `ce_source`, `ce_type`, `ce_time`, `ce_partitionkey` (the ordering key, as bytes), `ce_sequence`,
/// `topic`, `content-type`, `traceparent`, `data` (not there for a tombstone), and `h:NAME` for each header. Fields may repeat: a
/// client that reads entries into a map keeps one of them.
///
/// # Not guaranteed
/// - Once: streams of Redis 7 know no ids of their own for events, so an event that was sent again is there twice, with the
///   same `ce_id`. A consumer drops ids it has seen.
/// - **What Redis forgets is gone**: without `appendonly yes` and `appendfsync always` a crash of the machine takes about the last
///   second, and a fail-over what the promoted replica had not seen, `replicas_min` or not. The outbox keeps
///   published events for its retention time, from which they can be sent again.
/// - With `entries_max`, or a `maxmemory-policy` other than `noeviction`, events can go before they are read.
pub struct RedisSink {
    inner: Arc<Inner>,
    in_flight_max: usize,
    entry_bytes_max: usize,
}

struct Inner {
    link: Link,
    how: How,
    replicas: u32,
    /// How long `WAIT` waits.
    wait_ms: u64,
    /// Whether replicas were missing last time.
    unconfirmed: AtomicBool,
}

impl std::fmt::Debug for RedisSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisSink")
            .field("key", &self.inner.how.key)
            .field("in_flight_max", &self.in_flight_max)
            .finish_non_exhaustive()
    }
}

impl RedisSink {
    /// A sink for this Redis. Opens no connection yet.
    ///
    /// # Errors
    /// `Invalid`: a URL or setting that cannot be used.
    pub fn new(config: RedisSinkConfig) -> Result<Self, StoreError> {
        config.check()?;
        let replicas = if config.redis.cluster {
            0
        } else {
            config.redis.replicas_min
        };
        let inner = Inner {
            replicas,
            wait_ms: wait_ms(config.redis.reply_timeout),
            unconfirmed: AtomicBool::new(false),
            link: Link::new(config.redis, Arc::new(|_| {}))?,
            how: How {
                key: config.key,
                entries_max: config.entries_max,
                create: config.create_streams,
            },
        };
        Ok(Self {
            inner: Arc::new(inner),
            in_flight_max: config.in_flight_max.max(1),
            entry_bytes_max: config.entry_bytes_max,
        })
    }

    /// What every server that holds a part of the keys says about itself, for somebody who wants to know what a crash
    /// could cost.
    ///
    /// # Errors
    /// No answer.
    pub async fn facts(&self) -> Result<Vec<Facts>, StoreError> {
        health::ask(&self.inner.link).await
    }
}

impl Inner {
    /// The commands of one part.
    fn pipeline(&self, part: &Part, rows: &[Arc<OutboxRow>], streams: &[String]) -> Pipeline {
        let mut pipeline = Pipeline::with_capacity(part.rows.len() + 3);
        if part.whole {
            pipeline.cmd("MULTI");
        }
        for index in &part.rows {
            pipeline.add_command(entry::command(&self.how, &streams[*index], &rows[*index]));
        }
        if part.whole {
            pipeline.cmd("EXEC");
        }
        if self.replicas > 0 {
            pipeline.cmd("WAIT").arg(self.replicas).arg(self.wait_ms);
        }
        pipeline
    }

    /// Asks for the replicas alone. While they are missing nothing is sent: every repeat would be one more entry in its
    /// stream, and might trim what nobody has read yet.
    async fn replicas_are_there(&self) -> Result<(), SinkError> {
        let mut pipeline = Pipeline::with_capacity(1);
        pipeline.cmd("WAIT").arg(self.replicas).arg(self.wait_ms);
        let answers = self.link.pipeline("publish", &pipeline, 1).await;
        answer::confirmed(&answers.map_err(|error| answer::failed(&error))?, self.replicas)?;
        self.unconfirmed.store(false, Ordering::Release);
        Ok(())
    }

    async fn publish(&self, rows: &[Arc<OutboxRow>], deadline: Duration) -> Vec<Result<(), SinkError>> {
        let streams: Vec<String> = rows.iter().map(|row| self.how.stream(&row.event.topic)).collect();
        let parts = plan::parts(rows, &streams, self.link.is_cluster());
        let mut results: Vec<_> = rows.iter().map(|_| Err(answer::held_back())).collect();
        let mut limit = std::pin::pin!(tokio::time::sleep(deadline));
        if self.unconfirmed.load(Ordering::Acquire) {
            let asked = tokio::select! {
                asked = self.replicas_are_there() => asked,
                () = &mut limit => Err(late(deadline)),
            };
            if let Err(error) = asked {
                if let Some(first) = results.first_mut() {
                    *first = Err(error);
                }
                return results;
            }
        }
        let mut next = parts.first().map(|part| self.pipeline(part, rows, &streams));
        for (at, part) in parts.iter().enumerate() {
            let Some(pipeline) = next.take() else { break };
            let sending = self.link.pipeline("publish", &pipeline, pipeline.len());
            // The next part is written while Redis works on this one.
            let building = async { parts.get(at + 1).map(|part| self.pipeline(part, rows, &streams)) };
            let both = async { tokio::join!(sending, building) };
            let answers = tokio::select! {
                (answers, built) = both => {
                    next = built;
                    answers.map_err(|error| answer::failed(&error))
                }
                () = &mut limit => Err(late(deadline)),
            };
            let count = part.rows.len();
            let judged = match answers {
                Ok(answers) => {
                    if answer::confirmed(&answers, self.replicas).is_err() {
                        self.unconfirmed.store(true, Ordering::Release);
                    }
                    if part.whole {
                        answer::judge(answers, count, self.replicas)
                    } else {
                        answer::judge_each(answers, count, self.replicas)
                    }
                }
                Err(error) => vec![Err(error); count],
            };
            let failed = judged.iter().any(Result::is_err);
            for (index, result) in part.rows.iter().zip(judged) {
                results[*index] = result;
            }
            if failed {
                break;
            }
        }
        results
    }
}

fn late(deadline: Duration) -> SinkError {
    let text = format!("no answer within {} ms", deadline.as_millis());
    SinkError::new(SinkErrorClass::Away, text)
}

#[async_trait]
impl Sink for RedisSink {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn order(&self) -> SinkOrder {
        SinkOrder::Pipelined {
            in_flight_max: self.in_flight_max,
        }
    }

    fn check(&self, event: &Event) -> Result<(), LimitExceeded> {
        limits::check(
            "stream entry",
            "bytes",
            entry::bytes(event) as u64,
            0,
            self.entry_bytes_max as u64,
            "send less, or raise entry_bytes_max of the sink",
        )
    }

    fn publish_many(&self, rows: &[Arc<OutboxRow>], deadline: Duration) -> SinkFuture {
        let (inner, rows) = (Arc::clone(&self.inner), rows.to_vec());
        Box::pin(async move { inner.publish(&rows, deadline).await })
    }

    async fn probe(&self) -> Result<(), SinkError> {
        let link = &self.inner.link;
        let asked = async {
            link.ask("probe", &Node::Only, redis::cmd("PING")).await?;
            if link.is_cluster() {
                return Ok(());
            }
            // Where the user may not ask, publishing will tell.
            let mut role = redis::cmd("INFO");
            role.arg("replication");
            let role = link.ask("probe", &Node::Only, role).await;
            if role.is_ok_and(|info| health::is_replica(&info)) {
                link.close();
                let text = "READONLY this Redis is a replica; connect to the primary";
                return Err(StoreError::new(ErrorKind::Unavailable, "probe", text));
            }
            Ok(())
        };
        match tokio::time::timeout(PROBE, asked).await {
            Ok(asked) => asked.map_err(|error| answer::failed(&error)),
            Err(_) => Err(late(PROBE)),
        }
    }
}
