//! A history, played on the store and on the model at once.

use std::cell::Cell;
use std::fmt::Debug;

use semel_core::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, Keep, Lease, LeaseReply, Nonce, OwnerLost, Record,
    Release, Settlement, State, Token, Verdict, succeeded,
};
use semel_core::host::random_16;
use semel_core::key::hex;
use semel_core::model::MemoryKeys;
use semel_core::store::Replies;
use semel_core::{Clock as _, Fingerprint, Key, KeyStore, Scope, StoreError, StoredOutcome, Timestamp};

use super::super::World;
use super::call::{Asked, Call, Held, KEYS, NONCES};
use crate::clock::ManualClock;

const LEASES_MS: [i64; 2] = [20_000, 50_000];
const KEEPS: [Keep; 2] = [
    Keep {
        retention_ms: 20_000,
        tombstone_ms: 0,
    },
    Keep {
        retention_ms: 40_000,
        tombstone_ms: 20_000,
    },
];

/// One history being played.
pub(super) struct History<'a> {
    world: &'a World,
    model: &'a MemoryKeys,
    clock: &'a ManualClock,
    slack_ms: i64,
    jumps: bool,
    keys: Vec<Key>,
    nonces: Vec<Nonce>,
    grants: Vec<Grant>,
    /// The latest that the clock has shown in this history.
    latest: Cell<Timestamp>,
    /// By key: until when what was done may not be run again.
    done_until: Vec<Option<Timestamp>>,
}

/// The same grant by the model and by the store.
#[derive(Debug, Clone, Copy)]
struct Grant {
    key: usize,
    model: Lease,
    store: Lease,
}

impl<'a> History<'a> {
    /// Keys and nonces that no other history uses. `jumps`: how long a withdrawn nonce is remembered at least is the contract's,
    /// how much longer is the store's; where clocks are set back that shows. So there each nonce is drawn for one call, as
    /// callers do (rule K3), and what is remembered of those is not compared.
    pub(super) fn new(
        world: &'a World,
        model: &'a MemoryKeys,
        clock: &'a ManualClock,
        slack_ms: i64,
        jumps: bool,
    ) -> Self {
        let scope = Scope::new(random_16()).unwrap();
        Self {
            world,
            model,
            clock,
            slack_ms,
            jumps,
            keys: (0..KEYS)
                .map(|n| Key::new(scope.clone(), n.to_string()).unwrap())
                .collect(),
            nonces: (0..NONCES).map(|_| Nonce::random()).collect(),
            grants: Vec::new(),
            latest: Cell::new(clock.now()),
            done_until: vec![None; KEYS],
        }
    }

    pub(super) async fn play(&mut self, calls: &[Call]) -> Result<(), String> {
        // What other histories have left behind must not be counted by the sweeps of this one.
        self.pass(100_000_000).await;
        self.latest.set(self.clock.now());
        self.world.store.sweep(10_000).await.unwrap();
        self.model.sweep(10_000).await.unwrap();
        for (n, call) in calls.iter().chain([&Call::Read]).enumerate() {
            let done = self.call(call).await;
            done.map_err(|difference| format!("call {n}, {call:?}: {difference}"))?;
        }
        Ok(())
    }

    async fn pass(&self, ms: i64) {
        self.clock.advance_ms(ms);
        self.latest.set(self.latest.get().max(self.clock.now()));
        self.world.pass_ms(ms).await;
    }

