//! The real binary, run as a user runs it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic here is a failed test"
)]

mod api;
mod audit;
#[cfg(any(feature = "rabbitmq", feature = "nats"))]
mod brokers;
mod check;
mod conformance;
mod crash;
mod daemon;
mod demo;
mod full_disk;
mod gateway;
mod issued;
#[cfg(feature = "kafka")]
mod kafka;
mod keys;
mod matrix;
mod migrate;
mod mistakes;
#[cfg(feature = "mysql")]
mod mysql;
mod outbox;
mod outbox_partition;
mod python;
mod quota;
mod receiver;
#[cfg(feature = "redis")]
mod redis;
mod relays;
mod saga_api;
mod sagas;
mod stop;
mod stores;
#[cfg(feature = "redis")]
mod streams;
