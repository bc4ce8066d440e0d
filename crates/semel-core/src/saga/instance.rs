//! One saga as it is stored: where each step stands, and whether it has turned.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::check::{CheckedDefinition, StepSet};
use super::names::Op;
use crate::host::Timestamp;

/// The form of the stored state this build writes. A later one is not read: the saga becomes stuck, not misread.
pub const INSTANCE_FORMAT: u8 = 1;

/// Where a saga stands. Closed on purpose: match it without a `_` arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Steps are being called.
    Running,
    /// Nothing is being called; a timer is set for the next attempt.
    Waiting,
    /// It has turned; what was done is being undone.
    Compensating,
    /// Every step succeeded. Terminal.
    Completed,
    /// Everything that may have happened was undone. Terminal.
    Compensated,
    /// It needs a person. Never shown as done.
    Stuck,
    /// A person gave it up. Terminal.
    Abandoned,
}

impl Status {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Running,
        Self::Waiting,
        Self::Compensating,
        Self::Completed,
        Self::Compensated,
        Self::Stuck,
        Self::Abandoned,
    ];

    /// The stored word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Compensating => "compensating",
            Self::Completed => "completed",
            Self::Compensated => "compensated",
            Self::Stuck => "stuck",
            Self::Abandoned => "abandoned",
        }
    }

    /// Reads [`Status::as_str`] back.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// Nothing changes any more (R5).
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        match self {
            Self::Completed | Self::Compensated | Self::Abandoned => true,
            Self::Running | Self::Waiting | Self::Compensating | Self::Stuck => false,
        }
    }
}

/// Where a step stands. Closed on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepState {
    /// Never called.
    NotStarted,
    /// Called, or about to be: durable before the first request leaves (R1).
    Started,
    /// It happened.
    Succeeded,
    /// It is certain that nothing happened.
    Refused,
    /// It may have happened.
    Unknown,
    /// Its compensation is being called.
    Compensating,
    /// It was undone, or its participant says that there was nothing to undo.
    Compensated,
    /// It could not be undone, or must not be tried: a person decides.
    CompensationStuck,
    /// It was in the undo set and turned out never to have happened.
    Skipped,
}

/// What the calls of one operation of one step have come to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Attempts that spent budget.
    pub attempts: u32,
    /// When the first began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_at: Option<Timestamp>,
    /// What happens next.
    #[serde(default)]
    pub phase: Phase,
    /// The last answer that was not a success, cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<String>,
}

/// When the calls under one key began, whatever budgets they were made under since (rule K14).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sent {
    /// When the first of them was to leave.
    pub at: Timestamp,
    /// That first one is out still: when it turns out never to have left, nothing was sent.
    #[serde(default, skip_serializing_if = "is_false")]
    pub first: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// Whether a call is out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// No call is out and none is planned.
    #[default]
    Idle,
    /// A call is out, or was when the last owner died.
    InFlight,
    /// The next attempt begins then.
    RetryAt(Timestamp),
}

/// One step of one saga.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepRecord {
    /// Its name; identity comes from here, never from the position.
    pub name: String,
    /// Where it stands.
    pub state: StepState,
    /// The calls of its action.
    pub action: Progress,
    /// The calls of its undoing: the compensation, and before it the drive of a keyed action to a definite answer.
    #[serde(default)]
    pub undo: Progress,
    /// The action's output; `None` while there is none, or when it was too large to keep.
    #[serde(default, with = "super::payload", skip_serializing_if = "Option::is_none")]
    pub output: Option<Bytes>,
    /// The participant said that the action happened. A compensation passes it on (rule S2).
    #[serde(default)]
    pub succeeded: bool,
    /// When the action was first sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_sent: Option<Sent>,
    /// When the compensation was first sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compensation_sent: Option<Sent>,
    /// Some attempt ended without a certain answer, so it may have happened.
    #[serde(default)]
    pub maybe: bool,
    /// Why a person must look at it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs_person: Option<String>,
}

/// The one change of direction (R2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turned {
    /// What made it turn.
    pub why: String,
    /// When.
    pub at: Timestamp,
    /// The steps to undo: written with the turn, never derived again, never grows.
    pub undo: Vec<String>,
}

/// A saga's state. Changed by [`step`](super::step::step) alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    /// [`INSTANCE_FORMAT`].
    pub format: u8,
    /// Where it stands.
    pub status: Status,
    /// When it turns by itself, unless the pivot has started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<Timestamp>,
    /// Its turn, if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turned: Option<Turned>,
    /// Why it cannot be worked on at all, such as a definition that nobody serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halted: Option<String>,
    /// Who gave it up, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abandoned: Option<String>,
    /// The steps, in the order of the definition.
    pub steps: Vec<StepRecord>,
}

