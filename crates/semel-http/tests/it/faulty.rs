//! A store that fails when told to, before or after it has done what was asked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use semel_core::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, LeaseReply, Record, Release, Settlement,
    SweepReport,
};
use semel_core::store::{Hint, KeyPage, KeyQuery, Replies, Usage};
use semel_core::{Capabilities, ErrorKind, Key, KeyStore, Scope, StoreError};
use tokio::sync::Notify;

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It cannot be reached.
    Down,
    /// It is done, and the reply is lost.
    ReplyLost,
    /// It is done, and no reply ever comes.
    Silent,
    /// The item is over a limit of this store.
    TooLarge,
}

/// A store with faults to come, by operation.
pub(crate) struct Faulty {
    inner: Arc<dyn KeyStore>,
    faults: Mutex<HashMap<&'static str, (Fault, u32)>>,
    calls: Mutex<HashMap<&'static str, u32>>,
    /// What its hints wait for; without it there are none.
    told: Option<Arc<Notify>>,
}

impl Faulty {
    pub(crate) fn over(inner: Arc<dyn KeyStore>) -> Arc<Self> {
        Self::that_tells(inner, None)
    }

    /// One that has hints.
    pub(crate) fn that_tells(inner: Arc<dyn KeyStore>, told: Option<Arc<Notify>>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            faults: Mutex::default(),
            calls: Mutex::default(),
            told,
        })
    }

    /// The next so many calls of this operation fail.
    pub(crate) fn fail(&self, operation: &'static str, fault: Fault, times: u32) {
        self.faults.lock().unwrap().insert(operation, (fault, times));
    }

    /// Calls of this operation so far.
    pub(crate) fn calls(&self, operation: &'static str) -> u32 {
        self.calls.lock().unwrap().get(operation).copied().unwrap_or(0)
    }

    async fn call<R: Send>(
        &self,
        operation: &'static str,
        items: usize,
        inner: impl Future<Output = Replies<R>> + Send,
    ) -> Replies<R> {
        *self.calls.lock().unwrap().entry(operation).or_default() += 1;
        let fault = {
            let mut faults = self.faults.lock().unwrap();
            match faults.get_mut(operation) {
                Some((fault, left)) if *left > 0 => {
                    *left -= 1;
                    Some(*fault)
                }
                _ => None,
            }
        };
        let all = |kind| {
            (0..items)
                .map(|_| Err(StoreError::new(kind, operation, "as the test wants")))
                .collect()
        };
        match fault {
            None => inner.await,
            Some(Fault::Down) => all(ErrorKind::Unavailable),
            Some(Fault::TooLarge) => all(ErrorKind::LimitExceeded),
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

#[async_trait]
impl KeyStore for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn claim_many(&self, items: &[Claim]) -> Replies<ClaimReply> {
        self.call("claim", items.len(), self.inner.claim_many(items))
            .await
    }

    async fn complete_many(&self, items: &[Completion]) -> Replies<LeaseReply> {
        self.call("complete", items.len(), self.inner.complete_many(items))
            .await
    }

    async fn extend_many(&self, items: &[Extension]) -> Replies<LeaseReply> {
        self.call("extend", items.len(), self.inner.extend_many(items))
            .await
    }

    async fn release_many(&self, items: &[Release]) -> Replies<LeaseReply> {
        self.call("release", items.len(), self.inner.release_many(items))
            .await
    }

    async fn abandon_many(&self, items: &[Abandonment]) -> Replies<LeaseReply> {
        self.call("abandon", items.len(), self.inner.abandon_many(items))
            .await
    }

    async fn settle_many(&self, items: &[Settlement]) -> Replies<LeaseReply> {
        self.call("settle", items.len(), self.inner.settle_many(items))
            .await
    }

    async fn read_many(&self, keys: &[Key]) -> Replies<Option<Record>> {
        self.call("read", keys.len(), self.inner.read_many(keys)).await
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
        *self.calls.lock().unwrap().entry("subscribe").or_default() += 1;
        let told = self.told.as_ref()?;
        let told = Arc::clone(told);
        let key = key.clone();
        Some(Box::pin(async move {
            told.notified().await;
            drop(key);
        }))
    }
}
