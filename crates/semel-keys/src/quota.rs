//! Growth limits per scope.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use semel_core::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, LeaseReply, Record, Release, Settlement,
    SweepReport,
};
use semel_core::error::SCOPE_FULL;
use semel_core::limits;
use semel_core::store::{Batching, Hint, KeyPage, KeyQuery, Replies, Usage};
use semel_core::{Capabilities, Clock, ErrorKind, Key, KeyStore, Scope, StoreError, SystemClock};

/// How much each scope may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaConfig {
    /// Records at most, tombstones included. Default 1 000 000.
    pub records_max: u64,
    /// Bytes of stored outcomes at most. Default 1 GiB.
    pub bytes_max: u64,
    /// How long a measurement is remembered, with this process's own grants counted on top. Default 30 s. What other
    /// processes add meanwhile is not seen.
    pub remember: Duration,
    /// Scopes that are remembered at most; beyond that the oldest measurements are forgotten. Default 10 000.
    pub scopes_max: usize,
}

impl Default for QuotaConfig {
    fn default() -> Self {
        Self {
            records_max: 1_000_000,
            bytes_max: 1 << 30,
            remember: Duration::from_secs(30),
            scopes_max: 10_000,
        }
    }
}

/// While a scope is full it is measured again this often, so that room is noticed soon.
const FULL_REMEMBERED: Duration = Duration::from_secs(1);

/// A key store in front of another one that refuses new keys in a scope that holds too much. Put it in front of a
/// [`Batched`](crate::Batched).
///
/// # Guarantees
/// - Nothing that is stored is dropped, nothing that runs is stopped: only keys that are not there yet are refused
///   (SEM0111, [`ErrorKind::LimitExceeded`]). Replays, duplicates and ends of runs are answered as ever.
/// - Inside one process a scope never gets more records than its limit. Several processes may exceed it together, by what
///   they grant within [`QuotaConfig::remember`]. Bytes are known only when a run ends: what was running may exceed them.
///
/// ```
/// # fn f(store: semel_sqlite::Sqlite) -> Result<(), semel_core::StoreError> {
/// use semel_keys::{Batched, Quota, QuotaConfig};
/// let config = QuotaConfig { records_max: 50_000, ..QuotaConfig::default() };
/// let store = Quota::new(Batched::new(store), config)?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Quota<S> {
    store: S,
    config: QuotaConfig,
    clock: Clocked,
    scopes: Mutex<HashMap<Scope, Tally>>,
    refused: AtomicU64,
}

struct Clocked(Arc<dyn Clock>);

impl std::fmt::Debug for Clocked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

/// What a scope held when it was last measured, and what this process did since that measurement began. What it did while
/// the store was counting may be counted twice until the next one: the error is to refuse.
#[derive(Debug, Default)]
struct Tally {
    measured: Option<Measured>,
    /// Records and bytes that this process has added.
    added: Usage,
    /// Places taken by claims that have no answer yet.
    reserved: u64,
    /// Calls that use this tally: it is not forgotten under them.
    calls: usize,
}

#[derive(Debug, Clone, Copy)]
struct Measured {
    /// When the measurement began.
    at: Duration,
    usage: Usage,
    /// What had been added at that moment.
    added: Usage,
}

impl Tally {
    /// What the scope holds at most, as far as this process knows.
    fn usage(&self) -> Usage {
        let (usage, before) = self.measured.map(|it| (it.usage, it.added)).unwrap_or_default();
        let records = self.added.records.saturating_sub(before.records);
        let bytes = self.added.bytes.saturating_sub(before.bytes);
        Usage {
            records: usage
                .records
                .saturating_add(records)
                .saturating_add(self.reserved),
            bytes: usage.bytes.saturating_add(bytes),
        }
    }
}

/// A call's part in the tally of a scope. A place whose call left without an answer counts as used.
struct Place<'a, S> {
    quota: &'a Quota<S>,
    scope: &'a Scope,
    reserved: bool,
}

impl<S> Place<'_, S> {
    /// The answer is there: whether it made a record.
    fn answered(&mut self, used: bool) {
        if let Some(tally) = self.quota.lock().get_mut(self.scope) {
            tally.reserved -= u64::from(std::mem::take(&mut self.reserved));
            tally.added.records += u64::from(used);
        }
    }
}

impl<S> Drop for Place<'_, S> {
    fn drop(&mut self) {
        if self.reserved {
            self.answered(true);
        }
        if let Some(tally) = self.quota.lock().get_mut(self.scope) {
            tally.calls -= 1;
        }
    }
}

