//! The polling loop. One life is one Kafka client; after trouble with it the next one begins anew.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::config::FromClientConfigAndContext as _;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{Offset, TopicPartitionList};
use semel_core::inbox::AdvancePosition;
use semel_core::inbox::run::{Committed, End, Stopped};
use semel_core::store::InboxStore;
use semel_core::{Clock as _, ErrorKind, Retry, StoreError, SystemClock, error, host};
use semel_inbox::{BatchOptions, Handler, Message, settle_batch};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::config::ConsumerConfig;
use super::record::{Named, message};
use super::seats::{ASK, Seats, away};
use crate::offsets::{Place, next_offsets};
use crate::{client, topic_id};

/// How long one call of `poll` may block: shutdown is noticed after it.
const POLL: Duration = Duration::from_millis(100);
/// How often the topics' ids are compared.
const TOPIC_CHECK: Duration = Duration::from_secs(10);
/// How often marks are forgotten, and how many in one short transaction: more than a consumer adds between two batches.
const PURGE_EVERY: Duration = Duration::from_secs(30);
const PURGE_MARKS: u32 = 2_000;

/// Everything a life needs.
pub(super) struct Life<S, H> {
    pub(super) config: Arc<ConsumerConfig>,
    pub(super) store: Arc<S>,
    pub(super) handler: Arc<Named<H>>,
    pub(super) runtime: Handle,
    pub(super) shutdown: CancellationToken,
}

