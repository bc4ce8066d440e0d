//! Which partitions this instance owns, and from which position.
//!
//! Runs on the polling thread, inside its calls of `poll`: the group's changes are taken in before any record of a
//! new partition can be seen.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use semel_core::inbox::{AssignPosition, Position, PositionKey};
use semel_core::store::InboxStore;
use semel_core::{ErrorKind, Nonce, StoreError};
use tokio::runtime::Handle;
use uuid::Uuid;

use super::config::{ConsumerConfig, Start};
use crate::client;
use crate::offsets::Place;

/// How long one question to a broker may take.
pub(super) const ASK: Duration = Duration::from_secs(10);

/// A partition that this instance owns.
#[derive(Debug, Clone)]
pub(super) struct Seat {
    pub(super) key: PositionKey,
    /// As stored; `next_offset` moves with each commit.
    pub(super) position: Position,
    /// Whether a record was taken since it was claimed: only then is the client's own position about this claim.
    pub(super) read: bool,
}

/// All of them; the context of the Kafka client.
pub(super) struct Seats<S> {
    pub(super) config: Arc<ConsumerConfig>,
    pub(super) store: Arc<S>,
    pub(super) runtime: Handle,
    pub(super) topic_ids: HashMap<String, Uuid>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    owned: HashMap<Place, Seat>,
    /// An assignment that could not be taken: this client is of no use any more.
    broken: Option<StoreError>,
}

impl<S: InboxStore> Seats<S> {
    pub(super) fn new(
        config: Arc<ConsumerConfig>,
        store: Arc<S>,
        runtime: Handle,
        topic_ids: HashMap<String, Uuid>,
    ) -> Self {
        Self {
            config,
            store,
            runtime,
            topic_ids,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is owned now.
    pub(super) fn owned(&self) -> HashMap<Place, Seat> {
        self.lock().owned.clone()
    }

    /// The epoch under which a partition is owned, noting that a record of it was taken.
    pub(super) fn take_record(&self, topic: &str, partition: i32) -> Option<(i64, Uuid)> {
        let mut state = self.lock();
        let seat = state.owned.get_mut(&(topic.to_owned(), partition))?;
        seat.read = true;
        Some((seat.position.epoch, seat.key.topic_id))
    }

    /// Whether a partition is owned under this epoch.
    pub(super) fn owns(&self, topic: &str, partition: i32, epoch: i64) -> bool {
        let place = (topic.to_owned(), partition);
        let state = self.lock();
        let seat = state.owned.get(&place);
        seat.is_some_and(|seat| seat.position.epoch == epoch)
    }

    /// A commit moved a position.
    pub(super) fn moved(&self, place: &Place, next_offset: i64) {
        if let Some(seat) = self.lock().owned.get_mut(place) {
            seat.position.next_offset = next_offset;
        }
    }

    /// The error of an assignment that could not be taken.
    pub(super) fn broken(&self) -> Option<StoreError> {
        self.lock().broken.take()
    }

    /// Becomes the owner of partitions in the database; where to read on.
    pub(super) fn claim(
        &self,
        consumer: &BaseConsumer<Self>,
        places: &[Place],
    ) -> Result<TopicPartitionList, StoreError> {
        let mut wishes = Vec::with_capacity(places.len());
        let mut bounds = Vec::with_capacity(places.len());
        for (topic, partition) in places {
            let topic_id = *self.topic_ids.get(topic).ok_or_else(|| {
                let text = format!("topic {topic} was not asked for");
                StoreError::new(ErrorKind::Invalid, "assignment", text)
            })?;
            let (low, high) = consumer
                .fetch_watermarks(topic, *partition, ASK)
                .map_err(|error| away("log bounds", error))?;
            bounds.push((low, high));
            wishes.push(AssignPosition {
                key: PositionKey {
                    group: self.config.group.clone(),
                    topic_id,
                    partition: *partition,
                },
                topic: topic.clone(),
                owner: Nonce::random(),
                initial: match self.config.start {
                    Start::Earliest => low,
                    Start::Latest => high,
                },
            });
        }
        let positions = self.runtime.block_on(self.store.assign_positions(&wishes))?;
        let mut list = TopicPartitionList::new();
        for (((wish, position), (low, high)), place) in
            wishes.into_iter().zip(positions).zip(bounds).zip(places)
        {
            let next = position.next_offset;
            let from = if (low..=high).contains(&next) {
                next
            } else if next < low && self.config.accept_lost_records {
                tracing::warn!(
                    topic = place.0,
                    partition = place.1,
                    from = next,
                    to = low,
                    "records were deleted before they were read; going on after them"
                );
                low
            } else {
                return Err(outside(place, next, low, high));
            };
            list.add_partition_offset(&place.0, place.1, Offset::Offset(from))
                .map_err(|error| away("assignment", error))?;
            let seat = Seat {
                key: wish.key,
                position,
                read: false,
            };
            self.lock().owned.insert(place.clone(), seat);
        }
        Ok(list)
    }

    fn assigned(&self, consumer: &BaseConsumer<Self>, places: &[Place]) -> Result<(), StoreError> {
        let list = self.claim(consumer, places)?;
        let taken = match consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => consumer.incremental_assign(&list),
            RebalanceProtocol::Eager | RebalanceProtocol::None => consumer.assign(&list),
        };
        taken.map_err(|error| away("assignment", error))?;
        tracing::info!(?list, "partitions assigned");
        Ok(())
    }

    fn revoked(&self, consumer: &BaseConsumer<Self>, places: &[Place]) -> KafkaResult<()> {
        let lost = consumer.assignment_lost();
        {
            let mut state = self.lock();
            for place in places {
                state.owned.remove(place);
            }
        }
        tracing::info!(?places, lost, "partitions revoked");
        match consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => {
                let mut list = TopicPartitionList::new();
                for (topic, partition) in places {
                    list.add_partition(topic, *partition);
                }
                consumer.incremental_unassign(&list)
            }
            RebalanceProtocol::Eager | RebalanceProtocol::None => consumer.unassign(),
        }
    }
}

pub(super) fn away(operation: &'static str, error: KafkaError) -> StoreError {
    StoreError::new(ErrorKind::Unavailable, operation, "the broker gave no answer").with_source(error)
}

fn outside((topic, partition): &Place, next: i64, low: i64, high: i64) -> StoreError {
    let text = format!(
        "partition {partition} of {topic} was read up to {next}, and the log now spans {low} to {high}: records were \
         deleted before they were read (set accept_lost_records to go on after them), or the log was cut"
    );
    StoreError::new(ErrorKind::IdentityChanged, "assignment", text)
}

impl<S: InboxStore> ClientContext for Seats<S> {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        client::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        client::global_error(&error, reason);
    }
}

impl<S: InboxStore> ConsumerContext for Seats<S> {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, event: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let places: Vec<Place> = list
            .elements()
            .iter()
            .map(|element| (element.topic().to_owned(), element.partition()))
            .collect();
        if event == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            if let Err(error) = self.assigned(consumer, &places) {
                let mut state = self.lock();
                state.owned.clear();
                state.broken = Some(error);
                drop(state);
                // Nothing may be read; the client is thrown away next.
                let _ = consumer.unassign();
            }
        } else if let Err(error) = self.revoked(consumer, &places) {
            self.lock().broken = Some(away("revocation", error));
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, _offsets: &TopicPartitionList) {
        if let Err(error) = result {
            tracing::debug!(%error, "offsets for monitoring were not committed");
        }
    }
}
