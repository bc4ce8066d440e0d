//! Where messages go, and how.

use std::path::PathBuf;
use std::time::Duration;

use semel_core::template::Template;
use semel_core::{ErrorKind, StoreError};

/// Settings of a [`NatsSink`](crate::NatsSink).
#[derive(Clone)]
pub struct NatsConfig {
    /// `nats://host:port`, or `tls://` for TLS; several servers of a cluster are separated by commas.
    pub url: String,
    /// Who we are. Default nobody.
    pub access: NatsAccess,
    /// The subject; `{topic}` and `{stream}` are replaced. Default `{topic}`.
    pub subject: String,
    /// Rows in flight at most, for each shard. Default 2 000.
    pub in_flight_max: usize,
    /// Bytes of payload and headers at most: `max_payload` of the server, or `max_msg_size` of the stream where that is
    /// less. Default 1 MiB, as the server's.
    pub message_bytes_max: usize,
    /// How long connecting may take. Default 5 s.
    pub connect_timeout: Duration,
    /// A file of certificates to trust beside the system's, in PEM. Default none.
    pub ca_file: Option<PathBuf>,
}

/// Who a client says it is.
#[derive(Clone, Default)]
pub enum NatsAccess {
    /// Nobody.
    #[default]
    Open,
    /// A user's name and password.
    Password(String, String),
    /// A token.
    Token(String),
    /// The text of a credentials file (JWT and seed).
    Credentials(String),
}

impl NatsConfig {
    /// The defaults for this URL.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            access: NatsAccess::Open,
            subject: "{topic}".to_owned(),
            in_flight_max: 2_000,
            message_bytes_max: 1 << 20,
            connect_timeout: Duration::from_secs(5),
            ca_file: None,
        }
    }
}

impl std::fmt::Debug for NatsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // URL and access may hold secrets.
        f.debug_struct("NatsConfig")
            .field("subject", &self.subject)
            .field("in_flight_max", &self.in_flight_max)
            .finish_non_exhaustive()
    }
}

pub(crate) fn invalid(text: impl Into<std::borrow::Cow<'static, str>>) -> StoreError {
    StoreError::new(ErrorKind::Invalid, "nats", text)
}

/// A subject in which parts of an event take their places; refuses what is no subject with any topic.
pub(crate) fn subject(text: &str) -> Result<Template, StoreError> {
    let wrong = || {
        invalid("the subject must be parts separated by dots, with {topic} and {stream} as its only places")
    };
    let rest = text.replace("{topic}", "t").replace("{stream}", "s");
    let bad = |c: char| c.is_whitespace() || c.is_control() || "{}*>".contains(c);
    if rest.split('.').any(str::is_empty) || rest.contains(bad) {
        return Err(wrong());
    }
    Template::read(text).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use semel_core::Event;

    #[test]
    fn places_in_a_subject_are_filled_and_what_is_no_subject_is_refused() {
        let event = Event::new(uuid::Uuid::from_u128(7), "orders.v1", "placed").with_stream("shop");
        let fill = |text: &str| subject(text).map(|subject| subject.fill(&event));
        assert_eq!(fill("{topic}").unwrap(), "orders.v1");
        assert_eq!(fill("a.{stream}.{topic}").unwrap(), "a.shop.orders.v1");
        for wrong in ["", "a..b", ".a", "a b", "a.*", "a.>", "{type}", "{topic"] {
            assert!(fill(wrong).is_err(), "{wrong}");
        }
    }
}
