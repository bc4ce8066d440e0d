//! What arrived, from topics of Kafka.

use std::collections::BTreeMap;

use semel_core::error::chain;
use semel_kafka::{ArrivalsConfig, KafkaAccess, read_arrivals};

use super::args::OutboxAuditArgs;
use super::compare::Comparison;
use super::source;
use crate::config::sink::SinkConfig;
use crate::out;

/// The brokers, how to get in, and further settings of their client.
pub(super) struct Brokers {
    bootstrap: String,
    access: KafkaAccess,
    properties: BTreeMap<String, String>,
}

/// The brokers that are meant: `--brokers`, or those of the relay that publishes the stream to Kafka, whose settings say
/// how to get in.
///
/// # Errors
/// What is wrong with the arguments or the configuration.
pub(super) fn brokers(args: &OutboxAuditArgs) -> Result<Brokers, String> {
    let (config, path) = source::config(args)?;
    let relays = source::relays(&config, args, |sink| match sink {
        SinkConfig::Kafka(kafka) => Some(kafka),
        _ => None,
    });
    let (bootstrap, relay) = match (&args.brokers, relays.as_slice()) {
        (Some(brokers), relays) => (brokers.clone(), relays.first().copied()),
        (None, [only]) => (only.brokers.join(","), Some(*only)),
        (None, found) => {
            return Err(format!(
                "{}, or name the brokers with --brokers HOST:PORT",
                source::not_one(args, path, found.len(), "Kafka")
            ));
        }
    };
    Ok(Brokers {
        bootstrap,
        access: relay.map(|relay| relay.access.to_kafka()).unwrap_or_default(),
        properties: relay.map(|relay| relay.properties.clone()).unwrap_or_default(),
    })
}

/// Reads the topics to their ends as of now, one after the other, and compares.
///
/// # Errors
/// A topic could not be read.
pub(super) async fn arrived(
    args: &OutboxAuditArgs,
    brokers: Brokers,
    mut comparison: Comparison,
) -> Result<Comparison, String> {
    let (topics, uncommitted) = (args.kafka.clone(), args.uncommitted);
    let reading = tokio::task::spawn_blocking(move || {
        for topic in topics {
            let config = ArrivalsConfig {
                uncommitted,
                access: brokers.access.clone(),
                properties: brokers.properties.clone(),
                ..ArrivalsConfig::new(brokers.bootstrap.clone(), topic)
            };
            let read = read_arrivals(&config, |record| comparison.found(record));
            let (read, topic) = (read.map_err(|error| chain(&error))?, config.topic);
            out::note(format_args!(
                "topic {topic}: {} records in {} partitions",
                read.records, read.partitions
            ));
            if !read.open.is_empty() {
                out::note(format_args!(
                    "topic {topic}: a transaction is open in partitions {:?}; what is behind its beginning was not read \
                     and may be called missing. Look again, or use --uncommitted",
                    read.open
                ));
            }
        }
        Ok(comparison)
    });
    let read = reading.await;
    read.unwrap_or_else(|_| Err("reading Kafka was interrupted".to_owned()))
}
