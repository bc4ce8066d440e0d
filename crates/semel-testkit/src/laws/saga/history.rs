//! Generated histories: the same calls to a store and to the model, compared reply by reply and row by row.
//!
//! All durations are multiples of ten seconds: a server whose clock cannot be stopped agrees with the model as long as a
//! history takes less than that.

use std::future::Future;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use semel_core::key::hex;
use semel_core::model::MemorySagas;
use semel_core::saga::{Instance, Status};
use semel_core::store::{
    ClaimDue, Ownership, SagaLookup, SagaRequest, SagaStore, Save, SaveState, Submission,
};
use semel_core::{Clock as _, Nonce, Timestamp};

use super::world::{World, id, moved_instance, order, submission};
use crate::clock::ManualClock;
use crate::laws::keys::history::seed;

const SAGAS: usize = 3;
const TEN_S: i64 = 10_000;

/// One call. Sagas are named by number, rights by number among those that the saga has had.
#[derive(Debug, Clone)]
enum Do {
    Submit {
        saga: usize,
        input: bool,
        claimed: bool,
    },
    /// Again, whatever was submitted last under this id.
    Resubmit {
        saga: usize,
    },
    Claim {
        unserved: bool,
        lease: i64,
    },
    Save {
        saga: usize,
        right: usize,
        version: i64,
        status: Option<Status>,
        due: Option<i64>,
        release: bool,
        requests: bool,
        log: usize,
    },
    Renew {
        saga: usize,
        right: usize,
        lease: i64,
    },
    Release {
        saga: usize,
        right: usize,
    },
    Request {
        saga: usize,
        kind: usize,
    },
    Pass {
        time: i64,
    },
    Prune {
        retention: i64,
        tombstone: i64,
    },
}

fn call() -> impl Strategy<Value = Do> {
    let saga = 0..SAGAS;
    // The newest right mostly, sometimes an older one.
    let right = prop_oneof![4 => Just(0_usize), 1 => 1..3_usize];
    let lease = prop_oneof![Just(3_i64), Just(20)];
    let status = prop_oneof![1 => Just(None), 9 => proptest::sample::select(&Status::ALL[..]).prop_map(Some)];
    let due = prop_oneof![
        Just(None),
        Just(Some(-1_i64)),
        Just(Some(0)),
        Just(Some(5)),
        Just(Some(50))
    ];
    let version = prop_oneof![5 => Just(0_i64), 1 => Just(-1), 1 => Just(1)];
    let save = (saga.clone(), right.clone(), version, status, due);
    let save = (save, any::<bool>(), any::<bool>(), 0..3_usize).prop_map(
        |((saga, right, version, status, due), release, requests, log)| Do::Save {
            saga,
            right,
            version,
            status,
            due,
            release,
            requests,
            log,
        },
    );
    prop_oneof![
        4 => (saga.clone(), any::<bool>(), any::<bool>()).prop_map(|(saga, input, claimed)| Do::Submit { saga, input, claimed }),
        1 => saga.clone().prop_map(|saga| Do::Resubmit { saga }),
        5 => (any::<bool>(), lease.clone()).prop_map(|(unserved, lease)| Do::Claim { unserved, lease }),
        8 => save,
        2 => (saga.clone(), right.clone(), lease).prop_map(|(saga, right, lease)| Do::Renew { saga, right, lease }),
        1 => (saga.clone(), right).prop_map(|(saga, right)| Do::Release { saga, right }),
        2 => (saga, 0..3_usize).prop_map(|(saga, kind)| Do::Request { saga, kind }),
        4 => prop_oneof![Just(1_i64), Just(3), Just(20), Just(60)].prop_map(|time| Do::Pass { time }),
        1 => (prop_oneof![Just(0_i64), Just(3)], prop_oneof![Just(0_i64), Just(20)])
            .prop_map(|(retention, tombstone)| Do::Prune { retention, tombstone }),
    ]
}

/// Plays `cases` generated histories, each on a fresh store that `make` makes and on the model, and panics on the first
/// difference, with the shortest history found and the seed. `SEMEL_SEED` (64 hexadecimal digits) plays one again,
/// `SEMEL_CASES` plays more or fewer. `slack_ms` is how far the store's clock may run on by itself in one history.
///
/// # Panics
/// A difference.
pub fn compare_with_model<F, K>(make: impl Fn() -> F, cases: u32, slack_ms: i64)
where
    F: Future<Output = (World, K)>,
{
    let seed = seed();
    let cases = std::env::var("SEMEL_CASES").map_or(cases, |text| text.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 500,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let result = runner.run(&vec(call(), 1..40), |calls| {
        let played = async {
            let (world, _keep) = make().await;
            History::new(&world, slack_ms).play(&calls).await
        };
        runtime.block_on(played).map_err(TestCaseError::fail)
    });
    if let Err(difference) = result {
        panic!("SEMEL_SEED={}\n{difference}", hex(&seed));
    }
}

struct History<'w> {
    world: &'w World,
    model: MemorySagas,
    clock: Arc<ManualClock>,
    slack_ms: i64,
    /// Of each saga: the rights it has had, newest first; and what was submitted last.
    rights: Vec<Vec<Ownership>>,
    submitted: Vec<Option<Submission>>,
}

