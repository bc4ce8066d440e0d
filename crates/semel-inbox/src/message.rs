//! One message of a log, and who handles it.

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::Timestamp;
use semel_core::inbox::headers::Headers;
use semel_core::store::{InboxStore, Parked};

use crate::receive::HandlerError;

/// One message of a log, such as a Kafka record. All of it is passed through unchanged: null keys and values,
/// repeated and binary headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// What names it for the inbox: its event id, or its position.
    pub id: Bytes,
    /// Its ordering key.
    pub key: Option<Bytes>,
    /// Its topic.
    pub topic: String,
    /// Its partition.
    pub partition: i32,
    /// Its offset.
    pub offset: i64,
    /// Headers in order; names may repeat, values may be null.
    pub headers: Headers,
    /// The data, byte for byte; `None` is a tombstone.
    pub data: Option<Bytes>,
    /// When it was written, by the broker or the sender.
    pub sent_at: Timestamp,
}

impl Message {
    /// The first header of this name that has a value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers
            .iter()
            .find(|(n, value)| n == name && value.is_some())
            .and_then(|(_, value)| value.as_deref())
    }

    pub(crate) fn parked(&self, reason: String) -> Parked {
        Parked {
            id: self.id.clone(),
            key: self.key.clone(),
            topic: self.topic.clone(),
            partition: self.partition,
            offset: self.offset,
            headers: self.headers.clone(),
            data: self.data.clone(),
            reason,
            sent_at: self.sent_at,
        }
    }
}

impl From<Parked> for Message {
    fn from(parked: Parked) -> Self {
        Self {
            id: parked.id,
            key: parked.key,
            topic: parked.topic,
            partition: parked.partition,
            offset: parked.offset,
            headers: parked.headers,
            data: parked.data,
            sent_at: parked.sent_at,
        }
    }
}

/// What a service does with messages, in the transaction that also holds their marks and positions.
///
/// # Rules
/// - Everything goes through `tx`. What is done elsewhere (a request, a file) is not undone, and is done again.
/// - Never begin, commit or roll back the transaction; never swallow the error of a statement in it.
/// - Messages come in order per partition, so in order per key. All of them are new.
///
/// # Errors
/// [`HandlerError::Refused`] blames the messages: when there are several they are handed over again one by one, each
/// behind a savepoint, to find the one. Any other error undoes the batch, which is tried again later.
///
/// ```
/// use semel_inbox::{Handler, HandlerError, Message};
/// use semel_sqlite::{InboxTx, Sqlite, classify};
///
/// struct Ledger;
///
/// #[async_trait::async_trait]
/// impl Handler<Sqlite> for Ledger {
///     async fn handle(&self, tx: &mut InboxTx, messages: &[&Message]) -> Result<(), HandlerError> {
///         for message in messages {
///             sqlx::query("INSERT INTO entry (body) VALUES (?1)")
///                 .bind(message.data.as_deref())
///                 .execute(tx.conn())
///                 .await
///                 .map_err(|error| classify("ledger", error))?;
///         }
///         Ok(())
///     }
/// }
/// ```
#[async_trait]
pub trait Handler<S: InboxStore>: Send + Sync + 'static {
    /// Handles messages that are new.
    async fn handle(&self, tx: &mut S::Tx, messages: &[&Message]) -> Result<(), HandlerError>;
}
