//! The in-memory model: the specification every backend is compared with, and a full backend for tests.

mod keys;

pub use keys::MemoryKeys;
