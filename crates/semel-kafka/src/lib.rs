//! Kafka for Semel.
//!
//! [`KafkaSink`] publishes a relay's events; [`Consumer`] reads topics into the service's own database, each
//! message once.

mod client;
mod consumer;
mod sink;
mod topic_id;

pub use consumer::{Consumer, ConsumerConfig, Dedup, MessageId, Start};
pub use sink::{KafkaSink, KafkaSinkConfig};
