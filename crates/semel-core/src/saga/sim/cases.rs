//! Single decisions, as sentences.

use std::time::Duration;

use bytes::Bytes;

use super::undoable;
use crate::host::Timestamp;
use crate::limits;
use crate::saga::step::step;
use crate::saga::{
    Answer, CheckedDefinition, Context, Definition, Event, Instance, Op, Participant, SagaId, Status, Step,
    StepState, call_for,
};

struct Saga {
    definition: CheckedDefinition,
    instance: Instance,
    now: Timestamp,
    sent: Vec<(String, Op)>,
}

impl Saga {
    fn of(definition: Definition) -> Self {
        let definition = definition.check().unwrap();
        let instance = Instance::new(&definition);
        let mut saga = Self {
            definition,
            instance,
            now: Timestamp(0),
            sent: Vec::new(),
        };
        saga.feed(Event::Resume {
            accepted_at: Timestamp(0),
            live: Vec::new(),
        });
        saga
    }

    /// a, then b, then c; all of one kind.
    fn chain(kind: Participant) -> Self {
        Self::of(
            Definition::new("chain")
                .step(undoable("a", kind))
                .step(undoable("b", kind))
                .step(undoable("c", kind)),
        )
    }

    fn feed(&mut self, event: Event) {
        let context = Context {
            now: self.now,
            dice: 0.0,
            launch: true,
        };
        let mut running = self.instance.in_flight();
        match &event {
            Event::Resume { live, .. } => running.clone_from(live),
            Event::Answered { step, op, .. } => running.retain(|call| *call != (*step, *op)),
            _ => {}
        }
        let decision = step(&self.definition, self.instance.clone(), event, context);
        self.instance = decision.instance;
        let out = self.instance.in_flight();
        let new = out.into_iter().filter(|call| !running.contains(call));
        let name = |step: usize| self.definition.steps()[step].name.clone();
        self.sent = new.map(|(step, op)| (name(step), op)).collect();
    }

    fn answers(&mut self, name: &str, op: Op, answer: Answer) -> &mut Self {
        let number = self
            .definition
            .steps()
            .iter()
            .position(|step| step.name == name)
            .unwrap();
        self.feed(Event::Answered {
            step: number,
            op,
            answer,
        });
        self
    }

    fn acts(&mut self, name: &str, answer: Answer) -> &mut Self {
        self.answers(name, Op::Action, answer)
    }

    fn undoes(&mut self, name: &str, answer: Answer) -> &mut Self {
        self.answers(name, Op::Compensation, answer)
    }

    /// Lets time pass until the next timer, and sends what is due.
    fn timer(&mut self) -> &mut Self {
        let turned = self.instance.turned.is_some();
        let retry = self
            .instance
            .steps
            .iter()
            .filter_map(|step| step.next_retry(turned))
            .min();
        self.now = retry
            .or_else(|| self.instance.due_at(&self.definition, self.now))
            .unwrap();
        self.feed(Event::Timer);
        self
    }

    fn sends(&self, name: &str, op: Op) {
        assert_eq!(self.sent, [(name.to_owned(), op)], "{:?}", self.instance);
    }

    fn state(&self, name: &str) -> StepState {
        self.instance.step(name).unwrap().state
    }
}

fn ok() -> Answer {
    Answer::Succeeded(Bytes::from_static(b"out"))
}

fn no() -> Answer {
    Answer::Refused("no".into())
}

fn lost() -> Answer {
    Answer::Unknown {
        why: "no answer".into(),
        retry_after: None,
        hopeless: false,
    }
}

fn cancel() -> Event {
    Event::Cancel {
        by: "ann".into(),
        why: "changed her mind".into(),
    }
}

