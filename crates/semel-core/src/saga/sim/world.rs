//! Owner, store and participants in one, under the choices of a tape.

use std::collections::HashMap;

use crate::host::Timestamp;
use crate::outcome::StoredOutcome;
use crate::saga::barrier::{self, BarrierRow, Verdict};
use crate::saga::{
    Answer, BarrierCall, BarrierCode, CheckedDefinition, Context, Event, Instance, Op, Participant, SagaId,
    Status, StepState, step::step,
};

/// Kinds of fate a call can meet; see [`Fate`].
pub(super) const FATES: u8 = 12;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Good,
    /// Arrives; the answer does not.
    ReplyLost,
    /// Never arrives; nobody can tell.
    Vanished,
    /// Arrives when the saga has moved on; the caller has given up.
    Late,
    NotSent,
    /// The participant refuses (an action) …
    Refused,
    /// … and the answer is lost.
    RefusedLost,
    Running,
    TooLarge,
    Hopeless,
    Held,
    /// The owner dies with the answer in hand.
    Crash,
}

pub(super) struct Tape {
    bytes: Vec<u8>,
    next: usize,
    faults: HashMap<usize, u8>,
    calls: usize,
    crash_at: Option<usize>,
    writes: usize,
    hopeless: bool,
}

impl Tape {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            next: 0,
            faults: HashMap::new(),
            calls: 0,
            crash_at: None,
            writes: 0,
            hopeless: true,
        }
    }

    /// All calls go well but these.
    pub(super) fn faults(faults: &[(usize, u8)]) -> Self {
        Self {
            faults: faults.iter().copied().collect(),
            ..Self::new(Vec::new())
        }
    }

    pub(super) fn crash_at_write(mut self, write: usize) -> Self {
        self.crash_at = Some(write);
        self
    }

    pub(super) fn without_hopeless(mut self) -> Self {
        self.hopeless = false;
        self
    }

    fn byte(&mut self) -> u8 {
        let byte = self.bytes.get(self.next).copied().unwrap_or(0);
        self.next += 1;
        byte
    }

    fn fate(&mut self) -> Fate {
        let number = self
            .faults
            .get(&self.calls)
            .copied()
            .unwrap_or_else(|| self.byte() % 16);
        self.calls += 1;
        match number {
            1 => Fate::ReplyLost,
            2 => Fate::Vanished,
            3 => Fate::Late,
            4 => Fate::NotSent,
            5 => Fate::Refused,
            6 => Fate::RefusedLost,
            7 => Fate::Running,
            8 => Fate::TooLarge,
            9 if self.hopeless => Fate::Hopeless,
            10 => Fate::Held,
            11 => Fate::Crash,
            _ => Fate::Good,
        }
    }

    /// Whether the owner dies at this write, and whether the write is durable then.
    fn crash(&mut self) -> Option<bool> {
        self.writes += 1;
        // An even number: before this write; an odd one: right after it.
        if let Some(at) = self.crash_at
            && self.writes == at / 2 + 1
        {
            self.crash_at = None;
            return Some(at % 2 == 1);
        }
        match self.byte() {
            250..=252 => Some(false),
            253..=255 => Some(true),
            _ => None,
        }
    }
}

/// What one participant keeps and has done.
#[derive(Default)]
struct Site {
    action: Option<BarrierRow>,
    undo: Option<BarrierRow>,
    refused: bool,
    effects: u32,
    undone: u32,
    undone_at: usize,
}

pub(super) struct World<'a> {
    definition: &'a CheckedDefinition,
    tape: Tape,
    pub(super) instance: Instance,
    sites: Vec<Site>,
    epoch: i64,
    now: Timestamp,
    calls: Vec<(usize, Op)>,
    late: Vec<(usize, Op, i64)>,
    clock: usize,
    pub(super) twice: bool,
}

impl<'a> World<'a> {
    pub(super) fn new(definition: &'a CheckedDefinition, tape: Tape) -> Self {
        Self {
            definition,
            tape,
            instance: Instance::new(definition),
            sites: definition.steps().iter().map(|_| Site::default()).collect(),
            epoch: 0,
            now: Timestamp(0),
            calls: Vec::new(),
            late: Vec::new(),
            clock: 0,
            twice: false,
        }
    }

    /// Drives the saga until nothing happens by itself any more.
    pub(super) fn run(mut self) -> Self {
        self.takes_over();
        for _ in 0..10_000 {
            if let Some((number, op)) = self.next_call() {
                self.sent(number, op);
            } else if let Some(due) = self.instance.due_at(self.definition, self.now) {
                self.now = self.now.max(due);
                self.feed(Event::Timer);
            } else {
                // What is still on the wire arrives in the end.
                for (number, op, epoch) in std::mem::take(&mut self.late) {
                    self.arrives(number, op, epoch, false);
                }
                self.stays();
                return self;
            }
        }
        panic!("it does not end: {:?}", self.instance);
    }

