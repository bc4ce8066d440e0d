//! Single statements on a pool, also where a pooler in transaction mode stands in between.
//!
//! Such a pooler may give each transaction another server connection. So nothing of a session can be relied on: settings
//! of the start-up message, named statements, and even Parse and Bind of one statement reaching the same server. There
//! each statement gets a transaction of its own, which begins with the settings it needs.

use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgConnection, PgPool, PgPoolOptions, PgQueryResult, PgRow, PgTypeInfo};
use sqlx::query::{Query, QueryAs, QueryScalar};
use sqlx::{
    Acquire as _, AssertSqlSafe, Connection as _, Either, Error, Execute, Executor, FromRow,
    Postgres as Driver, SqlSafeStr, SqlStr, Transaction,
};
use tokio::runtime::Handle;

/// How connections reach the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pooler {
    /// Directly, or through a pooler that keeps a server connection for as long as the client's (session mode).
    #[default]
    None,
    /// Through PgBouncer or its like in transaction mode (`pool_mode = transaction`).
    Transaction,
}

/// Whether some handle of this process goes through a pooler in transaction mode.
static UNNAMED: AtomicBool = AtomicBool::new(false);

/// Whether statements may be prepared by name. A function that is given a transaction cannot see where it leads, so from
/// the first handle with a pooler on all statements of the process are sent unnamed: that works everywhere, at the price
/// of a round trip more.
fn named() -> bool {
    !UNNAMED.load(Ordering::Relaxed)
}

pub(crate) fn query<'q>(sql: impl SqlSafeStr) -> Query<'q, Driver, PgArguments> {
    sqlx::query(sql).persistent(named())
}

pub(crate) fn query_scalar<'q, O>(sql: impl SqlSafeStr) -> QueryScalar<'q, Driver, O, PgArguments>
where
    (O,): for<'r> FromRow<'r, PgRow>,
{
    sqlx::query_scalar(sql).persistent(named())
}

pub(crate) fn query_as<'q, O>(sql: impl SqlSafeStr) -> QueryAs<'q, Driver, O, PgArguments>
where
    O: for<'r> FromRow<'r, PgRow>,
{
    sqlx::query_as(sql).persistent(named())
}

/// A pool. As an executor it carries out one statement, which is durable when it answers.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    pool: PgPool,
    /// Begins each transaction, where there is no session to keep its settings.
    begin: Option<&'static str>,
    /// How long a statement may go without an answer.
    answer: Option<Duration>,
}

/// What goes on in a task of its own when nobody waits for it any more.
struct ToItsEnd<T: Send + 'static> {
    rest: Option<BoxFuture<'static, T>>,
    runtime: Handle,
}

impl<T: Send + 'static> ToItsEnd<T> {
    fn new(whole: impl Future<Output = T> + Send + 'static) -> Self {
        Self {
            rest: Some(Box::pin(whole)),
            runtime: Handle::current(),
        }
    }
}

impl<T: Send + 'static> Future for ToItsEnd<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(rest) = &mut self.rest else {
            return Poll::Pending; // It has been told, and is not asked again.
        };
        let done = rest.poll_unpin(context);
        if done.is_ready() {
            self.rest = None;
        }
        done
    }
}

impl<T: Send + 'static> Drop for ToItsEnd<T> {
    fn drop(&mut self) {
        if let Some(rest) = self.rest.take() {
            drop(self.runtime.spawn(async move { drop(rest.await) }));
        }
    }
}

/// What a session's start-up message says otherwise.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit = on";
/// The same where a statement comes before BEGIN.
const BEGIN_AFTER: &str =
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit = on; ";
/// With the settings of Semel's own statements.
const BEGIN_OWN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit = on; \
    SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off; SET LOCAL search_path = pg_catalog, pg_temp";

/// A connection that has not been used for so long is asked whether it lives before it is used.
const ASKED_AFTER: Duration = Duration::from_millis(500);

impl Gate {
    /// For the user's statements, or with a time for their answer for Semel's own.
    pub(crate) fn new(pool: PgPool, pooler: Pooler, answer: Option<Duration>) -> Self {
        let begin = match pooler {
            Pooler::None => None,
            Pooler::Transaction => {
                UNNAMED.store(true, Ordering::Relaxed);
                Some(if answer.is_some() { BEGIN_OWN } else { BEGIN })
            }
        };
        Self { pool, begin, answer }
    }

    /// A pool of these options: lazily, so that nothing fails here.
    pub(crate) fn options(connections_max: u32, acquire_timeout: Duration) -> PgPoolOptions {
        PgPoolOptions::new()
            .max_connections(connections_max)
            .acquire_timeout(acquire_timeout)
            // The pool asks each connection as it comes back; before it goes out again only what has lain there for a while
            // need be asked, which else costs every statement a round trip.
            .test_before_acquire(false)
            .before_acquire(|connection, idle| {
                Box::pin(async move {
                    if idle.idle_for >= ASKED_AFTER {
                        connection.ping().await?;
                    }
                    Ok(true)
                })
            })
    }

    pub(crate) const fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Whether connections are given for a transaction at a time.
    pub(crate) const fn pooled(&self) -> bool {
        self.begin.is_some()
    }

