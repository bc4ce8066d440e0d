//! How to connect.

use std::time::Duration;

use crate::gate::Pooler;

/// Settings of one database.
#[derive(Clone)]
pub struct Config {
    /// `postgres://user:password@host:port/database`. With `?pooler=transaction` at its end as [`Config::pooler`] says.
    pub url: String,
    /// Whether a pooler in transaction mode stands in between. Default: none.
    ///
    /// With one, each statement of Semel is a transaction that begins with its settings (four round trips instead of
    /// one), nothing is prepared by name, and there are no hints by NOTIFY. Your own statements in a transaction of
    /// [`Postgres::begin`](crate::Postgres::begin) need `.persistent(false)`; transactions keep one server connection, so
    /// parameters work.
    pub pooler: Pooler,
    /// Connections at most, for transactions and your own statements. Default 8.
    pub connections_max: u32,
    /// Connections at most beside those, for keys, leases, cursors and sagas: made when first needed. Default 4.
    pub key_connections_max: u32,
    /// How long to wait for a free connection. Default 10 s.
    pub acquire_timeout: Duration,
    /// How long a statement for keys, cursors or sagas may go without an answer before its connection is given up, because nobody may
    /// be at its other end any more. Longer than [`Config::lock_wait`] and [`Config::key_lock_wait`]. What was asked counts
    /// as unknown then. Default 60 s.
    pub answer_timeout: Duration,
    /// How long a write of sagas waits for a row that another transaction holds. Default 5 s.
    pub lock_wait: Duration,
    /// How long a claim, complete, extend or release of keys waits for a row that another transaction holds: with it wait its
    /// neighbours in the batch and behind it. A claim is told `Busy` then, and who waits for its outcome asks again. Default
    /// 200 ms.
    pub key_lock_wait: Duration,
    /// How long writers and relays may wait at most behind a cleaner that waits for its lock on a partition of the outbox,
    /// or on the outbox. Default 100 ms.
    pub partition_lock_wait: Duration,
}

impl Config {
    /// The defaults for this URL.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            pooler: Pooler::None,
            connections_max: 8,
            key_connections_max: 4,
            acquire_timeout: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(60),
            lock_wait: Duration::from_secs(5),
            key_lock_wait: Duration::from_millis(200),
            partition_lock_wait: Duration::from_millis(100),
        }
    }
}

impl Config {
    /// The URL without Semel's own parameter, and what that says.
    pub(crate) fn reach(&self) -> (String, Pooler) {
        const WISH: &str = "pooler=transaction";
        let Some((base, query)) = self.url.split_once('?') else {
            return (self.url.clone(), self.pooler);
        };
        let (wishes, rest): (Vec<&str>, Vec<&str>) = query.split('&').partition(|pair| *pair == WISH);
        let pooler = if wishes.is_empty() {
            self.pooler
        } else {
            Pooler::Transaction
        };
        let url = if rest.is_empty() {
            base.to_owned()
        } else {
            format!("{base}?{}", rest.join("&"))
        };
        (url, pooler)
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL may hold a password.
        f.debug_struct("Config")
            .field("pooler", &self.pooler)
            .field("connections_max", &self.connections_max)
            .field("key_connections_max", &self.key_connections_max)
            .finish_non_exhaustive()
    }
}