impl<S: InboxStore, H: Handler<S>> Life<S, H> {
    /// Life after life, until shutdown or an error that only a person can mend.
    pub(super) fn lives(&self) -> Result<(), StoreError> {
        let mut failures = 0;
        while !self.shutdown.is_cancelled() {
            let begun = SystemClock.monotonic();
            match self.one() {
                Ok(()) => {}
                Err(error) if error.retry() == Retry::Never => return Err(error),
                Err(error) => {
                    tracing::warn!(error = error::chain(&error), "the consumer begins anew");
                    if SystemClock.monotonic() - begun > Duration::from_secs(60) {
                        failures = 0;
                    }
                    failures += 1;
                    let pause = self.pause(failures);
                    self.runtime.block_on(async {
                        tokio::select! {
                            () = tokio::time::sleep(pause) => {}
                            () = self.shutdown.cancelled() => {}
                        }
                    });
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

    fn topic_ids(&self) -> Result<HashMap<String, Uuid>, StoreError> {
        let config = &self.config;
        let plain = config.access.is_open(&config.properties);
        config
            .topics
            .iter()
            .map(|topic| {
                let id = match config.topic_ids.get(topic) {
                    Some(id) => *id,
                    None if plain => topic_id::topic_id(&config.bootstrap, topic, ASK)?,
                    None => {
                        let text = format!(
                            "the id of topic {topic} cannot be asked for over TLS or SASL yet: set it in topic_ids \
                             (kafka-topics.sh --describe prints it)"
                        );
                        return Err(StoreError::new(ErrorKind::Invalid, "topic id", text));
                    }
                };
                Ok((topic.clone(), id))
            })
            .collect()
    }

    fn one(&self) -> Result<(), StoreError> {
        let config = &self.config;
        let own = [
            ("group.id", config.group.clone()),
            ("enable.auto.commit", "false".to_owned()),
            ("enable.auto.offset.store", "false".to_owned()),
            // Positions live in the database: being outside of the log is an error, never a jump.
            ("auto.offset.reset", "error".to_owned()),
            ("isolation.level", "read_committed".to_owned()),
            // The default of a second halves the speed at which a backlog drains.
            ("fetch.queue.backoff.ms", "10".to_owned()),
            ("enable.partition.eof", "false".to_owned()),
        ];
        let settings = client::settings(&config.bootstrap, &config.access, &own, &config.properties)?;
        let topic_ids = self.topic_ids()?;
        let seats = Seats::new(
            Arc::clone(config),
            Arc::clone(&self.store),
            self.runtime.clone(),
            topic_ids,
        );
        let consumer = BaseConsumer::from_config_and_context(&settings, seats).map_err(client::not_made)?;
        let topics: Vec<&str> = config.topics.iter().map(String::as_str).collect();
        consumer
            .subscribe(&topics)
            .map_err(|error| away("subscribe", error))?;
        let mut polling = Polling {
            life: self,
            consumer,
            options: config.batch_options(),
            messages: Vec::new(),
            epochs: Vec::new(),
            failures: 0,
            checked: SystemClock.monotonic(),
            purged: SystemClock.monotonic(),
        };
        polling.until_shutdown()
    }
}

/// One client and what it has read.
struct Polling<'a, S: InboxStore, H> {
    life: &'a Life<S, H>,
    consumer: BaseConsumer<Seats<S>>,
    options: BatchOptions,
    /// Read and not settled, in the order read.
    messages: Vec<Message>,
    /// Under which epoch of its partition each of them was read.
    epochs: Vec<i64>,
    /// Since the last commit.
    failures: u32,
    /// When the topics' ids were compared.
    checked: Duration,
    /// When old marks were last forgotten.
    purged: Duration,
}

impl<S: InboxStore, H: Handler<S>> Polling<'_, S, H> {
    fn seats(&self) -> &Seats<S> {
        self.consumer.context()
    }

    fn stopping(&self) -> bool {
        self.life.shutdown.is_cancelled()
    }

    fn until_shutdown(&mut self) -> Result<(), StoreError> {
        while !self.stopping() {
            self.fill()?;
            self.check_topics()?;
            self.purge();
            if self.messages.is_empty() {
                self.idle()?;
            } else {
                self.settle()?;
            }
        }
        Ok(())
    }

    /// Polls until a batch is full or has waited long enough.
    fn fill(&mut self) -> Result<(), StoreError> {
        let max = self.life.config.batch_max;
        let mut until = None;
        while self.messages.len() < max && !self.stopping() {
            let wait = match until {
                None if self.messages.is_empty() => POLL,
                None => Duration::ZERO,
                Some(until) => match SystemClock.monotonic() {
                    now if now >= until => break,
                    now => until - now,
                },
            };
            let before = self.messages.len();
            self.poll(wait)?;
            if self.messages.is_empty() {
                break;
            }
            if until.is_none() {
                until = Some(SystemClock.monotonic() + self.life.config.linger);
            } else if self.messages.len() == before && wait == Duration::ZERO {
                break;
            }
        }
        self.forget_what_is_not_owned();
        Ok(())
    }

    /// One call of the client: a record, or a change of the group.
    fn poll(&mut self, wait: Duration) -> Result<(), StoreError> {
        let polled = match self.consumer.poll(wait) {
            None => Ok(None),
            Some(Ok(record)) => {
                use rdkafka::Message as _;
                // Records of partitions that are not ours any more, or were never claimed, are nobody's loss: whoever
                // owns the partition reads them from the stored position.
                let seat = self.seats().take_record(record.topic(), record.partition());
                Ok(seat.map(|(epoch, topic_id)| (epoch, message(&record, topic_id, &self.life.config))))
            }
            Some(Err(error)) => Err(error),
        };
        match polled {
            Ok(None) => {}
            Ok(Some((epoch, message))) => {
                self.messages.push(message);
                self.epochs.push(epoch);
            }
            Err(error) => self.client_error(error)?,
        }
        match self.seats().broken() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn client_error(&self, error: KafkaError) -> Result<(), StoreError> {
        match error.rdkafka_error_code() {
            Some(Code::AutoOffsetReset | Code::OffsetOutOfRange | Code::LogTruncation) => {
                let text = "a stored position is outside of the log: records were deleted before they were read, or \
                            the topic was made anew";
                // The next claim sees which, and decides.
                Err(StoreError::new(ErrorKind::Unavailable, "poll", text).with_source(error))
            }
            Some(Code::FencedInstanceId) => {
                let text = "another process uses the same group.instance.id; give each instance its own";
                Err(StoreError::new(ErrorKind::Invalid, "poll", text).with_source(error))
            }
            _ if matches!(error, KafkaError::MessageConsumptionFatal(_)) => Err(away("poll", error)),
            _ => {
                tracing::warn!(%error, "the Kafka client reports an error");
                Ok(())
            }
        }
    }

    /// Drops what was read under an earlier assignment: its new owner, perhaps this very process, reads it again.
    fn forget_what_is_not_owned(&mut self) {
        let seats = self.consumer.context();
        let keep: Vec<bool> = self
            .messages
            .iter()
            .zip(&self.epochs)
            .map(|(message, epoch)| seats.owns(&message.topic, message.partition, *epoch))
            .collect();
        if keep.iter().all(|keep| *keep) {
            return;
        }
        let mut each = keep.iter();
        self.messages.retain(|_| each.next().copied().unwrap_or(false));
        let mut each = keep.iter();
        self.epochs.retain(|_| each.next().copied().unwrap_or(false));
    }

    /// The client's own positions, which count control records (rule I1), where they are about this claim.
    fn positions(&self) -> Result<HashMap<Place, i64>, StoreError> {
        let owned = self.seats().owned();
        let list = self
            .consumer
            .position()
            .map_err(|error| away("position", error))?;
        let mut positions = HashMap::new();
        for element in list.elements() {
            let place = (element.topic().to_owned(), element.partition());
            if let Offset::Offset(offset) = element.offset()
                && owned.get(&place).is_some_and(|seat| seat.read)
            {
                positions.insert(place, offset);
            }
        }
        Ok(positions)
    }

    fn settle(&mut self) -> Result<(), StoreError> {
        let size = self.messages.len().min(self.life.config.batch_max);
        let positions = self.positions()?;
        let owned = self.seats().owned();
        let messages = &self.messages;
        let steps = |upto: usize| -> Vec<AdvancePosition> {
            let settled = next_offsets(messages, upto, &positions);
            settled
                .into_iter()
                .filter_map(|(place, next)| {
                    let seat = owned.get(&place)?;
                    Some(AdvancePosition {
                        key: seat.key.clone(),
                        epoch: seat.position.epoch,
                        owner: seat.position.owner,
                        expected: seat.position.next_offset,
                        next,
                    })
                })
                .collect()
        };
        let end = self.life.runtime.block_on(settle_batch(
            &*self.life.store,
            &*self.life.handler,
            &self.options,
            &messages[..size],
            &steps,
        ));
        match end {
            End::Committed(committed) => self.committed(committed, &positions),
            End::Stopped(stopped) => {
                self.stopped(&stopped);
                self.wait()
            }
            End::Later(why) => {
                tracing::warn!(why, "a batch is tried again");
                self.wait()
            }
            End::Lost(why) | End::Unknown(why) => self.claim_again(&why),
        }
    }

    fn committed(&mut self, committed: Committed, positions: &HashMap<Place, i64>) -> Result<(), StoreError> {
        let next = next_offsets(&self.messages, committed.upto, positions);
        let mut list = TopicPartitionList::new();
        for ((topic, partition), next) in &next {
            self.seats().moved(&(topic.clone(), *partition), *next);
            // Only a topic name with a zero byte could fail here.
            let _ = list.add_partition_offset(topic, *partition, Offset::Offset(*next));
        }
        // For monitoring; the truth is in the database.
        if let Err(error) = self.consumer.commit(&list, CommitMode::Async) {
            tracing::debug!(%error, "offsets for monitoring were not committed");
        }
        if committed.parked > 0 {
            tracing::warn!(parked = committed.parked, "messages were parked");
        }
        let stopped = committed.stopped.map(|stopped| Stopped {
            at: stopped.at - committed.upto,
            ..stopped
        });
        self.messages.drain(..committed.upto);
        self.epochs.drain(..committed.upto);
        self.failures = 0;
        match stopped {
            Some(stopped) => {
                self.stopped(&stopped);
                self.wait()
            }
            None => Ok(()),
        }
    }

    fn stopped(&self, stopped: &Stopped) {
        if let Some(message) = self.messages.get(stopped.at) {
            tracing::error!(
                topic = message.topic,
                partition = message.partition,
                offset = message.offset,
                why = stopped.why,
                "the consumer stops at a message that cannot be handled"
            );
        }
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

    /// Rule I3 and lost replies alike: what the group still gives to this instance after another poll is claimed anew,
    /// and read from where the database says.
    fn claim_again(&mut self, why: &str) -> Result<(), StoreError> {
        tracing::warn!(why, "positions are claimed again");
        self.failures += 1;
        let jitter = Duration::from_millis((host::dice() * 200.0) as u64);
        self.poll(POLL + jitter)?;
        self.messages.clear();
        self.epochs.clear();
        let places: Vec<Place> = self.seats().owned().into_keys().collect();
        if places.is_empty() {
            return Ok(());
        }
        let list = self.seats().claim(&self.consumer, &places)?;
        let sought = self
            .consumer
            .seek_partitions(list, ASK)
            .map_err(|error| away("seek", error))?;
        for element in sought.elements() {
            element.error().map_err(|error| away("seek", error))?;
        }
        Ok(())
    }

    /// Nothing to read: positions still move past control records at a partition's end.
    fn idle(&mut self) -> Result<(), StoreError> {
        let positions = self.positions()?;
        let steps: Vec<(Place, AdvancePosition)> = self
            .seats()
            .owned()
            .into_iter()
            .filter_map(|(place, seat)| {
                let next = *positions.get(&place)?;
                (next > seat.position.next_offset).then_some(())?;
                let step = AdvancePosition {
                    key: seat.key,
                    epoch: seat.position.epoch,
                    owner: seat.position.owner,
                    expected: seat.position.next_offset,
                    next,
                };
                Some((place, step))
            })
            .collect();
        if steps.is_empty() {
            return Ok(());
        }
        let store = &self.life.store;
        let moved = self.life.runtime.block_on(async {
            let mut tx = store.begin_inbox().await?;
            let wishes: Vec<AdvancePosition> = steps.iter().map(|(_, step)| step.clone()).collect();
            match store.advance_positions(&mut tx, &wishes).await {
                Ok(()) => store.commit_inbox(tx).await,
                Err(error) => {
                    store.rollback_inbox(tx).await?;
                    Err(error)
                }
            }
        });
        match moved {
            Ok(()) => {
                for (place, step) in &steps {
                    self.seats().moved(place, step.next);
                }
                Ok(())
            }
            Err(error) if matches!(error.kind(), ErrorKind::LeaseLost | ErrorKind::ReplyLost) => {
                self.claim_again(&error::chain(&error))
            }
            Err(error) => Err(error),
        }
    }

    /// Forgets marks whose retention is over, some at a time, between two batches.
    fn purge(&mut self) {
        let now = SystemClock.monotonic();
        if !self.options.marks || now - self.purged < PURGE_EVERY {
            return;
        }
        let purged = self
            .life
            .runtime
            .block_on(self.life.store.purge_inbox(PURGE_MARKS));
        match purged {
            // More to do: soon again.
            Ok(count) if count == u64::from(PURGE_MARKS) => {}
            Ok(_) => self.purged = now,
            Err(error) => {
                tracing::debug!(error = error::chain(&error), "marks were not purged");
                self.purged = now;
            }
        }
    }

    /// A topic made anew is another topic: begin again, with its own positions.
    fn check_topics(&mut self) -> Result<(), StoreError> {
        let now = SystemClock.monotonic();
        if now - self.checked < TOPIC_CHECK {
            return Ok(());
        }
        self.checked = now;
        match self.life.topic_ids() {
            Ok(ids) if ids == self.seats().topic_ids => Ok(()),
            Ok(_) => {
                let text = "a topic was deleted and made again: it is read as a new one";
                Err(StoreError::new(ErrorKind::Unavailable, "topic id", text))
            }
            Err(error) => {
                tracing::debug!(error = error::chain(&error), "topic ids were not compared");
                Ok(())
            }
        }
    }
}
