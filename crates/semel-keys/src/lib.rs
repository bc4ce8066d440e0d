//! Idempotency keys for any async function.
//!
//! - [`Batched`] puts the calls of many tasks into few statements.
//! - [`Idempotent`] and [`idempotent`] run a function once per key: queue handlers, cron jobs, command line tools.
//! - [`Issuer`] gives out ids that nobody can guess: the answer to a form that a browser sends twice.
//! - [`Quota`] limits how much each scope may hold.
//! - [`close_scope`] leaves only tombstones of the keys of a principal that is gone.
//!
//! Everything here works over any [`KeyStore`](semel_core::KeyStore) and decides nothing about keys itself: that is
//! [`semel_core::claim`] and [`semel_core::batch`].

mod batched;
mod close;
mod idempotent;
mod issue;
mod quota;

pub use batched::{BatchConfig, Batched};
pub use close::{CloseError, Closed, PASSES_MAX, close_scope, close_some};
pub use idempotent::{
    BoxError, Failed, Held, Idempotent, NotRun, OnOwnerLost, Outage, Outcome, Ran, Renewal, Run, RunConfig,
    SHORT_DRAIN_MAX, Stopped, WaitEnd, Waiter, Waiters, idempotent, renew_while,
};
pub use issue::{IssuedError, Issuer, SECRET_BYTES_MIN, SECRETS_MAX, Secret};
pub use quota::{Quota, QuotaConfig};
