//! The one integration test binary of this crate.

mod engine;
mod ownership;
mod shop;
mod stuck;
