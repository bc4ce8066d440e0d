//! The one integration test binary of this crate.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic here is a failed test"
)]

mod architecture;
mod children;
mod crash;
mod inbox_laws;
mod kafka;
mod key_laws;
mod log_laws;
mod outbox_laws;
mod proxy;
mod saga_laws;
mod servers;
mod sink_laws;
mod wire;
