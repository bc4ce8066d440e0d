//! Who waits for the end of a key's run in this process (rule K11).
//!
//! A waiter notes in the record that somebody waits; whoever ends the run then publishes the record's name. A hint may be
//! lost: with the connection, for one, and then all who wait are woken. They look again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use semel_core::store::Hint;
use tokio::sync::oneshot;

/// Records' names, and who waits for them.
type Waiting = HashMap<Vec<u8>, Vec<oneshot::Sender<()>>>;

/// All who wait in this process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hints(Arc<Mutex<Waiting>>);

impl Hints {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes those who wait for this record, or all.
    pub(crate) fn wake(&self, record: Option<Vec<u8>>) {
        let mut waiting = self.lock();
        match record {
            // Dropping a sender wakes its receiver.
            Some(record) => drop(waiting.remove(&record)),
            None => waiting.clear(),
        }
    }

    /// Registers; the hint unregisters when it is dropped.
    pub(crate) fn register(&self, record: Vec<u8>) -> Hint {
        let (sender, receiver) = oneshot::channel();
        self.lock().entry(record.clone()).or_default().push(sender);
        let gone = Gone {
            hints: self.clone(),
            record,
        };
        Box::pin(async move {
            let mut waits = Waits {
                receiver,
                _gone: gone,
            };
            let _woken = (&mut waits.receiver).await;
        })
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().len()
    }
}

struct Waits {
    // Dropped first, so that the other one finds it closed.
    receiver: oneshot::Receiver<()>,
    _gone: Gone,
}

struct Gone {
    hints: Hints,
    record: Vec<u8>,
}

impl Drop for Gone {
    fn drop(&mut self) {
        let mut waiting = self.hints.lock();
        if let Some(senders) = waiting.get_mut(&self.record) {
            senders.retain(|sender| !sender.is_closed());
            if senders.is_empty() {
                waiting.remove(&self.record);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_hint_wakes_its_waiters_and_a_dropped_waiter_leaves_nothing() {
        let hints = Hints::default();
        let (one, two, other) = (
            hints.register(b"a".to_vec()),
            hints.register(b"a".to_vec()),
            hints.register(b"b".to_vec()),
        );
        hints.wake(Some(b"a".to_vec()));
        one.await;
        two.await;
        assert_eq!(hints.len(), 1);
        drop(other);
        assert_eq!(hints.len(), 0, "a hint that was never polled, too");
        let last = hints.register(b"c".to_vec());
        hints.wake(None);
        last.await;
    }
}
