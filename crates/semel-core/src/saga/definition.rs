//! What a saga consists of, as data.

use serde::{Deserialize, Serialize};

use super::check::{CheckedDefinition, DefinitionError};
use crate::retry::RetryPolicy;

/// Milliseconds one attempt may take unless the step says otherwise.
pub const ATTEMPT_TIMEOUT_MS_DEFAULT: u64 = 10_000;

/// The steps of a saga and their order. Build it, or read it from configuration, then [`check`](Definition::check) it.
///
/// ```
/// use semel_core::saga::{Definition, Step};
/// let order = Definition::new("order")
///     .with_deadline_ms(30_000)
///     .step(Step::new("reserve", "http://stock/reserve").compensated_by("http://stock/release").barrier())
///     .step(Step::new("charge", "http://payments/charge").compensated_by("http://payments/refund").barrier())
///     .step(Step::new("ship", "http://shipping/ship").barrier().pivot())
///     .check()?;
/// assert_eq!(order.name(), "order");
/// # Ok::<(), semel_core::saga::DefinitionError>(())
/// ```
// A field added later must not be serialised at its default: the hash of a definition pins running sagas.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// The kind of saga, such as `order`.
    pub name: String,
    /// Milliseconds from acceptance after which the saga turns to compensating, unless its pivot has started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// The steps. Their order here only matters where a step does not say what it comes `after`.
    pub steps: Vec<Step>,
}

/// Milliseconds for which a keyed participant is taken to remember a key where the definition does not say: a day, the least
/// that services that take keys usually promise.
pub const KEYED_WINDOW_MS_DEFAULT: u64 = 86_400_000;
/// Milliseconds before the end of that time, beside one attempt, from which a key is not sent again: clocks differ, and
/// requests are under way for a while.
pub const KEYED_MARGIN_MS: u64 = 60_000;

/// How a participant deals with a call that comes twice. What is not true must not be declared: it decides what may be
/// repeated and what a refusal proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Participant {
    /// It keeps the barrier in the transaction of its effect: duplicates, late actions and empty compensations are
    /// harmless there. A step that is not certain is compensated at once.
    Barrier,
    /// It deduplicates by `Idempotency-Key`. A step that is not certain is first driven to a definite answer by its
    /// key, then compensated.
    Keyed,
    /// It knows no keys. Nothing that may have happened is repeated; a step that is not certain needs a person.
    #[default]
    None,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "WrittenStep")]
pub struct Step {
    /// Unique in its saga; part of the keys, so renaming a step makes it another step.
    pub name: String,
    /// Where the action goes: a URL, or the name of a handler in this process.
    pub action: String,
    /// Where the compensation goes. Only a read-only step, the pivot and steps after it may have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compensation: Option<String>,
    /// Steps that must have succeeded first. Absent: the step before it in the list. Empty: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Vec<String>>,
    /// What the participant does with duplicates. Default `none`.
    pub participant: Participant,
    /// Milliseconds for which a keyed participant remembers a key, from its first request: what it promises, not what you
    /// hope. Later than this less [`KEYED_MARGIN_MS`] and one attempt, nothing is repeated there: a person decides (rule
    /// K14). Only of keyed participants; where it is left out, [`KEYED_WINDOW_MS_DEFAULT`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_ms: Option<u64>,
    /// Budget of the action. Default: [`RetryPolicy::default`], for a retriable step [`patient`].
    pub retry: RetryPolicy,
    /// Budget of the compensation, always a full one of its own. Default: a day.
    pub compensation_retry: RetryPolicy,
    /// Milliseconds one attempt may take. Default [`ATTEMPT_TIMEOUT_MS_DEFAULT`].
    pub attempt_timeout_ms: u64,
    /// From its start on the saga no longer turns, unless the pivot itself is refused.
    #[serde(skip_serializing_if = "is_false")]
    pub pivot: bool,
    /// It changes nothing, so there is nothing to compensate and it may be repeated.
    #[serde(skip_serializing_if = "is_false")]
    pub read_only: bool,
    /// It is never refused, only delayed. Every step that does not come before the pivot must be.
    #[serde(skip_serializing_if = "is_false")]
    pub retriable: bool,
}

/// A step as it is written in JSON: what may be left out, before the defaults are known.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenStep {
    name: String,
    action: String,
    compensation: Option<String>,
    after: Option<Vec<String>>,
    #[serde(default)]
    participant: Participant,
    window_ms: Option<u64>,
    retry: Option<RetryPolicy>,
    compensation_retry: Option<RetryPolicy>,
    attempt_timeout_ms: Option<u64>,
    #[serde(default)]
    pivot: bool,
    #[serde(default)]
    read_only: bool,
    #[serde(default)]
    retriable: bool,
}

