//! Sinks, made from the configuration.

use std::sync::Arc;

use semel_core::{Sink, StoreError};
use semel_webhook::{WebhookConfig, WebhookSink};

use crate::config::sink::SinkConfig;

/// Makes a sink; it connects when it is first used.
///
/// # Errors
/// The settings cannot work.
pub(crate) fn build(config: &SinkConfig) -> Result<Arc<dyn Sink>, StoreError> {
    match config {
        SinkConfig::Webhook(webhook) => {
            let sink = WebhookSink::new(WebhookConfig {
                topic_in_path: webhook.topic_in_path,
                headers: webhook.headers.clone().into_iter().collect(),
                in_flight_max: webhook.in_flight_max,
                connect_timeout: webhook.connect_timeout,
                ..WebhookConfig::new(webhook.url.to_string())
            })?;
            Ok(Arc::new(sink))
        }
        #[cfg(feature = "kafka")]
        SinkConfig::Kafka(kafka) => {
            let sink = semel_kafka::KafkaSink::new(semel_kafka::KafkaSinkConfig {
                linger: kafka.linger,
                in_flight_max: kafka.in_flight_max,
                in_flight_bytes_max: kafka.in_flight_bytes_max,
                properties: kafka.properties.clone(),
                ..semel_kafka::KafkaSinkConfig::new(kafka.brokers.join(","))
            })?;
            Ok(Arc::new(sink))
        }
        #[cfg(not(feature = "kafka"))]
        SinkConfig::Kafka(_) => Err(StoreError::new(
            semel_core::ErrorKind::Invalid,
            "sink",
            "this build of semel has no Kafka; build it with: cargo build --release --features kafka",
        )),
    }
}
