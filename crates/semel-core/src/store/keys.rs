//! The key store.

use std::pin::Pin;
use std::slice::from_ref;

use async_trait::async_trait;
use bytes::Bytes;

use super::{Batching, Capabilities, MixedBatch, MixedReplies};
use crate::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, LeaseReply, Record, Release, Settlement,
    StateName, SweepReport,
};
use crate::error::StoreError;
use crate::host::Timestamp;
use crate::key::{Key, Scope};

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

    /// Ends runs of which nobody knows what came: their keys are unknown at once.
    async fn abandon_many(&self, abandonments: &[Abandonment]) -> Replies<LeaseReply>;

    /// Settles unknown keys.
    async fn settle_many(&self, settlements: &[Settlement]) -> Replies<LeaseReply>;

    /// Reads records as they are at the store's time; changes nothing. `None` where a key is absent.
    async fn read_many(&self, keys: &[Key]) -> Replies<Option<Record>>;

    /// Marks expired `Hold` claims unknown, drops outcomes past their retention and records past their tombstone
    /// ([`Record::swept`]): at most `limit` records, by the store's time, never blocking claims for long.
    /// Nothing depends on its being called: records read the same, swept or not.
    async fn sweep(&self, limit: u32) -> Result<SweepReport, StoreError>;

    /// A page of records as they are at the store's time, for people and consoles; changes nothing and may be slow.
    async fn list(&self, query: &KeyQuery) -> Result<KeyPage, StoreError>;

    /// How much a scope holds, tombstones included, counted up to `records_max`. Not cheap: callers remember it for a
    /// while. [`Capabilities::counts_scopes`] says whether the backend can; else an error of kind `Invalid`.
    async fn usage(&self, scope: &Scope, records_max: u64) -> Result<Usage, StoreError>;

    /// Registers interest in the end of a key's run anywhere, before its record is read again (rule K11). The future
    /// ends when the record may have changed: a hint that can be lost or come for nothing, so whoever waits also looks
    /// from time to time. `None` where the backend cannot tell.
    async fn subscribe(&self, _key: &Key) -> Option<Hint> {
        None
    }

    /// How a batcher best asks this store.
    fn batching(&self) -> Batching {
        Batching::default()
    }

    /// Transitions of several kinds, asked for at the same time; in one commit where [`Batching::mixes`] says so. All in
    /// all at most [`limits::BATCH_ITEMS_MAX`](crate::limits::BATCH_ITEMS_MAX) items. The default asks kind by kind.
    async fn transact_many(&self, batch: &MixedBatch) -> MixedReplies {
        batch.one_kind_at_a_time(self).await
    }

    /// What claims would be answered, as far as that needs no write: `None` for one that may have to be granted, which
    /// is then claimed. Changes nothing. The default knows nothing.
    async fn look_many(&self, claims: &[Claim]) -> Replies<Option<ClaimReply>> {
        claims.iter().map(|_| Ok(None)).collect()
    }
}

/// Ends when a key's record may have changed.
pub type Hint = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Which records to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyQuery {
    /// Only this scope.
    pub scope: Option<Scope>,
    /// Only keys that stand so.
    pub state: Option<StateName>,
    /// Where the last page ended; [`KeyPage::next`] of the same store and query.
    pub from: Option<Bytes>,
    /// Records at most, up to [`BATCH_ITEMS_MAX`](crate::limits::BATCH_ITEMS_MAX).
    pub limit: u32,
}

impl KeyQuery {
    /// For stores whose pages go by key: the last key of the page before.
    ///
    /// # Errors
    /// The limit is too large, or `from` is not of such a page.
    pub fn from_key(&self) -> Result<Option<Key>, StoreError> {
        crate::limits::check_batch(self.limit as usize)?;
        let Some(from) = &self.from else {
            return Ok(None);
        };
        let invalid = || {
            let text = "this page token is not one of this store's: begin again without it";
            StoreError::new(crate::ErrorKind::Invalid, "list", text)
        };
        Key::from_bytes(from).map(Some).ok_or_else(invalid)
    }

    /// The record as the query shows it at `now`; `None` when it does not ask for it.
    #[must_use]
    pub fn shows(&self, key: &Key, record: &Record, now: Timestamp) -> Option<(Key, Record)> {
        let record = record.clone().visible_at(now)?;
        let asked = self.state.is_none_or(|state| record.state.name() == Some(state));
        asked.then(|| (key.clone(), record))
    }
}

/// Some records, in the store's own order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyPage {
    /// At most as many as asked; fewer, even none, is not the end.
    pub records: Vec<(Key, Record)>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<Bytes>,
}

impl KeyPage {
    /// A page that ends with its last record.
    #[must_use]
    pub fn of(records: Vec<(Key, Record)>, more: bool) -> Self {
        let last = records.last().filter(|_| more);
        let next = last.map(|(key, _)| key.to_bytes().into());
        Self { records, next }
    }
}

/// What a scope holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Records, tombstones included.
    pub records: u64,
    /// Bytes of their stored outcomes.
    pub bytes: u64,
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

    /// Ends a run of which nobody knows what came.
    ///
    /// # Errors
    /// See [`KeyStore`].
    async fn abandon(&self, abandonment: &Abandonment) -> Result<LeaseReply, StoreError> {
        only(self.abandon_many(from_ref(abandonment)).await)
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
