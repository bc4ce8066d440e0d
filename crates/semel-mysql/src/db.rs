//! The pools.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use semel_core::batch::Replays;
use semel_core::{ErrorKind, StoreError, Timestamp};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlPool, MySqlPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, MySql as Driver, Transaction};

use crate::config::{Config, LOCK_WAIT_MAX};
use crate::error::{NO_SAVEPOINT, classify, commit_failed, lost, number};
use crate::server::ServerSettings;
use crate::store::outbox_look::OutboxMemory;

/// What every session of ours sets for itself: rows are never cut to fit, times are in UTC, and each statement sees what
/// is committed.
const SESSION: &str = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION',
  time_zone = '+00:00', autocommit = 1;
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

/// Set at the begin of a transaction. After a deadlock, or when somebody ended it, the server does not know it any more.
pub(crate) const MARK: &str = "SAVEPOINT semel";
pub(crate) const CHECK_MARK: &str = "RELEASE SAVEPOINT semel";

/// One statement for each right; none of them finds a row, because no key is empty.
const RIGHTS: &str = "SELECT COUNT(*) FROM semel_token;
UPDATE semel_token SET token = token WHERE one = 0;
INSERT INTO semel_key (key_bytes, state, token_last, version, replaces)
  SELECT key_bytes, state, token_last, version, replaces FROM semel_key WHERE key_bytes = x'';
UPDATE semel_key SET version = version WHERE key_bytes = x'';
DELETE FROM semel_key WHERE key_bytes = x'';
INSERT INTO semel_commit (id) SELECT id FROM semel_commit WHERE id = x'';
DELETE FROM semel_commit WHERE id = x'';
INSERT INTO semel_outbox (stream, topic, type) SELECT stream, topic, type FROM semel_outbox WHERE id = 0;
DELETE FROM semel_outbox WHERE id = 0;
INSERT INTO semel_outbox_delayed (due_us, topic, type) SELECT due_us, topic, type FROM semel_outbox_delayed WHERE n = 0;
DELETE FROM semel_outbox_delayed WHERE n = 0;
INSERT INTO semel_outbox_shard SELECT * FROM semel_outbox_shard WHERE stream = '';
UPDATE semel_outbox_shard SET version = version WHERE stream = '';
DELETE FROM semel_outbox_shard WHERE stream = '';
INSERT INTO semel_outbox_relay SELECT * FROM semel_outbox_relay WHERE stream = '';
UPDATE semel_outbox_relay SET until_us = until_us WHERE stream = '';
DELETE FROM semel_outbox_relay WHERE stream = '';
INSERT INTO semel_outbox_reshard SELECT * FROM semel_outbox_reshard WHERE stream = '';
UPDATE semel_outbox_reshard SET shards = shards WHERE stream = '';
DELETE FROM semel_outbox_reshard WHERE stream = '';
INSERT INTO semel_outbox_exception SELECT * FROM semel_outbox_exception WHERE id = 0;
UPDATE semel_outbox_exception SET taken = taken WHERE id = 0;
DELETE FROM semel_outbox_exception WHERE id = 0;
INSERT INTO semel_outbox_desk_log SELECT * FROM semel_outbox_desk_log WHERE entry = 0;
INSERT INTO semel_outbox_limit SELECT * FROM semel_outbox_limit WHERE stream = '?';
UPDATE semel_outbox_limit SET waiting = waiting WHERE stream = '?';
DELETE FROM semel_outbox_limit WHERE stream = '?';
UPDATE semel_outbox_home SET row_id = row_id WHERE one = 0;
UPDATE semel_outbox_lock SET slot = slot WHERE slot = -1";

/// A MariaDB or MySQL database. Cheap to clone; all clones share their connections.
#[derive(Clone)]
pub struct Mysql {
    pub(crate) pool: MySqlPool,
    /// For Semel's own statements about keys. Of their own, so that an owner's `extend` or `complete` never waits behind
    /// transactions that use up the pool, waiting for that very owner perhaps (rule K6).
    pub(crate) own: MySqlPool,
    /// Whole seconds; what sessions of `own` are set to.
    pub(crate) lock_wait: Duration,
    /// Bytes of a statement at most.
    pub(crate) packet_bytes: usize,
    pub(crate) durable: bool,
    pub(crate) outbox: Arc<OutboxMemory>,
    /// Of claims.
    pub(crate) replays: Arc<Replays>,
}

impl std::fmt::Debug for Mysql {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mysql").finish_non_exhaustive()
    }
}

impl Mysql {
    /// Connects once, to know that the server is there and keeps what it acknowledges.
    ///
    /// # Errors
    /// `Invalid` for a URL that cannot be read, and for a server whose settings do not do ([`ServerSettings::faults`]);
    /// `Unavailable` when the server cannot be reached.
    pub async fn connect(config: Config) -> Result<Self, StoreError> {
        let options = options(&config)?;
        let settings = read_settings(&options, &config).await?;
        settings.demand(config.accept_lossy_server)?;
        let wait = config.lock_wait.clamp(Duration::from_secs(1), LOCK_WAIT_MAX);
        let pool = |connections_max, session: String| {
            MySqlPoolOptions::new()
                .max_connections(connections_max)
                .acquire_timeout(config.acquire_timeout)
                .after_connect(move |connection, _| {
                    let session = session.clone();
                    Box::pin(async move {
                        // Constants, and a number of seconds.
                        let session = sqlx::raw_sql(sqlx::AssertSqlSafe(session));
                        session.execute(&mut *connection).await?;
                        Ok(())
                    })
                })
        };
        Ok(Self {
            pool: pool(config.connections_max, SESSION.to_owned()).connect_lazy_with(options.clone()),
            // No ping before each use: a statement that finds its connection broken is sent again (`Mysql::ask`).
            own: pool(
                config.key_connections_max,
                format!("{SESSION};{}", lock_wait(wait)),
            )
            .test_before_acquire(false)
            .connect_lazy_with(options),
            lock_wait: wait,
            packet_bytes: usize::try_from(settings.packet_bytes).unwrap_or(usize::MAX),
            durable: settings.is_durable(),
            outbox: Arc::default(),
            replays: Arc::default(),
        })
    }