    async fn call(&mut self, call: &Call) -> Result<(), String> {
        let store = &self.world.store;
        match call {
            Call::Pass(ms) => self.pass(*ms).await,
            Call::Sweep => {
                let swept = (self.model.sweep(10_000).await, store.sweep(10_000).await);
                let swept = (swept.0.unwrap(), swept.1.unwrap());
                if !self.jumps {
                    same(&swept.0, &swept.1)?;
                }
            }
            Call::Claim(asked) => {
                let claims: Vec<Claim> = asked.iter().map(|it| self.claim(*it)).collect();
                let model = self.model.claim_many(&claims).await;
                let store = store.claim_many(&claims).await;
                for (asked, (model, store)) in asked.iter().zip(pairs(model, store)) {
                    self.compare_claim(asked.key, &model, &store)?;
                }
                self.used(asked.iter().map(|it| it.nonce));
            }
            Call::Complete(items) => {
                let done = |(held, output, short): &(Held, u8, bool), of: Of| {
                    let (key, lease) = self.lease(*held, of)?;
                    Some(Completion {
                        key,
                        lease,
                        outcome: outcome(*output),
                        keep: KEEPS[usize::from(*short)],
                    })
                };
                let (ours, theirs) = both(items, done);
                let replies = (
                    self.model.complete_many(&ours).await,
                    store.complete_many(&theirs).await,
                );
                let stored = stored(&replies.1);
                compare_leases(replies.0, replies.1)?;
                for (done, _) in theirs.iter().zip(stored).filter(|(_, stored)| *stored) {
                    self.is_done(&done.key, done.keep);
                }
            }
            Call::Extend(items) => {
                let wish = |(held, long): &(Held, bool), of: Of| {
                    let (key, lease) = self.lease(*held, of)?;
                    let lease_ms = LEASES_MS[usize::from(*long)];
                    Some(Extension { key, lease, lease_ms })
                };
                let (ours, theirs) = both(items, wish);
                let replies = (
                    self.model.extend_many(&ours).await,
                    store.extend_many(&theirs).await,
                );
                compare_leases(replies.0, replies.1)?;
            }
            Call::Release(items) => {
                let release = |(held, with_token): &(Held, bool), of: Of| {
                    let (key, lease) = self.lease(*held, of)?;
                    let token = with_token.then_some(lease.token);
                    Some(Release {
                        key,
                        nonce: lease.nonce,
                        token,
                    })
                };
                let (ours, theirs) = both(items, release);
                let replies = (
                    self.model.release_many(&ours).await,
                    store.release_many(&theirs).await,
                );
                compare_leases(replies.0, replies.1)?;
            }
            Call::Abandon(items) => {
                let abandonment = |held: &Held, of: Of| {
                    let (key, lease) = self.lease(*held, of)?;
                    Some(Abandonment { key, lease })
                };
                let (ours, theirs) = both(items, abandonment);
                let replies = (
                    self.model.abandon_many(&ours).await,
                    store.abandon_many(&theirs).await,
                );
                compare_leases(replies.0, replies.1)?;
            }
            Call::Withdraw(items) => {
                let withdrawn = items.iter().map(|(key, nonce)| Release {
                    key: self.keys[*key].clone(),
                    nonce: self.nonces[*nonce],
                    token: None,
                });
                let releases: Vec<Release> = withdrawn.collect();
                let replies = (
                    self.model.release_many(&releases).await,
                    store.release_many(&releases).await,
                );
                compare_leases(replies.0, replies.1)?;
                self.used(items.iter().map(|(_, nonce)| *nonce));
            }
            Call::Settle(items) => {
                let settle = |(held, happened): &(Held, Option<u8>), of: Of| {
                    let (key, lease) = self.lease(*held, of)?;
                    let verdict = happened.map_or(Verdict::DidNotHappen, |it| Verdict::Happened(outcome(it)));
                    Some(Settlement {
                        key,
                        token: lease.token,
                        verdict,
                        keep: KEEPS[1],
                    })
                };
                let (ours, theirs) = both(items, settle);
                let replies = (
                    self.model.settle_many(&ours).await,
                    store.settle_many(&theirs).await,
                );
                let stored = stored(&replies.1);
                compare_leases(replies.0, replies.1)?;
                for (settled, _) in theirs.iter().zip(stored).filter(|(_, stored)| *stored) {
                    if let Verdict::Happened(_) = settled.verdict {
                        self.is_done(&settled.key, settled.keep);
                    }
                }
            }
            Call::Read => {
                let records = (
                    self.model.read_many(&self.keys).await,
                    store.read_many(&self.keys).await,
                );
                for (model, store) in pairs(records.0, records.1) {
                    same(&self.shape(model, Of::Model), &self.shape(store, Of::Store))?;
                }
            }
        }
        Ok(())
    }

    fn used(&mut self, nonces: impl Iterator<Item = usize>) {
        for n in nonces.filter(|_| self.jumps) {
            self.nonces[n] = Nonce::random();
        }
    }

    /// A repeated completion leaves the time of the first.
    fn is_done(&mut self, key: &Key, keep: Keep) {
        let until = self
            .clock
            .now()
            .plus_ms(keep.retention_ms)
            .plus_ms(keep.tombstone_ms);
        let place = self.keys.iter().position(|it| it == key);
        if let Some(done) = place.and_then(|place| self.done_until.get_mut(place)) {
            done.get_or_insert(until);
        }
    }

    fn claim(&self, asked: Asked) -> Claim {
        Claim {
            key: self.keys[asked.key].clone(),
            fingerprint: Fingerprint::of(if asked.other_request { b"other" } else { b"asked" }),
            nonce: self.nonces[asked.nonce],
            owner_lost: if asked.rerun {
                OwnerLost::Rerun
            } else {
                OwnerLost::Hold
            },
            lease_ms: LEASES_MS[usize::from(asked.long)],
        }
    }

    /// The lease that a caller names, as the model or the store knows it; `None` before the first grant.
    fn lease(&self, held: Held, of: Of) -> Option<(Key, Lease)> {
        let last = self.grants.len().checked_sub(1)?;
        let grant = &self.grants[last - held.grant % self.grants.len()];
        let mut lease = match of {
            Of::Model => grant.model,
            Of::Store => grant.store,
        };
        if held.forged {
            lease.nonce = self.nonces[0];
        }
        Some((self.keys[grant.key].clone(), lease))
    }

