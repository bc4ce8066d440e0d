//! Idempotency keys for any async function.
//!
//! - [`Batched`] puts the calls of many tasks into few statements.
//! - [`Idempotent`] and [`idempotent`] run a function once per key: queue handlers, cron jobs, command line tools.
//!
//! Everything here works over any [`KeyStore`](semel_core::KeyStore) and decides nothing about keys itself: that is
//! [`semel_core::claim`] and [`semel_core::batch`].

mod batched;
mod idempotent;

pub use batched::{BatchConfig, Batched};
pub use idempotent::{
    BoxError, Failed, Held, Idempotent, NotRun, OnOwnerLost, Outage, Outcome, Ran, Renewal, Run, RunConfig,
    Stopped, WaitEnd, Waiter, Waiters, idempotent, renew_while,
};
