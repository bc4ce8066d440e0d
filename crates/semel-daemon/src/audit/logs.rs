//! What arrived, from streams of NATS JetStream and of Redis: logs that can be read without taking anything away.

use semel_core::StoreError;
use semel_core::error::chain;
use semel_core::store::ArrivedRead;

use super::args::OutboxAuditArgs;
use super::compare::Comparison;
use crate::out;

/// Reads the streams of JetStream to their ends as of now, one after the other, and compares.
///
/// # Errors
/// A stream could not be read.
#[cfg(feature = "nats")]
pub(super) async fn nats(
    args: &OutboxAuditArgs,
    config: &semel_nats::NatsConfig,
    mut comparison: Comparison,
) -> Result<Comparison, String> {
    for stream in &args.nats {
        let read = semel_nats::read_arrivals(config, stream, |arrived| comparison.found(arrived)).await;
        note(stream, "messages", read)?;
    }
    Ok(comparison)
}

/// Reads the streams of Redis to their ends as of now, one after the other, and compares.
///
/// # Errors
/// A stream could not be read.
#[cfg(feature = "redis")]
pub(super) async fn redis(
    args: &OutboxAuditArgs,
    config: &semel_redis::Config,
    mut comparison: Comparison,
) -> Result<Comparison, String> {
    for key in &args.redis {
        let read = semel_redis::read_arrivals(config, key, |arrived| comparison.found(arrived)).await;
        note(key, "entries", read)?;
    }
    Ok(comparison)
}

fn note(stream: &str, what: &str, read: Result<ArrivedRead, StoreError>) -> Result<(), String> {
    let read = read.map_err(|error| chain(&error))?;
    out::note(format_args!("stream {stream}: {} {what}", read.messages));
    if read.gone > 0 {
        out::note(format_args!(
            "stream {stream}: {} {what} that were there are gone (trimmed or deleted); their events are called missing. \
             --after ROW leaves out older rows",
            read.gone
        ));
    }
    Ok(())
}
