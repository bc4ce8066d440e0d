//! Which definitions are refused, and what is known about those that are not.

use std::collections::HashMap;
use std::sync::Arc;

use super::definition::{Definition, KEYED_MARGIN_MS, Participant, Step};
use crate::key::derive;
use crate::limits::{self, LimitExceeded};

/// Why a definition is refused. Page: SEM0501.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DefinitionError {
    /// A limit was exceeded.
    #[error("SEM0501: {0}")]
    Limit(#[from] LimitExceeded),
    /// Two steps of one name: their keys would be the same.
    #[error("SEM0501: two steps are named {0}; give each a name of its own")]
    DuplicateStep(String),
    /// A step comes after one that does not exist.
    #[error("SEM0501: step {step} comes after {after}, which is not a step of this saga")]
    UnknownStep {
        /// The step.
        step: String,
        /// What it names.
        after: String,
    },
    /// Steps wait for each other.
    #[error("SEM0501: step {0} would wait for itself; break the circle in its `after`")]
    Cycle(String),
    /// More than one pivot.
    #[error("SEM0501: {0} and {1} are both the pivot; a saga has at most one")]
    TwoPivots(String, String),
    /// A step that may be refused does not come before the pivot: by then the saga can no longer turn.
    #[error(
        "SEM0501: step {step} may be refused, but does not come before the pivot {pivot}; move it before the pivot or make it retriable"
    )]
    RefusableNotBeforePivot {
        /// The step.
        step: String,
        /// The pivot.
        pivot: String,
    },
    /// A step cannot be undone although the saga may still turn after it.
    #[error(
        "SEM0501: step {0} has no compensation; give it one, mark it read_only, make it the pivot, or put it after the pivot"
    )]
    NoCompensation(String),
    /// A window where nobody keeps keys, or one that leaves no time for a repeat.
    #[error("SEM0501: step {step}: window_ms {why}")]
    Window {
        /// The step.
        step: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// A step that changes nothing has a compensation.
    #[error("SEM0501: step {0} is read_only and has a compensation; remove one of the two")]
    ReadOnlyCompensated(String),
    /// What was stored cannot be read.
    #[error("SEM0501: the definition cannot be read: {0}")]
    Unreadable(String),
}

/// A set of steps: bit i is step i. [`limits::SAGA_STEPS_MAX`] fits.
pub(crate) type StepSet = u128;

/// A definition that holds, with its hash and its graph. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CheckedDefinition(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    definition: Definition,
    json: String,
    hash: [u8; 32],
    before: Vec<StepSet>,
    behind: Vec<StepSet>,
    pivot: Option<usize>,
}

impl PartialEq for CheckedDefinition {
    fn eq(&self, other: &Self) -> bool {
        self.0.hash == other.0.hash
    }
}

impl Eq for CheckedDefinition {}

impl CheckedDefinition {
    pub(super) fn new(definition: Definition) -> Result<Self, DefinitionError> {
        let json =
            serde_json::to_string(&definition).map_err(|e| DefinitionError::Unreadable(e.to_string()))?;
        Self::with_json(definition, json)
    }

    /// Reads a stored definition; its hash is that of these very bytes.
    ///
    /// # Errors
    /// It cannot be read, or does not hold.
    pub fn from_json(json: &str) -> Result<Self, DefinitionError> {
        let definition =
            serde_json::from_str(json).map_err(|e| DefinitionError::Unreadable(e.to_string()))?;
        Self::with_json(definition, json.to_owned())
    }

    fn with_json(definition: Definition, json: String) -> Result<Self, DefinitionError> {
        check_limits(&definition)?;
        let direct = edges(&definition)?;
        let before = ancestors(&definition, &direct)?;
        let mut behind = vec![0; before.len()];
        for (step, set) in before.iter().enumerate() {
            for earlier in members(*set) {
                behind[earlier] |= 1 << step;
            }
        }
        let pivot = find_pivot(&definition)?;
        for (step, it) in definition.steps.iter().enumerate() {
            check_step(&definition, it, step, pivot, &before)?;
        }
        let hash = derive(&[b"semel.saga.definition", json.as_bytes()]);
        Ok(Self(Arc::new(Inner {
            definition,
            json,
            hash,
            before,
            behind,
            pivot,
        })))
    }

