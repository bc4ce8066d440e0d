//! What runs inside your own transaction: marks and events that commit with your rows, or not at all.

mod barrier;
mod delayed;
mod inbox;
mod keys;
mod outbox;
mod transact;
mod transact_once;

pub use barrier::{BARRIER_WAIT, Barrier, PendingBarrier, barrier, barrier_within};
pub use delayed::{cancel_delayed, enqueue_at, enqueue_many_at};
pub(crate) use inbox::mark_many_ms;
pub use inbox::{InboxTx, mark_many};
pub use keys::{Once, OnceOptions, Pending, once};
pub use outbox::{enqueue, enqueue_many, enqueue_new, lock_key};
pub use transact::{REPEAT, TxError, TxFuture, transact};
pub(crate) use transact_once::PREPARE_SQL;
pub use transact_once::{Mark, OnceOutcome, transact_once};