    /// Begins a transaction with its settings.
    pub(crate) async fn begin(&self) -> Result<Transaction<'static, Driver>, Error> {
        match self.begin {
            None => self.pool.begin().await,
            Some(begin) => self.pool.begin_with(begin).await,
        }
    }

    /// Begins a transaction whose first statement this is, in one message. When it raises, no transaction is left open: it
    /// comes before BEGIN, which takes what came before it in the same message into the transaction.
    ///
    /// It goes on when it is given up half-way: else the connection would go back inside a transaction of which the driver
    /// does not know, and whoever gets it next would commit what the statement wrote.
    /// For the same reason it keeps what is held while it waits, until the statement is over.
    pub(crate) async fn begin_after(
        &self,
        first: &str,
        held: impl Send + 'static,
    ) -> Result<Transaction<'static, Driver>, Error> {
        let before = self.begin.map_or("", |_| BEGIN_AFTER);
        let begin = AssertSqlSafe(format!("{before}{first}; BEGIN"));
        let pool = self.pool.clone();
        ToItsEnd::new(async move {
            let begun = pool.begin_with(begin).await;
            drop(held);
            begun
        })
        .await
    }

    /// Gives the rows of a statement to `take`, one by one, until it breaks. The connection is then closed: what is left
    /// would have to be read before anyone could use it, a lease's renewal among them. In a pooler's transaction it is read.
    pub(crate) async fn take_rows<'q>(
        &self,
        query: Query<'q, Driver, PgArguments>,
        take: impl FnMut(&PgRow) -> ControlFlow<()> + Send,
    ) -> Result<(), Error> {
        let mut connection = self.pool.acquire().await?;
        let taken = self
            .in_time(take_on(&mut connection, self.begin, query, take))
            .await;
        match taken {
            Some(Ok(ControlFlow::Continue(()))) => Ok(()),
            Some(Ok(ControlFlow::Break(()))) => connection.detach().close_hard().await,
            Some(Err(error)) => Err(error),
            None => Err(self.given_up(connection)),
        }
    }

    async fn rows<'q, E: 'q + Execute<'q, Driver>>(self, query: E) -> Result<Vec<Answer>, Error> {
        let connection = self.pool.acquire().await?;
        self.answers(connection, query).await
    }

    /// What a statement answers on this connection.
    pub(crate) async fn answers<'q, E: 'q + Execute<'q, Driver>>(
        &self,
        mut connection: PoolConnection<Driver>,
        query: E,
    ) -> Result<Vec<Answer>, Error> {
        let answers = self.in_time(answers_on(&mut connection, self.begin, query)).await;
        answers.unwrap_or_else(|| Err(self.given_up(connection)))
    }

    /// `None` when the time is over.
    async fn in_time<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        match self.answer {
            None => Some(answer.await),
            Some(limit) => tokio::time::timeout(limit, answer).await.ok(),
        }
    }

    /// Closes a connection that gave no answer: it may be that nobody is at its other end. Given back, it would keep its place
    /// in the pool for as long as the operating system believes in it.
    fn given_up(&self, connection: PoolConnection<Driver>) -> Error {
        drop(connection.detach());
        let ms = self.answer.unwrap_or_default().as_millis();
        let text = format!("no answer within answer_timeout = {ms} ms");
        Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, text))
    }
}

/// One part of what a statement answers.
type Answer = Either<PgQueryResult, PgRow>;

async fn answers_on<'q, E: 'q + Execute<'q, Driver>>(
    connection: &mut PgConnection,
    begin: Option<&'static str>,
    query: E,
) -> Result<Vec<Answer>, Error> {
    let Some(begin) = begin else {
        return connection.fetch_many(query).try_collect().await;
    };
    let mut tx = connection.begin_with(begin).await?;
    let rows = tx.acquire().await?.fetch_many(query).try_collect().await?;
    tx.commit().await?;
    Ok(rows)
}

async fn take_on<'q>(
    connection: &mut PgConnection,
    begin: Option<&'static str>,
    query: Query<'q, Driver, PgArguments>,
    take: impl FnMut(&PgRow) -> ControlFlow<()> + Send,
) -> Result<ControlFlow<()>, Error> {
    let Some(begin) = begin else {
        return take_rows(connection, query, take).await;
    };
    let mut tx = connection.begin_with(begin).await?;
    let _ = take_rows(&mut *tx, query, take).await?;
    tx.commit().await?;
    Ok(ControlFlow::Continue(()))
}

async fn take_rows<'c, 'q: 'c>(
    executor: impl Executor<'c, Database = Driver>,
    query: Query<'q, Driver, PgArguments>,
    mut take: impl FnMut(&PgRow) -> ControlFlow<()> + Send,
) -> Result<ControlFlow<()>, Error> {
    let mut rows = query.fetch(executor);
    while let Some(row) = rows.try_next().await? {
        if take(&row).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

impl<'p> Executor<'p> for &'_ Gate {
    type Database = Driver;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Driver>,
    {
        if !self.pooled() && self.answer.is_none() {
            return self.pool.fetch_many(query);
        }
        let rows = self.clone().rows(query);
        stream::once(rows)
            .map_ok(|rows| stream::iter(rows.into_iter().map(Ok)))
            .try_flatten()
            .boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Driver>,
    {
        if !self.pooled() && self.answer.is_none() {
            return self.pool.fetch_optional(query);
        }
        let rows = self.clone().rows(query);
        Box::pin(async move { Ok(rows.await?.into_iter().find_map(Either::right)) })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<sqlx::postgres::PgStatement, Error>>
    where
        'p: 'e,
    {
        self.pool.prepare_with(sql, parameters)
    }
}
