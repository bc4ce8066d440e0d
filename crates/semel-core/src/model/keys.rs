//! Keys in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::claim::{
    Claim, ClaimReply, Completion, Extension, LeaseReply, OwnerLost, Record, Release, Settlement, State,
    SweepReport, Token, step,
};
use crate::error::StoreError;
use crate::host::{Clock, SystemClock, Timestamp};
use crate::key::Key;
use crate::store::{Capabilities, KeyStore};

/// A key store in this process's memory. Gone with the process; for tests and as the specification.
pub struct MemoryKeys {
    clock: Arc<dyn Clock>,
    state: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    records: HashMap<Key, Record>,
    token: i64,
}

impl Default for MemoryKeys {
    fn default() -> Self {
        Self::new(Arc::new(SystemClock))
    }
}

impl MemoryKeys {
    /// An empty store that reads this clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> (MutexGuard<'_, Inner>, Timestamp) {
        (
            self.state.lock().unwrap_or_else(PoisonError::into_inner),
            self.clock.now(),
        )
    }
}

impl Inner {
    fn apply<R>(&mut self, key: &Key, decide: impl FnOnce(Option<Record>) -> (Option<Record>, R)) -> R {
        let (record, reply) = decide(self.records.remove(key));
        if let Some(record) = record {
            self.records.insert(key.clone(), record);
        }
        reply
    }
}

#[async_trait]
impl KeyStore for MemoryKeys {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "memory",
            joins_user_transaction: false,
            fences: true,
            token_survives_failover: false,
            shared_by_machines: false,
        }
    }

    async fn claim_many(&self, claims: &[Claim]) -> Result<Vec<ClaimReply>, StoreError> {
        claims.iter().try_for_each(Claim::check)?;
        let (mut inner, now) = self.lock();
        Ok(claims
            .iter()
            .map(|claim| {
                inner.token += 1;
                let token = Token(inner.token);
                inner.apply(&claim.key, |record| step::claim(record, claim, now, token))
            })
            .collect())
    }

    async fn complete_many(&self, completions: &[Completion]) -> Result<Vec<LeaseReply>, StoreError> {
        completions.iter().try_for_each(Completion::check)?;
        let (mut inner, now) = self.lock();
        Ok(completions
            .iter()
            .map(|done| inner.apply(&done.key, |record| step::complete(record, done, now)))
            .collect())
    }

    async fn extend_many(&self, extensions: &[Extension]) -> Result<Vec<LeaseReply>, StoreError> {
        let (mut inner, now) = self.lock();
        Ok(extensions
            .iter()
            .map(|wish| inner.apply(&wish.key, |record| step::extend(record, wish, now)))
            .collect())
    }

    async fn release_many(&self, releases: &[Release]) -> Result<Vec<LeaseReply>, StoreError> {
        let (mut inner, now) = self.lock();
        Ok(releases
            .iter()
            .map(|it| inner.apply(&it.key, |record| step::release(record, it, now)))
            .collect())
    }

    async fn read_many(&self, keys: &[Key]) -> Result<Vec<Option<Record>>, StoreError> {
        let (inner, now) = self.lock();
        Ok(keys
            .iter()
            .map(|key| inner.records.get(key).cloned().and_then(|record| record.at(now)))
            .collect())
    }

    async fn settle(
        &self,
        key: &Key,
        token: Token,
        verdict: &Settlement,
        retention_ms: i64,
        tombstone_ms: i64,
    ) -> Result<LeaseReply, StoreError> {
        let (mut inner, now) = self.lock();
        Ok(inner.apply(key, |record| {
            step::settle(record, token, verdict, retention_ms, tombstone_ms, now)
        }))
    }

    async fn sweep(&self, limit: u32) -> Result<SweepReport, StoreError> {
        let (mut inner, now) = self.lock();
        let mut report = SweepReport::default();
        let due = |record: &Record| match &record.state {
            State::Claimed {
                owner_lost, until, ..
            } => *owner_lost == OwnerLost::Hold && *until <= now,
            State::Done { retain_until, .. } => *retain_until <= now,
            State::Tombstone { until, .. } | State::Withdrawn { until, .. } => *until <= now,
            State::Unknown { .. } => false,
        };
        let keys: Vec<Key> = inner
            .records
            .iter()
            .filter(|(_, r)| due(r))
            .map(|(k, _)| k.clone())
            .take(limit as usize)
            .collect();
        for key in keys {
            let Some(record) = inner.records.remove(&key) else {
                continue;
            };
            match record.at(now) {
                None => report.removed += 1,
                Some(record) => {
                    match record.state {
                        State::Unknown { .. } => report.unknown += 1,
                        _ => report.tombstoned += 1,
                    }
                    inner.records.insert(key, record);
                }
            }
        }
        Ok(report)
    }
}