impl From<WrittenStep> for Step {
    fn from(written: WrittenStep) -> Self {
        let mut step = Self::new(written.name, written.action);
        if written.retriable {
            step = step.retriable();
        }
        Self {
            compensation: written.compensation,
            after: written.after,
            participant: written.participant,
            window_ms: written.window_ms,
            retry: written.retry.unwrap_or(step.retry),
            compensation_retry: written.compensation_retry.unwrap_or(step.compensation_retry),
            attempt_timeout_ms: written.attempt_timeout_ms.unwrap_or(step.attempt_timeout_ms),
            pivot: written.pivot,
            read_only: written.read_only,
            ..step
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// A budget of one day: for what must end well, compensations and retriable steps.
#[must_use]
pub const fn patient() -> RetryPolicy {
    RetryPolicy {
        initial_ms: 100,
        factor: 2.0,
        cap_ms: 30_000,
        jitter: 0.2,
        attempts_max: 10_000,
        total_ms_max: 86_400_000,
    }
}

impl Definition {
    /// A definition without steps.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            deadline_ms: None,
            steps: Vec::new(),
        }
    }

    /// Sets the deadline. It ends when the pivot starts.
    #[must_use]
    pub const fn with_deadline_ms(mut self, deadline_ms: u64) -> Self {
        self.deadline_ms = Some(deadline_ms);
        self
    }

    /// Adds a step; it comes after the one added before it unless it says otherwise.
    #[must_use]
    pub fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// Refuses what could leave a saga that can neither go on nor back.
    ///
    /// # Errors
    /// Each reason is a [`DefinitionError`] that names the step and what to change.
    pub fn check(self) -> Result<CheckedDefinition, DefinitionError> {
        CheckedDefinition::new(self)
    }
}

impl Step {
    /// A step whose action goes to this URL or handler.
    #[must_use]
    pub fn new(name: impl Into<String>, action: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            action: action.into(),
            compensation: None,
            after: None,
            participant: Participant::None,
            window_ms: None,
            retry: RetryPolicy::default(),
            compensation_retry: patient(),
            attempt_timeout_ms: ATTEMPT_TIMEOUT_MS_DEFAULT,
            pivot: false,
            read_only: false,
            retriable: false,
        }
    }

    /// Sets where the compensation goes.
    #[must_use]
    pub fn compensated_by(mut self, compensation: impl Into<String>) -> Self {
        self.compensation = Some(compensation.into());
        self
    }

    /// Sets what must have succeeded before; an empty list: nothing.
    #[must_use]
    pub fn after<S: Into<String>>(mut self, steps: impl IntoIterator<Item = S>) -> Self {
        self.after = Some(steps.into_iter().map(Into::into).collect());
        self
    }

    /// The participant keeps the barrier.
    #[must_use]
    pub const fn barrier(mut self) -> Self {
        self.participant = Participant::Barrier;
        self
    }

    /// The participant deduplicates by `Idempotency-Key`.
    #[must_use]
    pub const fn keyed(mut self) -> Self {
        self.participant = Participant::Keyed;
        self
    }

    /// The participant deduplicates by `Idempotency-Key`, and remembers keys for so many milliseconds.
    #[must_use]
    pub const fn keyed_for_ms(mut self, window_ms: u64) -> Self {
        self.participant = Participant::Keyed;
        self.window_ms = Some(window_ms);
        self
    }

    /// Milliseconds after a key was first sent in which it may be sent again; `None` where time does not matter: a barrier
    /// has rules of its own, and what is only read may always be read again.
    pub(crate) fn repeat_ms(&self) -> Option<u64> {
        (self.participant == Participant::Keyed && !self.read_only).then(|| {
            let window = self.window_ms.unwrap_or(KEYED_WINDOW_MS_DEFAULT);
            window.saturating_sub(KEYED_MARGIN_MS.saturating_add(self.attempt_timeout_ms))
        })
    }

    /// Sets the action's budget.
    #[must_use]
    pub const fn with_retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// Sets the compensation's budget.
    #[must_use]
    pub const fn with_compensation_retry(mut self, retry: RetryPolicy) -> Self {
        self.compensation_retry = retry;
        self
    }

    /// Sets how long one attempt may take.
    #[must_use]
    pub const fn with_attempt_timeout_ms(mut self, ms: u64) -> Self {
        self.attempt_timeout_ms = ms;
        self
    }

    /// Makes it the pivot.
    #[must_use]
    pub const fn pivot(mut self) -> Self {
        self.pivot = true;
        self
    }

    /// It changes nothing.
    #[must_use]
    pub const fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// It is never refused; its budget becomes a day.
    #[must_use]
    pub const fn retriable(mut self) -> Self {
        self.retriable = true;
        self.retry = patient();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(step: &str) -> Step {
        serde_json::from_str(step).unwrap()
    }

    /// Otherwise a step that can only be late would be given up after the budget of one that may be refused.
    #[test]
    fn a_step_in_json_has_the_budgets_of_the_one_in_rust() {
        assert_eq!(
            read(r#"{"name": "ship", "action": "http://x", "retriable": true}"#),
            Step::new("ship", "http://x").retriable()
        );
        assert_eq!(
            read(r#"{"name": "ship", "action": "http://x"}"#),
            Step::new("ship", "http://x")
        );
        let own = read(
            r#"{"name": "ship", "action": "http://x", "retriable": true, "retry": {"attempts_max": 3}}"#,
        );
        assert_eq!(
            own.retry,
            RetryPolicy {
                attempts_max: 3,
                ..RetryPolicy::default()
            },
            "what is written counts"
        );
    }

    #[test]
    fn a_stored_step_reads_as_it_was_written_and_a_stranger_is_refused_by_name() {
        let step = Step::new("pay", "http://x")
            .compensated_by("http://y")
            .after(["a"])
            .keyed_for_ms(86_400_000)
            .with_attempt_timeout_ms(5);
        assert_eq!(read(&serde_json::to_string(&step).unwrap()), step);
        let stored = serde_json::to_string(&Step::new("s", "http://x").retriable()).unwrap();
        assert_eq!(read(&stored), Step::new("s", "http://x").retriable());
        let error =
            serde_json::from_str::<Step>(r#"{"name": "s", "action": "a", "retryable": true}"#).unwrap_err();
        assert!(error.to_string().contains("retryable"), "{error}");
    }
}
