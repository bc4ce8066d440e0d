//! The one integration test binary of this crate.
