//! The barrier of a saga's participant, inside your own transaction.

use semel_core::saga::barrier::{BarrierRow, Verdict, decide, nothing_undone};
use semel_core::saga::{BarrierCall, BarrierCode, Op};
use semel_core::{Clock as _, ErrorKind, StoreError, StoredOutcome, SystemClock, crash_point, limits};
use sqlx::{Row, Sqlite as Driver, Transaction};

use crate::error::classify;

const OPERATION: &str = "barrier";

/// What the barrier says to a call. Commit the transaction in every case: a compensation with nothing to undo has
/// written the row that turns its late action away.
#[derive(Debug)]
pub enum Barrier {
    /// Do the work in this transaction, then [`PendingBarrier::store`] what came of it.
    Run(PendingBarrier),
    /// It was done before: answer this.
    Replay(StoredOutcome),
    /// Turn the call away with this code: see [`BarrierCode::http_status`].
    Refused(BarrierCode),
    /// A compensation whose action never happened, and now never will: answer success.
    NothingToUndo,
    /// Another transaction runs this step right now: answer 425. (Never here: SQLite has one writer, so the other one
    /// has ended before this one began.)
    Busy,
}

/// A call that may do its work.
#[derive(Debug)]
#[must_use = "store what came of the call; committing without it makes every repetition an error"]
pub struct PendingBarrier {
    call: BarrierCall,
}

/// Asks the barrier. Begin the transaction with [`Sqlite::begin`](crate::Sqlite::begin); the business tables live in
/// the same file.
///
/// # Guarantees
/// Action and compensation may come in any order, twice or at once: the effect happens at most once, its undoing at
/// most once and only after it; duplicates get the first answer. A crash before the commit leaves nothing, one after it
/// everything.
///
/// # Errors
/// The store's; `Corrupt` when an earlier call of this step committed without storing its answer.
///
/// ```
/// # use semel_sqlite::{Sqlite, tx::{self, Barrier}};
/// # use semel_core::{StoredOutcome, saga::{BarrierCall, Op}};
/// # async fn charge(db: &Sqlite, headers: http::HeaderMap, body: &[u8]) -> Result<StoredOutcome, Box<dyn std::error::Error>> {
/// let call = BarrierCall::from_headers(&headers)?;
/// let mut tx = db.begin().await?;
/// let answer = match tx::barrier(&mut tx, &call).await? {
///     Barrier::Run(pending) => {
///         let paid = match call.op {
///             Op::Action => sqlx::query("INSERT INTO payment (saga) VALUES (?1)"),
///             Op::Compensation => sqlx::query("UPDATE payment SET refunded = 1 WHERE saga = ?1"),
///         };
///         paid.bind(call.saga.as_str()).execute(&mut *tx).await?;
///         let outcome = StoredOutcome::Succeeded("paid".into());
///         pending.store(&mut tx, outcome.clone()).await?;
///         outcome
///     }
///     Barrier::Replay(outcome) => outcome,
///     Barrier::NothingToUndo => StoredOutcome::Succeeded("".into()),
///     Barrier::Refused(code) => StoredOutcome::Refused(code.as_str().into()),
///     Barrier::Busy => return Err("try again".into()),
/// };
/// db.commit(tx).await?;
/// # Ok(answer) }
/// ```
pub async fn barrier(tx: &mut Transaction<'_, Driver>, call: &BarrierCall) -> Result<Barrier, StoreError> {
    call.check()?;
    let (action, undo) = rows(tx, call).await?;
    let verdict = decide(call, action.as_ref(), undo.as_ref());
    let answer = match verdict {
        Verdict::Run => {
            insert(tx, call, call.op, None).await?;
            // What the business work has written is taken back when it is refused.
            execute(tx, "SAVEPOINT semel_barrier").await?;
            crash_point("barrier.marked");
            Barrier::Run(PendingBarrier { call: call.clone() })
        }
        Verdict::NothingToUndo => {
            if action.is_none() {
                insert(tx, call, Op::Action, Some(&nothing_undone())).await?;
            }
            insert(tx, call, Op::Compensation, Some(&nothing_undone())).await?;
            Barrier::NothingToUndo
        }
        Verdict::Replay(outcome) => Barrier::Replay(outcome),
        Verdict::Refuse(code) => return Ok(Barrier::Refused(code)),
        Verdict::Unfinished => {
            let text =
                "an earlier call of this step committed without `store`: mend the participant, then the row";
            return Err(StoreError::new(ErrorKind::Corrupt, OPERATION, text));
        }
    };
    remember_epoch(tx, call).await?;
    Ok(answer)
}

