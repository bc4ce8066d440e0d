//! Renewing a claim while its function runs.

use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use semel_core::error::chain;
use semel_core::{
    Clock as _, Extension, Key, KeyStore, KeyStoreExt as _, Lease, LeaseReply, OwnerLost, SystemClock,
};

/// A claim that is held.
#[derive(Debug, Clone)]
pub struct Held {
    /// Of this key.
    pub key: Key,
    /// The right.
    pub lease: Lease,
    /// When it was asked for, on the monotonic clock: before the request was sent (rule K1).
    pub asked_at: Duration,
}

/// How a claim is renewed.
#[derive(Debug, Clone, Copy)]
pub struct Renewal {
    /// The claim's policy.
    pub owner_lost: OwnerLost,
    /// Milliseconds of the lease; renewed at a third.
    pub lease_ms: i64,
    /// Milliseconds from `asked_at` after which it is not renewed any more.
    pub run_ms_max: u64,
    /// Milliseconds that one call to the store may take.
    pub store_ms_max: u64,
}

/// The run was stopped because its claim may be somebody else's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the run was stopped: its lease could not be renewed, and under `rerun` somebody else may have begun"
)]
pub struct Stopped;

/// Runs `work` and renews the claim at a third of its lease.
///
/// Under `Hold` a lost renewal stops nothing: nobody else runs the key (rule K1). Under `Rerun` the work is dropped when
/// the lease can have ended, counted from before it was asked for; the check also comes before each poll of the work, so
/// that a process that slept does not go on first.
///
/// # Errors
/// [`Stopped`], under `Rerun` only.
pub async fn renew_while<S: KeyStore + ?Sized, T>(
    store: &S,
    held: &Held,
    renewal: Renewal,
    work: impl Future<Output = T>,
) -> Result<T, Stopped> {
    let mut work = pin!(work);
    let end = Deadline::new(held.asked_at, renewal.lease_ms);
    let rerun = renewal.owner_lost == OwnerLost::Rerun;
    {
        let mut renewing = pin!(renew(store, held, renewal, &end));
        let mut guarded = pin!(std::future::poll_fn(|cx| {
            if rerun && end.passed() {
                return Poll::Ready(Err(Stopped));
            }
            work.as_mut().poll(cx).map(Ok)
        }));
        tokio::select! {
            biased;
            done = &mut guarded => return done,
            () = &mut renewing => {}
            // Also while a renewal gets no answer and the work is silent.
            () = end.sleep(), if rerun => {}
        }
    }
    if rerun { Err(Stopped) } else { Ok(work.await) }
}

/// Renews until it cannot or may not any more.
async fn renew<S: KeyStore + ?Sized>(store: &S, held: &Held, renewal: Renewal, end: &Deadline) {
    let third = Duration::from_millis(u64::try_from(renewal.lease_ms / 3).unwrap_or(1).max(1));
    let run_end = held.asked_at + Duration::from_millis(renewal.run_ms_max);
    let extension = Extension {
        key: held.key.clone(),
        lease: held.lease,
        lease_ms: renewal.lease_ms,
    };
    let mut pause = third;
    loop {
        let left = run_end.saturating_sub(SystemClock.monotonic());
        tokio::time::sleep(pause.min(left)).await;
        if SystemClock.monotonic() >= run_end {
            tracing::warn!(key = %held.key, run_ms_max = renewal.run_ms_max, "a run is too long; its claim is no longer renewed");
            if renewal.owner_lost == OwnerLost::Rerun {
                // What is left of the lease may be used.
                end.sleep().await;
            }
            return;
        }
        let asked_at = SystemClock.monotonic();
        let timeout = Duration::from_millis(renewal.store_ms_max);
        match tokio::time::timeout(timeout, store.extend(&extension)).await {
            Ok(Ok(LeaseReply::Ok(_))) => {
                end.move_to(asked_at, renewal.lease_ms);
                pause = third;
                continue;
            }
            Ok(Ok(LeaseReply::LeaseLost | LeaseReply::Conflict)) => {
                tracing::warn!(key = %held.key, "a running claim was lost");
                return;
            }
            Ok(Err(error)) => tracing::warn!(key = %held.key, error = chain(&error), "cannot renew a claim"),
            Err(_) => tracing::warn!(key = %held.key, "the store gave no answer to a renewal in time"),
        }
        // Again soon, so that a short failure does not cost the lease.
        pause = (third / 8).max(Duration::from_millis(1));
    }
}

/// When the lease can have ended at the earliest, for `Rerun`. Two clocks, for the monotonic one does not count suspend
/// and the wall clock may be set back: whichever says so first counts, so that the error is to stop too early.
struct Deadline(Mutex<(Duration, i64)>);

impl Deadline {
    fn new(asked_at: Duration, lease_ms: i64) -> Self {
        let deadline = Self(Mutex::default());
        deadline.move_to(asked_at, lease_ms);
        deadline
    }

    fn move_to(&self, asked_at: Duration, lease_ms: i64) {
        let lease = Duration::from_millis(u64::try_from(lease_ms).unwrap_or(0));
        let since = SystemClock.monotonic().saturating_sub(asked_at);
        let since_ms = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
        let wall = SystemClock.now().plus_ms(lease_ms.saturating_sub(since_ms)).0;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (asked_at + lease, wall);
    }

    fn passed(&self) -> bool {
        let (monotonic, wall) = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        SystemClock.monotonic() >= monotonic || SystemClock.now().0 >= wall
    }

    async fn sleep(&self) {
        while !self.passed() {
            let (monotonic, _) = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let left = monotonic.saturating_sub(SystemClock.monotonic());
            tokio::time::sleep(left.max(Duration::from_millis(1))).await;
        }
    }
}
