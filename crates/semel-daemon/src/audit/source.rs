//! Where what arrived is read.

use std::path::Path;

use semel_core::error::chain;

use super::args::OutboxAuditArgs;
use crate::config::sink::SinkConfig;
use crate::config::{self, Config, RelayConfig};

/// Where what arrived is read.
pub(super) enum Source {
    /// A file, or stdin.
    Lines,
    #[cfg(feature = "kafka")]
    Kafka(super::kafka::Brokers),
    #[cfg(feature = "nats")]
    Nats(Box<semel_nats::NatsConfig>),
    #[cfg(feature = "redis")]
    Redis(Box<semel_redis::Config>),
}

/// What the arguments ask for.
///
/// # Errors
/// What is wrong with the arguments or the configuration.
pub(super) fn chosen(args: &OutboxAuditArgs) -> Result<Source, String> {
    if args.arrived.is_some() {
        return Ok(Source::Lines);
    }
    if !args.kafka.is_empty() {
        #[cfg(feature = "kafka")]
        return super::kafka::brokers(args).map(Source::Kafka);
        #[cfg(not(feature = "kafka"))]
        return Err(missing("Kafka", "kafka"));
    }
    if !args.nats.is_empty() {
        #[cfg(feature = "nats")]
        return nats(args).map(Source::Nats);
        #[cfg(not(feature = "nats"))]
        return Err(missing("NATS", "nats"));
    }
    if !args.redis.is_empty() {
        #[cfg(feature = "redis")]
        return redis(args).map(Source::Redis);
        #[cfg(not(feature = "redis"))]
        return Err(missing("Redis", "redis"));
    }
    Err(how(args))
}

#[cfg(not(all(feature = "kafka", feature = "nats", feature = "redis")))]
fn missing(name: &str, feature: &str) -> String {
    chain(&crate::sinks::missing(name, feature))
}

#[cfg(feature = "nats")]
fn nats(args: &OutboxAuditArgs) -> Result<Box<semel_nats::NatsConfig>, String> {
    let (config, path) = config(args)?;
    let relays = relays(&config, args, |sink| match sink {
        SinkConfig::Nats(nats) => Some(nats),
        _ => None,
    });
    let [only] = relays.as_slice() else {
        return Err(not_one(args, path, relays.len(), "NATS"));
    };
    let config = crate::sinks::nats_config(only).map_err(|error| chain(&error))?;
    Ok(Box::new(config))
}

#[cfg(feature = "redis")]
fn redis(args: &OutboxAuditArgs) -> Result<Box<semel_redis::Config>, String> {
    let (config, path) = config(args)?;
    let relays = relays(&config, args, |sink| match sink {
        SinkConfig::Redis(redis) => Some(redis),
        _ => None,
    });
    let [only] = relays.as_slice() else {
        return Err(not_one(args, path, relays.len(), "Redis"));
    };
    let config = crate::sinks::redis_config(only).map_err(|error| chain(&error))?;
    Ok(Box::new(config.redis))
}

/// The configuration, and where it is from.
///
/// # Errors
/// What is wrong with it.
pub(super) fn config(args: &OutboxAuditArgs) -> Result<(Config, &Path), String> {
    let path = &args.store.config.path;
    let config = config::load(path).map_err(|report| report.to_string())?;
    Ok((config, path))
}

/// Relays that publish the stream.
fn publish<'a>(config: &'a Config, args: &OutboxAuditArgs) -> impl Iterator<Item = &'a RelayConfig> {
    config.relays.iter().filter(|relay| {
        relay.streams.contains(&args.stream)
            && args.store.name.as_ref().is_none_or(|name| *name == relay.store)
            && args.relay.as_ref().is_none_or(|name| *name == relay.name)
    })
}

/// The sinks of relays that publish the stream to where `kind` says.
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
pub(super) fn relays<'a, T>(
    config: &'a Config,
    args: &OutboxAuditArgs,
    kind: impl Fn(&'a SinkConfig) -> Option<&'a T>,
) -> Vec<&'a T> {
    let sinks = publish(config, args).map(|relay| &relay.sink);
    sinks.filter_map(kind).collect()
}

/// What to say where not one relay says how to reach the servers.
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
pub(super) fn not_one(args: &OutboxAuditArgs, path: &Path, found: usize, where_to: &str) -> String {
    let help = if found > 1 {
        "name one with --relay NAME"
    } else {
        "its settings say where to read"
    };
    format!(
        "{found} relays of {} publish the stream {} to {where_to}; {help}",
        path.display(),
        args.stream
    )
}

/// What to do where nothing was said: the relays that publish the stream say what is possible.
fn how(args: &OutboxAuditArgs) -> String {
    let lines = "what consumers have accepted, as JSON lines: --arrived FILE";
    let Ok((config, _)) = config(args) else {
        return format!(
            "say where to read what arrived: --kafka TOPIC, --nats STREAM, --redis KEY, or {lines}"
        );
    };
    let of = |relay: &RelayConfig| {
        let name = &relay.name;
        match &relay.sink {
            SinkConfig::Kafka(_) => {
                format!("relay {name} publishes to Kafka: name its topics with --kafka TOPIC")
            }
            SinkConfig::Nats(_) => {
                format!(
                    "relay {name} publishes to NATS: name the streams that take its subjects with --nats STREAM"
                )
            }
            SinkConfig::Redis(_) => {
                format!("relay {name} publishes to Redis: name its streams with --redis KEY")
            }
            SinkConfig::Rabbitmq(_) => format!(
                "relay {name} publishes to RabbitMQ, whose queues give a message away when they are read, so an audit would take \
                 it from its consumer; let the consumers log what they have accepted, and compare {lines}. To have all of it in \
                 one place, bind one more queue to the exchange before, and log what it gets"
            ),
            SinkConfig::Webhook(_) => format!(
                "relay {name} posts to a webhook, which cannot be asked what it was given; let the receiver log what it has \
                 accepted, and compare {lines}"
            ),
        }
    };
    let told: Vec<String> = publish(&config, args).map(of).collect();
    if told.is_empty() {
        return format!(
            "no relay publishes the stream {}; say where to read what arrived: {lines}",
            args.stream
        );
    }
    told.join("\n")
}
