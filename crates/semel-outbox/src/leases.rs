//! Keeping what is owned: one task that renews all leases, whatever the shards are doing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::OutboxStore;
use semel_core::error::chain;
use semel_core::relay::{Epoch, ShardId, ShardLease};
use semel_core::store::{Guarded, OutboxDesk};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::LocalClock;
use crate::status::Status;

/// What a shard's task is told about its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// It holds until then, on the local clock in milliseconds.
    Until(u64),
    /// Somebody else owns the shard.
    Lost,
}

struct Kept {
    lease: ShardLease,
    tell: watch::Sender<Held>,
    /// Stops its task, which lets what is on its way finish.
    stop: CancellationToken,
}

/// The leases of one relay.
#[derive(Default)]
pub(crate) struct Leases {
    kept: Mutex<HashMap<ShardId, Kept>>,
    count: watch::Sender<usize>,
}

impl Leases {
    fn lock(&self) -> MutexGuard<'_, HashMap<ShardId, Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn keep(
        &self,
        lease: ShardLease,
        until: u64,
        stop: CancellationToken,
    ) -> watch::Receiver<Held> {
        let (tell, told) = watch::channel(Held::Until(until));
        let mut kept = self.lock();
        kept.insert(lease.shard.clone(), Kept { lease, tell, stop });
        self.count.send_replace(kept.len());
        told
    }

    /// Stops a shard's task; `false` where there is none. Its lease is renewed until it has ended.
    pub(crate) fn give_up(&self, shard: &ShardId) -> bool {
        let kept = self.lock();
        let found = kept.get(shard);
        found.inspect(|it| it.stop.cancel()).is_some()
    }

    /// Whether a task that was stopped has not ended.
    pub(crate) fn is_giving(&self) -> bool {
        self.lock().values().any(|it| it.stop.is_cancelled())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub(crate) fn forget(&self, lease: &ShardLease) {
        let mut kept = self.lock();
        if kept.get(&lease.shard).is_some_and(|it| it.lease == *lease) {
            kept.remove(&lease.shard);
            self.count.send_replace(kept.len());
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> watch::Receiver<usize> {
        self.count.subscribe()
    }

    fn all(&self) -> Vec<ShardLease> {
        self.lock().values().map(|kept| kept.lease.clone()).collect()
    }

    fn tell(&self, lease: &ShardLease, held: Held) {
        if let Some(kept) = self.lock().get(&lease.shard)
            && kept.lease == *lease
        {
            kept.tell.send_replace(held);
        }
    }

    /// Renews for ever, a fifth of the lease apart; sooner after trouble. Nothing else is waited for here: whatever a store does
    /// slowly must not cost a lease.
    pub(crate) async fn renew(
        &self,
        store: Arc<dyn OutboxStore>,
        clock: Arc<LocalClock>,
        status: Arc<Status>,
        lease: Duration,
    ) {
        let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
        let mut wait = lease / 5;
        loop {
            tokio::time::sleep(wait).await;
            wait = lease / 5;
            let leases = self.all();
            if leases.is_empty() {
                continue;
            }
            let until = local_end(clock.now_ms(), lease);
            match store.renew(&leases, lease_ms).await {
                Ok(mine) => {
                    status.totals(|totals| totals.trouble = None);
                    for (lease, mine) in leases.iter().zip(mine) {
                        self.tell(lease, if mine { Held::Until(until) } else { Held::Lost });
                    }
                }
                Err(error) => {
                    tracing::warn!(error = chain(&error), "leases could not be renewed");
                    status.totals(|totals| totals.trouble = Some(chain(&error)));
                    wait = lease / 20;
                }
            }
        }
    }

    /// Leaves word of every shard in the store for ever, a fifth of the lease apart.
    pub(crate) async fn say(&self, store: Arc<dyn OutboxStore>, status: Arc<Status>, lease: Duration) {
        let Some(desk) = store.desk() else {
            return std::future::pending().await;
        };
        let mut words: HashMap<ShardId, Word> = HashMap::new();
        loop {
            tokio::time::sleep(lease / 5).await;
            let leases = self.all();
            words.retain(|shard, _| leases.iter().any(|lease| lease.shard == *shard));
            for lease in &leases {
                let word = words.entry(lease.shard.clone()).or_default();
                word.say(desk, &status, lease).await;
            }
        }
    }
}

/// How long a store may take to write a note down: the notes of other shards wait for it.
const NOTE_TIMEOUT: Duration = Duration::from_secs(2);
/// Turns that are left out at most after notes that were not written down.
const NOTE_TURNS_MAX: u32 = 64;

/// What was last left in the store about a shard.
#[derive(Default)]
struct Word {
    said: Option<(Epoch, Option<String>)>,
    /// Turns to leave out, and how many it will be after the next failure: a store in trouble is not troubled more.
    skip: u32,
    skip_next: u32,
}

impl Word {
    /// Leaves in the store why a shard sends nothing, for whoever asks from elsewhere; only when that has changed.
    async fn say(&mut self, desk: &dyn OutboxDesk, status: &Status, lease: &ShardLease) {
        let now = (lease.epoch, status.note(&lease.shard));
        if self.said.as_ref() == Some(&now) {
            return;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return;
        }
        let noted = tokio::time::timeout(NOTE_TIMEOUT, desk.note(lease, now.1.as_deref())).await;
        let failed = match noted {
            Ok(Ok(Guarded::Done(()))) => {
                (self.said, self.skip_next) = (Some(now), 0);
                return;
            }
            // The next renewal finds out who owns it.
            Ok(Ok(Guarded::Lost | Guarded::Reload)) => return,
            Ok(Err(error)) => chain(&error),
            Err(_) => format!("no answer within {} ms", NOTE_TIMEOUT.as_millis()),
        };
        tracing::debug!(shard = %lease.shard, error = failed, "its state was not noted");
        self.skip_next = (self.skip_next * 2).clamp(1, NOTE_TURNS_MAX);
        self.skip = self.skip_next;
    }
}

/// When a lease asked for at `now` ends for its owner: a tenth earlier than for the others, so that clocks that run at
/// slightly different speeds do not matter.
pub(crate) fn local_end(now: u64, lease: Duration) -> u64 {
    let ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
    now.saturating_add(ms - ms / 10)
}
