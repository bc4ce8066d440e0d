//! Where messages go, and how.

use std::time::Duration;

use lapin::uri::{AMQPScheme, AMQPUri};
use semel_core::template::{PLACES, Template};
use semel_core::{ErrorKind, StoreError};

/// Settings of a [`RabbitmqSink`](crate::RabbitmqSink).
#[derive(Clone)]
pub struct RabbitmqConfig {
    /// `amqp://user:password@host:port/vhost`, or `amqps://` for TLS.
    pub url: String,
    /// The exchange; `{topic}`, `{stream}` and `{type}` are replaced. Default: the default exchange, whose routing keys are
    /// names of queues.
    pub exchange: String,
    /// The routing key, in the same way. Default `{topic}`.
    pub routing_key: String,
    /// Rows in flight at most, for each shard. Default 2 000.
    pub in_flight_max: usize,
    /// Bytes of a body at most. RabbitMQ 3.10 takes 128 MiB (`max_message_size`, 16 MiB since 4.0); an event has 900 000
    /// bytes, and a third more as a CloudEvents document. Set it where the broker takes less. Default 2 MiB.
    pub message_bytes_max: usize,
    /// How long connecting may take. Default 5 s.
    pub connect_timeout: Duration,
    /// Certificates to trust beside the usual ones, in PEM. Default none.
    pub ca_pem: Option<String>,
}

impl RabbitmqConfig {
    /// The defaults for this URL.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            exchange: String::new(),
            routing_key: "{topic}".to_owned(),
            in_flight_max: 2_000,
            message_bytes_max: 2 << 20,
            connect_timeout: Duration::from_secs(5),
            ca_pem: None,
        }
    }

    /// The URL, read; with a heartbeat where it names none.
    pub(crate) fn uri(&self) -> Result<AMQPUri, StoreError> {
        // The reason could hold the password.
        let mut uri: AMQPUri = self.url.parse().map_err(|_: String| {
            invalid("the URL cannot be read: write amqp://user:password@host:port/vhost")
        })?;
        if uri.scheme == AMQPScheme::AMQP && self.ca_pem.is_some() {
            return Err(invalid(
                "certificates are given and the URL begins with amqp://: write amqps://",
            ));
        }
        uri.query.heartbeat.get_or_insert(10);
        Ok(uri)
    }
}

impl std::fmt::Debug for RabbitmqConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL holds a password.
        f.debug_struct("RabbitmqConfig")
            .field("exchange", &self.exchange)
            .field("routing_key", &self.routing_key)
            .field("in_flight_max", &self.in_flight_max)
            .finish_non_exhaustive()
    }
}

fn invalid(text: &'static str) -> StoreError {
    StoreError::new(ErrorKind::Invalid, "rabbitmq", text)
}

/// A text in which parts of an event take their places.
pub(crate) fn template(text: &str) -> Result<Template, StoreError> {
    Template::read(text).ok_or_else(|| invalid(PLACES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_cannot_be_read_is_refused_and_no_secret_is_shown() {
        let error = RabbitmqConfig::new("http://guest:secret@h").uri().unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
        let config = RabbitmqConfig::new("amqp://guest:secret@h/v");
        assert_eq!(config.uri().unwrap().query.heartbeat, Some(10));
        assert!(!format!("{config:?}").contains("secret"));
        let mut plain = config;
        plain.ca_pem = Some("x".to_owned());
        assert!(plain.uri().unwrap_err().to_string().contains("amqps"));
    }
}
