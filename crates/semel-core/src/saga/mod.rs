//! Sagas: steps with compensations, kept right through any crash.
//!
//! A [`Definition`] says which steps there are; an [`Instance`] is one run of it; [`step`](step::step) is the whole
//! protocol as a pure function. A coordinator stores what it returns and then sends what the new instance says is out.
//!
//! # Words
//! A saga *turns* once: from then on it goes back, and its undo set is fixed. *Undo* is all that is then done about a step
//! of that set; a *compensation* is the call that undoes at a participant, the last part of it where there is one to make.
//!
//! # Guarantees
//! - R1: a step is durably `Started` before its request leaves. R2: the turn to compensating and the set of steps to
//!   undo are one write. R3: no step goes on before its commit. R4: who submits hears "accepted" only when the saga is
//!   durable. R5: terminal is terminal.
//! - A step is undone unless it is certain that it never happened. Steps are undone in the reverse order of the graph;
//!   compensations ignore cancel and deadline, have a budget of their own and end in `Stuck`, never in "done".
//! - An answer that is neither a success nor a certain refusal is `Unknown`. What becomes of it depends on what its
//!   participant can do: see [`Participant`].
//! - A crash between any two writes: the next owner takes calls without a recorded answer for unknown, and repeats only
//!   what may be repeated.
//!
//! # Not guaranteed
//! Isolation: others see a step's effect before the saga ends.
//!
//! # Not yet
//! Signals, approvals, timers of one's own, status URLs, `mark` by an operator, retry with edited input, sub-sagas, and
//! the rescan after a restore (rule S9: a participant that has seen a later epoch makes the saga `Stuck`).
//!
//! # Limits
//! `SAGA_*` in [`limits`](crate::limits).

pub mod barrier;
mod call;
mod check;
pub mod code;
mod definition;
mod instance;
mod log;
mod names;
mod payload;
#[cfg(test)]
mod sim;
pub mod step;
mod undo;
mod window;

pub use barrier::{BarrierCall, BarrierCode};
pub use call::{ActionFacts, Answer, Call, call_for};
pub use check::{CheckedDefinition, DefinitionError};
pub use definition::{
    ATTEMPT_TIMEOUT_MS_DEFAULT, Definition, KEYED_MARGIN_MS, KEYED_WINDOW_MS_DEFAULT, Participant, Step,
    patient,
};
pub use instance::{INSTANCE_FORMAT, Instance, Phase, Progress, Sent, Status, StepRecord, StepState, Turned};
pub use log::{LogEntry, LogRow};
pub use names::{Op, SagaId, step_key};
pub use step::{Context, Decision, Event};
