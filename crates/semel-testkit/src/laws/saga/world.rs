//! What the laws of sagas run over: a store, and a way to let time pass.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use semel_core::model::MemorySagas;
use semel_core::saga::{
    Answer, CheckedDefinition, Context, Decision, Definition, Event, Instance, LogEntry, Op, SagaId, Status,
    Step, step::step,
};
use semel_core::store::{
    ClaimDue, ClaimedStart, Ownership, SagaLookup, SagaRecord, SagaStore, Save, SaveReply, SaveState,
    Submission, SubmitReply,
};
use semel_core::{Nonce, Timestamp};

use crate::clock::ManualClock;

/// A lease that ends only when the law lets time pass.
pub const LEASE_MS: i64 = 600_000;

type Pass = Box<dyn Fn(i64) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// A store, and a way to let its time pass.
pub struct World {
    /// The store.
    pub store: Arc<dyn SagaStore>,
    pass: Pass,
}

/// The model with a clock of its own.
#[must_use]
pub fn memory() -> World {
    let clock = Arc::new(ManualClock::default());
    let store = MemorySagas::new(clock.clone());
    World::new(Arc::new(store), move |ms| {
        clock.advance_ms(ms);
        std::future::ready(())
    })
}

/// A saga in an owner's hands.
#[derive(Debug, Clone)]
pub struct Held {
    /// The right.
    pub owned: Ownership,
    /// As it was claimed.
    pub record: SagaRecord,
}

impl World {
    /// A world over this store; `pass` lets so many milliseconds go by: it moves the store's clock, or ages its rows.
    pub fn new<F>(store: Arc<dyn SagaStore>, pass: impl Fn(i64) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self {
            store,
            pass: Box::new(move |ms| Box::pin(pass(ms))),
        }
    }

    /// Lets time pass.
    pub async fn pass(&self, ms: i64) {
        (self.pass)(ms).await;
    }

    /// Submits a saga of `order()`.
    pub async fn submit(&self, name: &str) -> SagaId {
        let id = id(name);
        let reply = self.store.submit_sagas(&[submission(&id, "{}")]).await.unwrap();
        assert_eq!(reply, [SubmitReply::Accepted]);
        id
    }

    /// A submission that is claimed, with its first step started.
    pub async fn claimed_submission(&self, id: &SagaId, nonce: Nonce) -> Submission {
        let now = self.store.saga_time().await.unwrap();
        let Decision { instance, log, .. } = begun(Instance::new(&order()), now);
        let due_at = instance.due_at(&order(), now);
        let claimed = ClaimedStart {
            nonce,
            lease_ms: LEASE_MS,
            instance,
            due_at,
            log,
        };
        Submission {
            claimed: Some(claimed),
            ..submission(id, "{}")
        }
    }

    /// Claims what is due, at most `limit`.
    pub async fn claim(&self, limit: u32) -> Vec<Held> {
        self.claim_as(limit, Nonce::random()).await
    }

    /// Claims with this nonce.
    pub async fn claim_as(&self, limit: u32, nonce: Nonce) -> Vec<Held> {
        let claim = ClaimDue {
            nonce,
            lease_ms: LEASE_MS,
            limit,
            unserved: Vec::new(),
            grace_ms: 0,
        };
        let claimed = self.store.claim_sagas(&claim).await.unwrap();
        let held = |record: SagaRecord| Held {
            owned: Ownership {
                id: record.id.clone(),
                epoch: record.epoch,
                nonce,
            },
            record,
        };
        claimed.sagas.into_iter().map(held).collect()
    }

    /// Submits a saga and claims it; there must be nothing else due.
    pub async fn held(&self, name: &str) -> Held {
        self.submit(name).await;
        let mut held = self.claim(10).await;
        assert_eq!(held.len(), 1);
        held.remove(0)
    }

    /// Loads a saga that must be there.
    pub async fn load(&self, id: &SagaId) -> SagaRecord {
        match self
            .store
            .load_sagas(std::slice::from_ref(id))
            .await
            .unwrap()
            .remove(0)
        {
            SagaLookup::Found(record) => *record,
            other => panic!("{id}: {other:?}"),
        }
    }

    /// Writes one save.
    pub async fn save(&self, save: &Save) -> SaveReply {
        self.store.save_sagas(std::slice::from_ref(save)).await.unwrap()[0]
    }
}

/// A saga's id.
#[must_use]
pub fn id(name: &str) -> SagaId {
    SagaId::new(name).unwrap()
}

/// A chain of two steps.
#[must_use]
pub fn order() -> CheckedDefinition {
    let step = |name: &str| Step::new(name, "do").compensated_by("undo").barrier();
    Definition::new("order")
        .step(step("reserve"))
        .step(step("charge"))
        .check()
        .unwrap()
}

/// Unclaimed, of `order()`.
#[must_use]
pub fn submission(id: &SagaId, input: &'static str) -> Submission {
    Submission {
        id: id.clone(),
        definition: order(),
        input: input.into(),
        claimed: None,
    }
}

fn context(now: Timestamp) -> Context {
    Context {
        now,
        dice: 0.0,
        launch: true,
    }
}

/// What an owner decides first.
#[must_use]
pub fn begun(instance: Instance, now: Timestamp) -> Decision {
    step(
        &order(),
        instance,
        Event::Resume {
            accepted_at: now,
            live: Vec::new(),
        },
        context(now),
    )
}

/// What an owner decides about a saga as claimed: its first step is started.
#[must_use]
pub fn first_save(held: &Held) -> Save {
    let instance = Instance::from_json(&held.record.state, &order()).unwrap();
    let decision = begun(instance, held.record.accepted_at);
    save_of(held, held.record.version, decision)
}

/// The write that carries a decision.
#[must_use]
pub fn save_of(held: &Held, version: i64, decision: Decision) -> Save {
    let due_at = decision.instance.due_at(&order(), held.record.accepted_at);
    Save {
        owned: held.owned.clone(),
        version,
        release: decision.instance.status.is_terminal(),
        state: SaveState::Instance(Box::new(decision.instance)),
        due_at,
        requests_done: 0,
        log: decision.log,
    }
}

/// Both steps succeed: the write that ends the saga, on this version.
#[must_use]
pub fn last_save(held: &Held, version: i64) -> Save {
    let now = held.record.accepted_at;
    let mut decision = begun(Instance::new(&order()), now);
    for number in 0..2 {
        let answer = Answer::Succeeded(format!("out {number}").into());
        let event = Event::Answered {
            step: number,
            op: Op::Action,
            answer,
        };
        decision = step(&order(), decision.instance, event, context(now));
    }
    assert_eq!(decision.instance.status, Status::Completed);
    save_of(held, version, decision)
}

/// A state of this status, and a log entry of that name.
pub(super) fn moved_instance(status: Status) -> (Instance, LogEntry) {
    let mut instance = Instance::new(&order());
    instance.status = status;
    let entry = LogEntry {
        step: Some("charge".to_owned()),
        op: Some(Op::Compensation),
        event: status.as_str().to_owned(),
        text: "a 'text' \u{e9}".to_owned(),
    };
    (instance, entry)
}

/// A write that moves a saga to this status, with one entry of that name in the log. An end releases it; anything else
/// is due at once.
#[must_use]
pub fn moved(held: &Held, version: i64, status: Status) -> Save {
    let (instance, entry) = moved_instance(status);
    Save {
        owned: held.owned.clone(),
        version,
        state: SaveState::Instance(Box::new(instance)),
        due_at: (!status.is_terminal()).then_some(held.record.accepted_at),
        release: status.is_terminal(),
        requests_done: 0,
        log: vec![entry],
    }
}
