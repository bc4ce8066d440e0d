//! Kafka for Semel.
//!
//! [`KafkaSink`] publishes a relay's events, [`KafkaLog`] in transactions that hold the relay's cursor; [`Consumer`] reads topics into the service's own database, each
//! message once; [`Processor`] reads topics, transforms and writes topics in Kafka transactions; [`read_arrivals`] reads a topic once, for audits.

mod access;
mod arrivals;
mod client;
mod consumer;
mod log;
mod offsets;
mod processor;
mod sink;
mod topic_id;
mod transaction;

pub use access::{KafkaAccess, KafkaCertificate, KafkaSasl, KafkaTls, SaslMechanism, TLS_MISSING};
pub use arrivals::{ArrivalsConfig, ArrivalsRead, Arrived, read_arrivals};
pub use consumer::{Consumer, ConsumerConfig, Dedup, MessageId, Start};
pub use log::{KafkaLog, KafkaLogConfig};
pub use processor::{Output, Processor, ProcessorConfig, Refused, Transform, TransformError};
pub use sink::{KafkaSink, KafkaSinkConfig};