    fn compare_claim(&mut self, key: usize, model: &ClaimReply, store: &ClaimReply) -> Result<(), String> {
        if let (
            ClaimReply::Granted {
                lease: ours,
                attempt: a,
                ..
            },
            ClaimReply::Granted {
                lease: theirs,
                attempt: b,
                ..
            },
        ) = (model, store)
        {
            same(a, b)?;
            match (self.number(*ours, Of::Model), self.number(*theirs, Of::Store)) {
                (None, None) => {
                    let before = self.grants.iter().filter(|grant| grant.key == key);
                    let last = before.map(|grant| grant.store.token).max();
                    if last.is_some_and(|last| last >= theirs.token) {
                        return Err(format!("token {:?} after {last:?}", theirs.token));
                    }
                    if let Some(until) = self.done_until[key].take()
                        && until > self.latest.get()
                    {
                        return Err(format!("it was done, and is run again before {until:?}"));
                    }
                    self.grants.push(Grant {
                        key,
                        model: *ours,
                        store: *theirs,
                    });
                }
                (ours, theirs) => same(&ours, &theirs)?,
            }
            return Ok(());
        }
        match (model, store) {
            (ClaimReply::Busy { lease_left_ms: a }, ClaimReply::Busy { lease_left_ms: b }) => {
                // The store's clock may have run on; one that knows the time in milliseconds leaves the owner the rest of one.
                if (*a - self.slack_ms..=*a + 1).contains(b) {
                    Ok(())
                } else {
                    same(a, b)
                }
            }
            (ClaimReply::Unknown { token: a }, ClaimReply::Unknown { token: b }) => {
                same(&self.number_of(*a, Of::Model), &self.number_of(*b, Of::Store))
            }
            (ClaimReply::Done { outcome: a, .. }, ClaimReply::Done { outcome: b, .. }) => same(a, b),
            (ClaimReply::Gone { .. }, ClaimReply::Gone { .. }) => Ok(()),
            (model, store) => same(model, store),
        }
    }

    fn number(&self, lease: Lease, of: Of) -> Option<usize> {
        self.grants.iter().position(|grant| of.pick(grant) == lease)
    }

    fn number_of(&self, token: Token, of: Of) -> Option<usize> {
        self.grants.iter().position(|grant| of.pick(grant).token == token)
    }

    fn shape(&self, record: Option<Record>, of: Of) -> Option<Shape> {
        record.map(|record| {
            let state = match &record.state {
                State::Absent => "absent".to_owned(),
                State::Claimed {
                    owner_lost,
                    extended,
                    attempt,
                    ..
                } => format!("claimed {owner_lost:?} extended {extended} attempt {attempt}"),
                State::Unknown { attempt, .. } => format!("unknown attempt {attempt}"),
                State::Done { outcome, .. } => format!("done {outcome:?}"),
                State::Tombstone { digest, .. } => format!("tombstone {}", hex(digest)),
            };
            Shape {
                fingerprint: record.fingerprint,
                state,
                grant: record.lease().map(|lease| self.number(lease, of)),
                withdrawn: if self.jumps {
                    Vec::new()
                } else {
                    record.withdrawn.nonces
                },
            }
        })
    }
}

/// What is comparable of a record.
#[derive(Debug, PartialEq)]
struct Shape {
    fingerprint: Option<Fingerprint>,
    state: String,
    grant: Option<Option<usize>>,
    withdrawn: Vec<Nonce>,
}

/// Whose tokens.
#[derive(Debug, Clone, Copy)]
enum Of {
    Model,
    Store,
}

impl Of {
    const fn pick(self, grant: &Grant) -> Lease {
        match self {
            Self::Model => grant.model,
            Self::Store => grant.store,
        }
    }
}

fn outcome(n: u8) -> StoredOutcome {
    if n == 0 {
        succeeded("one")
    } else {
        StoredOutcome::Refused("two".into())
    }
}

/// The same items with the model's leases and with the store's.
fn both<T, R>(items: &[T], make: impl Fn(&T, Of) -> Option<R>) -> (Vec<R>, Vec<R>) {
    let of = |of| items.iter().filter_map(|item| make(item, of)).collect();
    (of(Of::Model), of(Of::Store))
}

fn pairs<R>(model: Replies<R>, store: Replies<R>) -> impl Iterator<Item = (R, R)> {
    assert_eq!(model.len(), store.len(), "one reply per item");
    model
        .into_iter()
        .map(Result::unwrap)
        .zip(store.into_iter().map(Result::unwrap))
}

/// Which of them were carried out.
fn stored(replies: &[Result<LeaseReply, StoreError>]) -> Vec<bool> {
    let ok = |reply: &Result<LeaseReply, StoreError>| matches!(reply, Ok(LeaseReply::Ok(_)));
    replies.iter().map(ok).collect()
}

fn compare_leases(model: Replies<LeaseReply>, store: Replies<LeaseReply>) -> Result<(), String> {
    for (n, (model, store)) in pairs(model, store).enumerate() {
        match (model, store) {
            (LeaseReply::Ok(_), LeaseReply::Ok(_)) => {}
            (model, store) => same(&model, &store).map_err(|difference| format!("item {n}: {difference}"))?,
        }
    }
    Ok(())
}

fn same<T: PartialEq + Debug>(model: &T, store: &T) -> Result<(), String> {
    if model == store {
        Ok(())
    } else {
        Err(format!("the model says {model:?}, the store {store:?}"))
    }
}