#[test]
fn a_refusal_undoes_what_was_done_in_reverse_and_skips_itself() {
    let mut saga = Saga::chain(Participant::Barrier);
    saga.acts("a", ok()).acts("b", ok()).acts("c", no());
    assert_eq!(saga.instance.turned.as_ref().unwrap().undo, ["a", "b"]);
    saga.sends("b", Op::Compensation);
    saga.undoes("b", ok()).sends("a", Op::Compensation);
    saga.undoes("a", ok());
    assert_eq!(
        (saga.instance.status, saga.state("c")),
        (Status::Compensated, StepState::Refused)
    );
}

#[test]
fn a_reply_lost_and_then_a_closed_port_is_unknown_and_compensated() {
    let mut saga = Saga::chain(Participant::Barrier);
    saga.acts("a", lost());
    for _ in 0..2 {
        saga.timer()
            .acts("a", Answer::NotSent("connection refused".into()));
    }
    saga.sends("a", Op::Compensation);
    assert!(!saga.instance.step("a").unwrap().succeeded);
}

#[test]
fn a_port_that_was_closed_all_along_is_a_certain_refusal() {
    let mut saga = Saga::chain(Participant::None);
    for _ in 0..3 {
        saga.acts("a", Answer::NotSent("connection refused".into()));
        if saga.instance.turned.is_none() {
            saga.timer();
        }
    }
    assert_eq!(
        (saga.instance.status, saga.state("a")),
        (Status::Compensated, StepState::Refused)
    );
}

#[test]
fn a_refusal_after_an_unknown_attempt_is_certain_only_where_the_participant_deduplicates() {
    let mut keyed = Saga::chain(Participant::Keyed);
    keyed.acts("a", lost()).timer().acts("a", no());
    assert_eq!(
        (keyed.state("a"), keyed.instance.status),
        (StepState::Refused, Status::Compensated)
    );
    let mut plain = Saga::chain(Participant::None);
    plain.acts("a", lost());
    assert_eq!(
        (plain.state("a"), plain.instance.status),
        (StepState::CompensationStuck, Status::Stuck)
    );
}

/// A person lets the pivot be called again although nobody knows of its first call; its refusal proves nothing.
#[test]
fn a_refusal_after_a_persons_retry_is_as_uncertain_as_the_call_before_it() {
    let pivot = Step {
        compensation: None,
        ..undoable("p", Participant::None)
    };
    let chain = Definition::new("s")
        .step(undoable("a", Participant::Keyed))
        .step(pivot.pivot());
    let mut saga = Saga::of(chain);
    saga.acts("a", ok()).acts("p", lost());
    assert_eq!(saga.instance.status, Status::Stuck);
    saga.feed(Event::Retry { by: "ann".into() });
    saga.sends("p", Op::Action);
    saga.acts("p", no());
    assert_eq!(
        (saga.instance.status, &saga.instance.turned),
        (Status::Stuck, &None)
    );
}

#[test]
fn a_keyed_action_is_driven_to_a_definite_answer_before_its_compensation() {
    let mut saga = Saga::chain(Participant::Keyed);
    saga.acts("a", lost());
    saga.feed(cancel());
    saga.sends("a", Op::Action);
    saga.acts("a", lost()).timer().sends("a", Op::Action);
    saga.acts("a", ok()).sends("a", Op::Compensation);
    assert!(saga.instance.step("a").unwrap().succeeded);
}

#[test]
fn a_barrier_is_compensated_at_once_when_nobody_knows() {
    let mut saga = Saga::chain(Participant::Barrier);
    saga.acts("a", lost());
    saga.feed(cancel());
    saga.sends("a", Op::Compensation);
}

