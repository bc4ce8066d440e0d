//! Renewing a claim while its handler runs.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use semel_core::error::chain;
use semel_core::{Clock, Extension, KeyStoreExt, LeaseReply, SystemClock};

use super::Owned;
use crate::shared::Shared;

/// The run was stopped because its claim may be somebody else's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stopped;

/// Runs `work` and renews the claim at a third of its lease.
///
/// Under `Hold` a lost renewal stops nothing: nobody else runs the key (rule K1). Under `Rerun` the work is dropped
/// when the lease can have ended, counted from before it was asked for; the check also comes before each poll of the
/// work, so that a process that slept does not go on first.
pub(super) async fn renew_while<T>(
    shared: &Arc<Shared>,
    owned: &Owned,
    began: Duration,
    mut work: Pin<&mut impl Future<Output = T>>,
) -> Result<T, Stopped> {
    // Most handlers are done at once; then there is nothing to renew. Under `Rerun` the deadline is looked at first.
    if owned.end.is_none() {
        let once = std::future::poll_fn(|cx| std::task::Poll::Ready(work.as_mut().poll(cx)));
        if let std::task::Poll::Ready(done) = once.await {
            return Ok(done);
        }
    }
    // Boxed: this is seldom needed, and the room for it would be taken for each request.
    Box::pin(renew_slowly(shared, owned, began, work)).await
}

async fn renew_slowly<T>(
    shared: &Arc<Shared>,
    owned: &Owned,
    began: Duration,
    mut work: Pin<&mut impl Future<Output = T>>,
) -> Result<T, Stopped> {
    let end = owned.end.as_ref();
    {
        let mut renewal = pin!(renew(shared, owned, began, end));
        let mut guarded = pin!(std::future::poll_fn(|cx| {
            if end.is_some_and(Deadline::passed) {
                return std::task::Poll::Ready(Err(Stopped));
            }
            work.as_mut().poll(cx).map(Ok)
        }));
        tokio::select! {
            biased;
            done = &mut guarded => return done,
            () = &mut renewal => {}
            // Also while a renewal gets no answer and the work is silent.
            () = stop(end) => {}
        }
    }
    if end.is_some() {
        Err(Stopped)
    } else {
        Ok(work.await)
    }
}

/// Ends at the deadline, where there is one.
async fn stop(end: Option<&Deadline>) {
    match end {
        Some(end) => end.sleep().await,
        None => std::future::pending().await,
    }
}

/// Renews until it cannot or may not any more.
async fn renew(shared: &Shared, owned: &Owned, began: Duration, end: Option<&Deadline>) {
    let third = Duration::from_millis(u64::try_from(shared.config.lease_ms / 3).unwrap_or(1).max(1));
    let run_max = Duration::from_millis(shared.config.run_ms_max);
    let extension = Extension {
        key: owned.key.clone(),
        lease: owned.lease,
        lease_ms: shared.config.lease_ms,
    };
    let mut pause = third;
    loop {
        let left = run_max.saturating_sub(SystemClock.monotonic().saturating_sub(began));
        tokio::time::sleep(pause.min(left)).await;
        if SystemClock.monotonic().saturating_sub(began) >= run_max {
            tracing::warn!(key = %owned.key, run_ms_max = shared.config.run_ms_max, "a run is too long; its claim is no longer renewed");
            return;
        }
        let asked_at = SystemClock.monotonic();
        match tokio::time::timeout(shared.store_timeout(), shared.store.extend(&extension)).await {
            Ok(Ok(LeaseReply::Ok(_))) => {
                if let Some(end) = end {
                    end.move_to(asked_at, shared.config.lease_ms);
                }
                pause = third;
                continue;
            }
            Ok(Ok(LeaseReply::LeaseLost | LeaseReply::Conflict)) => {
                tracing::warn!(key = %owned.key, "a running claim was lost");
                return;
            }
            Ok(Err(error)) => tracing::warn!(key = %owned.key, error = chain(&error), "cannot renew a claim"),
            Err(_) => tracing::warn!(key = %owned.key, "the store gave no answer to a renewal in time"),
        }
        // Again soon, so that a short failure does not cost the lease.
        pause = (third / 8).max(Duration::from_millis(1));
    }
}

/// When the lease can have ended at the earliest, for `Rerun`: one for the whole run, its answer's body included. Two clocks, for the monotonic one does not count
/// suspend and the wall clock may be set back: the later reading counts, so that the error is to stop too early.
pub(crate) struct Deadline(std::sync::Mutex<(Duration, i64)>);

impl Deadline {
    /// `asked_at`: on the monotonic clock, before the claim was sent (rule K1).
    pub(super) fn new(asked_at: Duration, lease_ms: i64) -> Self {
        let deadline = Self(std::sync::Mutex::default());
        deadline.move_to(asked_at, lease_ms);
        deadline
    }

    fn move_to(&self, asked_at: Duration, lease_ms: i64) {
        let lease = Duration::from_millis(u64::try_from(lease_ms).unwrap_or(0));
        let since = SystemClock.monotonic().saturating_sub(asked_at);
        let since_ms = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
        let wall = SystemClock.now().plus_ms(lease_ms.saturating_sub(since_ms)).0;
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = (asked_at + lease, wall);
    }

    fn passed(&self) -> bool {
        let (monotonic, wall) = *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        SystemClock.monotonic() >= monotonic || SystemClock.now().0 >= wall
    }

    async fn sleep(&self) {
        while !self.passed() {
            let (monotonic, _) = *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let left = monotonic.saturating_sub(SystemClock.monotonic());
            tokio::time::sleep(left.max(Duration::from_millis(1))).await;
        }
    }
}
