//! Calls against real servers, broken connections included.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic here is a failed test"
)]

mod attempts;
mod broken;
mod doubt;
mod keyed;
#[cfg(feature = "reqwest")]
mod reqwest;
mod support;
