//! Keys in memory.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, LeaseReply, Record, Release, Settlement,
    SweepReport, Token, step,
};
use crate::error::StoreError;
use crate::host::{Clock, SystemClock, Timestamp};
use crate::key::{Key, Scope};
use crate::limits::{self, LimitExceeded};
use crate::store::{Capabilities, KeyPage, KeyQuery, KeyStore, Replies, Usage};

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

    /// Applies one transition per item, in order; an item outside its limits is answered with that.
    fn each<T, R>(
        &self,
        items: &[T],
        check: impl Fn(&T) -> Result<(), LimitExceeded>,
        mut decide: impl FnMut(&mut Inner, &T, Timestamp) -> R,
    ) -> Replies<R> {
        let (mut inner, now) = self.lock();
        let batch = limits::check_batch(items.len());
        let one = |item| {
            batch.clone()?;
            check(item)?;
            Ok(decide(&mut inner, item, now))
        };
        items.iter().map(one).collect()
    }
}

impl Inner {
    fn apply<R>(
        &mut self,
        key: &Key,
        now: Timestamp,
        decide: impl FnOnce(Option<Record>) -> (Option<Record>, R),
    ) -> R {
        match self.records.entry(key.clone()) {
            Entry::Occupied(mut slot) => {
                let (after, reply) = decide(Some(slot.get().clone()));
                if step::changes(Some(slot.get()), after.as_ref(), now) {
                    match after {
                        Some(record) => *slot.get_mut() = record,
                        None => drop(slot.remove()),
                    }
                }
                reply
            }
            Entry::Vacant(slot) => {
                let (after, reply) = decide(None);
                if let Some(record) = after {
                    slot.insert(record);
                }
                reply
            }
        }
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
            durable: false,
            counts_scopes: true,
        }
    }

    async fn claim_many(&self, claims: &[Claim]) -> Replies<ClaimReply> {
        self.each(claims, Claim::check, |inner, claim, now| {
            inner.token += 1;
            let token = Token(inner.token);
            inner.apply(&claim.key, now, |record| step::claim(record, claim, now, token))
        })
    }

    async fn complete_many(&self, completions: &[Completion]) -> Replies<LeaseReply> {
        self.each(completions, Completion::check, |inner, done, now| {
            inner.apply(&done.key, now, |record| step::complete(record, done, now))
        })
    }

    async fn extend_many(&self, extensions: &[Extension]) -> Replies<LeaseReply> {
        self.each(extensions, Extension::check, |inner, wish, now| {
            inner.apply(&wish.key, now, |record| step::extend(record, wish, now))
        })
    }

    async fn release_many(&self, releases: &[Release]) -> Replies<LeaseReply> {
        self.each(
            releases,
            |_| Ok(()),
            |inner, release, now| {
                inner.apply(&release.key, now, |record| step::release(record, release, now))
            },
        )
    }

    async fn abandon_many(&self, abandonments: &[Abandonment]) -> Replies<LeaseReply> {
        self.each(
            abandonments,
            |_| Ok(()),
            |inner, given_up, now| {
                inner.apply(&given_up.key, now, |record| step::abandon(record, given_up, now))
            },
        )
    }

    async fn settle_many(&self, settlements: &[Settlement]) -> Replies<LeaseReply> {
        self.each(settlements, Settlement::check, |inner, settlement, now| {
            inner.apply(&settlement.key, now, |record| {
                step::settle(record, settlement, now)
            })
        })
    }

    async fn read_many(&self, keys: &[Key]) -> Replies<Option<Record>> {
        self.each(
            keys,
            |_| Ok(()),
            |inner, key, now| {
                inner
                    .records
                    .get(key)
                    .cloned()
                    .and_then(|record| record.visible_at(now))
            },
        )
    }

    async fn sweep(&self, limit: u32) -> Result<SweepReport, StoreError> {
        let (mut inner, now) = self.lock();
        let due = |record: &Record| record.due().is_some_and(|due| due <= now);
        let keys: Vec<Key> = inner
            .records
            .iter()
            .filter(|(_, record)| due(record))
            .map(|(key, _)| key.clone())
            .take(limit as usize)
            .collect();
        let mut report = SweepReport::default();
        for key in keys {
            let Some(record) = inner.records.remove(&key) else {
                continue;
            };
            let (record, swept) = record.swept(now);
            if let Some(record) = record {
                inner.records.insert(key, record);
            }
            if let Some(swept) = swept {
                report.count(swept);
            }
        }
        Ok(report)
    }

    async fn list(&self, query: &KeyQuery) -> Result<KeyPage, StoreError> {
        let from = query.from_key()?;
        let (inner, now) = self.lock();
        let mut records: Vec<(Key, Record)> = inner
            .records
            .iter()
            .filter(|(key, _)| query.scope.as_ref().is_none_or(|scope| key.scope() == scope))
            .filter(|(key, _)| from.as_ref().is_none_or(|from| *key > from))
            .filter_map(|(key, record)| query.shows(key, record, now))
            .collect();
        records.sort_by(|a, b| a.0.cmp(&b.0));
        let more = records.len() > query.limit as usize;
        records.truncate(query.limit as usize);
        Ok(KeyPage::of(records, more))
    }

    async fn usage(&self, scope: &Scope, records_max: u64) -> Result<Usage, StoreError> {
        let (inner, _) = self.lock();
        let max = usize::try_from(records_max).unwrap_or(usize::MAX);
        let held = inner.records.iter().filter(|(key, _)| key.scope() == scope);
        Ok(held.take(max).fold(Usage::default(), |usage, (_, record)| Usage {
            records: usage.records + 1,
            bytes: usage.bytes + record.outcome_bytes(),
        }))
    }
}
