//! Kafka records as messages, and their names.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use rdkafka::Message as _;
use rdkafka::message::{BorrowedMessage, Headers as _};
use semel_core::Timestamp;
use semel_core::inbox::mark::{check_id, event_id};
use semel_core::store::InboxStore;
use semel_inbox::{Handler, HandlerError, Message};
use uuid::Uuid;

use super::config::{ConsumerConfig, Dedup, MessageId};

/// A record as a message of the inbox. One without the id it should have is named by its position until [`Named`]
/// refuses it.
pub(super) fn message(record: &BorrowedMessage<'_>, topic_id: Uuid, config: &ConsumerConfig) -> Message {
    let mut message = plain(record, topic_id);
    if config.dedup == Dedup::Ids
        && let Ok(Some(id)) = own_id(&message, &config.message_id)
    {
        message.id = id;
    }
    message
}

/// A record as a message named by its position.
pub(crate) fn plain(record: &BorrowedMessage<'_>, topic_id: Uuid) -> Message {
    let headers = record.headers().map_or_else(Vec::new, |headers| {
        headers
            .iter()
            .map(|header| (header.key.to_owned(), header.value.map(Bytes::copy_from_slice)))
            .collect()
    });
    let millis = record.timestamp().to_millis().unwrap_or_default();
    Message {
        id: position_id(topic_id, record.partition(), record.offset()),
        key: record.key().map(Bytes::copy_from_slice),
        topic: record.topic().to_owned(),
        partition: record.partition(),
        offset: record.offset(),
        headers,
        data: record.payload().map(Bytes::copy_from_slice),
        sent_at: Timestamp(millis.saturating_mul(1_000)),
    }
}

/// Grows within a partition, which is kind to an index. The same offset in two partitions is two names.
fn position_id(topic_id: Uuid, partition: i32, offset: i64) -> Bytes {
    let mut id = topic_id.as_bytes().to_vec();
    id.extend(partition.to_be_bytes());
    id.extend(offset.to_be_bytes());
    id.into()
}

/// The id that a message carries; `None` where it is to be named by its position.
fn own_id(message: &Message, by: &MessageId) -> Result<Option<Bytes>, String> {
    let header = |name: &str| {
        message
            .header(name)
            .filter(|value| !value.is_empty())
            .ok_or_else(|| format!("SEM0608: the message has no header {name}, which should name it"))
    };
    match by {
        MessageId::Position => Ok(None),
        MessageId::Event => Ok(Some(event_id(header("ce_source")?, header("ce_id")?))),
        MessageId::Header(name) => {
            let id = header(name)?;
            check_id(id).map_err(|limit| format!("SEM0608: header {name}: {limit}"))?;
            Ok(Some(Bytes::copy_from_slice(id)))
        }
    }
}

/// The user's handler, behind a check that every message has its name.
#[derive(Debug)]
pub(super) struct Named<H> {
    pub(super) inner: Arc<H>,
    pub(super) config: Arc<ConsumerConfig>,
}

#[async_trait]
impl<S: InboxStore, H: Handler<S>> Handler<S> for Named<H> {
    async fn handle(&self, tx: &mut S::Tx, messages: &[&Message]) -> Result<(), HandlerError> {
        if self.config.dedup == Dedup::Ids {
            for message in messages {
                own_id(message, &self.config.message_id).map_err(HandlerError::Refused)?;
            }
        }
        self.inner.handle(tx, messages).await
    }
}
