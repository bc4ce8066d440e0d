//! The one integration test binary of this crate.

mod kafka;
mod servers;
