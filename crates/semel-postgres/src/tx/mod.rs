//! What runs inside your own transaction: marks and events that commit with your rows, or not at all.

mod inbox;

pub(crate) use inbox::mark_many_ms;
pub use inbox::{InboxTx, mark_many};
