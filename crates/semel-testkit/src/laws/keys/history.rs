//! Generated histories: the same calls to a store and to the model, compared reply by reply.
//!
//! Tokens differ between the two, so grants are numbered in the order in which they were made and leases are compared
//! by those numbers. All durations are multiples of ten seconds: a server whose clock cannot be stopped agrees with the
//! model as long as a history takes less than that.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use semel_core::claim::{
    Claim, ClaimReply, Completion, Extension, Keep, Lease, LeaseReply, Nonce, OwnerLost, Record, Release,
    Settlement, State, Token, Verdict, succeeded,
};
use semel_core::host::random_16;
use semel_core::key::hex;
use semel_core::model::MemoryKeys;
use semel_core::store::Replies;
use semel_core::{Fingerprint, Key, KeyStore, Scope, StoredOutcome};

use super::World;
use crate::clock::ManualClock;

const KEYS: usize = 3;
const NONCES: usize = 12;
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

/// One call. Keys, nonces and grants by number; a grant's number is taken modulo those there are.
#[derive(Debug, Clone)]
enum Call {
    Claim(Vec<Asked>),
    Complete(Vec<(Held, u8, bool)>),
    Extend(Vec<(Held, bool)>),
    Release(Vec<(Held, bool)>),
    /// Key and nonce.
    Withdraw(Vec<(usize, usize)>),
    /// The grant, and the outcome if it happened.
    Settle(Vec<(Held, Option<u8>)>),
    Read,
    Sweep,
    Pass(i64),
}

#[derive(Debug, Clone, Copy)]
struct Asked {
    key: usize,
    nonce: usize,
    other_request: bool,
    rerun: bool,
    long: bool,
}

/// Which lease a caller names.
#[derive(Debug, Clone, Copy)]
struct Held {
    grant: usize,
    /// Another nonce under the same token.
    forged: bool,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let mostly_not = || prop_oneof![9 => Just(false), 1 => Just(true)];
    let asked = (0..KEYS, 0..NONCES, mostly_not(), any::<bool>(), any::<bool>()).prop_map(
        |(key, nonce, other_request, rerun, long)| Asked {
            key,
            nonce,
            other_request,
            rerun,
            long,
        },
    );
    // Recent grants are the interesting ones: count from the last.
    let held = (prop_oneof![6 => 0..2_usize, 2 => 0..16_usize], mostly_not())
        .prop_map(|(grant, forged)| Held { grant, forged });
    let call = prop_oneof![
        6 => vec(asked, 1..4).prop_map(Call::Claim),
        4 => vec((held.clone(), 0..2_u8, any::<bool>()), 1..3).prop_map(Call::Complete),
        2 => vec((held.clone(), any::<bool>()), 1..3).prop_map(Call::Extend),
        2 => vec((held.clone(), any::<bool>()), 1..3).prop_map(Call::Release),
        2 => vec((0..KEYS, 0..NONCES), 1..3).prop_map(Call::Withdraw),
        2 => vec((held, prop_oneof![Just(None), (0..2_u8).prop_map(Some)]), 1..3).prop_map(Call::Settle),
        1 => Just(Call::Read),
        2 => Just(Call::Sweep),
        4 => prop_oneof![Just(10_000_i64), Just(20_000), Just(60_000), Just(130_000)].prop_map(Call::Pass),
    ];
    vec(call, 1..40)
}

