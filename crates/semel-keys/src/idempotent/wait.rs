//! Duplicates that wait for the first call's end.
//!
//! A waiter registers, then reads, so that it cannot miss an end between the two (rule K11). Ends in this process wake
//! it; those elsewhere by the store's hint where it has one; and it looks from time to time, for both are only hints.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::claim::State;
use semel_core::error::chain;
use semel_core::{Clock as _, Key, KeyStore, KeyStoreExt as _, SystemClock};
use tokio::sync::Notify;

/// First pause between two readings.
const POLL_FIRST: Duration = Duration::from_millis(5);
/// Longest pause between two readings.
const POLL_MAX: Duration = Duration::from_millis(250);
/// Longest pause where the store tells of ends.
const POLL_HINTED_MAX: Duration = Duration::from_secs(2);

/// Who waits for what in this process.
#[derive(Debug, Default)]
pub struct Waiters(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    keys: HashMap<Key, (Arc<Notify>, usize)>,
    total: usize,
}

/// A place among the waiters; given back on drop.
#[derive(Debug)]
pub struct Waiter {
    waiters: Arc<Waiters>,
    key: Key,
    notify: Arc<Notify>,
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitEnd {
    /// The record has changed, or its lease ended: claim again.
    Changed,
    /// The cap was reached.
    TimedOut,
}

impl Waiters {
    /// A place, unless `max` wait already.
    pub fn enter(self: &Arc<Self>, key: &Key, max: usize) -> Option<Waiter> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.total >= max {
            return None;
        }
        inner.total += 1;
        let (notify, count) = inner.keys.entry(key.clone()).or_default();
        *count += 1;
        Some(Waiter {
            waiters: Arc::clone(self),
            key: key.clone(),
            notify: Arc::clone(notify),
        })
    }

    /// Wakes this process's waiters for a key.
    pub fn wake(&self, key: &Key) {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((notify, _)) = inner.keys.get(key) {
            notify.notify_waiters();
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut inner = self.waiters.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.total = inner.total.saturating_sub(1);
        if let Entry::Occupied(mut entry) = inner.keys.entry(self.key.clone()) {
            let (_, count) = entry.get_mut();
            *count = count.saturating_sub(1);
            if *count == 0 {
                entry.remove();
            }
        }
    }
}

impl Waiter {
    /// Waits until the record is no longer claimed, the claim's lease has ended, or `deadline` on the monotonic clock.
    pub async fn wait<S: KeyStore + ?Sized>(
        &self,
        store: &S,
        lease_left: Duration,
        deadline: Duration,
    ) -> WaitEnd {
        let lease_end = SystemClock.monotonic() + lease_left;
        let mut pause = POLL_FIRST;
        loop {
            let mut woken = std::pin::pin!(self.notify.notified());
            woken.as_mut().enable();
            // A store that says nothing must not hold the wait up beyond its own end.
            let left = |now: Duration| deadline.min(lease_end).saturating_sub(now);
            let hinted = store.subscribe(&self.key);
            let hint = tokio::time::timeout(left(SystemClock.monotonic()), hinted).await;
            let hint = hint.ok().flatten();
            let pause_max = if hint.is_some() { POLL_HINTED_MAX } else { POLL_MAX };
            let read = store.read(&self.key);
            match tokio::time::timeout(left(SystemClock.monotonic()), read).await {
                Ok(Ok(Some(record))) if matches!(record.state, State::Claimed { .. }) => {}
                Ok(Ok(_)) => return WaitEnd::Changed,
                // The next claim will say what is wrong with the store; until then there is time.
                Ok(Err(error)) => {
                    tracing::debug!(error = chain(&error), "cannot read a record that is waited for");
                }
                Err(_) => tracing::debug!("no answer about a record that is waited for"),
            }
            let now = SystemClock.monotonic();
            if now >= deadline {
                return WaitEnd::TimedOut;
            }
            if now >= lease_end {
                return WaitEnd::Changed;
            }
            let sleep = pause.min(deadline - now).min(lease_end - now);
            let hinted = async {
                match hint {
                    Some(hint) => hint.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = &mut woken => {}
                () = hinted => {}
                () = tokio::time::sleep(sleep) => {}
            }
            pause = (pause * 2).min(pause_max);
        }
    }
}

#[cfg(test)]
mod tests {
    use semel_core::Scope;

    use super::*;

    #[test]
    fn places_are_limited_and_given_back() {
        let key = |id| Key::new(Scope::new("s").unwrap(), id).unwrap();
        let waiters = Arc::new(Waiters::default());
        let first = waiters.enter(&key("a"), 2).unwrap();
        let _second = waiters.enter(&key("a"), 2).unwrap();
        assert!(waiters.enter(&key("b"), 2).is_none(), "the process is full");
        drop(first);
        let _third = waiters.enter(&key("b"), 2).unwrap();
        assert_eq!(
            waiters.0.lock().unwrap().keys.len(),
            2,
            "no empty entries stay behind"
        );
    }
}