    /// Terminal is terminal (R5), whatever comes.
    fn stays(&self) {
        if !self.instance.status.is_terminal() {
            return;
        }
        let (by, why) = (String::from("ann"), String::new());
        let mut events = vec![
            Event::Timer,
            Event::Resume {
                accepted_at: self.now,
                live: Vec::new(),
            },
            Event::Cancel {
                by: by.clone(),
                why: why.clone(),
            },
            Event::Retry { by: by.clone() },
            Event::Abandon { by, why: why.clone() },
            Event::Halt { why },
        ];
        for number in 0..self.sites.len() {
            for op in [Op::Action, Op::Compensation] {
                for answer in [Answer::Succeeded("late".into()), Answer::Refused("late".into())] {
                    events.push(Event::Answered {
                        step: number,
                        op,
                        answer,
                    });
                }
            }
        }
        for event in events {
            let context = Context {
                now: Timestamp(i64::MAX / 2),
                dice: 0.5,
                launch: true,
            };
            let decision = step(self.definition, self.instance.clone(), event.clone(), context);
            assert_eq!(decision.instance, self.instance, "{event:?}");
            assert!(decision.log.is_empty(), "{event:?}");
        }
    }

    fn next_call(&mut self) -> Option<(usize, Op)> {
        if self.calls.is_empty() {
            return None;
        }
        let which = usize::from(self.tape.byte()) % self.calls.len();
        Some(self.calls.remove(which))
    }

    fn takes_over(&mut self) {
        self.epoch += 1;
        // Whatever was out may still arrive.
        for (number, op) in std::mem::take(&mut self.calls) {
            if self.tape.byte() % 2 == 1 {
                self.late.push((number, op, self.epoch - 1));
            }
        }
        self.feed(Event::Resume {
            accepted_at: Timestamp(0),
            live: Vec::new(),
        });
    }

    /// One event: decide, write, then send. The owner may die before or after the write.
    fn feed(&mut self, event: Event) {
        let before = self.instance.clone();
        let context = Context {
            now: self.now,
            dice: 0.5,
            launch: true,
        };
        let decision = step(self.definition, before.clone(), event, context);
        assert_lawful(&before, &decision.instance);
        let json = decision.instance.to_json().unwrap();
        let stored = Instance::from_json(&json, self.definition).unwrap();
        assert_eq!(stored, decision.instance, "the stored form is the state");
        match self.tape.crash() {
            Some(durable) => {
                if durable {
                    self.instance = stored;
                }
                self.takes_over();
            }
            None => {
                self.instance = stored;
                for call in self.instance.in_flight() {
                    if !self.calls.contains(&call) {
                        self.calls.push(call);
                    }
                }
            }
        }
    }

    fn sent(&mut self, number: usize, op: Op) {
        self.now = self.now.plus_ms(5);
        if !self.late.is_empty() && self.tape.byte() % 3 == 1 {
            let (number, op, epoch) = self.late.remove(0);
            self.arrives(number, op, epoch, false);
        }
        let lost = || Answer::Unknown {
            why: "no answer".into(),
            retry_after: None,
            hopeless: false,
        };
        let fate = self.tape.fate();
        let answer = match fate {
            Fate::Good => self.arrives(number, op, self.epoch, false),
            Fate::Refused => self.arrives(number, op, self.epoch, true),
            Fate::ReplyLost | Fate::RefusedLost => {
                self.arrives(number, op, self.epoch, fate == Fate::RefusedLost);
                lost()
            }
            Fate::Vanished => lost(),
            Fate::Late => {
                self.late.push((number, op, self.epoch));
                lost()
            }
            Fate::NotSent => Answer::NotSent("connection refused".into()),
            Fate::Running => Answer::Running { retry_after: None },
            Fate::TooLarge => match self.arrives(number, op, self.epoch, false) {
                Answer::Succeeded(_) => Answer::TooLarge,
                other => other,
            },
            Fate::Hopeless => Answer::Unknown {
                why: "404".into(),
                retry_after: None,
                hopeless: true,
            },
            Fate::Held => Answer::Held,
            Fate::Crash => {
                self.arrives(number, op, self.epoch, false);
                return self.takes_over();
            }
        };
        if self.twice && !matches!(answer, Answer::NotSent(_) | Answer::Held) {
            self.arrives(number, op, self.epoch, false);
        }
        self.feed(Event::Answered {
            step: number,
            op,
            answer,
        });
    }

