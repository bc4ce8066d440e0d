//! How to connect.

use std::time::Duration;

/// Settings of one database.
#[derive(Clone)]
pub struct Config {
    /// `postgres://user:password@host:port/database`.
    pub url: String,
    /// Connections at most, for transactions and your own statements. Default 8.
    pub connections_max: u32,
    /// Connections at most beside those, for keys, leases, cursors and sagas: made when first needed. Default 4.
    pub key_connections_max: u32,
    /// How long to wait for a free connection. Default 10 s.
    pub acquire_timeout: Duration,
    /// How long a claim, complete, extend or release of keys, and a write of sagas, waits for a row that another
    /// transaction holds. Default 5 s.
    pub lock_wait: Duration,
}

impl Config {
    /// The defaults for this URL.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            connections_max: 8,
            key_connections_max: 4,
            acquire_timeout: Duration::from_secs(10),
            lock_wait: Duration::from_secs(5),
        }
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL may hold a password.
        f.debug_struct("Config")
            .field("connections_max", &self.connections_max)
            .field("key_connections_max", &self.key_connections_max)
            .finish_non_exhaustive()
    }
}
