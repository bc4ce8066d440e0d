//! The one integration test binary of this crate.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic here is a failed test"
)]

mod bed;
mod crash;
mod log;
mod mysql;
mod postgres;
mod relay;
mod sharing;
mod standby;
mod trouble;
mod troubled;
mod webhook;