#[test]
fn a_late_reply_is_recorded_and_handed_to_the_compensation() {
    let wide = Definition::new("wide")
        .step(undoable("a", Participant::Barrier))
        .step(undoable("b", Participant::Barrier).after([""; 0]));
    let mut saga = Saga::of(wide.clone());
    saga.acts("a", no());
    assert!(saga.sent.is_empty(), "its sibling's call is awaited first");
    saga.acts("b", ok()).sends("b", Op::Compensation);
    let id = SagaId::new("s").unwrap();
    let call = call_for(
        &saga.definition,
        &saga.instance,
        &id,
        &Bytes::new(),
        (1, Op::Compensation),
        1,
        saga.now,
    )
    .unwrap();
    let facts = call.undoes.unwrap();
    assert!(
        facts.succeeded && facts.output.as_deref() == Some(b"out"),
        "{facts:?}"
    );

    let mut refused = Saga::of(wide);
    refused.acts("a", no()).acts("b", no());
    assert_eq!(
        (refused.state("b"), refused.instance.status),
        (StepState::Skipped, Status::Compensated)
    );
    assert_eq!(
        refused.instance.turned.unwrap().undo,
        ["b"],
        "the set is as it was written"
    );
}

#[test]
fn two_refusals_and_a_cancel_turn_once() {
    let step = |name| undoable(name, Participant::Barrier).after([""; 0]);
    let mut saga = Saga::of(
        Definition::new("wide")
            .step(step("a"))
            .step(step("b"))
            .step(step("c")),
    );
    saga.acts("a", no());
    let turned = saga.instance.turned.clone();
    saga.feed(cancel());
    saga.acts("b", no()).acts("c", ok()).undoes("c", ok());
    assert_eq!(
        (saga.instance.status, saga.instance.turned),
        (Status::Compensated, turned)
    );
}

#[test]
fn running_spends_no_attempt_and_is_asked_at_its_own_pace() {
    let mut saga = Saga::chain(Participant::Keyed);
    for _ in 0..50 {
        let before = saga.now;
        saga.acts(
            "a",
            Answer::Running {
                retry_after: Some(Duration::from_secs(2)),
            },
        );
        saga.timer().sends("a", Op::Action);
        assert_eq!(saga.now.ms_since(before), 2_000);
    }
    assert_eq!(saga.instance.step("a").unwrap().action.attempts, 1);
}

#[test]
fn the_pivot_once_started_is_beyond_deadline_and_cancel() {
    let pivot = Step {
        compensation: None,
        ..undoable("p", Participant::Barrier)
    }
    .pivot();
    let chain = Definition::new("s")
        .with_deadline_ms(1_000)
        .step(undoable("a", Participant::Barrier))
        .step(pivot);
    let mut saga = Saga::of(chain.clone());
    saga.acts("a", ok()).sends("p", Op::Action);
    saga.now = Timestamp(5_000_000);
    saga.feed(Event::Timer);
    saga.feed(cancel());
    assert_eq!(
        (saga.instance.status, &saga.instance.turned),
        (Status::Running, &None)
    );
    saga.acts("p", no()).sends("a", Op::Compensation);

    let mut unknown = Saga::of(chain.clone());
    unknown.acts("a", ok());
    for _ in 0..3 {
        unknown.acts("p", lost());
        if unknown.instance.status != Status::Stuck {
            unknown.timer();
        }
    }
    assert_eq!(
        (unknown.instance.status, &unknown.instance.turned),
        (Status::Stuck, &None)
    );
    unknown.feed(Event::Retry { by: "ann".into() });
    unknown.acts("p", ok());
    assert_eq!(unknown.instance.status, Status::Completed);

    let mut early = Saga::of(chain);
    early.now = Timestamp(5_000_000);
    early.feed(Event::Timer);
    early.acts("a", ok()).sends("a", Op::Compensation);
}

