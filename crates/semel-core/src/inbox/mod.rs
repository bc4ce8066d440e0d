//! The inbox: how a delivery is taken once.
//!
//! A consumer writes a *mark* for each message id and, for a log such as Kafka, the *position* up to which it has
//! read; both commit in the transaction that holds the business rows. [`mark`] says which ids of a batch are new,
//! [`position`] who may move a position, and [`run`] how one batch becomes one transaction, with bad messages set
//! aside. All are pure; a store carries out what they say (see [`InboxStore`](crate::store::InboxStore)).
//!
//! # Guarantees
//! - A crash before the commit leaves nothing: the batch is delivered again and handled. A crash after it leaves mark,
//!   effect and position: the same batch delivered again changes nothing.
//! - A handler that fails takes its mark with it, so that the redelivery is handled.
//! - A stale owner of a partition moves no position: every write compares epoch, owner nonce and the last position.
//!
//! # Not guaranteed
//! - Anything the handler does outside of the transaction it is given.
//! - That a reused id with other content is noticed: it is taken for a duplicate. Where that can happen, keep a
//!   fingerprint with the key store instead.

pub mod headers;
pub mod mark;
pub mod position;
pub mod run;

pub use mark::{Mark, MarkPlan};
pub use position::{AdvancePosition, AssignPosition, Position, PositionKey};
pub use run::Poison;
