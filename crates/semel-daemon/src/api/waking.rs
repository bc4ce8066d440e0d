//! Who waits for the end of a key's run, and what wakes them: an end that came through this daemon, a hint of the store
//! ([`KeyStore::subscribe`]), and a look from time to time for everything else. A wake is a hint; what counts is the
//! record (rule K11).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::store::Hint;
use semel_core::{Clock as _, Key, KeyStore, SystemClock};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio_util::sync::CancellationToken;

/// First pause between two looks.
const POLL_FIRST: Duration = Duration::from_millis(10);
/// Longest pause between two looks.
const POLL_MAX: Duration = Duration::from_millis(500);
/// Longest pause between two looks where the store gives hints.
const POLL_HINTED_MAX: Duration = Duration::from_secs(2);

/// Who waits for which key in this process.
#[derive(Debug, Default)]
pub(crate) struct Waking(Mutex<HashMap<Key, (Arc<Notify>, usize)>>);

/// A place among those who wait for a key; given back on drop.
#[derive(Debug)]
pub(crate) struct Place {
    waking: Arc<Waking>,
    key: Key,
    notify: Arc<Notify>,
    pause: Duration,
}

/// Interest that was registered before the record was read.
pub(crate) struct Interest {
    here: std::pin::Pin<Box<OwnedNotified>>,
    hint: Option<Hint>,
}

impl Waking {
    fn map(&self) -> std::sync::MutexGuard<'_, HashMap<Key, (Arc<Notify>, usize)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a key.
    pub(crate) fn place(self: &Arc<Self>, key: &Key) -> Place {
        let mut map = self.map();
        let (notify, count) = map.entry(key.clone()).or_default();
        *count += 1;
        Place {
            waking: Arc::clone(self),
            key: key.clone(),
            notify: Arc::clone(notify),
            pause: POLL_FIRST,
        }
    }

    /// A key's run may have ended.
    pub(crate) fn wake(&self, key: &Key) {
        if let Some((notify, _)) = self.map().get(key) {
            notify.notify_waiters();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Entry::Occupied(mut entry) = self.waking.map().entry(self.key.clone()) {
            entry.get_mut().1 = entry.get().1.saturating_sub(1);
            if entry.get().1 == 0 {
                entry.remove();
            }
        }
    }
}

impl Place {
    /// Registers interest. Read the record after it, then [`Place::changed`]. A store that says nothing within `longest`
    /// gives no hints; looking from time to time finds out as well.
    pub(crate) async fn interest(
        &self,
        store: &dyn KeyStore,
        longest: Duration,
        stop: &CancellationToken,
    ) -> Interest {
        let mut here = Box::pin(Arc::clone(&self.notify).notified_owned());
        here.as_mut().enable();
        let hint = tokio::select! {
            hint = tokio::time::timeout(longest, store.subscribe(&self.key)) => hint.ok().flatten(),
            () = stop.cancelled() => None,
        };
        Interest { here, hint }
    }

    /// Waits until the record should be looked at again: woken, or after a pause that grows; at most `longest`, and not
    /// beyond `deadline` on the monotonic clock. False when there is no use in looking again.
    pub(crate) async fn changed(
        &mut self,
        interest: Interest,
        longest: Duration,
        deadline: Duration,
        stop: &CancellationToken,
    ) -> bool {
        let left = deadline.saturating_sub(SystemClock.monotonic());
        if left.is_zero() {
            return false;
        }
        let pause_max = if interest.hint.is_some() {
            POLL_HINTED_MAX
        } else {
            POLL_MAX
        };
        let pause = self.pause.min(longest).min(left).max(Duration::from_millis(1));
        self.pause = (self.pause * 2).min(pause_max);
        let Interest { here, hint } = interest;
        let hinted = async {
            match hint {
                Some(hint) => hint.await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = here => true,
            () = hinted => true,
            () = tokio::time::sleep(pause) => true,
            () = stop.cancelled() => false,
        }
    }
}
