//! The in-memory model: the specification every backend is compared with, and a full backend for tests.

mod inbox;
mod keys;

pub use inbox::{MemoryInbox, MemoryTx};
pub use keys::MemoryKeys;
