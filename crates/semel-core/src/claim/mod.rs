//! Claims: who may run a key now.
//!
//! `absent → claimed → done → tombstone → absent`; `claimed → absent` only when it is certain that nothing
//! happened; `claimed → unknown` when the lease ran out under [`OwnerLost::Hold`], or when
//! the owner gave it up without knowing what came of it ([`Abandonment`]).
//! [`step`](step::claim) and its sisters are the whole protocol as pure functions over one [`Record`]; a store
//! carries out what they say, in one atomic statement, script or writer transaction per batch.
//!
//! # Guarantees
//! - One token per key is current. A write under an older one gets `LeaseLost` and changes nothing.
//! - A token is stale only when a later one was drawn or the key was settled; time alone never makes it stale
//!   (rule K1): a slow owner's `complete` is accepted from claimed, expired or unknown.
//! - Crash before `complete` is durable: when the lease ends the key is unknown under `Hold`, or goes to the next
//!   claimant with a larger token under `Rerun`. Crash after it: every later claim gets the stored outcome.
//! - A repeated `claim` with the same nonce gets the same token (rule K3); a repeated `complete` with the same
//!   outcome is `Ok` (rule K2); so are a repeated release and settlement. A lost reply can be asked for again.
//! - After a [`Release`] its nonce is not granted for [`WITHDRAWN_MS`], whatever happens to the key in between
//!   (rule K4).
//!
//! # Not guaranteed
//! That an owner whose lease ended has stopped. Pass the token to whatever it writes to.
//!
//! # Fingerprints
//! One that differs from the record's is a mismatch here. Whoever can compute it by the record's recipe does so and claims again
//! (rule K13; `run/mismatch.rs` of `semel-http`).

pub mod once;
mod reconcile;
mod record;
mod request;
pub mod row;
pub mod step;

pub use once::Once;
pub use reconcile::{Reconcile, ReconcileError};
pub use record::{
    Lease, Nonce, OwnerLost, REMOVE_GRACE_MS, RERUN_KEPT_MS, Record, State, StateName, SweepReport, Swept,
    Token, WITHDRAWN_MS, WITHDRAWN_NONCES_MAX, Withdrawn,
};
pub use request::{
    Abandonment, Claim, ClaimReply, Completion, Extension, Keep, LeaseReply, Release, Settlement, Verdict,
    check_outcome, succeeded,
};
