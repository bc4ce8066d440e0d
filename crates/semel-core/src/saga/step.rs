//! The protocol of a saga as one pure function: what an owner does after each event.

use super::call::Answer;
use super::check::{CheckedDefinition, members};
use super::code;
use super::definition::{Participant, Step};
use super::instance::{Instance, Phase, Progress, Sent, Status, StepState};
use super::log::LogEntry;
use super::names::Op;
use crate::host::Timestamp;
use crate::limits;
use crate::retry::RetryPolicy;

/// Attempts at a call whose answers say that repeating will hardly help.
pub const HOPELESS_ATTEMPTS_MAX: u32 = 3;
/// Milliseconds until a participant that is still working is asked again, unless it says when.
pub const RUNNING_POLL_MS_DEFAULT: i64 = 1_000;
/// Longest wait in milliseconds that a participant can ask for.
pub const RETRY_AFTER_MS_MAX: i64 = 3_600_000;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A new owner: starts a saga that has not begun, and takes calls without answer for unknown.
    Resume {
        /// When the saga was accepted; its deadline counts from then.
        accepted_at: Timestamp,
        /// Calls of this saga that still run in this very process.
        live: Vec<(usize, Op)>,
    },
    /// A call ended.
    Answered {
        /// The step's number.
        step: usize,
        /// Which operation.
        op: Op,
        /// How.
        answer: Answer,
    },
    /// Time has passed.
    Timer,
    /// Someone wants it undone. Ignored once the pivot has started.
    Cancel {
        /// Who.
        by: String,
        /// Why.
        why: String,
    },
    /// A person has mended something: what is stuck gets a fresh budget.
    Retry {
        /// Who.
        by: String,
    },
    /// A person gives it up as it is.
    Abandon {
        /// Who.
        by: String,
        /// Why.
        why: String,
    },
    /// Nobody can work on it.
    Halt {
        /// Why.
        why: String,
    },
}

/// What the function is told besides state and event.
#[derive(Debug, Clone, Copy)]
pub struct Context {
    /// The store's time.
    pub now: Timestamp,
    /// Uniform in 0..1, for jitter.
    pub dice: f64,
    /// Whether new calls may start; an owner that is stopping records answers only.
    pub launch: bool,
}

/// The answer of [`step`].
///
/// It names no calls: the calls to send are what the new instance says is out ([`Instance::in_flight`]), save for those
/// that already run. They leave only when it is durable (R1, R3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The new state.
    pub instance: Instance,
    /// What to write into the log in the same commit.
    pub log: Vec<LogEntry>,
}

/// Decides. Same arguments, same decision; a terminal saga does not change whatever happens (R5).
///
/// An event that no longer fits the state, such as a second answer to a call, changes nothing: so every event may be
/// given again after a reload.
#[must_use]
pub fn step(definition: &CheckedDefinition, instance: Instance, event: Event, context: Context) -> Decision {
    let mut machine = Machine {
        definition,
        instance,
        context,
        log: Vec::new(),
    };
    if !machine.instance.status.is_terminal() {
        machine.apply(event);
        machine.settle();
    }
    Decision {
        instance: machine.instance,
        log: machine.log,
    }
}

/// Whether a call could start now; its due time is then now.
pub(super) fn has_ready(instance: &Instance, definition: &CheckedDefinition) -> bool {
    if instance.turned.is_some() {
        let set = instance.undo_set();
        members(set).any(|step| super::undo::is_ready(instance, definition, set, step))
    } else {
        (0..instance.steps.len()).any(|step| forward_ready(instance, definition, step))
    }
}

fn forward_ready(instance: &Instance, definition: &CheckedDefinition, step: usize) -> bool {
    let done = |earlier: usize| instance.steps[earlier].state == StepState::Succeeded;
    instance.steps[step].state == StepState::NotStarted && members(definition.before(step)).all(done)
}

pub(super) struct Machine<'a> {
    pub(super) definition: &'a CheckedDefinition,
    pub(super) instance: Instance,
    pub(super) context: Context,
    log: Vec<LogEntry>,
}

/// How a call that did not succeed goes on.
pub(super) enum Next {
    Again,
    Over,
}

