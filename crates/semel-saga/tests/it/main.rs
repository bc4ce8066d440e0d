//! The one integration test binary of this crate.
#![allow(clippy::unwrap_used, reason = "a panic here is a failed test")]

mod crash;
mod engine;
mod faulty;
mod ownership;
mod postgres;
mod shop;
mod stuck;