    /// Stands for a definition that cannot be read, while its saga is written as stuck: one step that does nothing, and
    /// neither bytes nor hash. Nothing is decided by it or stored of it.
    #[must_use]
    pub fn unreadable() -> Self {
        Self(Arc::new(Inner {
            definition: unreadable(),
            json: String::new(),
            hash: [0; 32],
            before: vec![0],
            behind: vec![0],
            pivot: None,
        }))
    }

    /// The saga's kind.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.definition.name
    }

    /// What was checked.
    #[must_use]
    pub fn definition(&self) -> &Definition {
        &self.0.definition
    }

    /// The steps, in the order of their numbers.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.0.definition.steps
    }

    /// The stored form.
    #[must_use]
    pub fn json(&self) -> &str {
        &self.0.json
    }

    /// The hash that pins a saga to its definition.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        self.0.hash
    }

    pub(crate) fn pivot(&self) -> Option<usize> {
        self.0.pivot
    }

    /// Every step that comes before this one, directly or not.
    pub(crate) fn before(&self, step: usize) -> StepSet {
        self.0.before.get(step).copied().unwrap_or(0)
    }

    /// Every step that comes behind this one, directly or not.
    pub(crate) fn behind(&self, step: usize) -> StepSet {
        self.0.behind.get(step).copied().unwrap_or(0)
    }
}

pub(crate) fn members(set: StepSet) -> impl Iterator<Item = usize> {
    (0..limits::SAGA_STEPS_MAX).filter(move |step| set & (1 << step) != 0)
}

fn check_limits(definition: &Definition) -> Result<(), LimitExceeded> {
    let name = |what, text: &str, max: usize| {
        limits::check(
            what,
            "bytes",
            text.len() as u64,
            1,
            max as u64,
            "use a shorter, non-empty text",
        )?;
        let bad = text.bytes().filter(|b| !b.is_ascii_graphic()).count() as u64;
        limits::check(
            what,
            "bytes outside ! to ~",
            bad,
            0,
            0,
            "it travels in a header: use plain ASCII",
        )
    };
    let steps = definition.steps.len() as u64;
    name("saga name", &definition.name, limits::SAGA_NAME_BYTES_MAX)?;
    limits::check(
        "saga",
        "steps",
        steps,
        1,
        limits::SAGA_STEPS_MAX as u64,
        "split the saga",
    )?;
    if let Some(ms) = definition.deadline_ms {
        let max = limits::RETENTION_MS_MAX as u64;
        limits::check(
            "saga deadline",
            "ms",
            ms,
            1,
            max,
            "choose a deadline within the limit",
        )?;
    }
    for step in &definition.steps {
        name("step name", &step.name, limits::SAGA_NAME_BYTES_MAX)?;
        name("action target", &step.action, limits::SAGA_TARGET_BYTES_MAX)?;
        if let Some(target) = &step.compensation {
            name("compensation target", target, limits::SAGA_TARGET_BYTES_MAX)?;
        }
        let max = limits::SAGA_ATTEMPT_MS_MAX;
        let help = "let the participant answer 202 and poll it for longer work";
        limits::check("attempt timeout", "ms", step.attempt_timeout_ms, 1, max, help)?;
        for policy in [&step.retry, &step.compensation_retry] {
            let attempts = u64::from(policy.attempts_max);
            limits::check(
                "attempts_max",
                "attempts",
                attempts,
                1,
                u64::from(u32::MAX),
                "allow one attempt",
            )?;
        }
    }
    Ok(())
}

