//! Keeping what is owned: one task that renews all leases, whatever the shards are doing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::OutboxStore;
use semel_core::error::chain;
use semel_core::relay::{Epoch, ShardId, ShardLease};
use semel_core::store::Guarded;
use tokio::sync::watch;

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
}

/// The leases of one relay.
#[derive(Default)]
pub(crate) struct Leases(Mutex<HashMap<ShardId, Kept>>);

impl Leases {
    fn lock(&self) -> MutexGuard<'_, HashMap<ShardId, Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn keep(&self, lease: ShardLease, until: u64) -> watch::Receiver<Held> {
        let (tell, told) = watch::channel(Held::Until(until));
        self.lock().insert(lease.shard.clone(), Kept { lease, tell });
        told
    }

    pub(crate) fn forget(&self, lease: &ShardLease) {
        let mut kept = self.lock();
        if kept.get(&lease.shard).is_some_and(|it| it.lease == *lease) {
            kept.remove(&lease.shard);
        }
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

    /// Renews for ever, a fifth of the lease apart; sooner after trouble.
    pub(crate) async fn renew(
        &self,
        store: Arc<dyn OutboxStore>,
        clock: Arc<LocalClock>,
        status: Arc<Status>,
        lease: Duration,
    ) {
        let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
        let mut wait = lease / 5;
        let mut said = Said::default();
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
                        if mine {
                            say(&*store, &status, lease, &mut said).await;
                        }
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
}

/// What was last left in the store about each shard.
type Said = HashMap<ShardId, (Epoch, Option<String>)>;

/// Leaves in the store why a shard sends nothing, for whoever asks from elsewhere; only when that has changed.
async fn say(store: &dyn OutboxStore, status: &Status, lease: &ShardLease, said: &mut Said) {
    let Some(desk) = store.desk() else { return };
    let now = (lease.epoch, status.note(&lease.shard));
    if said.get(&lease.shard) == Some(&now) {
        return;
    }
    match desk.note(lease, now.1.as_deref()).await {
        Ok(Guarded::Done(())) => {
            said.insert(lease.shard.clone(), now);
        }
        // The next renewal finds out who owns it.
        Ok(Guarded::Lost | Guarded::Reload) => {}
        Err(error) => tracing::debug!(shard = %lease.shard, error = chain(&error), "its state was not noted"),
    }
}

/// When a lease asked for at `now` ends for its owner: a tenth earlier than for the others, so that clocks that run at
/// slightly different speeds do not matter.
pub(crate) fn local_end(now: u64, lease: Duration) -> u64 {
    let ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
    now.saturating_add(ms - ms / 10)
}
