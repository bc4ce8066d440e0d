//! A whole transaction under a key, in hardly more round trips than the transaction alone.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_core::claim::{Nonce, check_outcome, once as machine, step};
use semel_core::host::dice;
use semel_core::key::hex;
use semel_core::{ErrorKind, Fingerprint, Key, Retry, StoreError, StoredOutcome, crash_point};
use sqlx::postgres::PgDatabaseError;
use sqlx::{AssertSqlSafe, Postgres as Driver, Transaction};

use super::keys::{Once as Asked, OnceOptions, WAITERS, once};
use super::transact::{LOOK, REPEAT, TxError, TxFuture};
use crate::db::Postgres;
use crate::error::{classify, commit_failed};
use crate::gate::query_scalar;
use crate::store::autocommit::code;
use crate::store::key_rows::Answer;
use crate::store::keys::{NO_TOKEN, read_statement};

/// Outcomes up to this many bytes travel in the text of the last statement, together with the commit.
const FOLDED_BYTES_MAX: usize = 65_536;
/// The function's answer that the key is taken: see `sql/0005_once_functions.sql`.
const TAKEN: &str = "SM212";
/// There is no statement of this name in this session.
const NOT_PREPARED: &str = "26000";
/// Prepares the statements of a session: the first message of each, and once more where they are missing.
pub(crate) const PREPARE_SQL: &str = include_str!("../sql/once_prepare.sql");

/// Transactions of a handle that ask before they begin, after a key was taken.
const ASKS_FIRST: u32 = 100;

/// When [`transact_once`] writes its mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mark {
    /// With the first statement: a duplicate waits for the first one and does no work. For work that costs, or that may
    /// meet on rows.
    #[default]
    First,
    /// With the last statement, already finished: one write less. A duplicate does its work in vain, which is then rolled
    /// back; so only for work whose every effect is in the transaction.
    Last,
}

/// What became of a transaction under a key. `First` holds the outcome of this very run.
pub type OnceOutcome = semel_core::claim::Once<StoredOutcome>;

/// Runs `body` in a transaction under `key`, stores the outcome that it returns, and commits all of it; or says what
/// became of the key before. The mark travels with BEGIN or with COMMIT, the outcome with COMMIT: there are no more round trips
/// than the transaction alone has, save where keys were taken of late.
///
/// # Guarantees
/// *Atomic*, as [`once`](super::once()). `body` is repeated as [`transact`](super::transact()) does; after a lost commit
/// reply the key is asked by a write that waits for it (rule K5), so that the answer is certain, a restart of the server
/// included. With [`Mark::Last`] a `body` that fails is answered by the key's outcome where a duplicate was faster.
///
/// # Errors
/// As [`transact`](super::transact()). `ReplyLost` when the server could not be asked in time.
///
/// ```no_run
/// # async fn f(db: &semel_postgres::Postgres, key: semel_core::Key) -> Result<(), Box<dyn std::error::Error>> {
/// use semel_core::{Fingerprint, claim::{Once, succeeded}};
/// use semel_postgres::tx::{Mark, OnceOptions, TxError, transact_once};
/// let asked = Fingerprint::of(b"40.00 to Ada");
/// let done = transact_once(db, &key, asked, Mark::First, OnceOptions::default(), |tx| Box::pin(async move {
///     sqlx::query("UPDATE account SET cents = cents + 4000 WHERE name = 'Ada'").execute(&mut **tx).await?;
///     Ok::<_, TxError<std::io::Error>>(succeeded("paid"))
/// }))
/// .await?;
/// let answer = match done {
///     Once::First(outcome) | Once::Done { outcome, .. } => outcome,
///     other => return Err(format!("not now: {other:?}").into()),
/// };
/// # Ok(()) }
/// ```
pub async fn transact_once<'env, E>(
    db: &Postgres,
    key: &Key,
    fingerprint: Fingerprint,
    mark: Mark,
    options: OnceOptions,
    mut body: impl for<'c> FnMut(&'c mut Transaction<'env, Driver>) -> TxFuture<'c, StoredOutcome, E>,
) -> Result<OnceOutcome, TxError<E>> {
    options.keep.check().map_err(StoreError::from)?;
    let run = Run {
        db,
        key,
        fingerprint,
        options,
    };
    let mut attempt = 1;
    loop {
        let nonce = Nonce::random();
        // Prepared statements have no session behind a pooler. Nor do they know more than new keys: a repeat asks by the
        // functions, which know all.
        let form = if attempt > 1 || db.gate.pooled() {
            Form::Functions
        } else {
            Form::Prepared
        };
        let error = match run.attempt(mark, form, nonce, &mut body).await {
            Ok(done) => return Ok(done),
            Err(TxError::Store(error)) if error.retry() == Retry::Later => error,
            Err(error) => return Err(error),
        };
        let Some(delay) = REPEAT.delay_ms(attempt, 0, dice()) else {
            return Err(TxError::Store(error));
        };
        tracing::debug!(attempt, %error, "transaction is repeated");
        tokio::time::sleep(Duration::from_millis(delay)).await;
        attempt += 1;
    }
}

