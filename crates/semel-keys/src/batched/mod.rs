//! The micro-batcher: single calls from many callers become few statements.

mod config;
mod drive;
mod ticket;

use std::collections::HashSet;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use semel_core::batch::{Full, Lane, Replays, Weight};
use semel_core::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, LeaseReply, Record, Release, Settlement,
    SweepReport,
};
use semel_core::limits::{self, LimitExceeded};
use semel_core::store::{Batching, Hint, KeyPage, KeyQuery, MixedBatch, MixedReplies, Replies, Usage};
use semel_core::{Capabilities, Clock as _, ErrorKind, Key, KeyStore, Scope, StoreError, SystemClock};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

pub use self::config::BatchConfig;
use self::drive::{Driver, lock};
use self::ticket::{Look, Ticket};

/// A key store in front of another one that puts calls made at the same time into one batch.
///
/// Natural batching: a call that finds its lane idle is sent at once; what comes while a batch is on its way goes
/// together in the next one. Cheap to clone; all clones share the lanes.
///
/// # Guarantees
/// - Each call gets its own answer. When a whole batch fails with an error that one item may have caused, it is asked
///   again in halves until that item stands alone; repeating is safe (rules K2, K3).
/// - Calls for one key are sent in the order in which they were made.
/// - What waits is bounded ([`BatchConfig::queue_items_max`], [`BatchConfig::queue_bytes_max`]); what ends a run is let
///   in when claims no longer are.
///
/// # Errors
/// Those of the store; SEM0110 (retry later, nothing was done) when too many calls wait, SEM0116 when it is closed; and that the answer is lost when
/// a batch gets none within [`BatchConfig::batch_ms_max`].
///
/// # Cancel safety
/// A caller that leaves disturbs nobody. Its claim or extension is not sent if it still waited; all else is carried out,
/// taken up or not. A claim on its way may be granted: whoever leaves it either asks again with the same nonce (rule K3)
/// or withdraws it by a [`Release`] without token (rule K4). The batcher does neither, for only the caller knows whether
/// it will ask again.
///
/// # What a crash does
/// What waited was not done, and nobody was told that it was.
///
/// Its tasks run on the tokio runtime in which it was made; callers may be on others. When that runtime ends, calls hear
/// that their answer is lost.
///
/// ```
/// # async fn f(sqlite: semel_sqlite::Sqlite) -> Result<(), Box<dyn std::error::Error>> {
/// use semel_keys::Batched;
/// let store = Batched::new(sqlite);
/// // … hand `store.clone()` to every task; at the end:
/// store.close().await;
/// # Ok(()) }
/// ```
pub struct Batched<S: KeyStore>(Arc<Shared<S>>);

impl<S: KeyStore> Clone for Batched<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: KeyStore> std::fmt::Debug for Batched<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let waiting: usize = self.0.lanes.iter().map(|lane| lock(lane).waiting()).sum();
        f.debug_struct("Batched")
            .field("store", &self.0.store.capabilities().name)
            .field("lanes", &self.0.lanes.len())
            .field("waiting", &waiting)
            .finish_non_exhaustive()
    }
}

struct Shared<S: KeyStore> {
    store: S,
    mixes: bool,
    looks_first: bool,
    /// [`Replays::share`] of the latest claims.
    replays: Replays,
    lanes: Box<[Mutex<Lane<Ticket>>]>,
    looks: Box<[Mutex<Lane<Look>>]>,
    tasks: TaskTracker,
    batch_ms_max: u64,
    /// Where it was made. A lane is not to die with the runtime of one of several callers.
    runtime: Option<Handle>,
    closed: AtomicBool,
}

impl<S: KeyStore> Batched<S> {
    /// A batcher with the settings that the store wishes.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self::build(store, &BatchConfig::default())
    }

    /// A batcher with these settings.
    ///
    /// # Errors
    /// A setting outside its limits.
    pub fn with(store: S, config: &BatchConfig) -> Result<Self, LimitExceeded> {
        config.check()?;
        Ok(Self::build(store, config))
    }

    fn build(store: S, config: &BatchConfig) -> Self {
        let wish = store.batching();
        let (lanes, limits) = (config.lanes(wish), config.lane(wish));
        Self(Arc::new(Shared {
            mixes: wish.mixes,
            looks_first: wish.looks_first,
            replays: Replays::default(),
            lanes: (0..lanes).map(|_| Mutex::new(Lane::new(limits))).collect(),
            looks: (0..lanes).map(|_| Mutex::new(Lane::new(limits))).collect(),
            tasks: TaskTracker::new(),
            batch_ms_max: config.batch_ms_max,
            runtime: Handle::try_current().ok(),
            closed: AtomicBool::new(false),
            store,
        }))
    }

    /// The store behind it.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.0.store
    }

    /// Calls that wait now, in all lanes.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let transitions: usize = self.0.lanes.iter().map(|lane| lock(lane).waiting()).sum();
        let looks: usize = self.0.looks.iter().map(|lane| lock(lane).waiting()).sum();
        transitions + looks
    }

    /// Refuses calls from now on (retry later, nothing was done) and waits until all that were let in are answered. Close
    /// the store behind it after that.
    pub async fn close(&self) {
        self.0.closed.store(true, Ordering::SeqCst);
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}

