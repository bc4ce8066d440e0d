//! Claims whose caller left.

use std::sync::Arc;
use std::time::Duration;

use semel_core::claim::Release;
use semel_core::error::chain;
use semel_core::host::dice;
use semel_core::{Clock as _, KeyStore, KeyStoreExt as _, RetryPolicy, SystemClock};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Api;
use super::request::Claiming;

/// Claims that are being withdrawn at a time; of more, the lease decides.
pub(super) const WITHDRAWALS_MAX: usize = 10_000;

/// How often a withdrawal is tried: at least as long as its claim could hold the key.
const RETRY: RetryPolicy = RetryPolicy {
    initial_ms: 100,
    factor: 2.0,
    cap_ms: 2_000,
    jitter: 0.2,
    attempts_max: u32::MAX,
    total_ms_max: 60_000,
};

/// A claim under a nonce that was drawn here. When its caller leaves before the answer, nobody will ever know the nonce:
/// it is withdrawn, so that the claim is not granted to nobody (rule K4).
pub(super) struct Orphan(Option<Withdrawal>);

struct Withdrawal {
    store: Arc<dyn KeyStore>,
    release: Release,
    policy: RetryPolicy,
    request_max: Duration,
    places: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Orphan {
    pub(super) fn of(api: &Api, store: &Arc<dyn KeyStore>, claiming: &Claiming) -> Option<Self> {
        let lease_ms = u64::try_from(claiming.claim.lease_ms).unwrap_or(0);
        claiming.drawn.then(|| {
            Self(Some(Withdrawal {
                store: Arc::clone(store),
                release: Release {
                    key: claiming.claim.key.clone(),
                    nonce: claiming.claim.nonce,
                    token: None,
                },
                policy: RetryPolicy {
                    total_ms_max: RETRY.total_ms_max.max(lease_ms),
                    ..RETRY
                },
                request_max: api.limits.request_max,
                places: Arc::clone(&api.withdrawing),
                tasks: api.tasks.clone(),
                stop: api.stop.clone(),
            }))
        })
    }

    /// The caller learns the nonce.
    pub(super) fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        let (Some(it), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) else {
            return;
        };
        let tasks = it.tasks.clone();
        drop(tasks.spawn_on(it.carry_out(), &runtime));
    }
}

impl Withdrawal {
    async fn carry_out(self) {
        let key = &self.release.key;
        let Ok(_place) = self.places.try_acquire() else {
            tracing::error!(
                %key,
                WITHDRAWALS_MAX,
                "a claim whose caller left was not withdrawn, so many are being withdrawn already; its lease decides"
            );
            return;
        };
        let began = SystemClock.monotonic();
        for attempt in 1.. {
            let stopping = self.stop.is_cancelled();
            let call = tokio::time::timeout(self.request_max, self.store.release(&self.release)).await;
            let why = match call {
                // Also when there was nothing to withdraw, or nothing any more.
                Ok(Ok(_)) => return,
                Ok(Err(error)) => chain(&error),
                Err(_) => "the store gives no answer".to_owned(),
            };
            let elapsed = SystemClock.monotonic().saturating_sub(began).as_millis();
            let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX);
            let pause = self.policy.delay_ms(attempt, elapsed, dice());
            let Some(pause) = pause.filter(|_| !stopping) else {
                tracing::error!(
                    %key,
                    error = why,
                    attempt,
                    "a claim whose caller left could not be withdrawn; its lease decides"
                );
                return;
            };
            tracing::debug!(%key, error = why, attempt, "a claim whose caller left is not withdrawn yet");
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(pause)) => {}
                // Once more, and then the daemon ends.
                () = self.stop.cancelled() => {}
            }
        }
    }
}
