//! Looks of idle shards: one question for all that ask at once.
//!
//! Machines let their long waits end together, so that the questions of many idle shards come at the same moment.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::OutboxStore;
use semel_core::error::chain;
use semel_core::relay::{Cursor, ShardLease};
use tokio::sync::{Notify, oneshot};

/// A shard that has heard nothing for so long opens by itself: whatever keeps the others' answer is not its trouble.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

struct Asked {
    shard: (ShardLease, Cursor),
    tell: oneshot::Sender<bool>,
}

/// The questions of one relay's shards.
#[derive(Default)]
pub(crate) struct Looks {
    asked: Mutex<Vec<Asked>>,
    asks: Notify,
}

impl Looks {
    fn lock(&self) -> MutexGuard<'_, Vec<Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this shard should open; `true` where nobody can say.
    pub(crate) async fn ask(&self, lease: ShardLease, from: Cursor) -> bool {
        let (tell, told) = oneshot::channel();
        {
            let mut asked = self.lock();
            asked.retain(|it| !it.tell.is_closed());
            asked.push(Asked {
                shard: (lease, from),
                tell,
            });
        }
        self.asks.notify_one();
        match tokio::time::timeout(ANSWER_WAIT, told).await {
            Ok(Ok(worth)) => worth,
            Ok(Err(_)) | Err(_) => true,
        }
    }

    /// Asks the store for all that ask meanwhile.
    pub(crate) async fn answer(&self, store: &dyn OutboxStore) {
        loop {
            self.asks.notified().await;
            // Those whose wait ended at the same moment come in between.
            tokio::task::yield_now().await;
            let (shards, tells): (Vec<_>, Vec<_>) = std::mem::take(&mut *self.lock())
                .into_iter()
                .map(|it| (it.shard, it.tell))
                .unzip();
            // One alone opens by itself: to ask first would be a second look.
            let worth = match shards.len() {
                0 | 1 => Vec::new(),
                _ => store.worth_opening(&shards).await.unwrap_or_else(|error| {
                    tracing::debug!(error = chain(&error), "idle shards look each for itself");
                    Vec::new()
                }),
            };
            for (at, tell) in tells.into_iter().enumerate() {
                // Who has gone needs no answer.
                let _ = tell.send(worth.get(at).copied().unwrap_or(true));
            }
        }
    }
}
