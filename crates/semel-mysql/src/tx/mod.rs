//! What runs inside your own transaction: marks and events that commit with your rows, or not at all.
//!
//! Begin with [`Mysql::begin`](crate::Mysql::begin) and commit with [`Mysql::commit`](crate::Mysql::commit), or use
//! [`transact`]: these notice when the server has undone the transaction meanwhile. (Inbox and barrier are not built for
//! these servers yet.)

mod delayed;
mod keys;
mod outbox;
mod transact;

pub use delayed::{cancel_delayed, enqueue_at, enqueue_many_at};
pub use keys::{Once, OnceOptions, Pending, once};
pub use outbox::{enqueue, enqueue_many, enqueue_new, lock_key};
pub use transact::{REPEAT, TxError, TxFuture, transact};
