//! A relay's word to the others that it lives: by it they share the shards.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel_core::error::chain;
use semel_core::store::Presence;
use semel_core::{Nonce, StoreError};
use tokio_util::sync::CancellationToken;

use crate::relay::{STOP_GRACE, unless_stopped};
use crate::shard::Shell;

/// How long a stop waits for both calls, the last word and its end.
const LEAVING_MAX: Duration = Duration::from_secs(3);

/// One run of a relay, as the others see it.
pub(crate) struct Present {
    pub(crate) relay: Nonce,
    /// When it last took its part in sharing, on the local clock.
    shared_at: AtomicU64,
    /// The run ends.
    stop: CancellationToken,
    left: CancellationToken,
}

impl Present {
    pub(crate) fn new(stop: CancellationToken, now: u64) -> Self {
        Self {
            relay: Nonce::random(),
            shared_at: AtomicU64::new(now),
            stop,
            left: CancellationToken::new(),
        }
    }

    /// It has seen what there is to share.
    pub(crate) fn shared(&self, now: u64) {
        self.shared_at.store(now, Ordering::Relaxed);
    }

    /// Who neither takes nor gives, because a call hangs, must not count: the others would wait for it.
    fn shares(&self, shell: &Shell) -> bool {
        let lease = shell.config.lease_ms().unsigned_abs();
        let at = self.shared_at.load(Ordering::Relaxed);
        shell.clock.now_ms().saturating_sub(at) <= lease
    }

    /// Says so until the run ends, then takes it back. One call after the other, so that none overtakes the last.
    pub(crate) async fn keep(&self, shell: &Shell) {
        let (store, config) = (&shell.store, &shell.config);
        let presence = Presence {
            stream: config.stream.clone(),
            relay: self.relay,
            owner: config.owner.clone(),
            // Renewed as often as the leases, and over before them: nobody waits longer for one who died than for its shards.
            ms: config.lease_ms() - config.lease_ms() / 5,
        };
        while !self.stop.is_cancelled() {
            let said = if self.shares(shell) {
                unless_stopped(&self.stop, store.attend(&presence)).await
            } else {
                Some(Ok(()))
            };
            let Some(said) = said else { break };
            let wait = match said {
                Ok(()) => config.lease / 5,
                Err(error) => {
                    tracing::warn!(
                        stream = config.stream,
                        error = chain(&error),
                        "the other relays were not told that this one lives"
                    );
                    config.lease / 20
                }
            };
            tokio::select! {
                biased;
                () = self.stop.cancelled() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
        let left = store.leave(&config.stream, self.relay);
        match tokio::time::timeout(STOP_GRACE, left).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => unsaid(&config.stream, &error),
            Err(_) => tracing::debug!(stream = config.stream, "the store does not answer"),
        }
        self.left.cancel();
        std::future::pending().await
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Waits until the word is taken back, but not for a store that does not answer.
    pub(crate) async fn left(&self) {
        if tokio::time::timeout(LEAVING_MAX, self.left.cancelled())
            .await
            .is_err()
        {
            tracing::debug!("the other relays were not told in time that this one stops");
        }
    }
}

fn unsaid(stream: &str, error: &StoreError) {
    tracing::warn!(
        stream,
        error = chain(error),
        "the other relays were not told that this one stops; its word ends by time"
    );
}