impl<'w> History<'w> {
    fn new(world: &'w World, slack_ms: i64) -> Self {
        let clock = Arc::new(ManualClock::default());
        Self {
            world,
            model: MemorySagas::new(clock.clone()),
            clock,
            slack_ms,
            rights: vec![Vec::new(); SAGAS],
            submitted: vec![None; SAGAS],
        }
    }

    async fn play(mut self, calls: &[Do]) -> Result<(), String> {
        for (n, call) in calls.iter().enumerate() {
            let (expected, found) = self.make(call).await;
            if expected != found {
                return Err(format!(
                    "call {n}, {call:?}: the model answers {expected}, the store {found}"
                ));
            }
            let expected = look(&self.model, self.clock.now()).await;
            let now = self.world.store.saga_time().await.unwrap();
            let found = look(&*self.world.store, now).await;
            for (expected, found) in expected.iter().zip(&found) {
                let apart = match (expected.due_ms, found.due_ms) {
                    (None, None) => 0,
                    (Some(a), Some(b)) => (a - b).abs(),
                    _ => i64::MAX,
                };
                if expected.rest != found.rest || apart > self.slack_ms {
                    return Err(format!(
                        "after call {n}, {call:?}: the model has {expected:?}, the store {found:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The answers of model and store.
    async fn make(&mut self, call: &Do) -> (String, String) {
        let (model, store) = (&self.model, &*self.world.store);
        match call {
            Do::Submit { saga, input, claimed } => {
                let mut it = submission(&name(*saga), if *input { "{}" } else { "[]" });
                if *claimed {
                    it = self.world.claimed_submission(&it.id, Nonce::random()).await;
                    if let Some(start) = &mut it.claimed {
                        // The clocks differ, so no time of one of them may be in the state.
                        start.instance = Instance::new(&order());
                        start.due_at = Some(Timestamp(0));
                        start.lease_ms = 3 * TEN_S;
                    }
                }
                self.submitted[*saga] = Some(it);
                self.submit(*saga).await
            }
            Do::Resubmit { saga } => self.submit(*saga).await,
            Do::Claim { unserved, lease } => {
                let claim = ClaimDue {
                    nonce: Nonce::random(),
                    lease_ms: lease * TEN_S,
                    limit: 100,
                    unserved: if *unserved {
                        vec![order().hash()]
                    } else {
                        Vec::new()
                    },
                    grace_ms: 5 * TEN_S,
                };
                let mut claimed = [
                    model.claim_sagas(&claim).await.unwrap().sagas,
                    store.claim_sagas(&claim).await.unwrap().sagas,
                ];
                for sagas in &mut claimed {
                    sagas.sort_by(|a, b| a.id.cmp(&b.id));
                }
                for saga in &claimed[0] {
                    let n = (0..SAGAS).find(|n| name(*n) == saga.id).unwrap();
                    self.rights[n].insert(
                        0,
                        Ownership {
                            id: saga.id.clone(),
                            epoch: saga.epoch,
                            nonce: claim.nonce,
                        },
                    );
                }
                let told = |sagas: &[semel_core::store::SagaRecord]| {
                    let each = sagas
                        .iter()
                        .map(|it| (&it.id, it.version, it.epoch, it.requests.len()));
                    format!("{:?}", each.collect::<Vec<_>>())
                };
                (told(&claimed[0]), told(&claimed[1]))
            }
            Do::Save { .. } => {
                let Some((for_model, for_store)) = self.saves(call).await else {
                    return Default::default();
                };
                (
                    format!("{:?}", model.save_sagas(&for_model).await.unwrap()),
                    format!("{:?}", store.save_sagas(&for_store).await.unwrap()),
                )
            }
            Do::Renew { saga, right, lease } => {
                let Some(owned) = self.rights[*saga].get(*right) else {
                    return Default::default();
                };
                let owned = std::slice::from_ref(owned);
                let lease = lease * TEN_S;
                (
                    format!("{:?}", model.renew_sagas(owned, lease).await.unwrap()),
                    format!("{:?}", store.renew_sagas(owned, lease).await.unwrap()),
                )
            }
            Do::Release { saga, right } => {
                if let Some(owned) = self.rights[*saga].get(*right) {
                    let owned = std::slice::from_ref(owned);
                    model.release_sagas(owned).await.unwrap();
                    store.release_sagas(owned).await.unwrap();
                }
                Default::default()
            }
            Do::Request { saga, kind } => {
                let by = || "ann".to_owned();
                let request = match kind {
                    0 => SagaRequest::Retry { by: by() },
                    1 => SagaRequest::Cancel {
                        by: by(),
                        why: "late".to_owned(),
                    },
                    _ => SagaRequest::Abandon {
                        by: by(),
                        why: String::new(),
                    },
                };
                let saga = name(*saga);
                (
                    format!("{:?}", model.request_saga(&saga, &request).await.unwrap()),
                    format!("{:?}", store.request_saga(&saga, &request).await.unwrap()),
                )
            }
            Do::Pass { time } => {
                self.clock.advance_ms(time * TEN_S);
                self.world.pass(time * TEN_S).await;
                Default::default()
            }
            Do::Prune { retention, tombstone } => {
                let (retention, tombstone) = (retention * TEN_S, tombstone * TEN_S);
                (
                    format!("{:?}", model.prune_sagas(retention, tombstone, 10).await.unwrap()),
                    format!("{:?}", store.prune_sagas(retention, tombstone, 10).await.unwrap()),
                )
            }
        }
    }

    async fn submit(&mut self, saga: usize) -> (String, String) {
        let Some(it) = &self.submitted[saga] else {
            return Default::default();
        };
        let batch = std::slice::from_ref(it);
        let expected = self.model.submit_sagas(batch).await.unwrap();
        let found = self.world.store.submit_sagas(batch).await.unwrap();
        if let Some(start) = &it.claimed {
            let right = Ownership {
                id: it.id.clone(),
                epoch: 1,
                nonce: start.nonce,
            };
            if !self.rights[saga].contains(&right) {
                self.rights[saga].insert(0, right);
            }
        }
        (format!("{expected:?}"), format!("{found:?}"))
    }

    /// The same write for both, each with a due time by its own clock and the numbers of its own requests.
    async fn saves(&self, call: &Do) -> Option<([Save; 1], [Save; 1])> {
        let Do::Save {
            saga,
            right,
            version,
            status,
            due,
            release,
            requests,
            log,
        } = call
        else {
            return None;
        };
        let owned = self.rights[*saga].get(*right)?;
        let save = async |store: &dyn SagaStore, now: Timestamp| {
            let found = store.load_sagas(std::slice::from_ref(&owned.id)).await.unwrap();
            let SagaLookup::Found(record) = &found[0] else {
                return None;
            };
            let (instance, entry) = moved_instance(status.unwrap_or(Status::Stuck));
            let state = match status {
                Some(_) => SaveState::Instance(Box::new(instance)),
                None => SaveState::Unreadable("it cannot be read".to_owned()),
            };
            Some([Save {
                owned: owned.clone(),
                version: record.version + version,
                state,
                due_at: due.map(|due| now.plus_ms(due * TEN_S)),
                release: *release,
                requests_done: record
                    .requests
                    .first()
                    .map_or(0, |it| if *requests { it.n } else { 0 }),
                log: vec![entry; *log],
            }])
        };
        let now = self.world.store.saga_time().await.unwrap();
        let for_model = save(&self.model, self.clock.now()).await?;
        Some((for_model, save(&*self.world.store, now).await?))
    }
}

fn name(saga: usize) -> semel_core::saga::SagaId {
    id(&format!("order-{saga}"))
}

/// What is stored of one saga, or of all; times apart, because clocks differ.
#[derive(Debug)]
struct Seen {
    due_ms: Option<i64>,
    rest: String,
}

async fn look(store: &dyn SagaStore, now: Timestamp) -> Vec<Seen> {
    let mut seen = Vec::new();
    let ids: Vec<_> = (0..SAGAS).map(name).collect();
    for (id, found) in ids.iter().zip(store.load_sagas(&ids).await.unwrap()) {
        let log = store.saga_log(id, 1_000).await.unwrap();
        let log: Vec<_> = log.into_iter().map(|row| (row.version, row.entry)).collect();
        let (due_ms, found) = match found {
            SagaLookup::Found(it) => {
                let requests: Vec<_> = it.requests.iter().map(|it| &it.request).collect();
                let due_ms = it.due_at.map(|at| at.ms_since(now));
                // Rows that were aged under a claimed start have a due time before 1970: all the same, it is past.
                let due_ms = due_ms.map(|ms| ms.max(-TEN_S));
                let text = format!(
                    "{:?} {} {:?} v{} e{} {:?} {:?} {requests:?}",
                    it.input, it.state, it.status, it.version, it.epoch, it.owner, it.definition
                );
                (due_ms, text)
            }
            other => (None, format!("{other:?}")),
        };
        seen.push(Seen {
            due_ms,
            rest: format!("{found} log {log:?}"),
        });
    }
    let listed = store.list_sagas(None, None, 10).await.unwrap();
    let listed: Vec<_> = listed
        .iter()
        .map(|it| (&it.id, it.status, &it.why, &it.definition))
        .collect();
    let counts = store.count_sagas().await.unwrap();
    seen.push(Seen {
        due_ms: None,
        rest: format!("{listed:?} {counts:?}"),
    });
    seen
}