#[test]
fn a_compensation_has_a_full_budget_and_ends_stuck_never_done() {
    let step = undoable("a", Participant::Barrier);
    let policy = crate::RetryPolicy {
        attempts_max: 2,
        ..step.compensation_retry
    };
    let mut saga = Saga::of(
        Definition::new("s")
            .step(step.with_compensation_retry(policy))
            .step(undoable("b", Participant::Barrier).after([""; 0]))
            .step(undoable("c", Participant::Barrier)),
    );
    saga.acts("a", lost())
        .timer()
        .acts("a", lost())
        .timer()
        .acts("a", ok());
    saga.acts("b", ok()).acts("c", no());
    assert_eq!(saga.sent.len(), 2, "independent steps are undone side by side");
    saga.undoes("a", lost()).timer().undoes("a", lost());
    assert_eq!(
        saga.instance.status,
        Status::Compensating,
        "b is not held up by a"
    );
    saga.undoes("b", ok());
    assert_eq!(
        (saga.instance.status, saga.state("a")),
        (Status::Stuck, StepState::CompensationStuck)
    );
    assert!(
        saga.instance.reasons()[0].contains("no answer"),
        "{:?}",
        saga.instance.reasons()
    );
    saga.feed(Event::Retry { by: "ann".into() });
    saga.sends("a", Op::Compensation);
    saga.undoes("a", ok());
    assert_eq!(saga.instance.status, Status::Compensated);
}

#[test]
fn an_answer_that_repeating_will_not_mend_is_given_to_a_person_after_few_attempts() {
    let mut saga = Saga::of(Definition::new("s").with_deadline_ms(60_000).step(Step {
        retry: crate::RetryPolicy::default(),
        ..undoable("a", Participant::Barrier)
    }));
    let wrong = || Answer::Unknown {
        why: "status 404".into(),
        retry_after: None,
        hopeless: true,
    };
    saga.acts("a", wrong())
        .timer()
        .acts("a", wrong())
        .timer()
        .acts("a", wrong());
    assert_eq!(
        (saga.instance.status, &saga.instance.turned),
        (Status::Stuck, &None)
    );
    saga.timer();
    assert!(saga.instance.turned.is_some(), "its deadline still turns it");
    saga.sends("a", Op::Compensation);
}

#[test]
fn an_output_too_large_to_keep_counts_as_done_and_is_undone() {
    let mut saga = Saga::chain(Participant::Barrier);
    saga.acts("a", Answer::TooLarge).sends("a", Op::Compensation);
    assert!(
        saga.instance
            .turned
            .as_ref()
            .unwrap()
            .why
            .contains("output exceeds")
    );
    assert!(saga.instance.step("a").unwrap().succeeded);
}

/// dtm#293: a participant is away for two minutes; five tries, ten seconds doubled.
#[test]
fn a_saga_outlives_a_participant_that_is_away_for_two_minutes() {
    let retry = crate::RetryPolicy {
        initial_ms: 10_000,
        jitter: 0.0,
        attempts_max: 5,
        ..crate::RetryPolicy::default()
    };
    let step = undoable("a", Participant::Keyed).with_retry(crate::RetryPolicy {
        cap_ms: 80_000,
        ..retry
    });
    let mut saga = Saga::of(Definition::new("s").step(step));
    while saga.now < Timestamp(120_000_000) {
        saga.acts("a", Answer::NotSent("connection refused".into()));
        assert_eq!(saga.instance.status, Status::Waiting);
        saga.timer();
    }
    saga.acts("a", ok());
    assert_eq!(saga.instance.status, Status::Completed);
}

#[test]
fn an_error_text_of_a_megabyte_is_cut() {
    let mut saga = Saga::chain(Participant::Barrier);
    saga.acts("a", Answer::Refused("\u{e9}".repeat(1 << 20)));
    assert!(saga.instance.to_json().unwrap().len() < 10 * limits::SAGA_TEXT_BYTES_MAX);
}

#[test]
fn a_stale_epoch_answer_is_neither_refused_nor_unknown_but_stuck() {
    let mut saga = Saga::chain(Participant::Barrier);
    saga.acts("a", Answer::StaleEpoch);
    assert_eq!(
        (saga.instance.status, &saga.instance.turned),
        (Status::Stuck, &None)
    );
}

#[test]
fn a_second_answer_to_one_call_changes_nothing() {
    let mut saga = Saga::chain(Participant::Barrier);
    saga.acts("a", ok());
    let before = saga.instance.clone();
    saga.acts("a", no()).acts("a", lost());
    assert_eq!(saga.instance, before);
}

