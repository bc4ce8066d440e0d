//! Sinks, made from the configuration.

use std::sync::Arc;

use semel_client::Destinations;
use semel_core::{ErrorKind, Sink, StoreError, mapping};
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
    let sink = build(relay, destinations)?;
    mapping::mapped(sink, relay.mapping.clone())
}

/// Makes a sink; it connects when it is first used. `destinations` is what the whole process shares.
///
/// # Errors
/// The settings cannot work.
fn build(relay: &RelayConfig, destinations: &Destinations) -> Result<Arc<dyn Sink>, StoreError> {
    match &relay.sink {
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
        SinkConfig::Kafka(kafka) if let Some(transactional) = &kafka.transactional => {
            Ok(Arc::new(log(kafka, transactional)?))
        }
        #[cfg(feature = "kafka")]
        SinkConfig::Kafka(kafka) => {
            let defaults = semel_kafka::KafkaSinkConfig::new(kafka.brokers.join(","));
            let sink = semel_kafka::KafkaSink::new(semel_kafka::KafkaSinkConfig {
                topic_wait: defaults
                    .topic_wait
                    .min(std::time::Duration::from_millis(relay.policy.send_timeout_ms) / 2),
                linger: kafka.linger,
                in_flight_max: kafka.in_flight_max,
                in_flight_bytes_max: kafka.in_flight_bytes_max,
                access: kafka.access.to_kafka(),
                properties: kafka.properties.clone(),
                ..defaults
            })?;
            Ok(Arc::new(sink))
        }
        #[cfg(feature = "redis")]
        SinkConfig::Redis(redis) => Ok(Arc::new(redis_sink(redis)?)),
        #[cfg(not(feature = "redis"))]
        SinkConfig::Redis(_) => Err(missing("Redis", "redis")),
        #[cfg(not(feature = "kafka"))]
        SinkConfig::Kafka(_) => Err(missing("Kafka", "kafka")),
        #[cfg(feature = "rabbitmq")]
        SinkConfig::Rabbitmq(rabbitmq) => {
            let mut config = semel_rabbitmq::RabbitmqConfig::new(rabbitmq.url.clone());
            config.exchange = rabbitmq.exchange.clone().unwrap_or(config.exchange);
            config.routing_key = rabbitmq.routing_key.clone().unwrap_or(config.routing_key);
            config.in_flight_max = rabbitmq.in_flight_max;
            config.message_bytes_max = rabbitmq.message_bytes_max;
            config.connect_timeout = rabbitmq.connect_timeout;
            config.ca_pem = rabbitmq.ca_file.as_deref().map(text_of).transpose()?;
            Ok(Arc::new(semel_rabbitmq::RabbitmqSink::new(config)?))
        }
        #[cfg(not(feature = "rabbitmq"))]
        SinkConfig::Rabbitmq(_) => Err(missing("RabbitMQ", "rabbitmq")),
        #[cfg(feature = "nats")]
        SinkConfig::Nats(nats) => Ok(Arc::new(semel_nats::NatsSink::new(nats_config(nats)?)?)),
        #[cfg(not(feature = "nats"))]
        SinkConfig::Nats(_) => Err(missing("NATS", "nats")),
    }
}

/// How to reach NATS.
///
/// # Errors
/// A file that it needs cannot be read.
#[cfg(feature = "nats")]
pub(crate) fn nats_config(
    nats: &crate::config::sink::nats::NatsConfig,
) -> Result<semel_nats::NatsConfig, StoreError> {
    use crate::config::sink::nats::Access;
    use semel_nats::NatsAccess;
    let mut config = semel_nats::NatsConfig::new(nats.url.clone());
    config.subject = nats.subject.clone().unwrap_or(config.subject);
    config.access = match &nats.access {
        Access::Open => NatsAccess::Open,
        Access::Password(user, password) => NatsAccess::Password(user.clone(), password.clone()),
        Access::Token(token) => NatsAccess::Token(token.clone()),
        Access::File(file) => NatsAccess::Credentials(text_of(file)?),
    };
    config.in_flight_max = nats.in_flight_max;
    config.message_bytes_max = nats.message_bytes_max;
    config.connect_timeout = nats.connect_timeout;
    config.ca_file.clone_from(&nats.ca_file);
    Ok(config)
}

/// Makes the sink of Redis Streams.
///
/// # Errors
/// The settings cannot work.
#[cfg(feature = "redis")]
pub(crate) fn redis_sink(
    config: &crate::config::sink_redis::RedisConfig,
) -> Result<semel_redis::RedisSink, StoreError> {
    semel_redis::RedisSink::new(redis_config(config)?)
}

/// What the sink of Redis Streams works by.
///
/// # Errors
/// The URL is none of a Redis.
#[cfg(feature = "redis")]
pub(crate) fn redis_config(
    config: &crate::config::sink_redis::RedisConfig,
) -> Result<semel_redis::RedisSinkConfig, StoreError> {
    let crate::config::store::StoreUrl::Redis(url) = &config.url else {
        let text = "the URL is none of a Redis";
        return Err(StoreError::new(ErrorKind::Invalid, "sink", text));
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
    Ok(sink)
}

/// A file that the sink needs.
#[cfg(any(feature = "rabbitmq", feature = "nats"))]
fn text_of(path: &std::path::Path) -> Result<String, StoreError> {
    std::fs::read_to_string(path).map_err(|error| {
        let text = format!("the file {} cannot be read", path.display());
        StoreError::new(ErrorKind::Invalid, "sink", text).with_source(error)
    })
}

/// What another build would have.
#[cfg(not(all(feature = "kafka", feature = "rabbitmq", feature = "nats", feature = "redis")))]
pub(crate) fn missing(name: &str, feature: &str) -> StoreError {
    let text = format!(
        "this build of semel has no {name}; build it with: cargo build --release --features {feature}"
    );
    StoreError::new(ErrorKind::Invalid, "sink", text)
}

#[cfg(feature = "kafka")]
fn log(
    kafka: &crate::config::sink::KafkaConfig,
    transactional: &crate::config::sink::TransactionalConfig,
) -> Result<semel_kafka::KafkaLog, StoreError> {
    let defaults = semel_kafka::KafkaLogConfig::new(kafka.brokers.join(","), &transactional.name);
    semel_kafka::KafkaLog::new(semel_kafka::KafkaLogConfig {
        cursor_topic: transactional.cursor_topic.clone(),
        cursor_replication: transactional
            .cursor_replication
            .unwrap_or(defaults.cursor_replication),
        rows_max: transactional.rows_max,
        transaction_timeout: transactional.timeout,
        linger: kafka.linger,
        in_flight_bytes_max: kafka.in_flight_bytes_max / 2,
        access: kafka.access.to_kafka(),
        properties: kafka.properties.clone(),
        ..defaults
    })
}