impl<S: KeyStore> Shared<S> {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match &self.runtime {
            Some(runtime) => drop(self.tasks.spawn_on(task, runtime)),
            None => drop(self.tasks.spawn(task)),
        }
    }

    /// Whether these claims are looked up before they are written.
    fn look_first(&self, claims: &[Claim]) -> bool {
        if self.replays.look_first(None) {
            return true;
        }
        let on_its_way = claims.first().and_then(|claim| {
            let lane = &self.lanes[lane_of(&claim.key, self.lanes.len())];
            lock(lane).on_its_way(SystemClock.monotonic())
        });
        self.replays.look_first(on_its_way)
    }

    fn learn(&self, reply: &ClaimReply) {
        self.replays.note(!matches!(reply, ClaimReply::Granted { .. }));
    }

    /// Lets a transition in; its driver is started where there is none.
    fn offer(self: &Arc<Self>, ticket: Ticket) -> Result<(), StoreError> {
        let (operation, weight) = (ticket.operation(), ticket.weight());
        let n = lane_of(ticket.key(), self.lanes.len());
        let _let_in = self.tasks.token();
        if self.enter(&self.lanes[n], ticket, weight, operation)? {
            self.spawn(drive::transitions(Driver::of_transitions(self, n)));
        }
        Ok(())
    }

    fn offer_look(self: &Arc<Self>, look: Look) -> Result<(), StoreError> {
        let (operation, weight) = (look.operation(), look.weight());
        let n = lane_of(look.key(), self.looks.len());
        let _let_in = self.tasks.token();
        if self.enter(&self.looks[n], look, weight, operation)? {
            self.spawn(drive::looks(Driver::of_looks(self, n)));
        }
        Ok(())
    }

    /// Whoever calls this holds a token of `tasks` from before until its driver is spawned: a call that finds the batcher
    /// open is one that `close` waits for.
    fn enter<T>(
        &self,
        lane: &Mutex<Lane<T>>,
        item: T,
        weight: Weight,
        operation: &'static str,
    ) -> Result<bool, StoreError> {
        if self.closed.load(Ordering::SeqCst) {
            let text = "the batcher of keys is closed; nothing was done";
            return Err(StoreError::new(ErrorKind::NotApplied, operation, text).with_code("SEM0116"));
        }
        let offered = lock(lane).offer(item, weight, SystemClock.monotonic());
        offered.map_err(|full| refused(full, operation))
    }
}

fn refused(full: Full, operation: &'static str) -> StoreError {
    StoreError::new(ErrorKind::NotApplied, operation, full.to_string()).with_code("SEM0110")
}

/// A key always goes through the same lane.
fn lane_of(key: &Key, lanes: usize) -> usize {
    if lanes == 1 {
        return 0;
    }
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
    usize::try_from(hash % lanes as u64).unwrap_or(0)
}

/// The answer, or that it is lost.
async fn answer<R>(
    offered: Result<oneshot::Receiver<Result<R, StoreError>>, StoreError>,
    operation: &'static str,
) -> Result<R, StoreError> {
    match offered {
        Ok(receiver) => receiver.await.unwrap_or_else(|_| Err(lost(operation))),
        Err(error) => Err(error),
    }
}

fn lost(operation: &'static str) -> StoreError {
    let text = "the task that carried the batch ended before it had an answer";
    StoreError::new(ErrorKind::ReplyLost, operation, text)
}

impl<S: KeyStore> Batched<S> {
    /// Offers all items at once, then gathers the answers in order.
    async fn each<T: Clone, R>(
        &self,
        items: &[T],
        operation: &'static str,
        ticket: impl Fn(T, oneshot::Sender<Result<R, StoreError>>) -> Ticket,
    ) -> Replies<R> {
        if let Err(limit) = limits::check_batch(items.len()) {
            return items.iter().map(|_| Err(limit.clone().into())).collect();
        }
        let offer = |item: &T| {
            let (back, receiver) = oneshot::channel();
            self.0.offer(ticket(item.clone(), back))?;
            Ok(receiver)
        };
        let offered: Vec<Result<_, StoreError>> = items.iter().map(offer).collect();
        let mut replies = Vec::with_capacity(items.len());
        for receiver in offered {
            replies.push(answer(receiver, operation).await);
        }
        replies
    }

