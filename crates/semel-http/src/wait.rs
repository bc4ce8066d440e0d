//! Duplicates that wait for the first one's answer.
//!
//! A waiter subscribes, then reads, so that it cannot miss a completion between the two (rule K11). Completions of
//! this process wake it; those of other processes are found by reading the record again, ever more slowly. A wake
//! is a hint: what counts is the record.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::claim::State;
use semel_core::{Clock, Key, KeyStore, KeyStoreExt, SystemClock};
use tokio::sync::Notify;

/// First pause between two readings.
const POLL_FIRST: Duration = Duration::from_millis(5);
/// Longest pause between two readings.
const POLL_MAX: Duration = Duration::from_millis(250);

/// Who waits for what in this process.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    keys: HashMap<Key, Waited>,
    total: usize,
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
    pub(crate) fn subscribe(self: &Arc<Self>, key: &Key, per_key_max: usize, max: usize) -> Option<Waiter> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.total >= max || per_key_max == 0 {
            return None;
        }
        let waited = inner.keys.entry(key.clone()).or_default();
        if waited.count >= per_key_max {
            return None;
        }
        waited.count += 1;
        let notify = Arc::clone(&waited.notify);
        inner.total += 1;
        Some(Waiter {
            waiters: Arc::clone(self),
            key: key.clone(),
            notify,
        })
    }

    /// Wakes this process's waiters for a key.
    pub(crate) fn wake(&self, key: &Key) {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waited) = inner.keys.get(key) {
            waited.notify.notify_waiters();
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut inner = self.waiters.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.total = inner.total.saturating_sub(1);
        if let Entry::Occupied(mut waited) = inner.keys.entry(self.key.clone()) {
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
        loop {
            let woken = self.notify.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            match store.read(&self.key).await {
                Ok(Some(record)) if matches!(record.state, State::Claimed { .. }) => {}
                Ok(_) => return WaitEnd::Changed,
                // The next claim will say what is wrong with the store; until then there is time.
                Err(error) => tracing::debug!(%error, "cannot read a record that is waited for"),
            }
            let now = SystemClock.monotonic();
            if now >= deadline {
                return WaitEnd::TimedOut;
            }
            if now >= lease_end {
                return WaitEnd::Changed;
            }
            let sleep = pause.min(deadline - now).min(lease_end - now);
            tokio::select! {
                () = &mut woken => {}
                () = tokio::time::sleep(sleep) => {}
            }
            pause = (pause * 2).min(POLL_MAX);
        }
    }
}

/// How long runs take, to compute `Retry-After`: a moving average in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Latency(Mutex<f64>);

impl Latency {
    pub(crate) fn record(&self, run: Duration) {
        let mut average = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ms = run.as_secs_f64() * 1_000.0;
        *average = if *average == 0.0 {
            ms
        } else {
            *average * 0.9 + ms * 0.1
        };
    }

    /// Whole seconds, 1 to 60.
    pub(crate) fn retry_after_s(&self) -> u64 {
        let average = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ((average / 1_000.0).ceil() as u64).clamp(1, 60)
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
        assert!(waiters.subscribe(&key("a"), 1, 2).is_none(), "the key is full");
        let _second = waiters.subscribe(&key("b"), 1, 2).unwrap();
        assert!(
            waiters.subscribe(&key("c"), 1, 2).is_none(),
            "the process is full"
        );
        drop(first);
        assert!(waiters.subscribe(&key("a"), 1, 2).is_some());
        assert_eq!(
            waiters.0.lock().unwrap().keys.len(),
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
