//! `sink.nats` of a relay.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::{CONNECT_MS, IN_FLIGHT, size};
use crate::config::read::Table;
use crate::config::spec::{Section, field, required, secret};

/// `sink.nats`.
pub(crate) const NATS: Section = Section {
    header: "sink.nats",
    about: "Each event is one message to JetStream, acknowledged by its stream: [brokers.md](brokers.md). The streams are \
            yours to make.",
    fields: &[
        secret(required(
            "url",
            "nats URL",
            "`nats://host:4222`, several separated by commas; `tls://` for TLS",
        )),
        field(
            "subject",
            "template",
            "`{topic}`",
            "the subject; `{topic}` and `{stream}` are replaced",
        ),
        field("user", "text", "none", "name of the user; needs `password`"),
        secret(field("password", "text", "none", "the user's password")),
        secret(field("token", "text", "none", "a token, instead of a user")),
        field(
            "credentials_file",
            "path",
            "none",
            "a `.creds` file with JWT and seed, instead of a user",
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
            "1048576",
            "bytes of payload and headers; an event above is poison. Not above the server's `max_payload`",
        ),
        field("connect_timeout_ms", "ms", "5000", "how long connecting may take"),
        field(
            "ca_file",
            "path",
            "none",
            "a file of certificates to trust beside the system's, in PEM",
        ),
    ],
};

/// `sink.nats`.
#[derive(Clone)]
#[cfg_attr(
    not(feature = "nats"),
    expect(dead_code, reason = "read and checked by every build, used by one with NATS")
)]
pub(crate) struct NatsConfig {
    /// Where; it may hold a password.
    pub(crate) url: String,
    /// Template of the subject.
    pub(crate) subject: Option<String>,
    /// Who we are.
    pub(crate) access: Access,
    /// Messages on their way.
    pub(crate) in_flight_max: usize,
    /// Bytes of a message.
    pub(crate) message_bytes_max: usize,
    /// How long connecting may take.
    pub(crate) connect_timeout: Duration,
    /// Certificates to trust.
    pub(crate) ca_file: Option<PathBuf>,
}

/// Who we are.
#[derive(Clone)]
#[cfg_attr(
    not(feature = "nats"),
    expect(dead_code, reason = "read and checked by every build, used by one with NATS")
)]
pub(crate) enum Access {
    /// Nobody.
    Open,
    /// Name and password.
    Password(String, String),
    /// A token.
    Token(String),
    /// A credentials file.
    File(PathBuf),
}

impl fmt::Debug for NatsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsConfig")
            .field("subject", &self.subject)
            .finish_non_exhaustive()
    }
}

/// Reads it.
pub(super) fn read(table: &Table<'_>) -> Option<NatsConfig> {
    table.require("url", "\"nats://127.0.0.1:4222\"");
    if !cfg!(feature = "nats") {
        let fix = "build it with: cargo build --release --features nats";
        table.mistake(table.span(), "this build of semel has no NATS", fix);
    }
    let text = |name| table.text(name).map(|text| text.value);
    let access = access(table);
    Some(NatsConfig {
        subject: text("subject"),
        access,
        in_flight_max: size(table, "in_flight_max", IN_FLIGHT, 2_000),
        message_bytes_max: size(table, "message_bytes_max", 1..=67_108_864, 1 << 20),
        connect_timeout: Duration::from_millis(
            table.number("connect_timeout_ms", CONNECT_MS).unwrap_or(5_000),
        ),
        ca_file: text("ca_file").map(PathBuf::from),
        url: text("url")?,
    })
}

fn access(table: &Table<'_>) -> Access {
    let text = |name| table.text(name).map(|text| text.value);
    if table.has("user") != table.has("password") {
        let fix = "write both, or neither";
        table.mistake(table.span(), "`user` and `password` belong together", fix);
    }
    let ways = ["user", "token", "credentials_file"]
        .iter()
        .filter(|name| table.has(name))
        .count();
    if ways > 1 {
        let fix = "keep one";
        table.mistake(
            table.span(),
            "a user, a token and a credentials file are three ways in",
            fix,
        );
    }
    let (user, password) = (text("user"), text("password"));
    let (token, file) = (text("token"), text("credentials_file"));
    match (user, password, token, file) {
        (Some(user), Some(password), _, _) => Access::Password(user, password),
        (_, _, Some(token), _) => Access::Token(token),
        (_, _, _, Some(file)) => Access::File(file.into()),
        _ => Access::Open,
    }
}
