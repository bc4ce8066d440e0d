//! How to connect.

use std::time::Duration;

/// The longest [`Config::lock_wait`]. A claim must not wait for its row nearly as long as the record of a purged key is
/// remembered, or its token could go back (decision 0012).
pub const LOCK_WAIT_MAX: Duration = Duration::from_secs(30);

/// Settings of one database.
#[derive(Clone)]
pub struct Config {
    /// `mysql://user:password@host:port/database`, for MariaDB, too.
    pub url: String,
    /// Connections at most, for transactions and your own statements. Default 8.
    pub connections_max: u32,
    /// Connections at most beside those, for keys: made when first needed. Default 4.
    pub key_connections_max: u32,
    /// How long to wait for a free connection. Default 10 s.
    pub acquire_timeout: Duration,
    /// How long a claim, complete, extend or release of keys waits for a row that another transaction holds: with it wait its
    /// neighbours in the batch and behind it. A claim is told `Busy` then, and who waits for its outcome asks again. Whole
    /// seconds, 1 s to [`LOCK_WAIT_MAX`]; the server counts in seconds. Default 1 s.
    pub lock_wait: Duration,
    /// Go on with a server that acknowledges commits before they are durable, with a warning: then what a reply says
    /// was done can be forgotten by a crash of the server, and done again. Default false: such a server is refused.
    pub accept_lossy_server: bool,
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
            lock_wait: Duration::from_secs(1),
            accept_lossy_server: false,
        }
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL may hold a password.
        f.debug_struct("Config")
            .field("connections_max", &self.connections_max)
            .field("key_connections_max", &self.key_connections_max)
            .field("lock_wait", &self.lock_wait)
            .finish_non_exhaustive()
    }
}
