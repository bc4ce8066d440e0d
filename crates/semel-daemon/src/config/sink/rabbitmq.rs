//! `sink.rabbitmq` of a relay.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::{CONNECT_MS, IN_FLIGHT, size};
use crate::config::read::Table;
use crate::config::spec::{Section, field, required, secret};

/// `sink.rabbitmq`.
pub(crate) const RABBITMQ: Section = Section {
    header: "sink.rabbitmq",
    about: "Each event is one persistent message, published with confirms and `mandatory`: [brokers.md](brokers.md).",
    fields: &[
        secret(required(
            "url",
            "amqp URL",
            "`amqp://user:${PASSWORD}@host:5672/vhost`; `amqps://` for TLS",
        )),
        field(
            "exchange",
            "template",
            "the default exchange",
            "the exchange; `{topic}`, `{stream}` and `{type}` are replaced",
        ),
        field(
            "routing_key",
            "template",
            "`{topic}`",
            "the routing key; by the default exchange it is the name of a queue",
        ),
        field(
            "in_flight_max",
            "number",
            "2000",
            "messages on their way at most, for each shard",
        ),
        field(
            "message_bytes_max",
            "bytes",
            "2097152",
            "bytes of a body; an event above is poison. Not above the broker's `max_message_size`",
        ),
        field("connect_timeout_ms", "ms", "5000", "how long connecting may take"),
        field(
            "ca_file",
            "path",
            "none",
            "a file of certificates to trust beside the usual ones, in PEM",
        ),
    ],
};

/// `sink.rabbitmq`.
#[derive(Clone)]
#[cfg_attr(
    not(feature = "rabbitmq"),
    expect(
        dead_code,
        reason = "read and checked by every build, used by one with RabbitMQ"
    )
)]
pub(crate) struct RabbitmqConfig {
    /// Where; it holds a password.
    pub(crate) url: String,
    /// Template of the exchange.
    pub(crate) exchange: Option<String>,
    /// Template of the routing key.
    pub(crate) routing_key: Option<String>,
    /// Messages on their way.
    pub(crate) in_flight_max: usize,
    /// Bytes of a body.
    pub(crate) message_bytes_max: usize,
    /// How long connecting may take.
    pub(crate) connect_timeout: Duration,
    /// Certificates to trust.
    pub(crate) ca_file: Option<PathBuf>,
}

impl fmt::Debug for RabbitmqConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitmqConfig")
            .field("exchange", &self.exchange)
            .field("routing_key", &self.routing_key)
            .finish_non_exhaustive()
    }
}

/// Reads it.
pub(super) fn read(table: &Table<'_>) -> Option<RabbitmqConfig> {
    table.require("url", "\"amqp://guest:guest@127.0.0.1:5672/%2f\"");
    if !cfg!(feature = "rabbitmq") {
        let fix = "build it with: cargo build --release --features rabbitmq";
        table.mistake(table.span(), "this build of semel has no RabbitMQ", fix);
    }
    let url = table.text("url");
    if let Some(url) = &url
        && !(url.value.starts_with("amqp://") || url.value.starts_with("amqps://"))
    {
        let fix = "write \"amqp://user:password@host:5672/vhost\", or amqps:// for TLS";
        table.mistake(url.span.clone(), "`url` is no amqp URL", fix);
    }
    let text = |name| table.text(name).map(|text| text.value);
    Some(RabbitmqConfig {
        exchange: text("exchange"),
        routing_key: text("routing_key"),
        in_flight_max: size(table, "in_flight_max", IN_FLIGHT, 2_000),
        message_bytes_max: size(table, "message_bytes_max", 1..=134_217_728, 2 << 20),
        connect_timeout: Duration::from_millis(
            table.number("connect_timeout_ms", CONNECT_MS).unwrap_or(5_000),
        ),
        ca_file: text("ca_file").map(PathBuf::from),
        url: url?.value,
    })
}
