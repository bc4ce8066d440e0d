//! The open file: one writing connection, several reading ones.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use semel_core::{Clock, ErrorKind, StoreError, Timestamp};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{Connection as _, Sqlite as Driver, Transaction};
use tokio::sync::OwnedSemaphorePermit;

use crate::config::Config;
use crate::direct::{Changed, Direct};
use crate::error::{classify, commit_failed, is_busy};
use crate::store::CleanPlaces;

/// Rows that the driver reads ahead.
const ROWS_BUFFERED: usize = semel_core::limits::BATCH_ITEMS_MAX;

/// How long a writer whose turn it is waits for the open transaction before it. Less than others wait for their turn behind
/// it, so that the first to give up is the one that can say what is open.
const WRITER_WAIT: Duration = Duration::from_secs(20);

/// Between two tries to open a file that another process holds.
const OPEN_AGAIN: Duration = Duration::from_millis(10);

/// A SQLite file. Cheap to clone; all clones share one writing connection.
#[derive(Clone)]
pub struct Sqlite {
    pub(crate) writer: SqlitePool,
    pub(crate) reader: SqlitePool,
    pub(crate) clock: Arc<dyn Clock>,
    /// For keys.
    direct: Arc<Direct>,
    pub(crate) clean_places: CleanPlaces,
}

impl std::fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sqlite").finish_non_exhaustive()
    }
}

impl Sqlite {
    /// Opens the file, making it when missing; several processes may do so at the same time.
    /// It waits up to `busy_timeout` for one that holds the file.
    ///
    /// # Errors
    /// The folder is missing or not writable, the file is no SQLite database, or another process held it for longer
    /// than `busy_timeout`.
    pub async fn open(mut config: Config) -> Result<Self, StoreError> {
        // Connections are opened later, too: the process may work in another folder then.
        config.path = std::path::absolute(&config.path).map_err(|error| {
            let text = "the file's name is empty, or the folder that the process works in is gone";
            StoreError::new(ErrorKind::Invalid, "open", text).with_source(error)
        })?;
        let options = SqliteConnectOptions::new()
            .filename(&config.path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // NORMAL may forget acknowledged commits after a power cut (rule K7: durability is not inherited).
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(config.busy_timeout)
            // Rows of a batch: the driver's thread need not stop half way until somebody has read them.
            .row_buffer_size(ROWS_BUFFERED);
        let options = match config.pages_max {
            Some(pages) => options.pragma("max_page_count", pages.to_string()),
            None => options,
        };
        let writer = first_connection(&config, &options)
            .await
            .map_err(|error| classify("open", error))?;
        let reader = SqlitePoolOptions::new()
            .max_connections(config.readers)
            .min_connections(0)
            .test_before_acquire(false)
            .connect_with(options.pragma("query_only", "ON"))
            .await
            .map_err(|error| classify("open", error))?;
        Ok(Self {
            direct: Arc::new(Direct::new(&config)),
            writer,
            reader,
            clock: config.clock,
            clean_places: CleanPlaces::default(),
        })
    }

    /// Begins a writing transaction for your own statements and Semel's together: see [`crate::tx`].
    /// It waits up to 20 s for the writing connection, and up to `busy_timeout` for other processes. While it is open,
    /// whatever else writes to this store waits for it: a task that holds it must not call for keys, sagas or relays.
    ///
    /// # Errors
    /// Another process held the file for longer than `busy_timeout`, or another transaction of this one for 20 s.
    pub async fn begin(&self) -> Result<Transaction<'static, Driver>, StoreError> {
        let _turn = self.turn("begin").await?;
        // IMMEDIATE: a deferred transaction that becomes a writer fails at once, whatever the busy time-out.
        self.writer
            .begin_with("BEGIN IMMEDIATE")
            .await
            .map_err(|error| waited("begin", error))
    }

    /// Waits until nobody else of this process begins to write. To be kept until a transaction has begun or a statement
    /// that commits by itself has ended.
    pub(crate) async fn turn(&self, operation: &'static str) -> Result<OwnedSemaphorePermit, StoreError> {
        self.direct.turn(operation).await
    }

    /// Runs `work` on a connection of our own, in a transaction of its own: see [`Direct::write`].
    pub(crate) async fn write_directly<R: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Connection) -> Result<(R, Changed), StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        let turn = self.turn(operation).await?;
        if self.writer.num_idle() == 0 {
            // The driver's transaction is still open. It is back before SQLite is asked, which would look for its end now
            // and then; and nobody begins another one, for it is our turn.
            drop(
                self.writer
                    .acquire()
                    .await
                    .map_err(|error| waited(operation, error))?,
            );
        }
        self.direct.write(operation, turn, work).await
    }

    /// Runs `work` on what is committed now: see [`Direct::read`].
    pub(crate) async fn read_directly<R: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Connection) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        self.direct.read(operation, work).await
    }

    /// Commits.
    ///
    /// # Errors
    /// `ReplyLost` when it cannot be told whether the commit is durable.
    pub async fn commit(&self, tx: Transaction<'static, Driver>) -> Result<(), StoreError> {
        tx.commit().await.map_err(|error| commit_failed("commit", error))
    }

    /// Connections that only read, for your own queries.
    #[must_use]
    pub const fn readers(&self) -> &SqlitePool {
        &self.reader
    }

    /// The time of leases and deadlines in this store.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Closes all connections; later calls fail.
    pub async fn close(&self) {
        self.direct.close().await;
        self.reader.close().await;
        self.writer.close().await;
    }
}

/// The kind of an error of waiting for the writing connection.
fn waited(operation: &'static str, error: sqlx::Error) -> StoreError {
    if !matches!(error, sqlx::Error::PoolTimedOut) {
        return classify(operation, error);
    }
    let text = "a transaction of this process (Sqlite::begin) has been open for more than 20 s, so nothing was done; if the \
                task that holds it is the one that waits here, end the transaction first";
    StoreError::new(ErrorKind::NotApplied, operation, text).with_source(error)
}

/// The pool of the writing connection, with that connection open and the file in WAL mode.
///
/// SQLite does not call its busy handler while a file changes to WAL mode: of several processes that open a new file,
/// all but one are told at once that it is locked. They ask again here. (Test: several_processes_may_migrate_…)
async fn first_connection(
    config: &Config,
    options: &SqliteConnectOptions,
) -> Result<SqlitePool, sqlx::Error> {
    let waited = tokio::time::sleep(config.busy_timeout);
    tokio::pin!(waited);
    loop {
        match writing(options.clone()).await {
            Err(error) if is_busy(&error) && !waited.is_elapsed() => tokio::select! {
                biased;
                () = &mut waited => {}
                () = tokio::time::sleep(OPEN_AGAIN) => {}
            },
            done => return done,
        }
    }
}

async fn writing(options: SqliteConnectOptions) -> Result<SqlitePool, sqlx::Error> {
    SqlitePoolOptions::new()
        .max_connections(1)
        .acquire_timeout(WRITER_WAIT)
        // There is no network between; what can be wrong with it is looked at when it comes back.
        .test_before_acquire(false)
        // SQLite rolls back by itself when the disk is full or fails. The driver does not notice, and would refuse
        // every later BEGIN on that connection: it is replaced. (Test: a_transaction_that_sqlite_rolled_back_…)
        .after_release(|connection, _| {
            Box::pin(async move {
                // After a commit there is nothing to wait for: that is known before it is answered.
                if connection.is_in_transaction() {
                    // Answered after a pending rollback has been carried out.
                    connection.ping().await?;
                }
                Ok(!connection.is_in_transaction())
            })
        })
        .connect_with(options)
        .await
}
