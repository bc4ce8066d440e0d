//! The barrier: what a participant keeps, in the transaction of its effect, so that no order of calls harms it.
//!
//! Two rows per step, one for the action and one for the compensation. A compensation that finds no action writes the
//! action's row itself, which then turns the late action away. [`decide`] is the whole rule; the stores read the
//! rows, ask it, and write what it says.
//!
//! # Guarantees
//! Action, duplicate action, compensation and duplicate compensation may come in any order, twice or at once: the
//! effect happens at most once, its undoing at most once and only after it, and every duplicate gets the first answer,
//! refusals too.
//!
//! # Not yet
//! Rows are never pruned (rule S2): that needs the coordinator's word that the saga has ended.

use bytes::Bytes;
use http::HeaderMap;

use super::call::{Answer, Call};
use super::names::{Op, SagaId, step_key};
use crate::host::Timestamp;
use crate::limits::{self, LimitExceeded};
use crate::outcome::StoredOutcome;
use crate::wire;

/// Who calls: what a participant reads from the headers and gives to the barrier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BarrierCall {
    /// The saga.
    pub saga: SagaId,
    /// The step.
    pub step: String,
    /// Do or undo.
    pub op: Op,
    /// The caller's epoch.
    pub epoch: i64,
    /// On a compensation: the action is known to have happened.
    pub action_succeeded: bool,
    /// When the attempt ends at the latest.
    pub not_after: Option<Timestamp>,
}

/// Why a request carries no barrier call. Page: SEM0507.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("SEM0507: header {header} is missing or wrong: {want}")]
pub struct HeaderError {
    /// The header.
    pub header: &'static str,
    /// What it should hold.
    pub want: &'static str,
}

impl BarrierCall {
    /// Reads the headers of a coordinator's request.
    ///
    /// # Errors
    /// The header that is missing or wrong. Answer it with status 400.
    pub fn from_headers(headers: &HeaderMap) -> Result<Self, HeaderError> {
        let text = |header: &'static str, want: &'static str| {
            let value = headers.get(header).and_then(|value| value.to_str().ok());
            value.ok_or(HeaderError { header, want })
        };
        let saga = text(wire::SAGA_ID, "the saga's id")?;
        let saga = SagaId::new(saga).map_err(|_| HeaderError {
            header: wire::SAGA_ID,
            want: "1 to 255 visible ASCII characters",
        })?;
        let step = text(wire::STEP, "the step's name")?.to_owned();
        let op = Op::parse(text(wire::OP, "action or compensation")?).ok_or(HeaderError {
            header: wire::OP,
            want: "action or compensation",
        })?;
        let epoch = text(wire::EPOCH, "a number")?.parse().map_err(|_| HeaderError {
            header: wire::EPOCH,
            want: "a number",
        })?;
        let action_succeeded = match op {
            Op::Action => false,
            Op::Compensation => match text(wire::ACTION, "succeeded or unknown")? {
                "succeeded" => true,
                "unknown" => false,
                _ => {
                    return Err(HeaderError {
                        header: wire::ACTION,
                        want: "succeeded or unknown",
                    });
                }
            },
        };
        let deadline = headers
            .get(wire::DEADLINE)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        let not_after = deadline.map(|ms: i64| Timestamp(ms.saturating_mul(1_000)));
        let call = Self {
            saga,
            step,
            op,
            epoch,
            action_succeeded,
            not_after,
        };
        call.check().map_err(|_| HeaderError {
            header: wire::STEP,
            want: "1 to 100 visible ASCII characters",
        })?;
        Ok(call)
    }

    /// The same from a call within this process.
    #[must_use]
    pub fn of_call(call: &Call) -> Self {
        Self {
            saga: call.saga.clone(),
            step: call.step.clone(),
            op: call.op,
            epoch: call.epoch,
            action_succeeded: call.undoes.as_ref().is_some_and(|action| action.succeeded),
            not_after: Some(call.not_after),
        }
    }