impl PendingBarrier {
    /// Stores what came of the call, in the same transaction. A refusal takes back what the work has written since
    /// [`barrier`]; only the refusal itself is kept. Call it last, before the commit.
    ///
    /// # Errors
    /// An answer larger than [`limits::OUTCOME_BYTES_MAX`], or the store's: roll back, nothing has happened.
    pub async fn store(
        self,
        tx: &mut Transaction<'_, Driver>,
        outcome: StoredOutcome,
    ) -> Result<(), StoreError> {
        let (bytes, max) = (outcome.bytes().len() as u64, limits::OUTCOME_BYTES_MAX as u64);
        limits::check(
            "response",
            "bytes",
            bytes,
            0,
            max,
            "answer with a reference to what is stored elsewhere",
        )?;
        if let StoredOutcome::Refused(_) = outcome {
            execute(tx, "ROLLBACK TO semel_barrier").await?;
        }
        execute(tx, "RELEASE semel_barrier").await?;
        sqlx::query(
            "UPDATE semel_barrier SET outcome = ?4, response = ?5 WHERE saga = ?1 AND step = ?2 AND op = ?3",
        )
        .bind(self.call.saga.as_str())
        .bind(&self.call.step)
        .bind(self.call.op.as_str())
        .bind(outcome.code())
        .bind(outcome.bytes())
        .execute(&mut **tx)
        .await
        .map_err(|error| classify(OPERATION, error))?;
        crash_point("barrier.before_commit");
        Ok(())
    }
}

async fn execute(tx: &mut Transaction<'_, Driver>, sql: &'static str) -> Result<(), StoreError> {
    sqlx::query(sql)
        .execute(&mut **tx)
        .await
        .map_err(|error| classify(OPERATION, error))?;
    Ok(())
}

/// The rows of action and compensation.
async fn rows(
    tx: &mut Transaction<'_, Driver>,
    call: &BarrierCall,
) -> Result<(Option<BarrierRow>, Option<BarrierRow>), StoreError> {
    let found = sqlx::query(
        "SELECT op, origin, epoch, outcome, response FROM semel_barrier WHERE saga = ?1 AND step = ?2",
    )
    .bind(call.saga.as_str())
    .bind(&call.step)
    .fetch_all(&mut **tx)
    .await
    .map_err(|error| classify(OPERATION, error))?;
    let corrupt = || {
        StoreError::new(
            ErrorKind::Corrupt,
            OPERATION,
            "a barrier row cannot be read by this build",
        )
    };
    let (mut action, mut undo) = (None, None);
    for row in found {
        let response: Option<Vec<u8>> = row.get("response");
        let outcome = match row.get::<Option<&str>, _>("outcome") {
            None => None,
            Some(code) => {
                let outcome = StoredOutcome::from_parts(code, response.unwrap_or_default().into());
                Some(outcome.ok_or_else(corrupt)?)
            }
        };
        let origin = Op::parse(row.get("origin")).ok_or_else(corrupt)?;
        let read = BarrierRow {
            origin,
            epoch: row.get("epoch"),
            outcome,
        };
        match Op::parse(row.get("op")).ok_or_else(corrupt)? {
            Op::Action => action = Some(read),
            Op::Compensation => undo = Some(read),
        }
    }
    Ok((action, undo))
}

async fn insert(
    tx: &mut Transaction<'_, Driver>,
    call: &BarrierCall,
    op: Op,
    outcome: Option<&StoredOutcome>,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO semel_barrier (saga, step, op, origin, epoch, outcome, response, not_after, called_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )
    .bind(call.saga.as_str())
    .bind(&call.step)
    .bind(op.as_str())
    .bind(call.op.as_str())
    .bind(call.epoch)
    .bind(outcome.map(StoredOutcome::code))
    .bind(outcome.map(StoredOutcome::bytes))
    .bind(call.not_after.map(|at| at.0))
    .bind(SystemClock.now().0)
    .execute(&mut **tx)
    .await
    .map_err(|error| classify(OPERATION, error))?;
    Ok(())
}

async fn remember_epoch(tx: &mut Transaction<'_, Driver>, call: &BarrierCall) -> Result<(), StoreError> {
    let done = sqlx::query(
        "UPDATE semel_barrier SET epoch = max(epoch, ?3), not_after = max(coalesce(not_after, 0), coalesce(?4, 0))
         WHERE saga = ?1 AND step = ?2 AND (epoch < ?3 OR coalesce(not_after, 0) < coalesce(?4, 0))",
    )
    .bind(call.saga.as_str())
    .bind(&call.step)
    .bind(call.epoch)
    .bind(call.not_after.map(|at| at.0))
    .execute(&mut **tx)
    .await;
    done.map_err(|error| classify(OPERATION, error))?;
    Ok(())
}
