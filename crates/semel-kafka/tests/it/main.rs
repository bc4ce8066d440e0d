//! The one integration test binary of this crate. All of it runs against real Kafka.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic here is a failed test"
)]

mod arrivals;
mod consumer;
mod end_to_end;
mod laws;
mod log;
mod log_laws;
#[allow(clippy::print_stdout, reason = "what minutes were spent on is worth a line")]
mod long;
mod processor;
mod sink;
mod support;
#[cfg(feature = "tls")]
mod tls;