#[test]
fn an_owner_that_is_stopping_records_answers_and_starts_nothing() {
    let mut saga = Saga::chain(Participant::None);
    let event = Event::Answered {
        step: 0,
        op: Op::Action,
        answer: ok(),
    };
    let context = Context {
        now: saga.now,
        dice: 0.0,
        launch: false,
    };
    let stopped = step(&saga.definition, saga.instance.clone(), event, context);
    assert!(stopped.instance.in_flight().is_empty());
    assert_eq!(
        stopped.instance.due_at(&saga.definition, saga.now),
        Some(saga.now),
        "the next owner goes on at once"
    );
    saga.instance = stopped.instance;
    saga.feed(Event::Resume {
        accepted_at: Timestamp(0),
        live: Vec::new(),
    });
    saga.sends("b", Op::Action);
}

#[test]
fn a_new_owner_does_not_repeat_a_call_that_still_runs_here() {
    let mut saga = Saga::chain(Participant::None);
    saga.feed(Event::Resume {
        accepted_at: Timestamp(0),
        live: vec![(0, Op::Action)],
    });
    assert!(saga.sent.is_empty() && saga.state("a") == StepState::Started);
}

#[test]
fn a_saga_that_nobody_serves_is_stuck_and_goes_on_after_a_retry() {
    let mut saga = Saga::chain(Participant::Barrier);
    saga.feed(Event::Halt {
        why: "no handler for do-a".into(),
    });
    assert_eq!(saga.instance.due_at(&saga.definition, saga.now), None);
    assert_eq!(saga.instance.status, Status::Stuck);
    saga.feed(Event::Resume {
        accepted_at: Timestamp(0),
        live: Vec::new(),
    });
    assert_eq!(saga.instance.status, Status::Stuck);
    saga.feed(Event::Retry { by: "ann".into() });
    saga.sends("a", Op::Action);
}

#[test]
fn an_abandoned_saga_is_terminal_and_says_by_whom() {
    let mut saga = Saga::chain(Participant::Barrier);
    saga.feed(Event::Abandon {
        by: "ann".into(),
        why: "the shop is closed".into(),
    });
    saga.acts("a", ok());
    assert_eq!(saga.instance.status, Status::Abandoned);
    assert_eq!(
        saga.instance.abandoned.as_deref(),
        Some("by ann: the shop is closed")
    );
    assert!(saga.sent.is_empty());
}

const DAY_MS: i64 = 86_400_000;

/// Rule K14: stuck for three days, then asked for again by its key at a participant that keeps keys for one day.
#[test]
fn a_key_that_its_participant_may_have_forgotten_is_not_sent_again_whoever_asks() {
    let mut saga = Saga::chain(Participant::Keyed);
    saga.acts("a", ok());
    saga.sends("b", Op::Action);
    saga.now = saga.now.plus_ms(3 * DAY_MS);
    saga.feed(Event::Resume {
        accepted_at: Timestamp(0),
        live: Vec::new(),
    });
    assert_eq!(
        (saga.sent.len(), saga.state("b"), saga.instance.status),
        (0, StepState::CompensationStuck, Status::Stuck)
    );
    let why = saga.instance.step("b").unwrap().needs_person.clone().unwrap();
    assert!(
        why.contains("first sent at 1970-01-01") && why.contains("window_ms"),
        "{why}"
    );
    saga.feed(Event::Retry { by: "ann".into() });
    assert_eq!((saga.sent.len(), saga.instance.status), (0, Status::Stuck));
}

#[test]
fn a_participant_that_remembers_for_a_week_is_asked_again_after_three_days() {
    let week = |name| {
        let step = undoable(name, Participant::Keyed);
        step.keyed_for_ms(7 * 86_400_000)
    };
    let mut saga = Saga::of(Definition::new("s").step(week("a")).step(week("b")));
    saga.now = saga.now.plus_ms(3 * DAY_MS);
    saga.feed(Event::Resume {
        accepted_at: Timestamp(0),
        live: Vec::new(),
    });
    saga.sends("a", Op::Action);
    saga.acts("a", lost());
    saga.now = saga.now.plus_ms(5 * DAY_MS);
    saga.feed(Event::Retry { by: "ann".into() });
    assert_eq!((saga.sent.len(), saga.instance.status), (0, Status::Stuck));
}

