//! The layer over axum and plain tower, on the in-memory model, SQLite and PostgreSQL. Tests are named after the cases that
//! other implementations were bitten by.
#![allow(clippy::unwrap_used, reason = "a panic here is a failed test")]

mod admission;
mod answers;
mod behind;
mod crash;
mod cut;
mod framing;
mod full;
mod fuzz;
mod grpc;
mod held;
mod issued;
mod large;
mod outage;
mod outcomes;
mod owner;
mod postgres;
mod profiles;
mod read_only;
mod shadow;
mod sources;
mod store;
mod support;
mod together;
mod tonic_service;
