//! The barrier of a saga's participant, inside your own transaction.

use std::time::Duration;

use semel_core::saga::{BarrierCall, BarrierCode};
use semel_core::{ErrorKind, StoreError, StoredOutcome, Timestamp, crash_point, limits};
use sqlx::{Postgres as Driver, Row as _, Transaction};

use crate::error::classify;
use crate::gate::query;
use crate::store::autocommit::lock_timeout;

const OPERATION: &str = "barrier";
/// How long [`barrier`] waits for an open call of the same step.
pub const BARRIER_WAIT: Duration = Duration::from_secs(1);
/// The end of the year 9999: a later not-after is kept as that.
const NOT_AFTER_MAX: Timestamp = Timestamp(253_402_300_799_000_000);

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
    /// Another transaction runs this step right now and did not end while it was waited for: answer 425.
    Busy,
}

/// A call that may do its work.
#[derive(Debug)]
#[must_use = "store what came of the call; committing without it makes every repetition an error"]
pub struct PendingBarrier {
    call: BarrierCall,
}

/// Asks the barrier; waits at most [`BARRIER_WAIT`] for an open call of the same step. The business tables live in the
/// same database. Other languages call the SQL functions `semel.barrier` and `semel.barrier_store`.
///
/// # Guarantees
/// Action and compensation may come in any order, twice or at once: the effect happens at most once, its undoing at
/// most once and only after it; duplicates get the first answer. A crash before the commit leaves nothing, one after it
/// everything.
///
/// # Errors
/// The store's; `Corrupt` when an earlier call of this step committed without storing its answer. `NotApplied` when
/// another transaction was in the way (a deadlock; under REPEATABLE READ and above any concurrent call of this step):
/// this transaction is lost, repeat the whole of it, as [`transact`](super::transact) does.
///
/// ```no_run
/// # use semel_postgres::{Postgres, tx::{self, Barrier}};
/// # use semel_core::{StoredOutcome, saga::{BarrierCall, Op}};
/// # async fn charge(db: &Postgres, headers: http::HeaderMap) -> Result<StoredOutcome, Box<dyn std::error::Error>> {
/// let call = BarrierCall::from_headers(&headers)?;
/// let mut tx = db.begin().await?;
/// let answer = match tx::barrier(&mut tx, &call).await? {
///     Barrier::Run(pending) => {
///         let paid = match call.op {
///             Op::Action => sqlx::query("INSERT INTO payment (saga) VALUES ($1)"),
///             Op::Compensation => sqlx::query("UPDATE payment SET refunded = true WHERE saga = $1"),
///         };
///         paid.bind(call.saga.as_str()).execute(&mut *tx).await?;
///         let outcome = StoredOutcome::Succeeded("paid".into());
///         pending.store(&mut tx, outcome.clone()).await?;
///         outcome
///     }
///     Barrier::Replay(outcome) => outcome,
///     Barrier::NothingToUndo => StoredOutcome::Succeeded("".into()),
///     Barrier::Refused(code) => StoredOutcome::Refused(code.as_str().into()),
///     Barrier::Busy => return Err("try again".into()), // status 425
/// };
/// db.commit(tx).await?;
/// # Ok(answer) }
/// ```
pub async fn barrier(tx: &mut Transaction<'_, Driver>, call: &BarrierCall) -> Result<Barrier, StoreError> {
    barrier_within(tx, call, BARRIER_WAIT).await
}

/// [`barrier`] with a wait of your own, at least a millisecond.
///
/// # Errors
/// As [`barrier`].
pub async fn barrier_within(
    tx: &mut Transaction<'_, Driver>,
    call: &BarrierCall,
    wait: Duration,
) -> Result<Barrier, StoreError> {
    call.check()?;
    let failed = |error| classify(OPERATION, error);
    let row = query(
        "SELECT * FROM semel.barrier($1, $2, $3, $4, $5, timestamptz 'epoch' + $6::float8 * interval '1 us', $7)",
    )
    .bind(call.saga.as_str())
    .bind(&call.step)
    .bind(call.op.as_str())
    .bind(call.epoch)
    .bind(call.action_succeeded)
    .bind(
        call.not_after
            .map(|at| at.clamp(Timestamp(0), NOT_AFTER_MAX).0 as f64),
    )
    .bind(lock_timeout(wait))
    .fetch_one(&mut **tx)
    .await
    .map_err(failed)?;
    Ok(match row.try_get("verdict").map_err(failed)? {
        "run" => {
            // What the business work has written is taken back when it is refused.
            execute(tx, "SAVEPOINT semel_barrier").await?;
            crash_point("barrier.marked");
            Barrier::Run(PendingBarrier { call: call.clone() })
        }
        "replay" => {
            let code: &str = row.try_get("outcome").map_err(failed)?;
            let response: Option<Vec<u8>> = row.try_get("response").map_err(failed)?;
            let outcome = StoredOutcome::from_parts(code, response.unwrap_or_default().into());
            Barrier::Replay(outcome.ok_or_else(|| corrupt("a barrier row cannot be read by this build"))?)
        }
        "nothing_to_undo" => Barrier::NothingToUndo,
        "running" => Barrier::Busy,
        "step_cancelled" => Barrier::Refused(BarrierCode::StepCancelled),
        "stale_epoch" => Barrier::Refused(BarrierCode::StaleEpoch),
        "barrier_lost" => Barrier::Refused(BarrierCode::BarrierLost),
        "unfinished" => {
            let text =
                "an earlier call of this step committed without `store`: mend the participant, then the row";
            return Err(corrupt(text));
        }
        _ => return Err(corrupt("semel.barrier answers what this build does not know")),
    })
}

fn corrupt(text: &'static str) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, OPERATION, text)
}

impl PendingBarrier {
    /// Stores what came of the call, in the same transaction. A refusal takes back what the work has written since
    /// [`barrier`], also when one of its statements failed; only the refusal itself is kept. Call it last, before the
    /// commit.
    ///
    /// # Errors
    /// An answer larger than [`limits::OUTCOME_BYTES_MAX`]; `Invalid` when this is not the transaction of its
    /// [`barrier`]; or the store's. Roll back, nothing has happened.
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
        let done = query(
            "UPDATE semel.barrier SET outcome = $4, response = $5
             WHERE saga = $1 AND step = $2 AND op = $3 AND outcome IS NULL",
        )
        .bind(self.call.saga.as_str())
        .bind(&self.call.step)
        .bind(self.call.op.as_str())
        .bind(outcome.code())
        .bind(outcome.bytes())
        .execute(&mut **tx)
        .await
        .map_err(|error| classify(OPERATION, error))?;
        if done.rows_affected() != 1 {
            let text = "the call is not marked here: store in the transaction in which `barrier` said Run";
            return Err(StoreError::new(ErrorKind::Invalid, OPERATION, text));
        }
        crash_point("barrier.before_commit");
        Ok(())
    }
}

async fn execute(tx: &mut Transaction<'_, Driver>, sql: &'static str) -> Result<(), StoreError> {
    query(sql)
        .execute(&mut **tx)
        .await
        .map_err(|error| classify(OPERATION, error))?;
    Ok(())
}
