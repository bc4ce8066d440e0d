//! A key store that fails when told to, before or after it has done what was asked; that can be held; and that remembers
//! how it was asked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use semel_core::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, LeaseReply, Record, Release, Settlement,
    SweepReport,
};
use semel_core::store::{Batching, Hint, KeyPage, KeyQuery, MixedBatch, MixedReplies, Replies, Usage};
use semel_core::{Capabilities, ErrorKind, Key, KeyStore, Scope, StoreError};
use tokio::sync::{Notify, watch};

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It cannot be reached.
    Down,
    /// It is done, and the reply is lost.
    ReplyLost,
    /// It is done, and no reply ever comes.
    Silent,
    /// The item is over a limit of this store.
    TooLarge,
    /// What it holds cannot be read.
    Corrupt,
    /// A batcher in front of it has no room.
    Full,
    /// It is there and has no room itself.
    NoRoom,
    /// The store's code panics.
    Panic,
}

/// A store with faults to come, by operation: `claim`, `complete`, `extend`, `release`, `abandon`, `settle`, `read`,
/// `look`, `subscribe`; a subscription that fails gives no hint. `transact` is only counted.
///
/// ```
/// # async fn f(claim: semel_core::Claim) {
/// use semel_core::KeyStoreExt as _;
/// use semel_core::model::MemoryKeys;
/// use semel_testkit::faulty::{Fault, FaultyKeys};
///
/// let store = FaultyKeys::over(MemoryKeys::default());
/// store.fail("claim", Fault::ReplyLost, 1);
/// assert!(store.claim(&claim).await.is_err());
/// assert!(store.claim(&claim).await.is_ok(), "the same nonce gets the same token");
/// assert_eq!(store.calls("claim"), 2);
/// # }
/// ```
pub struct FaultyKeys {
    inner: Box<dyn KeyStore>,
    faults: Mutex<HashMap<&'static str, (Fault, u32)>>,
    batches: Mutex<HashMap<&'static str, Vec<usize>>>,
    poison: Mutex<Option<(Key, ErrorKind)>>,
    held: Mutex<HashMap<&'static str, watch::Receiver<bool>>>,
    arrivals: watch::Sender<u64>,
    /// What its hints wait for, where it is not the inner store that has them.
    told: Mutex<Option<Arc<Notify>>>,
    mixes: AtomicBool,
}