struct Run<'a> {
    db: &'a Postgres,
    key: &'a Key,
    fingerprint: Fingerprint,
    options: OnceOptions,
}

/// How marks and their ends are sent. Their text is parsed and planned each time, unless they are prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Prepared,
    Functions,
}

/// Adds a literal, whatever the session's `standard_conforming_strings` is, and what comes after it.
fn push(text: &mut String, bytes: &[u8], after: &str) {
    text.push_str("E'\\\\x");
    text.push_str(&hex(bytes));
    text.push('\'');
    text.push_str(after);
}

impl Run<'_> {
    fn push_name(&self, text: &mut String) {
        push(text, self.key.scope().as_bytes(), ", ");
        push(text, self.key.id(), ", ");
    }

    async fn attempt<'env, E>(
        &self,
        mark: Mark,
        form: Form,
        mut nonce: Nonce,
        body: &mut impl for<'c> FnMut(&'c mut Transaction<'env, Driver>) -> TxFuture<'c, StoredOutcome, E>,
    ) -> Result<OnceOutcome, TxError<E>> {
        let mut tx: Transaction<'env, Driver> = match mark {
            Mark::First => match self.begin_marked(form, &mut nonce).await? {
                Ok(tx) => tx,
                Err(told) => return Ok(told),
            },
            Mark::Last => self.db.begin().await?,
        };
        let outcome = match body(&mut tx).await {
            Ok(outcome) => outcome,
            Err(error) => {
                roll_back(tx).await;
                // What it met may be the work of the duplicate that was faster.
                return match (mark, self.told().await) {
                    (Mark::Last, Ok(told)) => Ok(told),
                    _ => Err(error),
                };
            }
        };
        if let Err(limit) = check_outcome(&outcome) {
            roll_back(tx).await;
            return Err(StoreError::from(limit).into());
        }
        crash_point("once.before_commit");
        let committed = self.commit(tx, mark, form, nonce, &outcome).await;
        let error = match committed {
            Ok(()) => {
                crash_point("once.committed");
                return Ok(OnceOutcome::First(outcome));
            }
            Err(error) => error,
        };
        match code(&error).as_deref() {
            _ if is_taken(&error) => Ok(self.told().await?),
            Some(NOT_PREPARED) => {
                let text = "the session has lost its prepared statements";
                Err(StoreError::new(ErrorKind::NotApplied, "commit", text)
                    .with_source(error)
                    .into())
            }
            // Refused before the commit was tried.
            Some("SM210" | "SM211" | "25P02") => Err(classify("commit", error).into()),
            _ => {
                let error = commit_failed("commit", error);
                if error.retry() != Retry::OutcomeUnknown {
                    return Err(error.into());
                }
                match self.is_mine(nonce).await {
                    Ok(true) => Ok(OnceOutcome::First(outcome)),
                    Ok(false) => {
                        let text = "the connection broke and the server rolled back";
                        Err(StoreError::new(ErrorKind::NotApplied, "commit", text).into())
                    }
                    Err(look) => {
                        tracing::debug!(error = %look, "looking for a lost commit");
                        Err(error.into())
                    }
                }
            }
        }
    }

    /// Begins with the mark, in one round trip; or says how the key stands. That it is taken is an error in the server, and
    /// a line in its log: after one the next few ask by a statement of their own, which is none.
    async fn begin_marked(
        &self,
        form: Form,
        nonce: &mut Nonce,
    ) -> Result<Result<Transaction<'static, Driver>, OnceOutcome>, StoreError> {
        let asks = &self.db.asks_first;
        let fewer = |left: u32| left.checked_sub(1);
        if asks
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer)
            .is_err()
        {
            let mut begun = self.begin_with_mark(form, *nonce).await;
            if matches!(&begun, Some(Err(error)) if code(error).as_deref() == Some(NOT_PREPARED)) {
                begun = self.begin_with_mark(Form::Functions, *nonce).await;
            }
            match begun {
                None => return Ok(Err(OnceOutcome::Busy { lease_left_ms: 0 })),
                Some(Ok(tx)) => return Ok(Ok(tx)),
                Some(Err(error)) if is_taken(&error) => {}
                Some(Err(error)) => return Err(classify("once", error)),
            }
        }
        let mut tx = self.db.begin().await?;
        match once(&mut tx, self.key, self.fingerprint, self.options).await? {
            Asked::First(pending) => {
                *nonce = pending.nonce();
                Ok(Ok(tx))
            }
            told => {
                roll_back(tx).await;
                asks.store(ASKS_FIRST, Ordering::Relaxed);
                // It is not the first.
                Ok(Err(told.map_first(|_| StoredOutcome::Forgotten)))
            }
        }
    }

    /// `None` where too many wait for the key.
    async fn begin_with_mark(
        &self,
        form: Form,
        nonce: Nonce,
    ) -> Option<Result<Transaction<'static, Driver>, sqlx::Error>> {
        let waiting = WAITERS.enter(self.key, self.options.waiters_max.max(1))?;
        let mark = self.mark(form, nonce, &StoredOutcome::Forgotten);
        Some(self.db.gate.begin_after(&mark, waiting).await)
    }

    /// The statement that marks the key as done with this outcome, or raises.
    fn mark(&self, form: Form, nonce: Nonce, outcome: &StoredOutcome) -> String {
        let mut text = self.call(form, "EXECUTE semel_mark(", "SELECT semel.once_last(");
        self.push_name(&mut text);
        push(&mut text, &self.fingerprint.to_bytes(), ", ");
        let keep = self.options.keep;
        let (retention, tombstone) = (keep.retention_ms, keep.tombstone_ms);
        if form == Form::Prepared {
            push(&mut text, &nonce.0, ", ");
            let _ = write!(text, "'{}', ", outcome.code());
            push(&mut text, outcome.bytes(), ", ");
            let _ = write!(text, "{retention}, {tombstone})");
        } else {
            push(&mut text, outcome.bytes(), ", ");
            let _ = write!(text, "'{}', {retention}, {tombstone}, ", outcome.code());
            push(&mut text, &nonce.0, ")");
        }
        text
    }

    /// The statement that stores the outcome of a marked key, or raises.
    fn end(&self, form: Form, nonce: Nonce, outcome: &StoredOutcome) -> String {
        let mut text = self.call(form, "EXECUTE semel_end(", "SELECT semel.once_end(");
        self.push_name(&mut text);
        push(&mut text, &nonce.0, ", ");
        push(&mut text, outcome.bytes(), ", ");
        let _ = write!(text, "'{}')", outcome.code());
        text
    }

    /// The beginning of such a statement. Where it is not prepared and might have been, the session is given what it lacks.
    fn call(&self, form: Form, prepared: &str, function: &str) -> String {
        let mut text = String::with_capacity(1_024);
        if form == Form::Functions && !self.db.gate.pooled() {
            text.push_str(PREPARE_SQL);
            text.push_str("; ");
        }
        text.push_str(if form == Form::Prepared {
            prepared
        } else {
            function
        });
        text
    }

    /// Stores the outcome and commits. The statement of the outcome is the last one before the commit and fails in a
    /// transaction that has failed, where COMMIT alone would not (rule O8).
    async fn commit(
        &self,
        mut tx: Transaction<'_, Driver>,
        mark: Mark,
        form: Form,
        nonce: Nonce,
        outcome: &StoredOutcome,
    ) -> Result<(), sqlx::Error> {
        let mut end = match mark {
            Mark::First => self.end(form, nonce, outcome),
            Mark::Last => self.mark(form, nonce, outcome),
        };
        let folded = outcome.bytes().len() <= FOLDED_BYTES_MAX;
        if folded {
            // The next transaction, which is empty, is what the driver ends when this value is dropped: it does not know
            // of a commit that it has not sent, and a ROLLBACK outside of a transaction is a warning in the server's log.
            end.push_str("; COMMIT AND CHAIN");
        }
        sqlx::raw_sql(AssertSqlSafe(end)).execute(&mut *tx).await?;
        if !folded {
            tx.commit().await?;
        }
        Ok(())
    }

    /// How a key stands that is taken.
    async fn told(&self) -> Result<OnceOutcome, StoreError> {
        let operation = "once";
        let failed = |error| classify(operation, error);
        let keys = [self.key];
        let rows = self.db.autocommit(operation, || read_statement(&keys)).await?;
        let row = rows.first().ok_or_else(|| failed(sqlx::Error::RowNotFound))?;
        let Answer { now, seen, .. } = Answer::read(row).map_err(failed)?;
        let record = seen?;
        let fresh = machine::fresh(NO_TOKEN);
        let keep = self.options.keep;
        let (after, told) = machine::decide(record.clone(), self.key, self.fingerprint, keep, now, fresh);
        if step::changes(record.as_ref(), after.as_ref(), now) {
            let text = "the key was taken and is free again; repeat the whole transaction";
            return Err(StoreError::new(ErrorKind::NotApplied, operation, text));
        }
        // Nothing was granted, so there is no first.
        Ok(told.map_first(|_| StoredOutcome::Forgotten))
    }

    /// Whether the run of this nonce is committed. The mark of a transaction that is still committing is waited for, by a
    /// mark of our own that is taken back (rule K5).
    async fn is_mine(&self, nonce: Nonce) -> Result<bool, StoreError> {
        let failed = |error| classify("commit", error);
        let mut tx = self.db.begin().await?;
        // Whoever holds the row now may be anybody, for any time.
        let patience = query_scalar::<String>("SELECT set_config('lock_timeout', $1, true)");
        let patience = patience.bind(format!("{}ms", LOOK.as_millis()));
        patience.fetch_one(&mut *tx).await.map_err(failed)?;
        let asked = once(&mut tx, self.key, self.fingerprint, self.options).await?;
        if matches!(asked, Asked::First(_)) {
            roll_back(tx).await;
            return Ok(false);
        }
        if matches!(asked, Asked::Busy { .. }) {
            return Err(StoreError::new(
                ErrorKind::NotApplied,
                "commit",
                "the key is busy",
            ));
        }
        let stored: Option<Option<Vec<u8>>> =
            query_scalar("SELECT nonce FROM semel.key WHERE scope = $1 AND id = $2")
                .bind(self.key.scope().as_bytes())
                .bind(self.key.id())
                .fetch_optional(&mut *tx)
                .await
                .map_err(failed)?;
        roll_back(tx).await;
        Ok(stored.flatten().as_deref() == Some(&nonce.0[..]))
    }
}

/// Whether the key of a mark has a row already. A mark is the only statement here that adds one.
fn is_taken(error: &sqlx::Error) -> bool {
    let Some(error) = error.as_database_error() else {
        return false;
    };
    error.code().as_deref() == Some(TAKEN)
        || error.try_downcast_ref::<PgDatabaseError>().is_some_and(|error| {
            error.code() == "23505" && (error.schema(), error.table()) == (Some("semel"), Some("key"))
        })
}

/// Awaited, so that its row locks are gone; what was not committed is gone in any case.
async fn roll_back(tx: Transaction<'_, Driver>) {
    if let Err(error) = tx.rollback().await {
        tracing::debug!(%error, "rollback");
    }
}
