//! Idempotency keys for any async function.
//!
//! - [`Batched`] puts the calls of many tasks into few statements.
//!
//! Everything here works over any [`KeyStore`](semel_core::KeyStore) and decides nothing about keys itself: that is
//! [`semel_core::claim`] and [`semel_core::batch`].

mod batched;

pub use batched::{BatchConfig, Batched};
