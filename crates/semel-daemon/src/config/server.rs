//! `[server]`: the daemon's own address, for health, metrics and the saga API.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use super::read::{At, Table};
use super::spec::{Section, field, secret};

/// Characters of a token at least: fewer can be guessed.
pub(crate) const TOKEN_CHARS_MIN: usize = 16;

/// `[server]`.
pub(crate) const SERVER: Section = Section {
    header: "[server]",
    about: "The daemon's own address: `/healthz`, `/readyz`, `/metrics` and the saga API.",
    fields: &[
        field(
            "listen",
            "address",
            "`127.0.0.1:7080`",
            "where it listens; anything but a loopback address needs a `token`",
        ),
        secret(field(
            "token",
            "text",
            "none",
            "the saga API then asks for `Authorization: Bearer TOKEN`; at least 16 characters, best by `${SEMEL_TOKEN}`",
        )),
        field(
            "body_bytes_max",
            "bytes",
            "1048576",
            "a longer request body is refused with 413",
        ),
        field(
            "wait_ms_max",
            "ms",
            "30000",
            "the longest that `GET /sagas/ID?wait_ms=` waits, whatever it asks for",
        ),
        field(
            "stop_ms_max",
            "ms",
            "60000",
            "after SIGTERM, how long requests and roles may take to end before they are cut off: at least `total_timeout_ms` of the gateways, and less than your supervisor waits before it kills (`TimeoutStopSec` of systemd, `terminationGracePeriodSeconds` of Kubernetes)",
        ),
    ],
};

/// The daemon's own address.
#[derive(Debug, Clone)]
pub(crate) struct ServerConfig {
    /// Where it listens.
    pub(crate) listen: SocketAddr,
    /// What the saga API asks for.
    pub(crate) token: Option<Secret>,
    /// Bytes of a request body.
    pub(crate) body_bytes_max: usize,
    /// The longest wait for a saga.
    pub(crate) wait_max: Duration,
    /// How long stopping may take.
    pub(crate) stop_max: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7080)),
            token: None,
            body_bytes_max: 1 << 20,
            wait_max: Duration::from_secs(30),
            // As long as a gateway's request may take.
            stop_max: Duration::from_secs(60),
        }
    }
}

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    /// Hides a text.
    pub(crate) const fn new(text: String) -> Self {
        Self(text)
    }

    /// The text, for those who need it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Reads `[server]`.
pub(crate) fn read(table: &Table<'_>) -> ServerConfig {
    let default = ServerConfig::default();
    let listen = table.address("listen");
    let token = table.text("token");
    if let Some(At { value, span }) = &token
        && value.chars().count() < TOKEN_CHARS_MIN
    {
        table.mistake(
            span.clone(),
            format!("`token` has fewer than {TOKEN_CHARS_MIN} characters"),
            "make one with: openssl rand -hex 32",
        );
    }
    if let Some(At { value, span }) = &listen
        && !value.ip().is_loopback()
        && !table.has("token")
    {
        table.mistake(
            span.clone(),
            "`listen` is reachable from other machines, and there is no `token`: anyone could start sagas",
            "add token = \"${SEMEL_TOKEN}\", or listen on 127.0.0.1",
        );
    }
    let ms = |name, range| table.number(name, range).map(Duration::from_millis);
    ServerConfig {
        listen: listen.map_or(default.listen, |at| at.value),
        token: token.map(|at| Secret::new(at.value)),
        body_bytes_max: table
            .number("body_bytes_max", 1..=64 << 20)
            .map_or(default.body_bytes_max, |n| {
                usize::try_from(n).unwrap_or(usize::MAX)
            }),
        wait_max: ms("wait_ms_max", 0..=300_000).unwrap_or(default.wait_max),
        stop_max: ms("stop_ms_max", 0..=600_000).unwrap_or(default.stop_max),
    }
}
