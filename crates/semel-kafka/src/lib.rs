//! Kafka for Semel.
//!
//! [`KafkaSink`] publishes a relay's events; [`Consumer`] reads topics into the service's own database, each
//! message once; [`Processor`] reads topics, transforms and writes topics in Kafka transactions.

mod client;
mod consumer;
mod offsets;
mod processor;
mod sink;
mod topic_id;

pub use consumer::{Consumer, ConsumerConfig, Dedup, MessageId, Start};
pub use processor::{Output, Processor, ProcessorConfig, Refused, Transform, TransformError};
pub use sink::{KafkaSink, KafkaSinkConfig};
