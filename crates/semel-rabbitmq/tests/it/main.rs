//! The one integration test binary of this crate. All of it runs against a real RabbitMQ.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic here is a failed test"
)]

mod laws;
mod sink;