    /// The participant acts.
    fn arrives(&mut self, number: usize, op: Op, epoch: i64, refuses: bool) -> Answer {
        self.clock += 1;
        let clock = self.clock;
        let succeeded = self.instance.steps[number].succeeded;
        let site = &mut self.sites[number];
        match (self.definition.steps()[number].participant, op) {
            (Participant::None, Op::Action) => {
                if refuses {
                    return Answer::Refused("no".into());
                }
                site.effects += 1;
                Answer::Succeeded("out".into())
            }
            (Participant::None, Op::Compensation) => {
                site.undone += 1;
                site.undone_at = clock;
                Answer::Succeeded("".into())
            }
            // Keeps the first answer per key, and nothing about the relation of action and compensation.
            (Participant::Keyed, Op::Action) => {
                if site.action.is_none() {
                    site.refused = refuses;
                    site.effects += u32::from(!refuses);
                    site.action = Some(BarrierRow {
                        origin: op,
                        epoch,
                        outcome: None,
                    });
                }
                if site.refused {
                    Answer::Refused("no".into())
                } else {
                    Answer::Succeeded("out".into())
                }
            }
            (Participant::Keyed, Op::Compensation) => {
                if site.undo.is_none() {
                    site.undone += 1;
                    site.undone_at = clock;
                    site.undo = Some(BarrierRow {
                        origin: op,
                        epoch,
                        outcome: None,
                    });
                }
                Answer::Succeeded("".into())
            }
            (Participant::Barrier, op) => site.at_barrier(
                &BarrierCall {
                    saga: SagaId::new("s").unwrap(),
                    step: self.definition.steps()[number].name.clone(),
                    op,
                    epoch,
                    action_succeeded: op == Op::Compensation && succeeded,
                    not_after: None,
                },
                refuses,
                clock,
            ),
        }
    }

    /// What must hold at the end.
    pub(super) fn check(&self) {
        for (number, step) in self.definition.steps().iter().enumerate() {
            let (site, record) = (&self.sites[number], &self.instance.steps[number]);
            let told = format!(
                "{}: {} effects, {} undone, {record:?}",
                step.name, site.effects, site.undone
            );
            assert!(site.effects <= 1, "an action had its effect twice: {told}");
            assert!(site.undone <= 1, "a compensation had its effect twice: {told}");
            match self.instance.status {
                Status::Completed => assert_eq!((site.effects, site.undone), (1, 0), "{told}"),
                Status::Compensated => assert_eq!(site.effects, site.undone, "{told}"),
                Status::Stuck => {
                    assert!(
                        site.undone <= site.effects,
                        "undone though it never happened: {told}"
                    );
                    let waits = self.instance.steps.iter().any(|step| step.needs_person.is_some());
                    assert!(waits, "stuck without a reason: {:?}", self.instance);
                }
                status => panic!("it stopped in {status:?}: {:?}", self.instance),
            }
            for earlier in 0..self.sites.len() {
                let first = self.sites[earlier].undone_at;
                if self.definition.before(number) & (1 << earlier) != 0 && site.undone > 0 && first > 0 {
                    assert!(
                        site.undone_at < first,
                        "{} was undone before {}",
                        earlier,
                        step.name
                    );
                }
            }
        }
    }
}

impl Site {
    fn at_barrier(&mut self, call: &BarrierCall, refuses: bool, clock: usize) -> Answer {
        let row = |outcome| {
            Some(BarrierRow {
                origin: call.op,
                epoch: call.epoch,
                outcome: Some(outcome),
            })
        };
        let outcome = match barrier::decide(call, self.action.as_ref(), self.undo.as_ref()) {
            Verdict::Run if call.op == Op::Action => {
                let outcome = if refuses {
                    StoredOutcome::Refused("no".into())
                } else {
                    self.effects += 1;
                    StoredOutcome::Succeeded("out".into())
                };
                self.action = row(outcome.clone());
                outcome
            }
            Verdict::Run => {
                self.undone += 1;
                self.undone_at = clock;
                self.undo = row(barrier::nothing_undone());
                barrier::nothing_undone()
            }
            Verdict::NothingToUndo => {
                self.action = self.action.take().or(row(barrier::nothing_undone()));
                self.undo = row(barrier::nothing_undone());
                barrier::nothing_undone()
            }
            Verdict::Replay(outcome) => outcome,
            Verdict::Refuse(BarrierCode::StepCancelled) => return Answer::Refused("step_cancelled".into()),
            Verdict::Refuse(BarrierCode::StaleEpoch) => return Answer::StaleEpoch,
            Verdict::Refuse(BarrierCode::BarrierLost) => return Answer::BarrierLost,
            Verdict::Unfinished => panic!("the simulated participant stores every answer"),
        };
        for row in [&mut self.action, &mut self.undo].into_iter().flatten() {
            row.epoch = row.epoch.max(call.epoch);
        }
        match outcome {
            StoredOutcome::Succeeded(bytes) => Answer::Succeeded(bytes),
            _ => Answer::Refused("no".into()),
        }
    }
}

/// What must hold of every single write.
fn assert_lawful(before: &Instance, after: &Instance) {
    if before.status.is_terminal() {
        assert_eq!(before, after, "terminal is terminal");
    }
    if let Some(turned) = &before.turned {
        assert_eq!(
            Some(turned),
            after.turned.as_ref(),
            "one turn, its undo set written once"
        );
    }
    for (old, new) in before.steps.iter().zip(&after.steps) {
        if before.turned.is_some() && old.state == StepState::NotStarted {
            assert_eq!(new.state, StepState::NotStarted, "nothing starts after the turn");
        }
        if old.succeeded {
            assert!(
                new.succeeded && old.output == new.output,
                "what happened stays known"
            );
        }
    }
    for step in after.in_flight() {
        assert!(
            !after.status.is_terminal(),
            "{step:?} is out though the saga has ended"
        );
    }
}