    /// What claims would be answered without a write, through the lane of looks.
    async fn look(&self, claims: &[Claim]) -> Vec<Option<Result<ClaimReply, StoreError>>> {
        let offer = |claim: &Claim| {
            let (back, receiver) = oneshot::channel();
            self.0.offer_look(Look::Claim(claim.clone(), back))?;
            Ok(receiver)
        };
        let offered: Vec<Result<_, StoreError>> = claims.iter().map(offer).collect();
        let mut replies = Vec::with_capacity(claims.len());
        for receiver in offered {
            replies.push(answer(receiver, "claim").await.transpose());
        }
        replies
    }

    /// Claims that are answered by what stands there already need not wait for the writer.
    async fn look_then_write(&self, claims: &[Claim]) -> Replies<ClaimReply> {
        let mut replies = self.look(claims).await;
        // Items of one key are decided in order: behind one that has to be written, none counts as looked at.
        if claims.len() > 1 {
            let mut written = HashSet::new();
            for (reply, claim) in replies.iter_mut().zip(claims) {
                if reply.is_none() || written.contains(&claim.key) {
                    *reply = None;
                    written.insert(&claim.key);
                }
            }
        }
        let left = replies.iter().zip(claims).filter(|(reply, _)| reply.is_none());
        let left: Vec<Claim> = left.map(|(_, claim)| claim.clone()).collect();
        if !left.is_empty() {
            let mut written = self.write(&left).await.into_iter();
            for reply in replies.iter_mut().filter(|reply| reply.is_none()) {
                *reply = written.next();
            }
        }
        let missing = || Err(lost("claim"));
        replies
            .into_iter()
            .map(|reply| reply.unwrap_or_else(missing))
            .collect()
    }

    async fn write(&self, claims: &[Claim]) -> Replies<ClaimReply> {
        self.each(claims, "claim", Ticket::Claim).await
    }
}

#[async_trait]
impl<S: KeyStore> KeyStore for Batched<S> {
    fn capabilities(&self) -> Capabilities {
        self.0.store.capabilities()
    }

    async fn claim_many(&self, claims: &[Claim]) -> Replies<ClaimReply> {
        if let Err(limit) = limits::check_batch(claims.len()) {
            return claims.iter().map(|_| Err(limit.clone().into())).collect();
        }
        if !self.0.looks_first {
            return self.write(claims).await;
        }
        let replies = if self.0.look_first(claims) {
            self.look_then_write(claims).await
        } else {
            self.write(claims).await
        };
        for reply in replies.iter().flatten() {
            self.0.learn(reply);
        }
        replies
    }

    async fn complete_many(&self, completions: &[Completion]) -> Replies<LeaseReply> {
        self.each(completions, "complete", Ticket::Complete).await
    }

    async fn extend_many(&self, extensions: &[Extension]) -> Replies<LeaseReply> {
        self.each(extensions, "extend", Ticket::Extend).await
    }

    async fn release_many(&self, releases: &[Release]) -> Replies<LeaseReply> {
        self.each(releases, "release", Ticket::Release).await
    }

    async fn abandon_many(&self, abandonments: &[Abandonment]) -> Replies<LeaseReply> {
        self.each(abandonments, "abandon", Ticket::Abandon).await
    }

    async fn settle_many(&self, settlements: &[Settlement]) -> Replies<LeaseReply> {
        self.each(settlements, "settle", Ticket::Settle).await
    }

    async fn read_many(&self, keys: &[Key]) -> Replies<Option<Record>> {
        if let Err(limit) = limits::check_batch(keys.len()) {
            return keys.iter().map(|_| Err(limit.clone().into())).collect();
        }
        let offer = |key: &Key| {
            let (back, receiver) = oneshot::channel();
            self.0.offer_look(Look::Read(key.clone(), back))?;
            Ok(receiver)
        };
        let offered: Vec<Result<_, StoreError>> = keys.iter().map(offer).collect();
        let mut replies = Vec::with_capacity(keys.len());
        for receiver in offered {
            replies.push(answer(receiver, "read").await);
        }
        replies
    }

    async fn sweep(&self, limit: u32) -> Result<SweepReport, StoreError> {
        self.0.store.sweep(limit).await
    }

    async fn list(&self, query: &KeyQuery) -> Result<KeyPage, StoreError> {
        self.0.store.list(query).await
    }

    async fn usage(&self, scope: &Scope, records_max: u64) -> Result<Usage, StoreError> {
        self.0.store.usage(scope, records_max).await
    }

    async fn subscribe(&self, key: &Key) -> Option<Hint> {
        self.0.store.subscribe(key).await
    }

    fn batching(&self) -> Batching {
        self.0.store.batching()
    }

    /// What is a batch already goes straight to the store.
    async fn transact_many(&self, batch: &MixedBatch) -> MixedReplies {
        self.0.store.transact_many(batch).await
    }

    async fn look_many(&self, claims: &[Claim]) -> Replies<Option<ClaimReply>> {
        self.0.store.look_many(claims).await
    }
}
