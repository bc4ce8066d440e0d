//! Sinks, made from the configuration.

use std::sync::Arc;

use semel_client::Destinations;
use semel_core::{Sink, StoreError, mapping};
use semel_webhook::{WebhookConfig, WebhookSink};

use crate::config::RelayConfig;
use crate::config::sink::SinkConfig;

/// Makes the sink of a relay, behind what the relay changes about events.
///
/// # Errors
/// The settings cannot work.
pub(crate) fn for_relay(
    relay: &RelayConfig,
    destinations: &Destinations,
) -> Result<Arc<dyn Sink>, StoreError> {
    let sink = build(&relay.sink, destinations)?;
    Ok(mapping::mapped(sink, relay.mapping.clone())?)
}

/// Makes a sink; it connects when it is first used. `destinations` is what the whole process shares.
///
/// # Errors
/// The settings cannot work.
fn build(config: &SinkConfig, destinations: &Destinations) -> Result<Arc<dyn Sink>, StoreError> {
    match config {
        SinkConfig::Webhook(webhook) => {
            let sink = WebhookSink::new(WebhookConfig {
                topic_in_path: webhook.topic_in_path,
                headers: webhook.headers.clone().into_iter().collect(),
                in_flight_max: webhook.in_flight_max,
                connect_timeout: webhook.connect_timeout,
                secrets: webhook
                    .secrets
                    .iter()
                    .map(|secret| secret.reveal().to_owned())
                    .collect(),
                allow_private: webhook.allow_private,
                destinations: destinations.clone(),
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
        #[cfg(feature = "redis")]
        SinkConfig::Redis(redis) => Ok(Arc::new(redis_sink(redis)?)),
        #[cfg(not(feature = "redis"))]
        SinkConfig::Redis(_) => Err(StoreError::new(
            semel_core::ErrorKind::Invalid,
            "sink",
            "this build of semel has no Redis; build it with: cargo build --release --features redis",
        )),
        #[cfg(not(feature = "kafka"))]
        SinkConfig::Kafka(_) => Err(StoreError::new(
            semel_core::ErrorKind::Invalid,
            "sink",
            "this build of semel has no Kafka; build it with: cargo build --release --features kafka",
        )),
    }
}

/// Makes the sink of Redis Streams.
///
/// # Errors
/// The settings cannot work.
#[cfg(feature = "redis")]
pub(crate) fn redis_sink(
    config: &crate::config::sink_redis::RedisConfig,
) -> Result<semel_redis::RedisSink, StoreError> {
    let crate::config::store::StoreUrl::Redis(url) = &config.url else {
        let text = "the URL is none of a Redis";
        return Err(StoreError::new(semel_core::ErrorKind::Invalid, "sink", text));
    };
    let mut sink = semel_redis::RedisSinkConfig::new(url);
    sink.redis.cluster = config.cluster;
    sink.redis.replicas_min = config.replicas_min;
    sink.redis.connect_timeout = config.reply_timeout;
    sink.redis.reply_timeout = config.reply_timeout;
    sink.key.clone_from(&config.key);
    sink.entries_max = config.entries_max;
    sink.create_streams = config.create_streams;
    sink.entry_bytes_max = config.entry_bytes_max;
    sink.in_flight_max = config.in_flight_max;
    semel_redis::RedisSink::new(sink)
}
