//! The pools.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use semel_core::batch::Replays;
use semel_core::{ErrorKind, StoreError, Timestamp};
use sqlx::postgres::{PgConnectOptions, PgPool};
use sqlx::{ConnectOptions as _, Connection as _, Postgres as Driver, Transaction};

use crate::config::Config;
use crate::error::{classify, commit_failed};
use crate::gate::{Gate, Pooler, query, query_scalar};
use crate::store::{CleanPlaces, Drops, Hints, PageHints};
use crate::tx::PREPARE_SQL;

/// A PostgreSQL database. Cheap to clone; all clones share their connections.
#[derive(Clone)]
pub struct Postgres {
    pub(crate) gate: Gate,
    /// For Semel's own statements about keys, leases, cursors and batches. Of their own, so that an owner's `extend`, `complete` or
    /// renewal never waits behind transactions that use up the pool, waiting for that very owner perhaps (rule K6).
    pub(crate) own: Gate,
    /// Of keys.
    pub(crate) lock_wait: Duration,
    pub(crate) saga_lock_wait: Duration,
    pub(crate) partition_lock_wait: Duration,
    pub(crate) drops: Drops,
    pub(crate) clean_places: CleanPlaces,
    pub(crate) pages: PageHints,
    pub(crate) hints: Hints,
    /// Transactions under a key that ask before they begin, because keys were taken of late: see `tx/transact_once.rs`.
    pub(crate) asks_first: Arc<AtomicU32>,
    /// Statements with new keys that should have looked first.
    pub(crate) replays: Arc<Replays>,
}

impl std::fmt::Debug for Postgres {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Postgres").finish_non_exhaustive()
    }
}

impl Postgres {
    /// Connects once, to know that the server is there.
    ///
    /// # Errors
    /// `Invalid` for a URL that cannot be read, `Unavailable` when the server cannot be reached.
    pub async fn connect(config: Config) -> Result<Self, StoreError> {
        let (url, pooler) = config.reach();
        let options = PgConnectOptions::from_str(&url)
            .map_err(|error| {
                let text = "the URL is not of the form postgres://user:password@host:port/database";
                StoreError::new(ErrorKind::Invalid, "connect", text).with_source(error)
            })?
            .application_name("semel");
        let options = match pooler {
            Pooler::None => options.options([
                ("synchronous_commit", "on"),
                ("default_transaction_isolation", "read committed"),
                // What a client that has vanished holds locked is free again in half a minute, not in a quarter of an hour.
                ("tcp_keepalives_idle", "10"),
                ("tcp_keepalives_interval", "5"),
                ("tcp_keepalives_count", "3"),
                ("tcp_user_timeout", "30000"),
            ]),
            // The pooler refuses start-up settings that it does not track.
            Pooler::Transaction => options.extra_float_digits(None).statement_cache_capacity(0),
        };
        let failed = |error| classify("connect", error);
        // One connection by hand: the pool would try until its time-out and then hide why it was refused.
        let first = tokio::time::timeout(config.acquire_timeout, options.connect())
            .await
            .map_err(|_| failed(sqlx::Error::PoolTimedOut))?
            .map_err(failed)?;
        first.close().await.map_err(failed)?;
        let pool = |connections_max| Gate::options(connections_max, config.acquire_timeout);
        let yours = match pooler {
            Pooler::None => pool(config.connections_max).after_connect(|connection, _| {
                Box::pin(async move {
                    // Without them transactions under a key go on by other means.
                    if let Err(error) = sqlx::raw_sql(PREPARE_SQL).execute(&mut *connection).await {
                        tracing::debug!(%error, "preparing the statements of a session");
                    }
                    Ok(())
                })
            }),
            Pooler::Transaction => pool(config.connections_max),
        };
        // A statement's generic plan is kept for long. One made while the table is small reads all of it, and would go
        // on doing so when it has grown. Nor may it gather and sort the rest of a batch for each page: nothing tells the
        // planner that nearly all rows behind a cursor are visible.
        let by_index = match pooler {
            // Nor does it look for operators and functions where others may have put some.
            Pooler::None => options.clone().options([
                ("enable_seqscan", "off"),
                ("enable_bitmapscan", "off"),
                // What is switched off counts as 10^10, with which the server would compile each of these statements,
                // for hundreds of milliseconds.
                ("jit", "off"),
                // A plan for one item is estimated to be cheaper than one for any number, so that single calls would be
                // planned again and again, which costs four times what they do.
                ("plan_cache_mode", "force_generic_plan"),
                ("search_path", "pg_catalog,pg_temp"),
            ]),
            Pooler::Transaction => options.clone(),
        };
        let listen = (pooler == Pooler::None).then(|| options.clone());
        Ok(Self {
            gate: Gate::new(yours.connect_lazy_with(options), pooler, None),
            own: Gate::new(
                pool(config.key_connections_max).connect_lazy_with(by_index),
                pooler,
                Some(config.answer_timeout),
            ),
            lock_wait: config.key_lock_wait,
            saga_lock_wait: config.lock_wait,
            partition_lock_wait: config.partition_lock_wait,
            drops: Drops::default(),
            clean_places: CleanPlaces::default(),
            pages: PageHints::default(),
            hints: Hints::new(listen),
            asks_first: Arc::default(),
            replays: Arc::new(Replays::none()),
        })
    }

    /// The pool, for your own statements.
    #[must_use]
    pub const fn pool(&self) -> &PgPool {
        self.gate.pool()
    }

    /// Begins a transaction for your own statements and Semel's together: see [`crate::tx`].
    ///
    /// # Errors
    /// No connection within the time allowed.
    pub async fn begin(&self) -> Result<Transaction<'static, Driver>, StoreError> {
        self.gate.begin().await.map_err(|error| classify("begin", error))
    }

    /// Commits, and says so only when the server did.
    ///
    /// The server answers COMMIT of a failed transaction with ROLLBACK, which the driver takes for success (rule O8);
    /// so a probe that such a transaction refuses comes first.
    ///
    /// # Errors
    /// `ReplyLost` when it cannot be told whether the commit is durable; `NotApplied` or `Constraint` when it is
    /// certain that it is not.
    pub async fn commit(&self, mut tx: Transaction<'static, Driver>) -> Result<(), StoreError> {
        query("SELECT 1")
            .execute(&mut *tx)
            .await
            .map_err(|error| classify("commit", error))?;
        tx.commit().await.map_err(|error| commit_failed("commit", error))
    }

    /// The server's clock.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn now(&self) -> Result<Timestamp, StoreError> {
        let micros: i64 =
            query_scalar("SELECT (extract(epoch FROM clock_timestamp()) * 1000000::numeric)::bigint")
                .fetch_one(&self.own)
                .await
                .map_err(|error| classify("now", error))?;
        Ok(Timestamp(micros))
    }

    /// Closes all connections; later calls fail.
    pub async fn close(&self) {
        self.own.pool().close().await;
        self.gate.pool().close().await;
    }
}