/// Holds an operation of a [`FaultyKeys`] until it is dropped.
#[derive(Debug)]
pub struct Hold(watch::Sender<bool>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

impl FaultyKeys {
    /// Over this store, healthy until told otherwise.
    pub fn over(inner: impl KeyStore) -> Arc<Self> {
        Arc::new(Self {
            inner: Box::new(inner),
            faults: Mutex::default(),
            batches: Mutex::default(),
            poison: Mutex::default(),
            held: Mutex::default(),
            arrivals: watch::Sender::new(0),
            told: Mutex::default(),
            mixes: AtomicBool::new(false),
        })
    }

    /// The next so many calls of this operation fail.
    pub fn fail(&self, operation: &'static str, fault: Fault, times: u32) {
        self.faults.lock().unwrap().insert(operation, (fault, times));
    }

    /// From now on it has hints: each ends when `told` is notified.
    pub fn tells(&self, told: Arc<Notify>) {
        *self.told.lock().unwrap() = Some(told);
    }

    /// From now on it says that it puts calls of several kinds into one commit.
    pub fn mixes(&self) {
        self.mixes.store(true, Ordering::SeqCst);
    }

    /// From now on every claim or completion of this key fails, with all that is in the same batch.
    pub fn poison(&self, key: &Key, kind: ErrorKind) {
        *self.poison.lock().unwrap() = Some((key.clone(), kind));
    }

    /// Calls of this operation wait, from now on until the [`Hold`] is dropped.
    #[must_use]
    pub fn hold(&self, operation: &'static str) -> Hold {
        let (sender, receiver) = watch::channel(false);
        self.held.lock().unwrap().insert(operation, receiver);
        Hold(sender)
    }

    /// Ends when this operation has been called so often in all; a call that is held counts.
    pub async fn called(&self, operation: &'static str, times: usize) {
        let mut arrivals = self.arrivals.subscribe();
        let enough = |_: &u64| self.batches(operation).len() >= times;
        arrivals.wait_for(enough).await.unwrap();
    }

    /// Calls of this operation so far.
    pub fn calls(&self, operation: &'static str) -> u32 {
        u32::try_from(self.batches(operation).len()).unwrap()
    }

    /// How many items each call of this operation had.
    pub fn batches(&self, operation: &'static str) -> Vec<usize> {
        let batches = self.batches.lock().unwrap();
        batches.get(operation).cloned().unwrap_or_default()
    }

    fn count(&self, operation: &'static str, items: usize) {
        let mut batches = self.batches.lock().unwrap();
        batches.entry(operation).or_default().push(items);
        drop(batches);
        self.arrivals.send_modify(|arrivals| *arrivals += 1);
    }

    /// Counts a call and holds it; the fault that it is to meet.
    async fn trouble(&self, operation: &'static str, items: usize) -> Option<Fault> {
        self.count(operation, items);
        let held = self.held.lock().unwrap().get(operation).cloned();
        if let Some(mut held) = held {
            let _ = held.wait_for(|open| *open).await;
        }
        let mut faults = self.faults.lock().unwrap();
        match faults.get_mut(operation) {
            Some((fault, left)) if *left > 0 => {
                *left -= 1;
                Some(*fault)
            }
            _ => None,
        }
    }

    async fn call<R: Send>(
        &self,
        operation: &'static str,
        keys: Vec<&Key>,
        inner: impl Future<Output = Replies<R>> + Send,
    ) -> Replies<R> {
        let items = keys.len();
        let fault = self.trouble(operation, items).await;
        let all = |kind| {
            (0..items)
                .map(|_| Err(StoreError::new(kind, operation, "as the test wants")))
                .collect()
        };
        let poison = self.poison.lock().unwrap().clone();
        if let Some((key, kind)) = poison
            && keys.contains(&&key)
        {
            if kind == ErrorKind::ReplyLost {
                drop(inner.await);
            }
            return all(kind);
        }
        match fault {
            None => inner.await,
            Some(Fault::Down) => all(ErrorKind::Unavailable),
            Some(Fault::TooLarge) => all(ErrorKind::LimitExceeded),
            Some(Fault::Corrupt) => all(ErrorKind::Corrupt),
            Some(Fault::Full) => {
                let full = || StoreError::new(ErrorKind::NotApplied, operation, "as the test wants");
                (0..items).map(|_| Err(full())).collect()
            }
            Some(Fault::NoRoom) => {
                let full = || StoreError::new(ErrorKind::NotApplied, operation, "as the test wants").full();
                (0..items).map(|_| Err(full())).collect()
            }
            Some(Fault::Panic) => panic!("as the test wants"),
            Some(Fault::ReplyLost) => {
                drop(inner.await);
                all(ErrorKind::ReplyLost)
            }
            Some(Fault::Silent) => {
                drop(inner.await);
                std::future::pending().await
            }
        }
    }
}

macro_rules! call {
    ($self:ident, $operation:literal, $items:ident, $many:ident) => {{
        let keys = $items.iter().map(|item| &item.key).collect();
        $self.call($operation, keys, $self.inner.$many($items)).await
    }};
}

#[async_trait]
impl KeyStore for FaultyKeys {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn claim_many(&self, items: &[Claim]) -> Replies<ClaimReply> {
        call!(self, "claim", items, claim_many)
    }

    async fn complete_many(&self, items: &[Completion]) -> Replies<LeaseReply> {
        call!(self, "complete", items, complete_many)
    }

    async fn extend_many(&self, items: &[Extension]) -> Replies<LeaseReply> {
        call!(self, "extend", items, extend_many)
    }

    async fn release_many(&self, items: &[Release]) -> Replies<LeaseReply> {
        call!(self, "release", items, release_many)
    }

    async fn abandon_many(&self, items: &[Abandonment]) -> Replies<LeaseReply> {
        call!(self, "abandon", items, abandon_many)
    }

    async fn settle_many(&self, items: &[Settlement]) -> Replies<LeaseReply> {
        call!(self, "settle", items, settle_many)
    }

    async fn read_many(&self, keys: &[Key]) -> Replies<Option<Record>> {
        self.call("read", keys.iter().collect(), self.inner.read_many(keys))
            .await
    }

    async fn sweep(&self, limit: u32) -> Result<SweepReport, StoreError> {
        self.inner.sweep(limit).await
    }

    async fn list(&self, query: &KeyQuery) -> Result<KeyPage, StoreError> {
        self.inner.list(query).await
    }

    async fn usage(&self, scope: &Scope, records_max: u64) -> Result<Usage, StoreError> {
        self.inner.usage(scope, records_max).await
    }

    async fn subscribe(&self, key: &Key) -> Option<Hint> {
        match self.trouble("subscribe", 1).await {
            None => {}
            Some(Fault::Silent) => std::future::pending().await,
            Some(Fault::Panic) => panic!("as the test wants"),
            Some(_) => return None,
        }
        let told = self.told.lock().unwrap().clone();
        match told {
            Some(told) => Some(Box::pin(async move { told.notified().await })),
            None => self.inner.subscribe(key).await,
        }
    }

    fn batching(&self) -> Batching {
        let inner = self.inner.batching();
        Batching {
            mixes: inner.mixes || self.mixes.load(Ordering::SeqCst),
            ..inner
        }
    }

    /// Kind by kind, so that faults meet them.
    async fn transact_many(&self, batch: &MixedBatch) -> MixedReplies {
        self.count("transact", batch.len());
        batch.one_kind_at_a_time(self).await
    }

    async fn look_many(&self, items: &[Claim]) -> Replies<Option<ClaimReply>> {
        call!(self, "look", items, look_many)
    }
}
