//! A saga as JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use semel_core::Timestamp;
use semel_core::saga::{CheckedDefinition, Instance, Phase, Progress, Status, StepRecord, StepState};
use semel_core::store::{SagaRecord, SagaSummary};
use serde::Serialize;
use serde_json::value::RawValue;

/// A whole saga.
#[derive(Debug, Serialize)]
pub(super) struct SagaView {
    id: String,
    definition: String,
    state: Status,
    accepted_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    turned: Option<TurnedView>,
    /// Why a person must look at it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    abandoned: Option<String>,
    steps: Vec<StepView>,
    /// Requests that its owner has not taken up yet.
    requests_waiting: usize,
    epoch: i64,
    version: i64,
}

#[derive(Debug, Serialize)]
struct TurnedView {
    why: String,
    at: String,
    undo: Vec<String>,
}

#[derive(Debug, Serialize)]
struct StepView {
    name: String,
    state: StepState,
    attempts: u32,
    #[serde(skip_serializing_if = "is_zero")]
    compensation_attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_attempt_at: Option<String>,
    #[serde(flatten)]
    output: Payload,
    /// The last answer that was not a success.
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    needs_person: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
const fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// Bytes of a participant: as JSON where they are, else as text, else as base64.
#[derive(Debug, Default, Serialize)]
struct Payload {
    #[serde(rename = "output", skip_serializing_if = "Option::is_none")]
    json: Option<Box<RawValue>>,
    #[serde(rename = "output_text", skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(rename = "output_base64", skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

impl Payload {
    fn of(bytes: Option<&Bytes>) -> Self {
        let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) else {
            return Self::default();
        };
        let Ok(text) = std::str::from_utf8(bytes) else {
            return Self {
                base64: Some(STANDARD.encode(bytes)),
                ..Self::default()
            };
        };
        match serde_json::from_str::<Box<RawValue>>(text) {
            Ok(json) => Self {
                json: Some(json),
                ..Self::default()
            },
            Err(_) => Self {
                text: Some(text.to_owned()),
                ..Self::default()
            },
        }
    }
}

/// Shows a record; one whose state or definition cannot be read is shown with that as its reason.
pub(super) fn saga(record: &SagaRecord, definition: Option<&CheckedDefinition>) -> SagaView {
    let read = match definition {
        Some(definition) => Instance::from_json(&record.state, definition)
            .map_err(|why| format!("its stored state cannot be read: {why}")),
        None => Err("its definition is not in the store".to_owned()),
    };
    let mut view = SagaView {
        id: record.id.to_string(),
        definition: definition.map_or_else(String::new, |definition| definition.name().to_owned()),
        state: record.status,
        accepted_at: record.accepted_at.rfc3339(),
        deadline_at: None,
        turned: None,
        reasons: Vec::new(),
        abandoned: None,
        steps: Vec::new(),
        requests_waiting: record.requests.len(),
        epoch: record.epoch,
        version: record.version,
    };
    match read {
        Ok(instance) => {
            view.reasons = instance.reasons();
            view.deadline_at = instance.deadline_at.map(Timestamp::rfc3339);
            view.steps = instance
                .steps
                .iter()
                .map(|step| step_view(step, instance.turned.is_some()))
                .collect();
            view.turned = instance.turned.map(|turned| TurnedView {
                why: turned.why,
                at: turned.at.rfc3339(),
                undo: turned.undo,
            });
            view.abandoned = instance.abandoned;
        }
        Err(why) => view.reasons.push(why),
    }
    view
}

fn step_view(step: &StepRecord, turned: bool) -> StepView {
    let next = |progress: &Progress| match progress.phase {
        Phase::RetryAt(at) => Some(at.rfc3339()),
        Phase::Idle | Phase::InFlight => None,
    };
    StepView {
        name: step.name.clone(),
        state: step.state,
        attempts: step.action.attempts,
        compensation_attempts: step.undo.attempts,
        next_attempt_at: next(if turned { &step.undo } else { &step.action }),
        output: Payload::of(step.output.as_ref()),
        last: step.undo.last.clone().or_else(|| step.action.last.clone()),
        needs_person: step.needs_person.clone(),
    }
}

/// One line of a list.
#[derive(Debug, Serialize)]
pub(super) struct SummaryView {
    id: String,
    definition: String,
    state: Status,
    accepted_at: String,
    updated_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl From<SagaSummary> for SummaryView {
    fn from(summary: SagaSummary) -> Self {
        Self {
            id: summary.id.to_string(),
            definition: summary.definition,
            state: summary.status,
            accepted_at: summary.accepted_at.rfc3339(),
            updated_at: summary.updated_at.rfc3339(),
            why: summary.why,
        }
    }
}

/// What `Semel-Outcome` says of a saga.
pub(super) const fn outcome(status: Status) -> &'static str {
    match status {
        Status::Running | Status::Waiting | Status::Compensating => "running",
        Status::Completed => "succeeded",
        // Nothing of it is left.
        Status::Compensated => "refused",
        Status::Stuck | Status::Abandoned => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_shown_as_what_they_are() {
        let shown = |bytes: &'static [u8]| {
            serde_json::to_string(&Payload::of(Some(&Bytes::from_static(bytes)))).unwrap()
        };
        assert_eq!(shown(br#"{"n": 1.10}"#), r#"{"output":{"n": 1.10}}"#);
        assert_eq!(shown(b"plain"), r#"{"output_text":"plain"}"#);
        assert_eq!(shown(b"\xff\x00"), r#"{"output_base64":"/wA="}"#);
        assert_eq!(shown(b""), "{}");
    }
}
