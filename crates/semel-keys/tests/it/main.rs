//! The one integration test binary of this crate.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic here is a failed test"
)]

mod batched;
mod close;
mod idempotent;
mod quota;
mod support;
