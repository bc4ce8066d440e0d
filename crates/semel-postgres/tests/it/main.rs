//! The one integration test binary of this crate.
#![allow(clippy::unwrap_used, reason = "a panic here is a failed test")]

mod idle;
mod inbox;
mod keys;
mod outbox;
mod roles;
mod saga;
mod schema;
mod sql;
