//! The way back: late answers, the drive of a keyed action to a definite answer, and compensations.
//!
//! A step's undoing begins when every step behind it in the undo set is over and its own call has ended.

use super::call::Answer;
use super::check::{CheckedDefinition, StepSet, members};
use super::code;
use super::definition::Participant;
use super::instance::{Instance, Phase, Progress, StepState};
use super::names::Op;
use super::step::{HOPELESS_ATTEMPTS_MAX, Machine, Next, cut};

/// Nothing behind it is left to undo.
fn is_free(instance: &Instance, definition: &CheckedDefinition, set: StepSet, step: usize) -> bool {
    members(definition.behind(step) & set).all(|later| {
        matches!(
            instance.steps[later].state,
            StepState::Compensated | StepState::Skipped
        )
    })
}

/// Its undoing could begin now.
pub(super) fn is_ready(
    instance: &Instance,
    definition: &CheckedDefinition,
    set: StepSet,
    step: usize,
) -> bool {
    let record = &instance.steps[step];
    let waits = matches!(record.state, StepState::Succeeded | StepState::Unknown);
    waits && record.undo.phase == Phase::Idle && is_free(instance, definition, set, step)
}

impl Machine<'_> {
    pub(super) fn launch_undo(&mut self) {
        let set = self.instance.undo_set();
        for step in members(set) {
            let due = self.instance.steps[step]
                .next_retry(true)
                .is_some_and(|at| at <= self.context.now);
            if due || is_ready(&self.instance, self.definition, set, step) {
                self.begin_undo(step);
            }
        }
    }

    /// Rule S1: what is certain is compensated; what is not depends on the participant.
    fn begin_undo(&mut self, step: usize) {
        let (participant, has_target) = (self.it(step).participant, self.it(step).compensation.is_some());
        let state = self.instance.steps[step].state;
        match (state, participant) {
            _ if !has_target => self.stuck(step, "it has no compensation".into()),
            (StepState::Unknown, Participant::None) => {
                self.stuck(
                    step,
                    "nobody knows whether it happened; look, then undo it by hand".into(),
                );
            }
            (StepState::Unknown, Participant::Keyed) => match self.forgotten_by_now(step, Op::Action) {
                Some(why) => self.stuck(step, why),
                None => self.launch(step, Op::Action, true),
            },
            _ => {
                if let Some(why) = self.forgotten_by_now(step, Op::Compensation) {
                    return self.stuck(step, why);
                }
                self.instance.steps[step].state = StepState::Compensating;
                self.launch(step, Op::Compensation, true);
            }
        }
    }

    /// The answer of an action that was out when the saga turned (rule S5).
    pub(super) fn late_answer(&mut self, step: usize, answer: Answer) {
        let certain = self.refusal_is_certain(step);
        let record = &mut self.instance.steps[step];
        record.action.phase = Phase::Idle;
        let never = !record.maybe;
        match answer {
            Answer::Succeeded(output) => self.succeeded(step, Some(output)),
            Answer::TooLarge => self.succeeded(step, None),
            Answer::Refused(reason) if certain => {
                record.action.last = Some(cut(&reason));
                record.state = StepState::Skipped;
            }
            Answer::NotSent(_) | Answer::Held | Answer::Unservable(_) if never => {
                record.state = StepState::Skipped;
            }
            Answer::Refused(_)
            | Answer::NotSent(_)
            | Answer::Held
            | Answer::Unservable(_)
            | Answer::Unknown { .. }
            | Answer::Running { .. }
            | Answer::StaleEpoch
            | Answer::BarrierLost => {
                record.maybe = true;
                record.state = StepState::Unknown;
            }
        }
    }

    /// The answer of a keyed action that is driven to a definite end before its compensation.
    pub(super) fn drive_answer(&mut self, step: usize, answer: Answer) {
        match answer {
            Answer::Succeeded(output) => self.driven(step, Some(output)),
            Answer::TooLarge => self.driven(step, None),
            Answer::Refused(reason) => {
                let record = &mut self.instance.steps[step];
                record.undo.phase = Phase::Idle;
                record.action.last = Some(cut(&reason));
                record.state = StepState::Skipped;
            }
            other => self.undo_failed(step, other, "its action has no definite answer"),
        }
    }

    fn driven(&mut self, step: usize, output: Option<bytes::Bytes>) {
        self.succeeded(step, output);
        // The compensation begins with a full budget of its own.
        self.instance.steps[step].undo = Progress::default();
    }

    pub(super) fn undo_answer(&mut self, step: usize, answer: Answer) {
        match answer {
            Answer::Succeeded(_) | Answer::TooLarge => {
                let record = &mut self.instance.steps[step];
                record.undo.phase = Phase::Idle;
                record.state = StepState::Compensated;
            }
            Answer::Refused(reason) => self.stuck(step, format!("its compensation was refused: {reason}")),
            other => self.undo_failed(step, other, "its compensation has no answer"),
        }
    }

    fn undo_failed(&mut self, step: usize, answer: Answer, what: &str) {
        let policy = self.it(step).compensation_retry;
        let undo = self.instance.steps[step].undo.clone();
        let repeat = self.may_repeat(step);
        let (undo, next, why) = match answer {
            Answer::Running { retry_after } if repeat => {
                let (undo, next) = self.after_running(&policy, undo, retry_after);
                (undo, next, "still running when its time was up".to_owned())
            }
            Answer::Unknown {
                why,
                retry_after,
                hopeless,
            } if repeat && !(hopeless && undo.attempts >= HOPELESS_ATTEMPTS_MAX) => {
                let (undo, next) = self.after_failure(&policy, undo, &why, retry_after);
                (undo, next, why)
            }
            Answer::NotSent(why) => {
                let (undo, next) = self.after_failure(&policy, undo, &why, None);
                (undo, next, why)
            }
            Answer::Held => {
                let attempts = undo.attempts.saturating_sub(1);
                let phase = Phase::RetryAt(self.context.now);
                (
                    Progress {
                        attempts,
                        phase,
                        ..undo
                    },
                    Next::Again,
                    String::new(),
                )
            }
            Answer::Running { .. } => (
                undo,
                Next::Over,
                "still running, and it must not be asked again".into(),
            ),
            Answer::Unknown { why, .. } | Answer::Unservable(why) | Answer::Refused(why) => {
                (undo, Next::Over, why)
            }
            Answer::StaleEpoch => (
                undo,
                Next::Over,
                format!("its participant has seen a later epoch ({})", code::STALE_EPOCH),
            ),
            Answer::BarrierLost => (
                undo,
                Next::Over,
                format!(
                    "its participant has lost the barrier row of an action that happened ({})",
                    code::BARRIER_LOST
                ),
            ),
            Answer::Succeeded(_) | Answer::TooLarge => (undo, Next::Over, String::new()),
        };
        self.instance.steps[step].undo = undo;
        if let Next::Over = next {
            self.stuck(step, format!("{what}: {why}"));
        }
    }

    /// Ends in a state that waits for a person, never in "done". Independent compensations go on.
    fn stuck(&mut self, step: usize, why: String) {
        self.note(Some(step), Some(Op::Compensation), "stuck", &why);
        let record = &mut self.instance.steps[step];
        record.undo.phase = Phase::Idle;
        record.state = StepState::CompensationStuck;
        record.needs_person = Some(cut(&why));
    }

    /// A person asks for another try: a full budget, from where it stood.
    pub(super) fn retry_undo(&mut self) {
        for step in 0..self.instance.steps.len() {
            let participant = self.it(step).participant;
            let now = self.context.now;
            let record = &mut self.instance.steps[step];
            if record.state != StepState::CompensationStuck {
                continue;
            }
            record.state = match (record.succeeded, participant) {
                (true, _) | (false, Participant::Barrier) => StepState::Compensating,
                // Driven again; without keys it goes straight back to stuck, for nothing new is known.
                (false, Participant::Keyed | Participant::None) => StepState::Unknown,
            };
            record.needs_person = None;
            record.undo = Progress {
                phase: Phase::RetryAt(now),
                ..Progress::default()
            };
        }
    }
}
