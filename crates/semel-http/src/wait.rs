//! Duplicates that wait for the first one's answer.
//!
//! A waiter subscribes, then reads, so that it cannot miss a completion between the two (rule K11). Completions of
//! this process wake it; those of other processes do so where the store can tell ([`KeyStore::subscribe`]), and are found
//! by reading the record again, ever more slowly. A wake is a hint: what counts is the record.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::claim::State;
use semel_core::store::Hint;
use semel_core::{Clock, Key, KeyStore, KeyStoreExt, SystemClock};
use tokio::sync::Notify;

/// First pause between two readings.
const POLL_FIRST: Duration = Duration::from_millis(5);
/// Longest pause between two readings.
const POLL_MAX: Duration = Duration::from_millis(250);
/// The same where the store tells of changes: only for hints that were lost.
const POLL_MAX_TOLD: Duration = Duration::from_secs(2);

/// Who waits for what in this process.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    keys: Mutex<HashMap<Key, Waited>>,
    /// All of them. Raised before a waiter reads its record, so whoever changes a record and then finds 0 here has nobody
    /// to wake.
    total: AtomicUsize,
}

#[derive(Debug, Default)]
struct Waited {
    notify: Arc<Notify>,
    count: usize,
}

/// A place among a key's waiters; given back on drop.
#[derive(Debug)]
pub(crate) struct Waiter {
    waiters: Arc<Waiters>,
    key: Key,
    notify: Arc<Notify>,
}

/// Why a duplicate does not wait, or no longer: a limit of [`Config`](crate::Config).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoWait {
    /// `wait_ms_max` is over.
    TooLong,
    /// `waiters_per_key_max` wait for this key.
    KeyFull,
    /// `waiters_max` wait in this process.
    AllFull,
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    /// The record has changed, or its lease ended: claim again.
    Changed,
    /// The cap was reached.
    TimedOut,
}

impl Waiters {
    /// A place, unless one of the two limits is reached.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        key: &Key,
        per_key_max: usize,
        max: usize,
    ) -> Result<Waiter, NoWait> {
        if per_key_max == 0 {
            return Err(NoWait::KeyFull);
        }
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if self.total.load(Ordering::SeqCst) >= max {
            return Err(NoWait::AllFull);
        }
        let waited = keys.entry(key.clone()).or_default();
        if waited.count >= per_key_max {
            return Err(NoWait::KeyFull);
        }
        waited.count += 1;
        let notify = Arc::clone(&waited.notify);
        self.total.fetch_add(1, Ordering::SeqCst);
        Ok(Waiter {
            waiters: Arc::clone(self),
            key: key.clone(),
            notify,
        })
    }

    /// Wakes this process's waiters for a key.
    pub(crate) fn wake(&self, key: &Key) {
        if self.total.load(Ordering::SeqCst) == 0 {
            return;
        }
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waited) = keys.get(key) {
            waited.notify.notify_waiters();
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut keys = self.waiters.keys.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiters.total.fetch_sub(1, Ordering::SeqCst);
        if let Entry::Occupied(mut waited) = keys.entry(self.key.clone()) {
            waited.get_mut().count = waited.get().count.saturating_sub(1);
            if waited.get().count == 0 {
                waited.remove();
            }
        }
    }
}

impl Waiter {
    /// Waits until the record is no longer claimed, the claim's lease has ended, or `deadline` on the monotonic clock.
    pub(crate) async fn wait(
        &self,
        store: &dyn KeyStore,
        lease_left: Duration,
        deadline: Duration,
    ) -> WaitEnd {
        let lease_end = SystemClock.monotonic() + lease_left;
        let mut pause = POLL_FIRST;
        let mut hint: Option<Hint> = None;
        loop {
            let woken = self.notify.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            let look = async {
                if hint.is_none() {
                    hint = store.subscribe(&self.key).await;
                }
                store.read(&self.key).await
            };
            // Never longer than the caller waits, whatever the store does.
            let left = deadline.saturating_sub(SystemClock.monotonic());
            match tokio::time::timeout(left, look).await {
                Ok(Ok(Some(record))) if matches!(record.state, State::Claimed { .. }) => {}
                Ok(Ok(_)) => return WaitEnd::Changed,
                // The next claim will say what is wrong with the store; until then there is time.
                Ok(Err(error)) => tracing::debug!(%error, "cannot read a record that is waited for"),
                Err(_) => return WaitEnd::TimedOut,
            }
            let now = SystemClock.monotonic();
            if now >= deadline {
                return WaitEnd::TimedOut;
            }
            if now >= lease_end {
                return WaitEnd::Changed;
            }
            let sleep = pause.min(deadline - now).min(lease_end - now);
            let told = async {
                match &mut hint {
                    Some(hint) => hint.await,
                    None => std::future::pending().await,
                }
            };
            let spent = tokio::select! {
                () = &mut woken => false,
                () = told => true,
                () = tokio::time::sleep(sleep) => false,
            };
            if spent {
                hint = None;
            }
            pause = (pause * 2).min(if hint.is_some() { POLL_MAX_TOLD } else { POLL_MAX });
        }
    }
}

/// How long runs take, to compute `Retry-After`: a moving average in microseconds. Two runs that end at once may count as
/// one: it is an estimate.
#[derive(Debug, Default)]
pub(crate) struct Latency(AtomicU64);

impl Latency {
    pub(crate) fn record(&self, run: Duration) {
        let us = u64::try_from(run.as_micros()).unwrap_or(u64::MAX).min(1 << 50);
        let average = self.0.load(Ordering::Relaxed);
        let next = if average == 0 { us } else { (average * 9 + us) / 10 };
        self.0.store(next, Ordering::Relaxed);
    }

    /// Whole seconds, 1 to 60.
    pub(crate) fn retry_after_s(&self) -> u64 {
        self.0.load(Ordering::Relaxed).div_ceil(1_000_000).clamp(1, 60)
    }
}

#[cfg(test)]
mod tests {
    use semel_core::Scope;

    use super::*;

    fn key(id: &str) -> Key {
        Key::new(Scope::new("s").unwrap(), id).unwrap()
    }

    #[test]
    fn places_are_limited_per_key_and_in_all_and_given_back() {
        let waiters = Arc::new(Waiters::default());
        let first = waiters.subscribe(&key("a"), 1, 2).unwrap();
        assert_eq!(waiters.subscribe(&key("a"), 1, 2).unwrap_err(), NoWait::KeyFull);
        let _second = waiters.subscribe(&key("b"), 1, 2).unwrap();
        assert_eq!(waiters.subscribe(&key("c"), 1, 2).unwrap_err(), NoWait::AllFull);
        drop(first);
        assert!(waiters.subscribe(&key("a"), 1, 2).is_ok());
        assert_eq!(
            waiters.keys.lock().unwrap().len(),
            1,
            "no empty entries stay behind"
        );
    }

    #[test]
    fn retry_after_follows_the_observed_runs_within_bounds() {
        let latency = Latency::default();
        assert_eq!(latency.retry_after_s(), 1);
        latency.record(Duration::from_millis(2_500));
        assert_eq!(latency.retry_after_s(), 3);
        latency.record(Duration::from_secs(10_000));
        assert_eq!(latency.retry_after_s(), 60);
    }
}
