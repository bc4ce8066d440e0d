//! The one integration test binary of this crate.
#![allow(clippy::unwrap_used, reason = "a panic here is a failed test")]

mod data;
mod keys;
mod outbox;
mod schema;
mod server;
