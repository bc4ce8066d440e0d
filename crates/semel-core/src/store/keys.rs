//! The key store.

use async_trait::async_trait;

use super::Capabilities;
use crate::claim::{
    Claim, ClaimReply, Completion, Extension, LeaseReply, Record, Release, Settlement, SweepReport, Token,
};
use crate::error::StoreError;
use crate::key::Key;

/// Keeps the records of keys and carries out the transitions of [`claim::step`](crate::claim::step).
///
/// Every method takes at most [`limits::BATCH_ITEMS_MAX`](crate::limits::BATCH_ITEMS_MAX) items, applies each
/// atomically, and answers in the order asked; the same key twice in a batch is decided in that order. One bad item
/// never fails its neighbours. A reply means that the transition is durable.
///
/// # Errors
/// An `Err` is about the call as a whole: [`Retry`](crate::Retry) says whether anything can have been done. Repeating
/// the same call after `OutcomeUnknown` is safe (rules K2, K3).
///
/// # Cancel safety
/// A dropped future may still take effect; whoever leaves without an answer sends a [`Release`] without token.
#[async_trait]
pub trait KeyStore: Send + Sync + 'static {
    /// What this backend can do.
    fn capabilities(&self) -> Capabilities;

    /// Asks for the right to run keys. Durable before it answers `Granted`.
    async fn claim_many(&self, claims: &[Claim]) -> Result<Vec<ClaimReply>, StoreError>;

    /// Stores outcomes. Durable before it answers `Ok`.
    async fn complete_many(&self, completions: &[Completion]) -> Result<Vec<LeaseReply>, StoreError>;

    /// Keeps claims longer.
    async fn extend_many(&self, extensions: &[Extension]) -> Result<Vec<LeaseReply>, StoreError>;

    /// Gives claims back, or withdraws claims whose reply never came.
    async fn release_many(&self, releases: &[Release]) -> Result<Vec<LeaseReply>, StoreError>;

    /// Reads records as they are at the store's time; changes nothing.
    async fn read_many(&self, keys: &[Key]) -> Result<Vec<Option<Record>>, StoreError>;

    /// Settles an unknown key; see [`claim::step::settle`](crate::claim::step::settle).
    async fn settle(
        &self,
        key: &Key,
        token: Token,
        verdict: &Settlement,
        retention_ms: i64,
        tombstone_ms: i64,
    ) -> Result<LeaseReply, StoreError>;

    /// Marks expired `Hold` claims unknown, drops outcomes past their retention and records past their tombstone:
    /// at most `limit` records, by the store's time, never blocking claims for long.
    async fn sweep(&self, limit: u32) -> Result<SweepReport, StoreError>;
}
