//! The inbox store: marks, positions and parked messages inside the consumer's own transaction.

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::StoreError;
use crate::host::Timestamp;
use crate::inbox::{AdvancePosition, AssignPosition, Mark, Position};
use crate::key::Scope;

/// A message set aside because it, or an earlier one of its key, could not be handled: a full copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parked {
    /// The message's id.
    pub id: Bytes,
    /// Its ordering key; later messages of the same key are parked behind it.
    pub key: Option<Bytes>,
    /// Where it came from: a topic.
    pub topic: String,
    /// Its partition.
    pub partition: i32,
    /// Its offset.
    pub offset: i64,
    /// Headers in order; names may repeat, values may be null.
    pub headers: Vec<(String, Option<Bytes>)>,
    /// The data, byte for byte; `None` is a tombstone.
    pub data: Option<Bytes>,
    /// Why, for people; at most [`PARKED_REASON_BYTES_MAX`] bytes.
    pub reason: String,
    /// When the message was written, by the broker or the sender.
    pub sent_at: Timestamp,
}

/// Bytes of a parked message's reason; the rest is cut.
pub const PARKED_REASON_BYTES_MAX: usize = 1_024;

impl Parked {
    /// The reason as stores keep it: control characters replaced, at most [`PARKED_REASON_BYTES_MAX`] bytes, so that
    /// the write that records a failure does not fail because of it.
    #[must_use]
    pub fn reason_cut(&self) -> String {
        let clean = |c: char| if c.is_control() { ' ' } else { c };
        let mut text: String = self.reason.chars().map(clean).collect();
        let mut end = text.len().min(PARKED_REASON_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text
    }
}

/// Answer to [`InboxStore::take_parked`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenParked {
    /// The number of the key's first parked message.
    pub first: i64,
    /// The messages; empty when another transaction took them in this moment.
    pub messages: Vec<Parked>,
}

/// What a consumer needs from its own database. Everything but [`InboxStore::assign_positions`] and
/// [`InboxStore::purge_inbox`] happens inside the consumer's transaction, beside its business rows: what a crash
/// leaves is all of it or nothing.
///
/// # Errors
/// Before the commit every `Err` means that nothing is durable. [`InboxStore::commit_inbox`] alone can answer
/// `ReplyLost`.
#[async_trait]
pub trait InboxStore: Send + Sync + 'static {
    /// The backend's own transaction, which handlers get: a type without lifetimes, so that async closures can.
    type Tx: Send;

    /// Begins a writing transaction.
    async fn begin_inbox(&self) -> Result<Self::Tx, StoreError>;

    /// Marks ids as seen and says which are new. Waits for a transaction that is marking the same id; when that one
    /// rolls back, the id is new here. `retention_ms` is how long at least the mark is remembered.
    async fn mark_many(
        &self,
        tx: &mut Self::Tx,
        scope: &Scope,
        ids: &[Bytes],
        retention_ms: i64,
    ) -> Result<Vec<Mark>, StoreError>;

    /// Sets a savepoint inside the transaction; at most one is set at a time.
    async fn savepoint(&self, tx: &mut Self::Tx) -> Result<(), StoreError>;

    /// Keeps what was written since the savepoint. Constraints that are deferred to the commit are checked here
    /// (rule I2), so that the message that breaks one is known.
    async fn release(&self, tx: &mut Self::Tx) -> Result<(), StoreError>;

    /// Undoes what was written since the savepoint, a failed statement included.
    async fn rollback_to(&self, tx: &mut Self::Tx) -> Result<(), StoreError>;

    /// Which of these ordering keys have parked messages.
    async fn parked_keys(
        &self,
        tx: &mut Self::Tx,
        scope: &Scope,
        keys: &[Bytes],
    ) -> Result<Vec<bool>, StoreError>;

    /// Parks messages in this order. One that is parked already stays as it is.
    async fn park_many(
        &self,
        tx: &mut Self::Tx,
        scope: &Scope,
        messages: &[Parked],
    ) -> Result<(), StoreError>;

    /// Takes up to `limit` parked messages of one ordering key out of the list, in order: of all keys whose first parked
    /// message has a number above `after`, the one whose first is the longest parked; a message without a key is alone.
    /// `None` when there is no such key. Numbers begin at 1 and grow as messages are parked. Until the transaction ends no
    /// other one parks or takes messages of that key.
    async fn take_parked(
        &self,
        tx: &mut Self::Tx,
        scope: &Scope,
        after: i64,
        limit: u32,
    ) -> Result<Option<TakenParked>, StoreError>;

    /// Takes the parked message of this id out of the list; `None` when none is parked.
    async fn discard_parked(
        &self,
        tx: &mut Self::Tx,
        scope: &Scope,
        id: &Bytes,
    ) -> Result<Option<Parked>, StoreError>;

    /// Becomes the owner of positions, in a transaction of its own; durable before it answers. Waits for a
    /// transaction that is moving one of them, so the answer is definite also after a lost commit reply (rule K5).
    async fn assign_positions(&self, wishes: &[AssignPosition]) -> Result<Vec<Position>, StoreError>;

    /// Moves positions; `LeaseLost` when one of them is not this owner's any more or not where it was expected.
    /// The caller rolls back then.
    async fn advance_positions(&self, tx: &mut Self::Tx, steps: &[AdvancePosition])
    -> Result<(), StoreError>;

    /// Commits; `Ok` only when everything since `begin_inbox` is durable, in one transaction: a handler that ended it
    /// and went on in another is noticed where the backend can (rule O8).
    async fn commit_inbox(&self, tx: Self::Tx) -> Result<(), StoreError>;

    /// Rolls back and waits for it, so that no lock is left.
    async fn rollback_inbox(&self, tx: Self::Tx) -> Result<(), StoreError>;

    /// Forgets at most `limit` marks whose retention is over, in a short transaction of its own; how many.
    async fn purge_inbox(&self, limit: u32) -> Result<u64, StoreError>;
}
