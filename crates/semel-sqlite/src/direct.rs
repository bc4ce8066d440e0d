//! Connections of our own beside the driver's, for keys: a batch of them is many small statements, and the driver hands
//! each one to a thread and waits for it to come back. Here a whole batch, from its `BEGIN` to its commit, is one call on a
//! thread that may block ([decision 0038](../../../docs/decisions/0038-keys-on-sqlite-have-connections-of-their-own.md)).

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use semel_core::{ErrorKind, StoreError};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::Config;
use crate::error::{direct_commit_failed, direct_failed};

/// Statements that a connection keeps prepared.
const STATEMENTS: usize = 32;

/// How long a writer waits for those before it: as long as the driver's pool lets one wait.
const TURN_MAX: Duration = Duration::from_secs(30);

/// Whether a transaction changed anything.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Changed {
    Yes,
    No,
}

/// Connections between two calls. They are opened when they are first needed.
pub(crate) struct Direct {
    path: PathBuf,
    busy_timeout: Duration,
    pages_max: Option<u32>,
    writer: Mutex<Option<Connection>>,
    readers: Mutex<Vec<Connection>>,
    /// Whoever writes in this process holds it while a batch is carried out, or while a transaction of the driver begins.
    /// SQLite would let them wait for each other by looking now and then, and the same one could always be too late.
    turns: Arc<Semaphore>,
    /// Calls that may read at the same time.
    reading: Arc<Semaphore>,
    readers_max: u32,
}

impl Direct {
    pub(crate) fn new(config: &Config) -> Self {
        let readers_max = config.readers.max(1);
        Self {
            path: config.path.clone(),
            busy_timeout: config.busy_timeout,
            pages_max: config.pages_max,
            writer: Mutex::default(),
            readers: Mutex::default(),
            turns: Arc::new(Semaphore::new(1)),
            reading: Arc::new(Semaphore::new(readers_max as usize)),
            readers_max,
        }
    }

    /// Runs `work` in a writing transaction and commits it, or rolls it back when `work` says that nothing changed. `turn` is
    /// kept until that is over, whether anybody still waits for the answer or not.
    pub(crate) async fn write<R: Send + 'static>(
        self: &Arc<Self>,
        operation: &'static str,
        turn: OwnedSemaphorePermit,
        work: impl FnOnce(&Connection) -> Result<(R, Changed), StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        let direct = Arc::clone(self);
        blocking(operation, move || {
            let _turn = turn;
            let kept = lock(&direct.writer).take();
            let mut writer = direct.connection(operation, kept, false)?;
            let done = transaction(operation, &mut writer, work);
            // What it left open, or left to itself, is replaced by the next call.
            if writer.is_autocommit() && !matches!(&done, Err(error) if error.kind() == ErrorKind::ReplyLost)
            {
                *lock(&direct.writer) = Some(writer);
            }
            done
        })
        .await
    }

    /// Runs `work` on what is committed now.
    pub(crate) async fn read<R: Send + 'static>(
        self: &Arc<Self>,
        operation: &'static str,
        work: impl FnOnce(&Connection) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        let closed = |_| closed(operation);
        let turn = Arc::clone(&self.reading).acquire_owned().await.map_err(closed)?;
        let direct = Arc::clone(self);
        blocking(operation, move || {
            let _turn = turn;
            let kept = lock(&direct.readers).pop();
            let mut reader = direct.connection(operation, kept, true)?;
            let failed = |error| direct_failed(operation, error);
            // One moment for all statements; at its end there is nothing to commit.
            let snapshot = reader.transaction().map_err(failed)?;
            let read = work(&snapshot);
            snapshot.finish().map_err(failed)?;
            lock(&direct.readers).push(reader);
            read
        })
        .await
    }

    fn connection(
        &self,
        operation: &'static str,
        kept: Option<Connection>,
        reads: bool,
    ) -> Result<Connection, StoreError> {
        match kept {
            Some(connection) => Ok(connection),
            None => self.open(reads).map_err(|error| direct_failed(operation, error)),
        }
    }

    /// The file is there, and in WAL mode: the driver has opened it.
    fn open(&self, reads: bool) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(self.busy_timeout)?;
        // As the driver's connections are set: rule K7, and the user's own triggers.
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", "ON")?;
        if let Some(pages) = self.pages_max {
            // It answers with the number in force.
            connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
        }
        if reads {
            connection.pragma_update(None, "query_only", "ON")?;
        }
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        Ok(connection)
    }

    /// Waits until it is this call's turn to write, in the order in which calls came: see [`Direct::turns`].
    pub(crate) async fn turn(&self, operation: &'static str) -> Result<OwnedSemaphorePermit, StoreError> {
        if let Ok(turn) = Arc::clone(&self.turns).try_acquire_owned() {
            return Ok(turn);
        }
        let turn = tokio::time::timeout(TURN_MAX, Arc::clone(&self.turns).acquire_owned());
        match turn.await {
            Ok(turn) => turn.map_err(|_| closed(operation)),
            Err(_) => {
                let text =
                    "the writers before this one took more than 30 s; nothing was done, come back later";
                Err(StoreError::new(ErrorKind::NotApplied, operation, text))
            }
        }
    }

    /// Waits for what is running and closes the connections; later calls fail.
    pub(crate) async fn close(&self) {
        let turns = self.turns.acquire().await;
        let reading = self.reading.acquire_many(self.readers_max).await;
        self.turns.close();
        self.reading.close();
        drop((turns, reading));
        let (writer, readers) = self.take();
        // A panic while they close leaves nothing to say: they are gone.
        let _ = tokio::task::spawn_blocking(move || drop((writer, readers))).await;
    }

    fn take(&self) -> (Option<Connection>, Vec<Connection>) {
        (
            lock(&self.writer).take(),
            std::mem::take(&mut *lock(&self.readers)),
        )
    }
}

