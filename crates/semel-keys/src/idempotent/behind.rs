//! What still waits for the store when its call has been answered: withdrawals, and outcomes of runs that have ended.
//! While the store hangs each call could leave one behind; they are counted, and so are the bytes of the outcomes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use semel_core::quiet::Quiet;

/// How much waits now.
#[derive(Debug, Default)]
pub(super) struct Behind {
    count: AtomicUsize,
    bytes: AtomicUsize,
    /// Whether it is logged that a limit is reached.
    pub(super) quiet: Quiet,
}

impl Behind {
    /// How many wait.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// The bytes of outcomes that wait.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// One that waits; it ends on drop.
pub(super) struct Waits {
    behind: Arc<Behind>,
    bytes: usize,
}

impl Waits {
    /// One more, with an outcome of so many bytes. What is already certain is never turned away here: whoever claims looks at
    /// the limit before.
    pub(super) fn new(behind: &Arc<Behind>, bytes: usize) -> Self {
        behind.count.fetch_add(1, Ordering::Relaxed);
        behind.bytes.fetch_add(bytes, Ordering::Relaxed);
        Self {
            behind: Arc::clone(behind),
            bytes,
        }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.behind.count.fetch_sub(1, Ordering::Relaxed);
        self.behind.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
