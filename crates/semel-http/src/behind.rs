//! What still waits for the store when its request has been answered: withdrawals, and outcomes of runs that have ended.
//! While the store hangs each request could leave one behind; they are counted, and so are the bytes of the outcomes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use semel_core::quiet::Quiet;

use crate::shared::Shared;

/// How much waits now.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    count: AtomicUsize,
    bytes: AtomicUsize,
    /// Whether it is logged that a limit is reached.
    pub(crate) quiet: Quiet,
}

impl Behind {
    /// How many wait.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// The bytes of outcomes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// One that waits; it ends on drop.
pub(crate) struct Waits {
    shared: Arc<Shared>,
    bytes: usize,
}

impl Waits {
    /// One more, with an outcome of so many bytes. What is already certain is never turned away here: whoever claims looks at
    /// the limit before.
    pub(crate) fn new(shared: &Arc<Shared>, bytes: usize) -> Self {
        shared.behind.count.fetch_add(1, Ordering::Relaxed);
        shared.behind.bytes.fetch_add(bytes, Ordering::Relaxed);
        Self {
            shared: Arc::clone(shared),
            bytes,
        }
    }

    /// Its outcome has so many bytes now.
    pub(crate) fn resize(&mut self, bytes: usize) {
        self.shared.behind.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.shared.behind.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.shared.behind.count.fetch_sub(1, Ordering::Relaxed);
        self.shared.behind.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