impl Machine<'_> {
    fn apply(&mut self, event: Event) {
        match event {
            Event::Resume { accepted_at, live } => self.resume(accepted_at, &live),
            Event::Answered { step, op, answer } => self.answered(step, op, answer),
            Event::Timer => {}
            Event::Cancel { by, why } => {
                self.note(None, None, "cancel", &format!("by {by}: {why}"));
                if self.instance.past_pivot(self.definition) {
                    self.note(None, None, "cancel_ignored", "the pivot has started");
                } else if self.instance.turned.is_none() {
                    self.instance.halted = None;
                    self.turn(format!("cancelled by {by}: {why}"));
                }
            }
            Event::Retry { by } => {
                self.note(None, None, "retry", &format!("by {by}"));
                self.retry();
            }
            Event::Abandon { by, why } => {
                let text = cut(&format!("by {by}: {why}"));
                self.note(None, None, "abandoned", &text);
                self.instance.abandoned = Some(text);
            }
            Event::Halt { why } => {
                let why = cut(&why);
                self.note(None, None, "stuck", &why);
                self.instance.halted = Some(why);
            }
        }
    }

    /// After every event: timers, what can start now, and what that makes of the saga.
    fn settle(&mut self) {
        let now = self.context.now;
        let overdue = self.instance.deadline_at.is_some_and(|at| at <= now);
        let working = self.instance.abandoned.is_none() && self.instance.halted.is_none();
        if working && overdue && self.instance.turned.is_none() && !self.past_pivot() {
            self.turn("its deadline has passed".to_owned());
        }
        if working && self.context.launch {
            if self.instance.turned.is_some() {
                self.launch_undo()
            } else {
                self.launch_actions()
            }
        }
        let status = self.status();
        if status != self.instance.status {
            if status.is_terminal() || status == Status::Stuck {
                let text = self.instance.reasons().join("; ");
                self.note(None, None, status.as_str(), &text);
            }
            self.instance.status = status;
        }
    }

    fn launch_actions(&mut self) {
        for step in 0..self.instance.steps.len() {
            let retry = self.instance.steps[step].next_retry(false);
            let due = retry.is_some_and(|at| at <= self.context.now);
            if due || forward_ready(&self.instance, self.definition, step) {
                if let Some(why) = self.forgotten_by_now(step, Op::Action) {
                    self.unknown(step, why, true);
                    continue;
                }
                self.instance.steps[step].state = StepState::Started;
                self.launch(step, Op::Action, false);
            }
        }
    }

    /// Puts a call into the state; it leaves only when that state is durable.
    pub(super) fn launch(&mut self, step: usize, op: Op, undoing: bool) {
        let now = self.context.now;
        let record = &mut self.instance.steps[step];
        let sent = record.sent(op);
        *sent = Some(Sent {
            at: sent.map_or(now, |sent| sent.at),
            first: sent.is_none(),
        });
        let progress = if undoing {
            &mut record.undo
        } else {
            &mut record.action
        };
        progress.attempts = progress.attempts.saturating_add(1);
        progress.first_at.get_or_insert(now);
        progress.phase = Phase::InFlight;
        let text = format!("attempt {}", progress.attempts);
        self.note(Some(step), Some(op), "started", &text);
    }

    fn resume(&mut self, accepted_at: Timestamp, live: &[(usize, Op)]) {
        if self.instance.deadline_at.is_none() {
            let ms = self.definition.definition().deadline_ms;
            let ms = ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX));
            self.instance.deadline_at = ms.map(|ms| accepted_at.plus_ms(ms));
        }
        for (step, op) in self.instance.in_flight() {
            if !live.contains(&(step, op)) {
                let answer = Answer::Unknown {
                    why: "its owner was lost before the answer was recorded".to_owned(),
                    retry_after: None,
                    hopeless: false,
                };
                self.answered(step, op, answer);
                // The call went out in another life: no reason to wait, only the budget counts.
                let record = &mut self.instance.steps[step];
                for progress in [&mut record.action, &mut record.undo] {
                    if let Phase::RetryAt(_) = progress.phase {
                        progress.phase = Phase::RetryAt(self.context.now);
                    }
                }
            }
        }
    }

    fn answered(&mut self, step: usize, op: Op, answer: Answer) {
        let Some(record) = self.instance.steps.get(step) else {
            return;
        };
        match (op, record.state, record.action.phase, record.undo.phase) {
            (Op::Action, StepState::Started, Phase::InFlight, _) => {
                self.left(step, op, &answer);
                self.note_answer(step, op, &answer);
                if self.instance.turned.is_some() {
                    self.late_answer(step, answer);
                } else {
                    self.forward_answer(step, answer);
                }
            }
            (Op::Action, StepState::Unknown, _, Phase::InFlight) => {
                self.left(step, op, &answer);
                self.note_answer(step, op, &answer);
                self.drive_answer(step, answer);
            }
            (Op::Compensation, StepState::Compensating, _, Phase::InFlight) => {
                self.left(step, op, &answer);
                self.note_answer(step, op, &answer);
                self.undo_answer(step, answer);
            }
            // An answer to a call that is over: given again after a reload, or from another life.
            _ => {}
        }
    }

    fn forward_answer(&mut self, step: usize, answer: Answer) {
        match answer {
            Answer::Succeeded(output) => self.succeeded(step, Some(output)),
            Answer::TooLarge => {
                self.succeeded(step, None);
                if !self.past_pivot() {
                    let max = limits::SAGA_PAYLOAD_BYTES_MAX;
                    self.turn(format!("{}: its output exceeds {max} bytes", self.name(step)));
                }
            }
            Answer::Refused(reason) if self.refusal_is_certain(step) => self.refused(step, reason),
            Answer::Refused(reason) => {
                // Rule of the design: without deduplication a refusal says nothing about an earlier attempt.
                self.unknown(step, format!("refused after an unknown attempt: {reason}"), false);
            }
            Answer::Running { retry_after } => {
                self.instance.steps[step].maybe = true;
                if !self.may_repeat(step) {
                    return self.unknown(
                        step,
                        "still running, and it must not be asked again".into(),
                        false,
                    );
                }
                let policy = self.it(step).retry;
                match self.after_running(&policy, self.instance.steps[step].action.clone(), retry_after) {
                    (progress, Next::Again) => self.instance.steps[step].action = progress,
                    (_, Next::Over) => self.unknown(step, "still running when its time was up".into(), false),
                }
            }
            Answer::Unknown {
                why,
                retry_after,
                hopeless,
            } => {
                self.instance.steps[step].maybe = true;
                let spent = hopeless && self.instance.steps[step].action.attempts >= HOPELESS_ATTEMPTS_MAX;
                if !self.may_repeat(step) || spent {
                    return self.unknown(step, why, spent);
                }
                if let Next::Over = self.retry_action(step, &why, retry_after) {
                    self.unknown(step, why, hopeless);
                }
            }
            Answer::NotSent(why) => {
                if let Next::Over = self.retry_action(step, &why, None) {
                    if self.instance.steps[step].maybe {
                        self.unknown(step, why, false);
                    } else {
                        self.refused(step, format!("never reached: {why}"));
                    }
                }
            }
            Answer::Held => {
                let record = &mut self.instance.steps[step];
                record.action.attempts = record.action.attempts.saturating_sub(1);
                record.action.phase = Phase::RetryAt(self.context.now);
            }
            Answer::Unservable(why) => self.needs_person(step, why),
            Answer::StaleEpoch => {
                self.instance.steps[step].maybe = true;
                self.needs_person(
                    step,
                    format!("its participant has seen a later epoch ({})", code::STALE_EPOCH),
                );
            }
            Answer::BarrierLost => {
                self.instance.steps[step].maybe = true;
                self.needs_person(
                    step,
                    "its participant answered an action with barrier_lost".into(),
                );
            }
        }
    }

    pub(super) fn succeeded(&mut self, step: usize, output: Option<bytes::Bytes>) {
        let record = &mut self.instance.steps[step];
        record.state = StepState::Succeeded;
        record.action.phase = Phase::Idle;
        record.succeeded = true;
        record.output = output;
    }

    fn refused(&mut self, step: usize, reason: String) {
        let pivot = self.definition.pivot() == Some(step);
        let turns = pivot || !self.past_pivot();
        let reason = cut(&reason);
        let record = &mut self.instance.steps[step];
        record.state = StepState::Refused;
        record.action.phase = Phase::Idle;
        record.action.last = Some(reason.clone());
        if turns {
            self.turn(format!("{} was refused: {reason}", self.name(step)));
        } else {
            record.needs_person = Some(cut(&format!("refused although it is retriable: {reason}")));
        }
    }

    /// The action's budget is spent and nobody knows. Before the pivot the saga turns, unless only a person can tell
    /// what is wrong; from the pivot on a person decides (rule S4).
    fn unknown(&mut self, step: usize, why: String, person: bool) {
        let record = &mut self.instance.steps[step];
        record.state = StepState::Unknown;
        record.action.phase = Phase::Idle;
        record.action.last = Some(cut(&why));
        if person || self.past_pivot() {
            self.instance.steps[step].needs_person = Some(cut(&why));
        } else if self.it(step).read_only {
            self.turn(format!("{} could not be read: {why}", self.name(step)));
        } else {
            self.turn(format!("{} may have happened: {why}", self.name(step)));
        }
    }

    fn needs_person(&mut self, step: usize, why: String) {
        let record = &mut self.instance.steps[step];
        record.action.phase = Phase::Idle;
        record.needs_person = Some(cut(&why));
    }

    fn retry(&mut self) {
        self.instance.halted = None;
        if self.instance.turned.is_some() {
            return self.retry_undo();
        }
        for record in &mut self.instance.steps {
            if record.needs_person.take().is_some() {
                record.state = StepState::Started;
                record.action = Progress {
                    phase: Phase::RetryAt(self.context.now),
                    ..Progress::default()
                };
            }
        }
    }

    /// R2: the direction and the undo set, together, once.
    pub(super) fn turn(&mut self, why: String) {
        if self.instance.turned.is_some() {
            return;
        }
        let why = cut(&why);
        let mut undo = Vec::new();
        for step in 0..self.instance.steps.len() {
            let read_only = self.it(step).read_only;
            let record = &mut self.instance.steps[step];
            record.needs_person = None;
            match record.state {
                StepState::Succeeded | StepState::Started | StepState::Unknown if !read_only => {
                    undo.push(record.name.clone());
                    // A call that is out is awaited (rule S5); one between two attempts has ended.
                    if record.state == StepState::Started && record.action.phase != Phase::InFlight {
                        record.state = if record.maybe {
                            StepState::Unknown
                        } else {
                            StepState::Skipped
                        };
                        record.action.phase = Phase::Idle;
                    }
                }
                StepState::Started | StepState::Unknown => {
                    record.state = StepState::Skipped;
                    record.action.phase = Phase::Idle;
                }
                StepState::NotStarted
                | StepState::Succeeded
                | StepState::Refused
                | StepState::Compensating
                | StepState::Compensated
                | StepState::CompensationStuck
                | StepState::Skipped => {}
            }
        }
        self.note(
            None,
            None,
            "turned",
            &format!("{why}; to undo: {}", undo.join(", ")),
        );
        self.instance.turned = Some(super::instance::Turned {
            why,
            at: self.context.now,
            undo,
        });
    }

    fn status(&self) -> Status {
        let it = &self.instance;
        if it.abandoned.is_some() {
            return Status::Abandoned;
        }
        if it.turned.is_some() {
            let set = it.undo_set();
            let over =
                |step: usize| matches!(it.steps[step].state, StepState::Compensated | StepState::Skipped);
            if members(set).all(over) {
                return Status::Compensated;
            }
        } else if it.steps.iter().all(|step| step.state == StepState::Succeeded) {
            return Status::Completed;
        }
        if it.halted.is_some() {
            return Status::Stuck;
        }
        let turned = it.turned.is_some();
        let calling = !it.in_flight().is_empty() || has_ready(it, self.definition);
        let timed = it.steps.iter().any(|step| step.next_retry(turned).is_some());
        match (calling, timed, turned) {
            (false, false, _) => Status::Stuck,
            (_, _, true) => Status::Compensating,
            (true, _, false) => Status::Running,
            (false, true, false) => Status::Waiting,
        }
    }

    fn retry_action(&mut self, step: usize, why: &str, after: Option<std::time::Duration>) -> Next {
        let policy = self.it(step).retry;
        let (progress, next) =
            self.after_failure(&policy, self.instance.steps[step].action.clone(), why, after);
        self.instance.steps[step].action = progress;
        next
    }

    /// The next attempt by this policy, or the end of its budget.
    pub(super) fn after_failure(
        &self,
        policy: &RetryPolicy,
        mut progress: Progress,
        why: &str,
        after: Option<std::time::Duration>,
    ) -> (Progress, Next) {
        let now = self.context.now;
        let elapsed = now
            .ms_since(progress.first_at.unwrap_or(now))
            .max(0)
            .unsigned_abs();
        progress.last = Some(cut(why));
        match policy.delay_ms(progress.attempts, elapsed, self.context.dice) {
            None => {
                progress.phase = Phase::Idle;
                (progress, Next::Over)
            }
            Some(ms) => {
                let ms = i64::try_from(ms).unwrap_or(i64::MAX).max(wait_ms(after, 0));
                let at = now.plus_ms(ms);
                progress.phase = Phase::RetryAt(at);
                (progress, Next::Again)
            }
        }
    }

    /// Still running: asked again at a steady pace. No attempt is spent (rule S10); the total time still bounds it.
    pub(super) fn after_running(
        &self,
        policy: &RetryPolicy,
        mut progress: Progress,
        after: Option<std::time::Duration>,
    ) -> (Progress, Next) {
        let now = self.context.now;
        let elapsed = now
            .ms_since(progress.first_at.unwrap_or(now))
            .max(0)
            .unsigned_abs();
        progress.attempts = progress.attempts.saturating_sub(1);
        progress.last = Some("still running".to_owned());
        let wait = wait_ms(after, RUNNING_POLL_MS_DEFAULT).max(1);
        if elapsed.saturating_add(wait.unsigned_abs()) > policy.total_ms_max {
            progress.phase = Phase::Idle;
            return (progress, Next::Over);
        }
        let at = now.plus_ms(wait);
        progress.phase = Phase::RetryAt(at);
        (progress, Next::Again)
    }

    pub(super) fn past_pivot(&self) -> bool {
        self.instance.past_pivot(self.definition)
    }

    pub(super) fn it(&self, step: usize) -> &Step {
        &self.definition.steps()[step]
    }

    fn name(&self, step: usize) -> &str {
        &self.definition.steps()[step].name
    }

    /// Whether a call that may have happened may be made again.
    pub(super) fn may_repeat(&self, step: usize) -> bool {
        self.it(step).participant != Participant::None || self.it(step).read_only
    }

    pub(super) fn refusal_is_certain(&self, step: usize) -> bool {
        self.it(step).participant != Participant::None || !self.instance.steps[step].maybe
    }

    pub(super) fn note(&mut self, step: Option<usize>, op: Option<Op>, event: &str, text: &str) {
        let step = step.map(|step| self.name(step).to_owned());
        self.log.push(LogEntry {
            step,
            op,
            event: event.to_owned(),
            text: cut(text),
        });
    }

    fn note_answer(&mut self, step: usize, op: Op, answer: &Answer) {
        let (event, text) = match answer {
            Answer::Succeeded(_) => ("succeeded", ""),
            Answer::TooLarge => ("succeeded", "its output is too large to keep"),
            Answer::Refused(reason) => ("refused", reason.as_str()),
            Answer::Running { .. } => ("running", ""),
            Answer::Unknown { why, .. } => ("unknown", why.as_str()),
            Answer::NotSent(why) => ("not_sent", why.as_str()),
            Answer::Held => ("held", ""),
            Answer::Unservable(why) => ("unservable", why.as_str()),
            Answer::StaleEpoch => ("stale_epoch", ""),
            Answer::BarrierLost => ("barrier_lost", ""),
        };
        self.note(Some(step), Some(op), event, text);
    }
}

fn wait_ms(after: Option<std::time::Duration>, default: i64) -> i64 {
    after.map_or(default, |after| {
        i64::try_from(after.as_millis())
            .unwrap_or(RETRY_AFTER_MS_MAX)
            .min(RETRY_AFTER_MS_MAX)
    })
}

/// Cuts a text to what state and log keep.
pub(super) fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(limits::SAGA_TEXT_BYTES_MAX)].to_owned()
}