impl Instance {
    /// A saga of which nothing has started.
    #[must_use]
    pub fn new(definition: &CheckedDefinition) -> Self {
        let record = |name: &str| StepRecord {
            name: name.to_owned(),
            state: StepState::NotStarted,
            action: Progress::default(),
            undo: Progress::default(),
            output: None,
            succeeded: false,
            action_sent: None,
            compensation_sent: None,
            maybe: false,
            needs_person: None,
        };
        Self {
            format: INSTANCE_FORMAT,
            status: Status::Running,
            deadline_at: None,
            turned: None,
            halted: None,
            abandoned: None,
            steps: definition.steps().iter().map(|step| record(&step.name)).collect(),
        }
    }

    /// Reads the stored form and checks that it belongs to this definition.
    ///
    /// # Errors
    /// What is wrong with it, for the operator.
    pub fn from_json(json: &str, definition: &CheckedDefinition) -> Result<Self, String> {
        let instance: Self = serde_json::from_str(json).map_err(|error| error.to_string())?;
        if instance.format != INSTANCE_FORMAT {
            return Err(format!(
                "its form is {}, this build knows {INSTANCE_FORMAT}",
                instance.format
            ));
        }
        let names = instance.steps.iter().map(|step| step.name.as_str());
        if !names.eq(definition.steps().iter().map(|step| step.name.as_str())) {
            return Err("its steps are not those of its definition".to_owned());
        }
        Ok(instance)
    }

    /// The stored form.
    ///
    /// # Errors
    /// Never in practice: every value has a JSON form.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// The step of this name.
    #[must_use]
    pub fn step(&self, name: &str) -> Option<&StepRecord> {
        self.steps.iter().find(|step| step.name == name)
    }

    /// Why a person must look: per step, or of the whole saga.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let of_step = |step: &StepRecord| Some(format!("{}: {}", step.name, step.needs_person.as_ref()?));
        self.halted
            .iter()
            .cloned()
            .chain(self.steps.iter().filter_map(of_step))
            .collect()
    }

    /// The calls that are out by what is stored. An owner sends those that do not run in its process.
    #[must_use]
    pub fn in_flight(&self) -> Vec<(usize, Op)> {
        let mut calls = Vec::new();
        if self.status.is_terminal() {
            return calls;
        }
        for (number, step) in self.steps.iter().enumerate() {
            match (step.state, step.action.phase, step.undo.phase) {
                (StepState::Started, Phase::InFlight, _) | (StepState::Unknown, _, Phase::InFlight) => {
                    calls.push((number, Op::Action));
                }
                (StepState::Compensating, _, Phase::InFlight) => calls.push((number, Op::Compensation)),
                _ => {}
            }
        }
        calls
    }

    /// The undo set as step numbers; empty before the turn.
    pub(super) fn undo_set(&self) -> StepSet {
        let Some(turned) = &self.turned else { return 0 };
        let numbered = self
            .steps
            .iter()
            .enumerate()
            .filter(|(_, step)| turned.undo.contains(&step.name));
        numbered.fold(0, |set, (number, _)| set | 1 << number)
    }

    /// From the pivot's start on only its own certain refusal turns the saga (rule S4).
    pub(super) fn past_pivot(&self, definition: &CheckedDefinition) -> bool {
        definition
            .pivot()
            .and_then(|pivot| self.steps.get(pivot))
            .is_some_and(|pivot| match pivot.state {
                StepState::NotStarted | StepState::Refused => false,
                StepState::Started
                | StepState::Succeeded
                | StepState::Unknown
                | StepState::Compensating
                | StepState::Compensated
                | StepState::CompensationStuck
                | StepState::Skipped => true,
            })
    }

    /// When somebody must look at it again; `None` when nothing will happen by itself.
    #[must_use]
    pub fn due_at(&self, definition: &CheckedDefinition, now: Timestamp) -> Option<Timestamp> {
        if self.status.is_terminal() || self.halted.is_some() {
            return None;
        }
        if !self.in_flight().is_empty() || super::step::has_ready(self, definition) {
            return Some(now);
        }
        self.timer_at(definition)
    }

    /// When time alone will change something: the next attempt, or the deadline.
    #[must_use]
    pub fn timer_at(&self, definition: &CheckedDefinition) -> Option<Timestamp> {
        if self.status.is_terminal() || self.halted.is_some() {
            return None;
        }
        let retries = self
            .steps
            .iter()
            .filter_map(|step| step.next_retry(self.turned.is_some()));
        let deadline = self
            .deadline_at
            .filter(|_| self.turned.is_none() && !self.past_pivot(definition));
        retries.chain(deadline).min()
    }
}

impl StepRecord {
    /// When the calls under this operation's key began.
    pub(crate) const fn sent(&mut self, op: Op) -> &mut Option<Sent> {
        match op {
            Op::Action => &mut self.action_sent,
            Op::Compensation => &mut self.compensation_sent,
        }
    }

    pub(super) fn next_retry(&self, turned: bool) -> Option<Timestamp> {
        let phase = match (turned, self.state) {
            (false, StepState::Started) => self.action.phase,
            (true, StepState::Unknown | StepState::Compensating) => self.undo.phase,
            _ => Phase::Idle,
        };
        match phase {
            Phase::RetryAt(at) => Some(at),
            Phase::Idle | Phase::InFlight => None,
        }
    }
}