impl Drop for Direct {
    /// The last connection to be closed carries the log over into the file, which may take a while.
    fn drop(&mut self) {
        let connections = self.take();
        if let Ok(runtime) = Handle::try_current() {
            drop(runtime.spawn_blocking(move || drop(connections)));
        }
    }
}

fn transaction<R>(
    operation: &'static str,
    writer: &mut Connection,
    work: impl FnOnce(&Connection) -> Result<(R, Changed), StoreError>,
) -> Result<R, StoreError> {
    let failed = |error| direct_failed(operation, error);
    // When it is dropped it rolls back.
    let transaction = writer
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(failed)?;
    let (done, changed) = work(&transaction)?;
    match changed {
        Changed::Yes => transaction
            .commit()
            .map_err(|error| direct_commit_failed(operation, error))?,
        Changed::No => transaction.rollback().map_err(failed)?,
    }
    Ok(done)
}

/// Runs it on a thread that may block.
async fn blocking<R: Send + 'static>(
    operation: &'static str,
    work: impl FnOnce() -> Result<R, StoreError> + Send + 'static,
) -> Result<R, StoreError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_cancelled() => {
            let text = "the runtime has ended; nothing was begun";
            Err(StoreError::new(ErrorKind::NotApplied, operation, text))
        }
        Err(error) => {
            let text = "the thread that ran the statements panicked: look before repeating";
            Err(StoreError::new(ErrorKind::ReplyLost, operation, text).with_source(error))
        }
    }
}

fn closed(operation: &'static str) -> StoreError {
    StoreError::new(
        ErrorKind::NotApplied,
        operation,
        "the store is closed; nothing was done",
    )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic here is a failed test")]
mod tests {
    use super::*;
    use crate::Sqlite;

    /// Rule K7, on connections that the driver did not set.
    #[tokio::test]
    async fn connections_of_our_own_are_as_durable_and_as_strict_as_the_drivers() {
        let dir = tempfile::tempdir().unwrap();
        let db = Sqlite::open(Config::new(dir.path().join("a.db"))).await.unwrap();
        let settings = |db: &Connection| {
            let one = |name| {
                db.pragma_query_value(None, name, |row| row.get::<_, i64>(0))
                    .unwrap()
            };
            let mode: String = db
                .pragma_query_value(None, "journal_mode", |row| row.get(0))
                .unwrap();
            (mode, ["synchronous", "foreign_keys", "query_only"].map(one))
        };
        let writer = db.write_directly("test", move |db| Ok((settings(db), Changed::No)));
        assert_eq!(writer.await.unwrap(), ("wal".to_owned(), [2, 1, 0]));
        let reader = db.read_directly("test", move |db| Ok(settings(db)));
        assert_eq!(reader.await.unwrap(), ("wal".to_owned(), [2, 1, 1]));
    }

    #[tokio::test]
    async fn a_panic_is_unknown_leaves_nothing_and_disturbs_no_later_call() {
        let dir = tempfile::tempdir().unwrap();
        let db = Sqlite::open(Config::new(dir.path().join("a.db"))).await.unwrap();
        let create = |db: &Connection| db.execute_batch("CREATE TABLE t (a)").unwrap();
        let bug = db.write_directly::<()>("test", move |db| {
            create(db);
            panic!("a bug")
        });
        assert_eq!(bug.await.unwrap_err().kind(), ErrorKind::ReplyLost);
        let again = db.write_directly("test", move |db| {
            create(db);
            Ok(((), Changed::Yes))
        });
        again.await.unwrap();
        let read = db.read_directly("test", |db| {
            Ok(db
                .query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0))
                .unwrap())
        });
        assert_eq!(read.await.unwrap(), 0);
    }
}
