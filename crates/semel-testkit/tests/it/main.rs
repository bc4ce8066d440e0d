//! The one integration test binary of this crate.

mod children;
mod crash;
mod kafka;
mod proxy;
mod servers;
