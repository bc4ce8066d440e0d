//! The in-memory model: the specification every backend is compared with, and a full backend for tests.

mod inbox;
mod keys;
mod log;
mod outbox;
mod outbox_desk;
mod outbox_limit;
mod outbox_page;
mod outbox_relays;
mod saga;

pub use inbox::{MemoryInbox, MemoryTx};
pub use keys::MemoryKeys;
pub use log::{MemoryLog, MemoryLogSink};
pub use outbox::{MemoryOutbox, MemoryTransaction};
pub use saga::MemorySagas;