    /// Refuses a step's name beyond its limit.
    ///
    /// # Errors
    /// [`LimitExceeded`].
    pub fn check(&self) -> Result<(), LimitExceeded> {
        let max = limits::SAGA_NAME_BYTES_MAX as u64;
        limits::check(
            "step name",
            "bytes",
            self.step.len() as u64,
            1,
            max,
            "use a shorter step name",
        )?;
        let bad = self.step.bytes().filter(|b| !b.is_ascii_graphic()).count() as u64;
        limits::check("step name", "bytes outside ! to ~", bad, 0, 0, "use plain ASCII")
    }

    /// The key of this operation, as in `Idempotency-Key`.
    #[must_use]
    pub fn key(&self) -> String {
        step_key(&self.saga, &self.step, self.op)
    }
}

/// Why the barrier turns a call away; the word goes into [`wire::CODE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BarrierCode {
    /// Its compensation came first: this action must not happen any more. A certain refusal.
    StepCancelled,
    /// A later epoch has called this step: the caller no longer owns the saga. Neither refused nor unknown (rule S9).
    StaleEpoch,
    /// The action is known to have happened and its row is gone: nothing is undone, a person must look (rule S2).
    BarrierLost,
}

impl BarrierCode {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::StepCancelled => "step_cancelled",
            Self::StaleEpoch => "stale_epoch",
            Self::BarrierLost => "barrier_lost",
        }
    }

    /// The status to answer with.
    #[must_use]
    pub const fn http_status(self) -> u16 {
        match self {
            Self::StepCancelled => 409,
            Self::StaleEpoch => 412,
            Self::BarrierLost => 500,
        }
    }

    /// The value of [`wire::OUTCOME`] to answer with.
    #[must_use]
    pub const fn outcome(self) -> &'static str {
        match self {
            Self::StepCancelled => "refused",
            Self::StaleEpoch | Self::BarrierLost => "unknown",
        }
    }
}

impl From<BarrierCode> for Answer {
    fn from(code: BarrierCode) -> Self {
        match code {
            BarrierCode::StepCancelled => Self::Refused(code.as_str().to_owned()),
            BarrierCode::StaleEpoch => Self::StaleEpoch,
            BarrierCode::BarrierLost => Self::BarrierLost,
        }
    }
}

impl From<StoredOutcome> for Answer {
    fn from(outcome: StoredOutcome) -> Self {
        match outcome {
            StoredOutcome::Succeeded(output) => Self::Succeeded(output),
            StoredOutcome::Refused(reason) => Self::Refused(String::from_utf8_lossy(&reason).into_owned()),
            StoredOutcome::Forgotten => Self::TooLarge,
        }
    }
}

/// What a participant keeps about one operation of one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BarrierRow {
    /// Which operation's call wrote it: a compensation writes the row of an action that never came.
    pub origin: Op,
    /// The highest epoch that has called.
    pub epoch: i64,
    /// The answer; `None` only inside the transaction that runs it.
    pub outcome: Option<StoredOutcome>,
}

/// What the barrier says to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Do the work. For a compensation and a new action alike: write the call's own row, then its answer.
    Run,
    /// It was done: give this answer again.
    Replay(StoredOutcome),
    /// Turn it away; write nothing.
    Refuse(BarrierCode),
    /// A compensation whose action never happened: write both rows, and the empty answer.
    NothingToUndo,
    /// A row without an answer was committed: the participant's own mistake.
    Unfinished,
}

/// The rule, over the two rows of the step.
#[must_use]
pub fn decide(call: &BarrierCall, action: Option<&BarrierRow>, undo: Option<&BarrierRow>) -> Verdict {
    if [action, undo]
        .into_iter()
        .flatten()
        .any(|row| row.epoch > call.epoch)
    {
        return Verdict::Refuse(BarrierCode::StaleEpoch);
    }
    match call.op {
        Op::Action => match action {
            None => Verdict::Run,
            Some(row) if row.origin == Op::Compensation => Verdict::Refuse(BarrierCode::StepCancelled),
            Some(row) => row.outcome.clone().map_or(Verdict::Unfinished, Verdict::Replay),
        },
        Op::Compensation => match (undo, action) {
            // The duplicate first: whatever else is true, it was answered.
            (Some(row), _) => row.outcome.clone().map_or(Verdict::Unfinished, Verdict::Replay),
            (None, None) if call.action_succeeded => Verdict::Refuse(BarrierCode::BarrierLost),
            (None, None) => Verdict::NothingToUndo,
            (None, Some(row)) => match (&row.outcome, row.origin) {
                (None, _) => Verdict::Unfinished,
                (Some(StoredOutcome::Refused(_)), _) | (Some(_), Op::Compensation)
                    if call.action_succeeded =>
                {
                    Verdict::Refuse(BarrierCode::BarrierLost)
                }
                (Some(StoredOutcome::Refused(_)), _) | (Some(_), Op::Compensation) => Verdict::NothingToUndo,
                (Some(StoredOutcome::Succeeded(_) | StoredOutcome::Forgotten), Op::Action) => Verdict::Run,
            },
        },
    }
}

