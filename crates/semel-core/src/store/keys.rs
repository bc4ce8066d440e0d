//! The key store.

use std::slice::from_ref;

use async_trait::async_trait;

use super::Capabilities;
use crate::claim::{
    Claim, ClaimReply, Completion, Extension, LeaseReply, Record, Release, Settlement, SweepReport,
};
use crate::error::StoreError;
use crate::key::Key;

/// One answer per item of a batch, in the order asked.
pub type Replies<R> = Vec<Result<R, StoreError>>;

/// Keeps the records of keys and carries out the transitions of [`claim::step`](crate::claim::step). For those who
/// implement a store; callers of one key at a time use [`KeyStoreExt`].
///
/// Every batch holds at most [`limits::BATCH_ITEMS_MAX`](crate::limits::BATCH_ITEMS_MAX) items. Each item is applied
/// atomically and answered for itself: one that is refused never fails its neighbours. The same key twice in a batch
/// is decided in the order asked. A reply means that the transition is durable.
///
/// # Errors
/// [`Retry`](crate::Retry) says whether anything can have been done. Repeating the same call after `OutcomeUnknown` is
/// safe (rules K2, K3).
///
/// # Cancel safety
/// A dropped future may still take effect; whoever leaves without an answer sends a [`Release`] without token.
#[async_trait]
pub trait KeyStore: Send + Sync + 'static {
    /// What this backend can do.
    fn capabilities(&self) -> Capabilities;

    /// Asks for the right to run keys. Durable before it answers `Granted`.
    async fn claim_many(&self, claims: &[Claim]) -> Replies<ClaimReply>;

    /// Stores outcomes. Durable before it answers `Ok`.
    async fn complete_many(&self, completions: &[Completion]) -> Replies<LeaseReply>;

    /// Keeps claims longer.
    async fn extend_many(&self, extensions: &[Extension]) -> Replies<LeaseReply>;

    /// Gives claims back, or withdraws claims whose reply never came.
    async fn release_many(&self, releases: &[Release]) -> Replies<LeaseReply>;

    /// Settles unknown keys.
    async fn settle_many(&self, settlements: &[Settlement]) -> Replies<LeaseReply>;

    /// Reads records as they are at the store's time; changes nothing. `None` where a key is absent.
    async fn read_many(&self, keys: &[Key]) -> Replies<Option<Record>>;

    /// Marks expired `Hold` claims unknown, drops outcomes past their retention and records past their tombstone
    /// ([`Record::swept`]): at most `limit` records, by the store's time, never blocking claims for long.
    /// Nothing depends on its being called: records read the same, swept or not.
    async fn sweep(&self, limit: u32) -> Result<SweepReport, StoreError>;
}

/// One key at a time, for callers of a [`KeyStore`].
///
/// ```
/// use semel_core::claim::{Claim, ClaimReply, Completion, Keep, LeaseReply, Nonce, OwnerLost, succeeded};
/// use semel_core::model::MemoryKeys;
/// use semel_core::{Fingerprint, Key, KeyStoreExt, Scope};
///
/// # let run = async {
/// let store = MemoryKeys::default();
/// let claim = Claim {
///     key: Key::new(Scope::new("orders/tenant-4")?, "order-7")?,
///     fingerprint: Fingerprint::of(b"2 teapots"),
///     nonce: Nonce::random(),
///     owner_lost: OwnerLost::Hold,
///     lease_ms: 30_000,
/// };
/// let ClaimReply::Granted { lease, .. } = store.claim(&claim).await? else {
///     panic!("nobody else has asked");
/// };
///
/// // A duplicate is told to wait.
/// let again = Claim { nonce: Nonce::random(), ..claim.clone() };
/// assert!(matches!(store.claim(&again).await?, ClaimReply::Busy { .. }));
///
/// // The effect happens here; then its outcome is stored, under the right to do so.
/// let outcome = succeeded("charged 40.00");
/// let done = Completion { key: claim.key.clone(), lease, outcome: outcome.clone(), keep: Keep::default() };
/// assert!(matches!(store.complete(&done).await?, LeaseReply::Ok(_)));
///
/// // From now on every duplicate gets that outcome, and another request under the same key a mismatch.
/// let ClaimReply::Done { outcome: stored, .. } = store.claim(&again).await? else {
///     panic!("it is done");
/// };
/// assert_eq!(stored, outcome);
/// let other = Claim { fingerprint: Fingerprint::of(b"3 teapots"), ..again };
/// assert_eq!(store.claim(&other).await?, ClaimReply::Mismatch);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # };
/// # let mut run = std::pin::pin!(run);
/// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
/// # let std::task::Poll::Ready(result) = run.as_mut().poll(&mut context) else { panic!("memory never waits") };
/// # result.unwrap();
/// ```
#[async_trait]
pub trait KeyStoreExt: KeyStore {
    /// Asks for the right to run a key.
    ///
    /// # Errors
    /// See [`KeyStore`].
    async fn claim(&self, claim: &Claim) -> Result<ClaimReply, StoreError> {
        only(self.claim_many(from_ref(claim)).await)
    }

    /// Stores an outcome.
    ///
    /// # Errors
    /// See [`KeyStore`].
    async fn complete(&self, completion: &Completion) -> Result<LeaseReply, StoreError> {
        only(self.complete_many(from_ref(completion)).await)
    }

    /// Keeps a claim longer.
    ///
    /// # Errors
    /// See [`KeyStore`].
    async fn extend(&self, extension: &Extension) -> Result<LeaseReply, StoreError> {
        only(self.extend_many(from_ref(extension)).await)
    }

    /// Gives a claim back, or withdraws one whose reply never came.
    ///
    /// # Errors
    /// See [`KeyStore`].
    async fn release(&self, release: &Release) -> Result<LeaseReply, StoreError> {
        only(self.release_many(from_ref(release)).await)
    }

    /// Settles an unknown key.
    ///
    /// # Errors
    /// See [`KeyStore`].
    async fn settle(&self, settlement: &Settlement) -> Result<LeaseReply, StoreError> {
        only(self.settle_many(from_ref(settlement)).await)
    }

    /// Reads a key's record.
    ///
    /// # Errors
    /// See [`KeyStore`].
    async fn read(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        only(self.read_many(from_ref(key)).await)
    }
}

impl<S: KeyStore + ?Sized> KeyStoreExt for S {}

fn only<R>(mut replies: Replies<R>) -> Result<R, StoreError> {
    let missing = || {
        let text = "the store gave no answer for the item: a bug in the store";
        Err(StoreError::new(crate::ErrorKind::Corrupt, "batch", text))
    };
    replies.pop().unwrap_or_else(missing)
}
