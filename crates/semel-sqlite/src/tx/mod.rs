//! What runs inside your own transaction: marks and events that commit with your rows, or not at all.
//!
//! Begin with [`Sqlite::begin`](crate::Sqlite::begin), so that the transaction is a writer from its start.

mod barrier;
mod delayed;
mod inbox;
mod keys;
mod outbox;
mod transact;

pub use barrier::{Barrier, PendingBarrier, barrier};
pub use delayed::{cancel_delayed, enqueue_at, enqueue_many_at};
pub use inbox::{InboxTx, mark_many};
pub(crate) use inbox::{hex_array, mark_many_at};
pub use keys::{Once, OnceOptions, Pending, once};
pub use outbox::{enqueue, enqueue_many, enqueue_new};
pub use transact::{REPEAT, TxError, TxFuture, transact};
