//! Keys in memory.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, LeaseReply, Record, Release, Settlement,
    SweepReport, Token, step,
};
use crate::error::StoreError;
use crate::host::{Clock, SystemClock, Timestamp};
use crate::key::{Key, Scope};
use crate::limits::{self, LimitExceeded};
use crate::store::{Capabilities, KeyPage, KeyQuery, KeyStore, Replies, Usage};

/// Parts of the store, each with a lock of its own: callers of different keys seldom meet, and a part that grows holds up
/// few of them.
const SHARDS: usize = 64;

/// A key store in this process's memory. Gone with the process; for tests and as the specification.
pub struct MemoryKeys {
    clock: Arc<dyn Clock>,
    hasher: RandomState,
    shards: Box<[Mutex<Shard>]>,
    /// The token drawn last. Drawn under the lock of the key's part, so that per key it only grows.
    token: AtomicI64,
}

/// Records by the hash of their key. The hash stands beside them: a table that grows need not look at each key again.
#[derive(Default)]
struct Shard(HashTable<(u64, Box<(Key, Record)>)>);

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
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            token: AtomicI64::new(0),
        }
    }

    /// The part that holds the key, locked, and the key's hash.
    fn shard_of(&self, key: &Key) -> (MutexGuard<'_, Shard>, u64) {
        let hash = self.hasher.hash_one(key);
        // The table itself goes by the other bits.
        let shard = usize::try_from(hash >> 48).unwrap_or(0) % SHARDS;
        (lock(&self.shards[shard]), hash)
    }

    /// Applies one transition per item, in order; an item outside its limits is answered with that.
    fn each<T, R>(
        &self,
        items: &[T],
        check: impl Fn(&T) -> Result<(), LimitExceeded>,
        key: impl Fn(&T) -> &Key,
        decide: impl Fn(Option<Record>, &T, Timestamp) -> (Option<Record>, R),
    ) -> Replies<R> {
        if let Err(limit) = limits::check_batch(items.len()) {
            return items.iter().map(|_| Err(limit.clone().into())).collect();
        }
        let one = |item| {
            check(item)?;
            let key = key(item);
            let (mut shard, hash) = self.shard_of(key);
            // Under the lock: what was decided later was decided at a later time.
            let now = self.clock.now();
            Ok(shard.apply(key, hash, now, |record| decide(record, item, now)))
        };
        items.iter().map(one).collect()
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shard {
    fn apply<R>(
        &mut self,
        key: &Key,
        hash: u64,
        now: Timestamp,
        decide: impl FnOnce(Option<Record>) -> (Option<Record>, R),
    ) -> R {
        match self.0.entry(hash, |it| it.0 == hash && it.1.0 == *key, |it| it.0) {
            Entry::Occupied(mut slot) => {
                let stored = &mut slot.get_mut().1.1;
                let (after, reply) = decide(Some(stored.clone()));
                if step::changes(Some(stored), after.as_ref(), now) {
                    match after {
                        Some(record) => *stored = record,
                        None => drop(slot.remove()),
                    }
                }
                reply
            }
            Entry::Vacant(slot) => {
                let (after, reply) = decide(None);
                if let Some(record) = after {
                    slot.insert((hash, Box::new((key.clone(), record))));
                }
                reply
            }
        }
    }

    fn records(&self) -> impl Iterator<Item = (&Key, &Record)> {
        self.0.iter().map(|(_, entry)| (&entry.0, &entry.1))
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
        let decide = |record: Option<Record>, claim: &Claim, now| {
            let token = Token(self.token.fetch_add(1, Ordering::Relaxed) + 1);
            step::claim(record, claim, now, token)
        };
        self.each(claims, Claim::check, |it| &it.key, decide)
    }

    async fn complete_many(&self, completions: &[Completion]) -> Replies<LeaseReply> {
        self.each(completions, Completion::check, |it| &it.key, step::complete)
    }

    async fn extend_many(&self, extensions: &[Extension]) -> Replies<LeaseReply> {
        self.each(extensions, Extension::check, |it| &it.key, step::extend)
    }

    async fn release_many(&self, releases: &[Release]) -> Replies<LeaseReply> {
        self.each(releases, |_| Ok(()), |it| &it.key, step::release)
    }

    async fn abandon_many(&self, abandonments: &[Abandonment]) -> Replies<LeaseReply> {
        self.each(abandonments, |_| Ok(()), |it| &it.key, step::abandon)
    }

    async fn settle_many(&self, settlements: &[Settlement]) -> Replies<LeaseReply> {
        self.each(settlements, Settlement::check, |it| &it.key, step::settle)
    }

    async fn read_many(&self, keys: &[Key]) -> Replies<Option<Record>> {
        let read = |record: Option<Record>, _: &Key, now| {
            let seen = record.clone().and_then(|record| record.visible_at(now));
            (record, seen)
        };
        self.each(keys, |_| Ok(()), |key| key, read)
    }

    async fn sweep(&self, limit: u32) -> Result<SweepReport, StoreError> {
        let mut left = limit as usize;
        let mut report = SweepReport::default();
        for shard in &self.shards {
            if left == 0 {
                break;
            }
            let mut shard = lock(shard);
            let now = self.clock.now();
            shard.0.retain(|(_, entry)| {
                let record = &mut entry.1;
                if left == 0 || record.due().is_none_or(|due| due > now) {
                    return true;
                }
                left -= 1;
                let (after, swept) = record.clone().swept(now);
                if let Some(swept) = swept {
                    report.count(swept);
                }
                let stays = after.is_some();
                if let Some(after) = after {
                    *record = after;
                }
                stays
            });
        }
        Ok(report)
    }

    async fn list(&self, query: &KeyQuery) -> Result<KeyPage, StoreError> {
        let from = query.from_key()?;
        let mut records: Vec<(Key, Record)> = Vec::new();
        for shard in &self.shards {
            let shard = lock(shard);
            let now = self.clock.now();
            let shown = shard
                .records()
                .filter(|(key, _)| query.scope.as_ref().is_none_or(|scope| key.scope() == scope))
                .filter(|(key, _)| from.as_ref().is_none_or(|from| *key > from))
                .filter_map(|(key, record)| query.shows(key, record, now));
            records.extend(shown);
        }
        records.sort_by(|a, b| a.0.cmp(&b.0));
        let more = records.len() > query.limit as usize;
        records.truncate(query.limit as usize);
        Ok(KeyPage::of(records, more))
    }

    async fn usage(&self, scope: &Scope, records_max: u64) -> Result<Usage, StoreError> {
        let mut usage = Usage::default();
        for shard in &self.shards {
            let shard = lock(shard);
            for (_, record) in shard.records().filter(|(key, _)| key.scope() == scope) {
                if usage.records >= records_max {
                    return Ok(usage);
                }
                usage.records += 1;
                usage.bytes += record.outcome_bytes();
            }
        }
        Ok(usage)
    }
}
