//! The layer over axum and plain tower, on the in-memory model and on SQLite.
#![allow(clippy::unwrap_used, reason = "a panic here is a failed test")]

mod basics;
mod faulty;
mod support;