/// Plays `cases` generated histories on the store that `make` makes and on the model, and panics on the first
/// difference, with the shortest history found and the seed. `SEMEL_SEED` (64 hexadecimal digits) plays one again,
/// `SEMEL_CASES` plays more or fewer.
/// `slack_ms` is how far the store's clock may run on by itself in one history.
///
/// # Panics
/// A difference.
pub fn compare_with_model<F: Future<Output = World>>(make: impl FnOnce() -> F, cases: u32, slack_ms: i64) {
    let seed = seed();
    let cases = std::env::var("SEMEL_CASES").map_or(cases, |text| text.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let world = runtime.block_on(make());
    let clock = Arc::new(ManualClock::default());
    let model = MemoryKeys::new(clock.clone());
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 2_000,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let result = runner.run(&calls(), |calls| {
        let mut history = History::new(&world, &model, &clock, slack_ms);
        runtime
            .block_on(history.play(&calls))
            .map_err(TestCaseError::fail)
    });
    if let Err(difference) = result {
        panic!("SEMEL_SEED={}\n{difference}", hex(&seed));
    }
}

fn seed() -> [u8; 32] {
    let mut seed = [0; 32];
    match std::env::var("SEMEL_SEED") {
        Ok(text) => {
            assert_eq!(text.len(), 64, "SEMEL_SEED has 64 hexadecimal digits");
            for (byte, n) in seed.iter_mut().zip((0..64).step_by(2)) {
                *byte = u8::from_str_radix(&text[n..n + 2], 16).unwrap();
            }
        }
        Err(_) => {
            seed[..16].copy_from_slice(&random_16());
            seed[16..].copy_from_slice(&random_16());
        }
    }
    seed
}

/// One history being played.
struct History<'a> {
    world: &'a World,
    model: &'a MemoryKeys,
    clock: &'a ManualClock,
    slack_ms: i64,
    keys: Vec<Key>,
    nonces: Vec<Nonce>,
    grants: Vec<Grant>,
}

/// The same grant by the model and by the store.
#[derive(Debug, Clone, Copy)]
struct Grant {
    key: usize,
    model: Lease,
    store: Lease,
}

impl<'a> History<'a> {
    /// Keys and nonces that no other history uses.
    fn new(world: &'a World, model: &'a MemoryKeys, clock: &'a ManualClock, slack_ms: i64) -> Self {
        let scope = Scope::new(random_16()).unwrap();
        Self {
            world,
            model,
            clock,
            slack_ms,
            keys: (0..KEYS)
                .map(|n| Key::new(scope.clone(), n.to_string()).unwrap())
                .collect(),
            nonces: (0..NONCES).map(|_| Nonce::random()).collect(),
            grants: Vec::new(),
        }
    }

    async fn play(&mut self, calls: &[Call]) -> Result<(), String> {
        // What other histories have left behind must not be counted by the sweeps of this one.
        self.pass(100_000_000).await;
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
        self.world.pass_ms(ms).await;
    }

    async fn call(&mut self, call: &Call) -> Result<(), String> {
        let store = &self.world.store;
        match call {
            Call::Pass(ms) => self.pass(*ms).await,
            Call::Sweep => {
                let swept = (self.model.sweep(10_000).await, store.sweep(10_000).await);
                same(&swept.0.unwrap(), &swept.1.unwrap())?;
            }
            Call::Claim(asked) => {
                let claims: Vec<Claim> = asked.iter().map(|it| self.claim(*it)).collect();
                let model = self.model.claim_many(&claims).await;
                let store = store.claim_many(&claims).await;
                for (asked, (model, store)) in asked.iter().zip(pairs(model, store)) {
                    self.compare_claim(asked.key, &model, &store)?;
                }
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
                compare_leases(replies.0, replies.1)?;
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
            Call::Withdraw(items) => {
                let withdrawn = items.iter().map(|(key, nonce)| Release {
                    key: self.keys[*key].clone(),
                    nonce: self.nonces[*nonce],
                    token: None,
                });
                let items: Vec<Release> = withdrawn.collect();
                let replies = (
                    self.model.release_many(&items).await,
                    store.release_many(&items).await,
                );
                compare_leases(replies.0, replies.1)?;
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
                compare_leases(replies.0, replies.1)?;
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
                // The store's clock may have run on.
                if (*a - self.slack_ms..=*a).contains(b) {
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
                withdrawn: record.withdrawn.nonces,
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