impl<S> Quota<S> {
    /// New keys that were refused so far.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Scope, Tally>> {
        self.scopes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: KeyStore> Quota<S> {
    /// A quota in front of this store.
    ///
    /// # Errors
    /// `Invalid` when the store cannot count ([`Capabilities::counts_scopes`]).
    pub fn new(store: S, config: QuotaConfig) -> Result<Self, StoreError> {
        Self::with_clock(store, config, Arc::new(SystemClock))
    }

    /// The same with another clock.
    ///
    /// # Errors
    /// `Invalid` when the store cannot count ([`Capabilities::counts_scopes`]).
    pub fn with_clock(store: S, config: QuotaConfig, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        let can = store.capabilities();
        if !can.counts_scopes {
            let text = format!(
                "{} cannot say how much a scope holds (counts_scopes), so it keeps no quota: leave the quota out, or use \
                 a store that counts (docs/stores.md)",
                can.name
            );
            return Err(StoreError::new(ErrorKind::Invalid, "quota", text));
        }
        Ok(Self {
            store,
            config,
            clock: Clocked(clock),
            scopes: Mutex::default(),
            refused: AtomicU64::new(0),
        })
    }

    const fn is_full(&self, usage: Usage) -> bool {
        usage.records >= self.config.records_max || usage.bytes >= self.config.bytes_max
    }

    /// A call's part in the tally of its scope, which stays until it is dropped.
    fn enter<'a>(&'a self, scope: &'a Scope) -> Place<'a, S> {
        let mut scopes = self.lock();
        if scopes.len() >= self.config.scopes_max && !scopes.contains_key(scope) {
            let age = |tally: &Tally| tally.measured.map(|it| it.at);
            let mut ages: Vec<Option<Duration>> = scopes.values().map(age).collect();
            ages.sort_unstable();
            let middle = ages.get(ages.len() / 2).copied().flatten();
            scopes.retain(|_, tally| tally.calls > 0 || age(tally) > middle);
        }
        scopes.entry(scope.clone()).or_default().calls += 1;
        Place {
            quota: self,
            scope,
            reserved: false,
        }
    }

    /// Measures a scope unless that was done lately.
    async fn measure(&self, scope: &Scope) -> Result<(), StoreError> {
        let at = self.clock.0.monotonic();
        let added = {
            let scopes = self.lock();
            let Some(tally) = scopes.get(scope) else {
                return Ok(());
            };
            let remember = if self.is_full(tally.usage()) {
                FULL_REMEMBERED
            } else {
                self.config.remember
            };
            if let Some(known) = tally.measured
                && at < known.at.saturating_add(remember)
            {
                return Ok(());
            }
            tally.added
        };
        let counted = self.config.records_max.saturating_add(1);
        let usage = self.store.usage(scope, counted).await?;
        if let Some(tally) = self.lock().get_mut(scope)
            && tally.measured.is_none_or(|known| known.at <= at)
        {
            tally.measured = Some(Measured { at, usage, added });
        }
        Ok(())
    }

    /// Takes a place for one more record; the refusal where there is none.
    fn reserve(&self, place: &mut Place<'_, S>) -> Result<(), StoreError> {
        let (scope, config) = (place.scope, &self.config);
        let mut scopes = self.lock();
        let Some(tally) = scopes.get_mut(scope) else {
            return Ok(());
        };
        let usage = tally.usage();
        let what = if usage.records >= config.records_max {
            format!("{} records, records_max = {}", usage.records, config.records_max)
        } else if usage.bytes >= config.bytes_max {
            format!(
                "{} bytes of outcomes, bytes_max = {}",
                usage.bytes, config.bytes_max
            )
        } else {
            tally.reserved += 1;
            place.reserved = true;
            return Ok(());
        };
        let text = format!(
            "the scope {scope} holds {what}: no new key is taken in; raise the quota, keep outcomes for a shorter time \
             (retention_ms, tombstone_ms), or wait until old records have been swept"
        );
        Err(StoreError::new(ErrorKind::LimitExceeded, "claim", text).with_code(SCOPE_FULL))
    }
}

#[async_trait]
impl<S: KeyStore> KeyStore for Quota<S> {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn claim_many(&self, claims: &[Claim]) -> Replies<ClaimReply> {
        if limits::check_batch(claims.len()).is_err() {
            return self.store.claim_many(claims).await;
        }
        let mut refusals: Vec<Option<StoreError>> = Vec::with_capacity(claims.len());
        let mut places: Vec<Place<'_, S>> = Vec::with_capacity(claims.len());
        for claim in claims {
            let scope = claim.key.scope();
            let mut place = self.enter(scope);
            let room = match self.measure(scope).await {
                Ok(()) => self.reserve(&mut place),
                Err(error) => Err(error),
            };
            refusals.push(room.err());
            places.push(place);
        }
        // What is there already takes no new place: it is answered as ever.
        let refused: Vec<Key> = (refusals.iter().zip(claims))
            .filter(|(refusal, _)| refusal.is_some())
            .map(|(_, claim)| claim.key.clone())
            .collect();
        if !refused.is_empty() {
            let mut records = self.store.read_many(&refused).await.into_iter();
            for refusal in refusals.iter_mut().filter(|refusal| refusal.is_some()) {
                match records.next() {
                    Some(Ok(Some(_))) => *refusal = None,
                    Some(Ok(None)) | None => {}
                    Some(Err(error)) => *refusal = Some(error),
                }
            }
        }
        let passed: Vec<Claim> = (refusals.iter().zip(claims))
            .filter(|(refusal, _)| refusal.is_none())
            .map(|(_, claim)| claim.clone())
            .collect();
        let mut answers = if passed.is_empty() {
            Vec::new()
        } else {
            self.store.claim_many(&passed).await
        }
        .into_iter();
        let missing = || {
            Err(StoreError::new(
                ErrorKind::Corrupt,
                "claim",
                "the store gave no answer",
            ))
        };
        let answer = |(refusal, mut place): (Option<StoreError>, Place<'_, S>)| {
            let reply = match refusal {
                Some(refusal) => {
                    let full = refusal.code() == SCOPE_FULL;
                    self.refused.fetch_add(u64::from(full), Ordering::Relaxed);
                    Err(refusal)
                }
                None => answers.next().unwrap_or_else(missing),
            };
            // A place is used by a first grant; an answer that is lost may have used it, and the next measurement knows.
            let used = match &reply {
                Ok(ClaimReply::Granted { attempt, .. }) => *attempt == 1,
                Ok(_) => false,
                Err(error) => error.retry() == semel_core::Retry::OutcomeUnknown,
            };
            place.answered(used);
            reply
        };
        refusals.into_iter().zip(places).map(answer).collect()
    }

