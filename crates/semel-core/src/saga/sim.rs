//! Every crash, every answer: sagas driven to their end against simulated participants.
//!
//! A [`World`] plays owner, store and participants. Its choices come from a [`Tape`], so that the same tape is the same
//! run; when it is read to its end, everything goes well from then on.

mod cases;
mod world;

use proptest::prelude::*;

use self::world::{Tape, World};
use super::{CheckedDefinition, Definition, Participant, Status, Step, StepState};
use crate::retry::RetryPolicy;

/// Few attempts of actions, so that budgets run out; many of compensations, so that they end.
fn quick(attempts_max: u32) -> RetryPolicy {
    RetryPolicy {
        initial_ms: 10,
        jitter: 0.0,
        attempts_max,
        ..RetryPolicy::default()
    }
}

pub(super) fn undoable(name: &str, participant: Participant) -> Step {
    let step = Step::new(name, format!("do-{name}")).compensated_by(format!("undo-{name}"));
    Step {
        participant,
        ..step.with_retry(quick(3)).with_compensation_retry(quick(10_000))
    }
}

fn participant() -> impl Strategy<Value = Participant> {
    prop_oneof![4 => Just(Participant::Barrier), 4 => Just(Participant::Keyed), 1 => Just(Participant::None)]
}

/// A random graph: up to five steps, edges only backwards, perhaps a pivot as the last, perhaps a deadline.
fn definition() -> impl Strategy<Value = CheckedDefinition> {
    let step = (participant(), any::<u8>());
    (
        prop::collection::vec(step, 1..5),
        any::<bool>(),
        prop::option::of(50_u64..2_000),
    )
        .prop_map(|(steps, pivot, deadline)| {
            let mut definition = Definition {
                deadline_ms: deadline,
                ..Definition::new("random")
            };
            let mut names: Vec<String> = Vec::new();
            for (number, (participant, edges)) in steps.into_iter().enumerate() {
                let after = names.iter().enumerate().filter(|(n, _)| edges & (1 << n) != 0);
                let after: Vec<String> = after.map(|(_, name)| name.clone()).collect();
                names.push(format!("s{number}"));
                definition = definition.step(undoable(&names[number], participant).after(after));
            }
            if pivot {
                let last = Step {
                    compensation: None,
                    ..undoable("pivot", Participant::Barrier)
                };
                definition = definition.step(last.after(names).pivot()).step(
                    Step {
                        compensation: None,
                        ..undoable("mail", Participant::Keyed)
                    }
                    .retriable(),
                );
            }
            definition.check().expect("the generator makes sound definitions")
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    /// Whatever participants answer, whenever the owner dies and whatever the network repeats or delays: completed means
    /// that everything happened once, compensated that everything that happened was undone once, in reverse order.
    #[test]
    fn every_run_ends_right(definition in definition(), tape in prop::collection::vec(any::<u8>(), 0..60)) {
        World::new(&definition, Tape::new(tape)).run().check();
    }

    /// With participants that deduplicate, and before a pivot, nothing ever needs a person.
    #[test]
    fn deduplicating_participants_need_no_person(
        kinds in prop::collection::vec(prop_oneof![Just(Participant::Barrier), Just(Participant::Keyed)], 1..5),
        tape in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let steps = kinds.iter().enumerate().map(|(n, kind)| undoable(&format!("s{n}"), *kind));
        let definition = steps.fold(Definition::new("chain"), Definition::step).check().unwrap();
        let end = World::new(&definition, Tape::new(tape).without_hopeless()).run();
        end.check();
        prop_assert!(matches!(end.instance.status, Status::Completed | Status::Compensated), "{:?}", end.instance);
    }
}

/// The chains of the exhaustive runs: each kind of participant, with and without pivot.
fn chains() -> Vec<CheckedDefinition> {
    let mut all = Vec::new();
    for kind in [Participant::Barrier, Participant::Keyed, Participant::None] {
        let chain = |name: &str| {
            Definition::new(name)
                .step(undoable("a", kind))
                .step(undoable("b", kind))
        };
        all.push(chain("plain").step(undoable("c", kind)).check().unwrap());
        let pivot = Step {
            compensation: None,
            ..undoable("p", kind)
        }
        .pivot();
        all.push(chain("pivot").step(pivot).check().unwrap());
        let parallel = chain("wide")
            .step(undoable("c", kind).after([""; 0]))
            .step(undoable("d", kind));
        all.push(parallel.check().unwrap());
    }
    all
}

#[test]
fn crash_at_every_write_with_every_answer_at_every_call() {
    for definition in chains() {
        for (call, fate) in (0..6).flat_map(|call| (0..world::FATES).map(move |fate| (call, fate))) {
            for crash in 0..20 {
                let tape = Tape::faults(&[(call, fate)]).crash_at_write(crash);
                World::new(&definition, tape).run().check();
            }
        }
    }
}

#[test]
fn every_pair_of_answers_at_every_pair_of_calls() {
    for definition in chains() {
        for (call, later) in (0..5).flat_map(|call| (call + 1..6).map(move |later| (call, later))) {
            for pair in 0..world::FATES * world::FATES {
                let faults = [(call, pair / world::FATES), (later, pair % world::FATES)];
                World::new(&definition, Tape::faults(&faults)).run().check();
            }
        }
    }
}

#[test]
fn every_action_and_every_compensation_delivered_twice_changes_nothing() {
    for definition in chains() {
        let deduplicates = definition
            .steps()
            .iter()
            .all(|step| step.participant != Participant::None);
        for (call, fate) in (0..6).flat_map(|call| (0..world::FATES).map(move |fate| (call, fate))) {
            let mut world = World::new(&definition, Tape::faults(&[(call, fate)]));
            world.twice = deduplicates;
            world.run().check();
        }
    }
}

#[test]
fn a_step_that_may_have_happened_is_never_left_out_of_the_undo_set() {
    for definition in chains() {
        for (call, fate) in (0..6).flat_map(|call| (0..world::FATES).map(move |fate| (call, fate))) {
            let end = World::new(&definition, Tape::faults(&[(call, fate)])).run();
            let Some(turned) = &end.instance.turned else {
                continue;
            };
            for step in &end.instance.steps {
                let clear = matches!(step.state, StepState::NotStarted | StepState::Refused);
                assert!(clear || turned.undo.contains(&step.name), "{step:?}");
            }
        }
    }
}
