//! The one integration test binary of this crate.
#![allow(clippy::unwrap_used, reason = "a panic here is a failed test")]

mod cluster;
mod crash;
mod durable;
mod failover;
mod hints;
mod history;
mod laws;
mod layout;
mod refusals;
mod sink;
mod sink_laws;
#[cfg(feature = "tls")]
mod tls;
mod trouble;
mod world;