    /// What matters of the server's settings now; they can change while it runs.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn settings(&self) -> Result<ServerSettings, StoreError> {
        let connection = self.own.acquire().await;
        ServerSettings::read(&mut *connection.map_err(|error| classify("settings", error))?).await
    }

    /// Whether the user may do with Semel's tables what Semel does; changes nothing.
    ///
    /// # Errors
    /// `Invalid` when a right is missing, `Schema` when a table is.
    pub async fn check_rights(&self) -> Result<(), StoreError> {
        let failed = |error| classify("check", error);
        let mut tx = self.pool.begin().await.map_err(failed)?;
        sqlx::raw_sql(RIGHTS).execute(&mut *tx).await.map_err(failed)?;
        tx.rollback().await.map_err(failed)
    }

    /// The pool, for your own statements. Its sessions are strict, in UTC and at READ COMMITTED.
    #[must_use]
    pub const fn pool(&self) -> &MySqlPool {
        &self.pool
    }

    /// Begins a transaction for your own statements and Semel's together: see [`crate::tx`].
    ///
    /// # Errors
    /// No connection within the time allowed.
    pub async fn begin(&self) -> Result<Transaction<'static, Driver>, StoreError> {
        let failed = |error| classify("begin", error);
        let mut tx = self.pool.begin().await.map_err(failed)?;
        sqlx::raw_sql(MARK).execute(&mut *tx).await.map_err(failed)?;
        Ok(tx)
    }

    /// Commits a transaction of [`begin`](Self::begin), and says so only when the server did.
    ///
    /// After a deadlock the server has undone the transaction and runs every further statement outside of any; COMMIT
    /// then succeeds and commits nothing (rule K6). So it is first asked whether this is still the same transaction.
    ///
    /// # Errors
    /// `ReplyLost` when it cannot be told whether the commit is durable, and when the transaction had ended before;
    /// `NotApplied` or `Constraint` when it is certain that it is not.
    pub async fn commit(&self, mut tx: Transaction<'static, Driver>) -> Result<(), StoreError> {
        still_there(&mut tx, CHECK_MARK).await?;
        tx.commit().await.map_err(|error| commit_failed("commit", error))
    }

    /// The server's clock.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn now(&self) -> Result<Timestamp, StoreError> {
        let micros: i64 = sqlx::query_scalar("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))")
            .fetch_one(&self.pool)
            .await
            .map_err(|error| classify("now", error))?;
        Ok(Timestamp(micros))
    }

    /// Closes all connections; later calls fail.
    pub async fn close(&self) {
        self.own.close().await;
        self.pool.close().await;
    }
}

/// Sets how long a session's statements wait for rows.
pub(crate) fn lock_wait(wait: Duration) -> String {
    format!("SET SESSION innodb_lock_wait_timeout = {}", wait.as_secs().max(1))
}

/// Runs `statements` that end with the check of the transaction's mark, in the transaction.
pub(crate) async fn still_there(
    tx: &mut Transaction<'_, Driver>,
    statements: &str,
) -> Result<(), StoreError> {
    // Made here, of hexadecimal digits and nothing else that came from outside.
    let statements = sqlx::raw_sql(sqlx::AssertSqlSafe(statements.to_owned()));
    match statements.execute(&mut **tx).await {
        Ok(_) => Ok(()),
        Err(error) if number(&error) == Some(NO_SAVEPOINT) => {
            let text = "the transaction had ended before its commit: after a deadlock whose error was swallowed, or by a \
                        statement that commits by itself. Statements after that were committed one by one; do not \
                        swallow errors";
            Err(lost("commit", text, error))
        }
        Err(error) => Err(classify("commit", error)),
    }
}

pub(crate) fn options(config: &Config) -> Result<MySqlConnectOptions, StoreError> {
    // The driver would take any scheme.
    let scheme = config.url.split(':').next().unwrap_or_default();
    let known = matches!(scheme, "mysql" | "mariadb") && config.url.contains("://");
    let options = MySqlConnectOptions::from_str(&config.url);
    let options = options.ok().filter(|_| known).ok_or_else(|| {
        let text = "the URL is not of the form mysql://user:password@host:port/database";
        StoreError::new(ErrorKind::Invalid, "connect", text)
    })?;
    // `||` stays what it is in this server; our session sets the rest.
    Ok(options.pipes_as_concat(false).statement_cache_capacity(100))
}

/// One connection by hand: the pool would try until its time-out and then hide why it was refused.
pub(crate) async fn read_settings(
    options: &MySqlConnectOptions,
    config: &Config,
) -> Result<ServerSettings, StoreError> {
    let failed = |error| classify("connect", error);
    let first = tokio::time::timeout(config.acquire_timeout, async {
        let mut first: MySqlConnection = options.connect().await.map_err(failed)?;
        sqlx::raw_sql(SESSION).execute(&mut first).await.map_err(failed)?;
        let settings = ServerSettings::read(&mut first).await?;
        // What was asked is known; a farewell that fails changes nothing.
        let _ = first.close().await;
        Ok(settings)
    });
    first.await.map_err(|_| failed(sqlx::Error::PoolTimedOut))?
}
