//! Conformance suites, a launcher of real servers, crash points and a fault proxy; for Semel's own tests and for
//! yours.
//!
//! This crate may unwrap: its panics are failed tests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic here is a failed test"
)]

#[cfg(feature = "certificates")]
pub mod certificates;
pub mod children;
pub mod clock;
pub mod crash;
pub mod documents;
pub mod faulty;
pub mod laws;
pub mod proxy;
pub mod servers;