/// For each step the steps it names, or the one before it in the list.
fn edges(definition: &Definition) -> Result<Vec<StepSet>, DefinitionError> {
    let mut numbers = HashMap::new();
    for (number, step) in definition.steps.iter().enumerate() {
        if numbers.insert(step.name.as_str(), number).is_some() {
            return Err(DefinitionError::DuplicateStep(step.name.clone()));
        }
    }
    let mut direct = Vec::with_capacity(definition.steps.len());
    for (number, step) in definition.steps.iter().enumerate() {
        let mut set: StepSet = 0;
        match &step.after {
            None if number > 0 => set |= 1 << (number - 1),
            None => {}
            Some(names) => {
                for name in names {
                    let Some(earlier) = numbers.get(name.as_str()) else {
                        let (step, after) = (step.name.clone(), name.clone());
                        return Err(DefinitionError::UnknownStep { step, after });
                    };
                    set |= 1 << earlier;
                }
            }
        }
        direct.push(set);
    }
    Ok(direct)
}

/// The transitive closure; a step that ends up before itself is part of a circle.
fn ancestors(definition: &Definition, direct: &[StepSet]) -> Result<Vec<StepSet>, DefinitionError> {
    let mut before = direct.to_vec();
    loop {
        let next: Vec<StepSet> = before
            .iter()
            .map(|set| members(*set).fold(*set, |all, step| all | before[step]))
            .collect();
        if next == before {
            break;
        }
        before = next;
    }
    match (0..before.len()).find(|step| before[*step] & (1 << step) != 0) {
        Some(step) => Err(DefinitionError::Cycle(definition.steps[step].name.clone())),
        None => Ok(before),
    }
}

fn find_pivot(definition: &Definition) -> Result<Option<usize>, DefinitionError> {
    let mut pivots = definition.steps.iter().enumerate().filter(|(_, step)| step.pivot);
    match (pivots.next(), pivots.next()) {
        (Some((_, a)), Some((_, b))) => Err(DefinitionError::TwoPivots(a.name.clone(), b.name.clone())),
        (first, _) => Ok(first.map(|(number, _)| number)),
    }
}

/// Rule S4: whatever may be refused comes before the pivot; whatever may have to be undone can be.
fn check_step(
    definition: &Definition,
    it: &Step,
    step: usize,
    pivot: Option<usize>,
    before: &[StepSet],
) -> Result<(), DefinitionError> {
    if it.read_only && it.compensation.is_some() {
        return Err(DefinitionError::ReadOnlyCompensated(it.name.clone()));
    }
    if let Some(window) = it.window_ms {
        let least = KEYED_MARGIN_MS.saturating_add(it.attempt_timeout_ms);
        let why = if it.participant != Participant::Keyed {
            Some("is for participant keyed; leave it out".to_owned())
        } else if window <= least {
            Some(format!(
                "= {window} leaves no time for a repeat: it must exceed one attempt and the margin, {least} together"
            ))
        } else {
            None
        };
        if let Some(why) = why {
            let step = it.name.clone();
            return Err(DefinitionError::Window { step, why });
        }
    }
    let mut needs_compensation = !it.read_only && !it.pivot;
    if let Some(pivot) = pivot {
        let precedes = before[pivot] & (1 << step) != 0;
        if !it.pivot && !precedes && !it.retriable {
            let pivot = definition.steps[pivot].name.clone();
            return Err(DefinitionError::RefusableNotBeforePivot {
                step: it.name.clone(),
                pivot,
            });
        }
        needs_compensation &= before[step] & (1 << pivot) == 0;
    }
    if needs_compensation && it.compensation.is_none() {
        return Err(DefinitionError::NoCompensation(it.name.clone()));
    }
    Ok(())
}