/// A person's retry gives a fresh budget; the key is as old as before.
#[test]
fn past_the_pivot_a_persons_retry_does_not_make_a_key_younger() {
    let pivot = Step {
        compensation: None,
        ..undoable("p", Participant::Keyed)
    };
    let mut saga = Saga::of(Definition::new("s").step(pivot.pivot()));
    saga.acts("p", lost())
        .timer()
        .acts("p", lost())
        .timer()
        .acts("p", lost());
    assert_eq!(saga.instance.status, Status::Stuck);
    saga.now = saga.now.plus_ms(DAY_MS / 2);
    saga.feed(Event::Retry { by: "ann".into() });
    saga.sends("p", Op::Action);
    saga.acts("p", lost())
        .timer()
        .acts("p", lost())
        .timer()
        .acts("p", lost());
    saga.now = saga.now.plus_ms(DAY_MS / 2);
    saga.feed(Event::Retry { by: "ann".into() });
    assert_eq!(
        (saga.sent.len(), saga.state("p"), saga.instance.status),
        (0, StepState::Unknown, Status::Stuck)
    );
}

#[test]
fn a_compensation_that_its_participant_may_have_forgotten_is_stuck() {
    let mut saga = Saga::chain(Participant::Keyed);
    saga.acts("a", ok());
    saga.feed(cancel());
    saga.acts("b", no()).sends("a", Op::Compensation);
    saga.now = saga.now.plus_ms(2 * DAY_MS);
    saga.undoes("a", lost());
    saga.feed(Event::Timer);
    assert_eq!(
        (saga.sent.len(), saga.state("a")),
        (0, StepState::CompensationStuck)
    );
    saga.feed(Event::Retry { by: "ann".into() });
    assert_eq!(
        (saga.sent.len(), saga.state("a")),
        (0, StepState::CompensationStuck)
    );
}

/// Nothing left, so nobody can have forgotten anything.
#[test]
fn time_in_which_nothing_was_sent_does_not_count_and_a_barrier_has_no_window() {
    let patient = |kind| Step {
        retry: crate::saga::patient(),
        ..undoable("a", kind)
    };
    let mut saga = Saga::of(Definition::new("s").step(patient(Participant::Keyed)));
    saga.acts("a", Answer::NotSent("closed".into()));
    assert_eq!(saga.instance.step("a").unwrap().action_sent, None);
    saga.timer().sends("a", Op::Action);
    let sent = saga.instance.step("a").unwrap().action_sent.unwrap();
    assert_eq!((sent.at, sent.first), (saga.now, true));
    saga.acts("a", lost()).timer();
    saga.acts("a", Answer::NotSent("closed".into()));
    let kept = saga.instance.step("a").unwrap().action_sent.unwrap();
    assert_eq!((kept.at, kept.first), (sent.at, false), "the one before it left");

    let mut saga = Saga::chain(Participant::Barrier);
    saga.now = saga.now.plus_ms(300 * DAY_MS);
    saga.feed(Event::Resume {
        accepted_at: Timestamp(0),
        live: Vec::new(),
    });
    saga.sends("a", Op::Compensation);
}

#[test]
fn a_window_without_keys_or_without_time_is_refused_by_name() {
    let refused = |step: Step| Definition::new("s").step(step).check().unwrap_err().to_string();
    let none = Step {
        window_ms: Some(DAY_MS as u64),
        ..undoable("a", Participant::Barrier)
    };
    assert!(refused(none).contains("step a: window_ms is for participant keyed"));
    let short = undoable("a", Participant::Keyed).keyed_for_ms(60_000);
    let text = refused(short);
    assert!(
        text.contains("SEM0501: step a: window_ms = 60000 leaves no time"),
        "{text}"
    );
}
