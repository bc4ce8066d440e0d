//! Kafka for Semel.
//!
//! [`KafkaSink`] publishes a relay's events.

mod client;
mod sink;

pub use sink::{KafkaSink, KafkaSinkConfig};
