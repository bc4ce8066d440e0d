//! What goes to a participant, and what comes back.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::check::{CheckedDefinition, members};
use super::instance::Instance;
use super::names::{Op, SagaId, step_key};
use crate::host::Timestamp;

/// One request to a participant. The same operation of the same step always carries the same key, input and outputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The saga.
    pub saga: SagaId,
    /// The saga's kind.
    pub definition: String,
    /// The step's name.
    pub step: String,
    /// Do or undo.
    pub op: Op,
    /// URL or handler.
    pub target: String,
    /// Names this operation: see [`step_key`].
    pub key: String,
    /// The owner's epoch; only grows.
    pub epoch: i64,
    /// This attempt, from 1. For logs; never part of an identity.
    pub attempt: u32,
    /// How long the attempt may take.
    pub timeout: Duration,
    /// When the attempt ends at the latest, by the store's clock.
    pub not_after: Timestamp,
    /// The saga's input.
    pub input: Bytes,
    /// Outputs of the steps before this one; `None` for one that was too large to keep.
    pub outputs: BTreeMap<String, Option<Bytes>>,
    /// For a compensation: what is known of its action.
    pub undoes: Option<ActionFacts>,
}

/// What a compensation says about its action (rule S2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionFacts {
    /// The action's key, by which a participant can find or forbid it.
    pub key: String,
    /// The action is known to have happened; otherwise it may have.
    pub succeeded: bool,
    /// Its output, where there is one.
    pub output: Option<Bytes>,
}

/// What a participant answered. Closed on purpose: match it without a `_` arm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It happened, with this output.
    Succeeded(Bytes),
    /// It happened; its output is larger than [`limits::SAGA_PAYLOAD_BYTES_MAX`](crate::limits::SAGA_PAYLOAD_BYTES_MAX).
    TooLarge,
    /// Nothing happened, and this is why.
    Refused(String),
    /// It is still being worked on: ask again. Spends no attempt (rule S10).
    Running {
        /// When to ask again.
        retry_after: Option<Duration>,
    },
    /// No answer, or none that says anything.
    Unknown {
        /// What was seen.
        why: String,
        /// How long the participant asked to wait.
        retry_after: Option<Duration>,
        /// Repeating will hardly help: few attempts, then a person.
        hopeless: bool,
    },
    /// No byte of this attempt reached the participant.
    NotSent(String),
    /// The attempt never left this process, because it is stopping or lost its lease. Spends no attempt.
    Held,
    /// It cannot be called: no such handler, a target that is no URL. A person must mend it.
    Unservable(String),
    /// The participant has seen a later epoch than this owner's (rule S9).
    StaleEpoch,
    /// Its barrier has no trace of an action that is known to have happened (rule S2).
    BarrierLost,
}

/// Makes the request for an operation that is out by what is stored. `None` when there is no such target.
#[must_use]
pub fn call_for(
    definition: &CheckedDefinition,
    instance: &Instance,
    id: &SagaId,
    input: &Bytes,
    (step, op): (usize, Op),
    epoch: i64,
    now: Timestamp,
) -> Option<Call> {
    let it = definition.steps().get(step)?;
    let record = instance.steps.get(step)?;
    let target = match op {
        Op::Action => it.action.clone(),
        Op::Compensation => it.compensation.clone()?,
    };
    let attempts = if instance.turned.is_some() {
        record.undo.attempts
    } else {
        record.action.attempts
    };
    let before = members(definition.before(step)).filter_map(|earlier| instance.steps.get(earlier));
    let undoes = match op {
        Op::Action => None,
        Op::Compensation => Some(ActionFacts {
            key: step_key(id, &it.name, Op::Action),
            succeeded: record.succeeded,
            output: record.output.clone(),
        }),
    };
    Some(Call {
        saga: id.clone(),
        definition: definition.name().to_owned(),
        step: it.name.clone(),
        op,
        target,
        key: step_key(id, &it.name, op),
        epoch,
        attempt: attempts,
        timeout: Duration::from_millis(it.attempt_timeout_ms),
        not_after: now.plus_ms(i64::try_from(it.attempt_timeout_ms).unwrap_or(i64::MAX)),
        input: input.clone(),
        outputs: before
            .map(|earlier| (earlier.name.clone(), earlier.output.clone()))
            .collect(),
        undoes,
    })
}