/// The answer stored for a compensation that had nothing to undo.
#[must_use]
pub const fn nothing_undone() -> StoredOutcome {
    StoredOutcome::Succeeded(Bytes::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(op: Op, action_succeeded: bool) -> BarrierCall {
        BarrierCall {
            saga: SagaId::new("s").unwrap(),
            step: "charge".into(),
            op,
            epoch: 5,
            action_succeeded,
            not_after: None,
        }
    }

    fn row(origin: Op, epoch: i64, outcome: StoredOutcome) -> BarrierRow {
        BarrierRow {
            origin,
            epoch,
            outcome: Some(outcome),
        }
    }

    fn done() -> StoredOutcome {
        StoredOutcome::Succeeded("done".into())
    }

    #[test]
    fn a_late_action_is_refused_by_name_never_answered_with_success() {
        let blocked = row(Op::Compensation, 5, nothing_undone());
        let verdict = decide(&call(Op::Action, false), Some(&blocked), Some(&blocked));
        assert_eq!(verdict, Verdict::Refuse(BarrierCode::StepCancelled));
    }

    #[test]
    fn a_compensation_of_what_happened_without_a_row_is_lost_never_nothing_to_undo() {
        assert_eq!(
            decide(&call(Op::Compensation, false), None, None),
            Verdict::NothingToUndo
        );
        let lost = Verdict::Refuse(BarrierCode::BarrierLost);
        assert_eq!(decide(&call(Op::Compensation, true), None, None), lost);
        let refused = row(Op::Action, 5, StoredOutcome::Refused("no".into()));
        assert_eq!(decide(&call(Op::Compensation, true), Some(&refused), None), lost);
    }

    #[test]
    fn a_lower_epoch_is_turned_away_with_a_code_of_its_own() {
        let later = row(Op::Action, 6, done());
        for op in [Op::Action, Op::Compensation] {
            let verdict = decide(&call(op, true), Some(&later), None);
            assert_eq!(verdict, Verdict::Refuse(BarrierCode::StaleEpoch));
        }
    }

    #[test]
    fn duplicates_get_the_first_answer_refusals_too() {
        let refused = row(Op::Action, 5, StoredOutcome::Refused("sold out".into()));
        let again = decide(&call(Op::Action, false), Some(&refused), None);
        assert_eq!(again, Verdict::Replay(StoredOutcome::Refused("sold out".into())));
        assert_eq!(
            decide(&call(Op::Compensation, false), Some(&refused), None),
            Verdict::NothingToUndo
        );
    }

    #[test]
    fn headers_that_are_missing_or_wrong_are_named() {
        let mut headers = HeaderMap::new();
        let wrong = |headers: &HeaderMap| BarrierCall::from_headers(headers).unwrap_err().header;
        assert_eq!(wrong(&headers), wire::SAGA_ID);
        headers.insert(wire::SAGA_ID, "s".parse().unwrap());
        headers.insert(wire::STEP, "charge".parse().unwrap());
        headers.insert(wire::OP, "undo".parse().unwrap());
        headers.insert(wire::EPOCH, "5".parse().unwrap());
        assert_eq!(wrong(&headers), wire::OP);
        headers.insert(wire::OP, "compensation".parse().unwrap());
        assert_eq!(wrong(&headers), wire::ACTION);
        headers.insert(wire::ACTION, "succeeded".parse().unwrap());
        assert_eq!(
            BarrierCall::from_headers(&headers).unwrap(),
            call(Op::Compensation, true)
        );
    }
}