fn unreadable() -> Definition {
    Definition::new("unreadable").step(Step::new("unreadable", "unreadable").read_only())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn undoable(name: &str) -> Step {
        Step::new(name, "do").compensated_by("undo")
    }

    fn refused(definition: Definition) -> DefinitionError {
        definition.check().unwrap_err()
    }

    #[test]
    fn what_stands_for_an_unreadable_definition_has_the_graph_that_a_check_would_give() {
        let (stands, checked) = (CheckedDefinition::unreadable(), unreadable().check().unwrap());
        assert_eq!(stands.0.definition, checked.0.definition);
        assert_eq!(
            (&stands.0.before, &stands.0.behind, stands.0.pivot),
            (&checked.0.before, &checked.0.behind, checked.0.pivot)
        );
    }

    #[test]
    fn two_steps_of_one_name_are_refused() {
        let twice = Definition::new("s").step(undoable("a")).step(undoable("a"));
        assert_eq!(refused(twice), DefinitionError::DuplicateStep("a".into()));
    }

    #[test]
    fn edges_to_nowhere_and_circles_are_refused() {
        let nowhere = Definition::new("s").step(undoable("a").after(["b"]));
        assert!(matches!(refused(nowhere), DefinitionError::UnknownStep { .. }));
        let circle = Definition::new("s")
            .step(undoable("a").after(["b"]))
            .step(undoable("b"));
        assert!(matches!(refused(circle), DefinitionError::Cycle(_)));
        let itself = Definition::new("s").step(undoable("a").after(["a"]));
        assert!(matches!(refused(itself), DefinitionError::Cycle(_)));
    }

    #[test]
    fn a_step_that_may_be_refused_must_come_before_the_pivot() {
        let behind = Definition::new("s")
            .step(undoable("a").pivot())
            .step(undoable("b"));
        assert!(matches!(
            refused(behind),
            DefinitionError::RefusableNotBeforePivot { .. }
        ));
        let beside = Definition::new("s")
            .step(undoable("a").pivot())
            .step(undoable("b").after([""; 0]));
        assert!(matches!(
            refused(beside),
            DefinitionError::RefusableNotBeforePivot { .. }
        ));
        let retriable = Definition::new("s")
            .step(undoable("a").pivot())
            .step(undoable("b").retriable());
        retriable.check().unwrap();
    }

    #[test]
    fn a_step_without_compensation_is_read_only_the_pivot_or_behind_it() {
        let before = Definition::new("s")
            .step(Step::new("a", "do"))
            .step(undoable("b"));
        assert_eq!(refused(before), DefinitionError::NoCompensation("a".into()));
        let last = Definition::new("s")
            .step(undoable("a"))
            .step(Step::new("b", "do"));
        assert_eq!(refused(last), DefinitionError::NoCompensation("b".into()));
        let beside = Definition::new("s")
            .step(Step::new("p", "do").pivot())
            .step(Step::new("b", "do").retriable().after([""; 0]));
        assert_eq!(refused(beside), DefinitionError::NoCompensation("b".into()));
        Definition::new("s")
            .step(Step::new("look", "do").read_only())
            .step(undoable("a"))
            .step(Step::new("p", "do").pivot())
            .step(Step::new("mail", "do").retriable())
            .check()
            .unwrap();
    }

    #[test]
    fn limits_name_what_is_too_large() {
        let steps = (0..=limits::SAGA_STEPS_MAX).map(|n| undoable(&format!("s{n}")));
        let many = steps.fold(Definition::new("s"), Definition::step);
        assert!(refused(many).to_string().contains("101 steps"));
        assert!(refused(Definition::new("s")).to_string().contains("0 steps"));
        let slow = Definition::new("s").step(undoable("a").with_attempt_timeout_ms(0));
        assert!(refused(slow).to_string().contains("attempt timeout"));
    }

    #[test]
    fn the_stored_form_reads_back_with_the_same_hash() {
        let checked = Definition::new("s")
            .step(undoable("a").keyed())
            .step(undoable("b"))
            .check()
            .unwrap();
        let again = CheckedDefinition::from_json(checked.json()).unwrap();
        assert_eq!(
            (again.hash(), again.definition()),
            (checked.hash(), checked.definition())
        );
        let other = Definition::new("s")
            .step(undoable("a").barrier())
            .step(undoable("b"))
            .check()
            .unwrap();
        assert_ne!(other.hash(), checked.hash());
    }

    #[test]
    fn without_edges_steps_follow_each_other_in_the_order_of_the_list() {
        let chain = Definition::new("s")
            .step(undoable("a"))
            .step(undoable("b"))
            .step(undoable("c"));
        let chain = chain.check().unwrap();
        assert_eq!((chain.before(2), chain.behind(0)), (0b011, 0b110));
    }
}