    async fn complete_many(&self, completions: &[Completion]) -> Replies<LeaseReply> {
        let replies = self.store.complete_many(completions).await;
        for (done, reply) in completions.iter().zip(&replies) {
            if matches!(reply, Ok(LeaseReply::Ok(_)))
                && let Some(tally) = self.lock().get_mut(done.key.scope())
            {
                tally.added.bytes += done.outcome.bytes().len() as u64;
            }
        }
        replies
    }

    async fn extend_many(&self, extensions: &[Extension]) -> Replies<LeaseReply> {
        self.store.extend_many(extensions).await
    }

    async fn release_many(&self, releases: &[Release]) -> Replies<LeaseReply> {
        self.store.release_many(releases).await
    }

    async fn abandon_many(&self, abandonments: &[Abandonment]) -> Replies<LeaseReply> {
        self.store.abandon_many(abandonments).await
    }

    async fn settle_many(&self, settlements: &[Settlement]) -> Replies<LeaseReply> {
        self.store.settle_many(settlements).await
    }

    async fn read_many(&self, keys: &[Key]) -> Replies<Option<Record>> {
        self.store.read_many(keys).await
    }

    async fn sweep(&self, limit: u32) -> Result<SweepReport, StoreError> {
        self.store.sweep(limit).await
    }

    async fn list(&self, query: &KeyQuery) -> Result<KeyPage, StoreError> {
        self.store.list(query).await
    }

    async fn usage(&self, scope: &Scope, records_max: u64) -> Result<Usage, StoreError> {
        self.store.usage(scope, records_max).await
    }

    async fn subscribe(&self, key: &Key) -> Option<Hint> {
        self.store.subscribe(key).await
    }

    /// Mixed batches come kind by kind, so that claims in them are counted, too.
    fn batching(&self) -> Batching {
        Batching {
            mixes: false,
            ..self.store.batching()
        }
    }

    async fn look_many(&self, claims: &[Claim]) -> Replies<Option<ClaimReply>> {
        self.store.look_many(claims).await
    }
}
