//! A store that fails: what is said about what may have been done.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use semel_core::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, LeaseReply, Record, Release, Settlement,
    SweepReport,
};
use semel_core::model::MemoryKeys;
use semel_core::store::{Capabilities, KeyPage, KeyQuery, Replies, Usage};
use semel_core::{ErrorKind, Key, KeyStore, Scope, StoreError};
use serde_json::{Value, json};

use super::{Access, Answer, LIMITS, Limits, Log, MINE, THEIRS, World, request};

/// What a driver says of a failure.
const DRIVER: &str = "db-7.internal refuses user semel_admin: SELECT fingerprint FROM semel.key";

/// What goes wrong.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// Nothing.
    None,
    /// It is refused before anything is done.
    Before(ErrorKind),
    /// The second half of a batch is refused before anything is done.
    HalfWay(ErrorKind),
    /// Its scope is full.
    Full,
    /// It is done, and the answer is lost.
    After(ErrorKind),
    /// It is done, and the answer never comes.
    Silent,
}

struct Faulty {
    inner: MemoryKeys,
    fault: Mutex<Fault>,
}

impl Faulty {
    fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    async fn each<R: Send>(&self, items: usize, call: impl Future<Output = Replies<R>> + Send) -> Replies<R> {
        let fault = *self.fault.lock().unwrap();
        let all = |kind| {
            (0..items)
                .map(|_| Err(StoreError::new(kind, "test", "on purpose").with_source(DRIVER)))
                .collect()
        };
        match fault {
            Fault::None => call.await,
            Fault::HalfWay(kind) => {
                let away = || Err(StoreError::new(kind, "test", "on purpose"));
                let half = call.await.into_iter().take(items.div_ceil(2));
                half.chain(std::iter::repeat_with(away)).take(items).collect()
            }
            Fault::Before(kind) => all(kind),
            Fault::Full => {
                let full = StoreError::new(ErrorKind::LimitExceeded, "test", "full").with_code("SEM0111");
                (0..items).map(|_| Err(full.clone())).collect()
            }
            Fault::After(kind) => {
                call.await;
                all(kind)
            }
            Fault::Silent => {
                call.await;
                std::future::pending().await
            }
        }
    }
}

#[async_trait]
impl KeyStore for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    async fn claim_many(&self, claims: &[Claim]) -> Replies<ClaimReply> {
        self.each(claims.len(), self.inner.claim_many(claims)).await
    }
    async fn complete_many(&self, all: &[Completion]) -> Replies<LeaseReply> {
        self.each(all.len(), self.inner.complete_many(all)).await
    }
    async fn extend_many(&self, all: &[Extension]) -> Replies<LeaseReply> {
        self.each(all.len(), self.inner.extend_many(all)).await
    }
    async fn release_many(&self, all: &[Release]) -> Replies<LeaseReply> {
        // Withdrawals of claims whose caller left arrive whatever goes wrong.
        self.inner.release_many(all).await
    }
    async fn abandon_many(&self, all: &[Abandonment]) -> Replies<LeaseReply> {
        self.each(all.len(), self.inner.abandon_many(all)).await
    }
    async fn settle_many(&self, all: &[Settlement]) -> Replies<LeaseReply> {
        let reached = match *self.fault.lock().unwrap() {
            Fault::HalfWay(_) => &all[..all.len().div_ceil(2)],
            _ => all,
        };
        self.each(all.len(), self.inner.settle_many(reached)).await
    }
    async fn read_many(&self, keys: &[Key]) -> Replies<Option<Record>> {
        self.each(keys.len(), self.inner.read_many(keys)).await
    }
    async fn sweep(&self, limit: u32) -> Result<SweepReport, StoreError> {
        self.inner.sweep(limit).await
    }
    async fn list(&self, query: &KeyQuery) -> Result<KeyPage, StoreError> {
        let page = self.inner.list(query).await;
        self.each(1, async { vec![page] }).await.remove(0)
    }
    async fn usage(&self, scope: &Scope, records_max: u64) -> Result<Usage, StoreError> {
        self.inner.usage(scope, records_max).await
    }
}

fn world(limits: Limits) -> (World, Arc<Faulty>) {
    let store = Arc::new(Faulty {
        inner: MemoryKeys::default(),
        fault: Mutex::new(Fault::None),
    });
    let clock = Arc::default();
    let world = World::with(Arc::<Faulty>::clone(&store), Access::default(), limits, clock);
    (world, store)
}

async fn every(world: &World) -> Vec<(&'static str, Answer)> {
    let mut answers = Vec::new();
    for route in super::super::routes::ROUTES {
        let operation = route.path.rsplit('/').next().unwrap();
        let example: Value = serde_json::from_str(route.example).unwrap();
        answers.push((operation, world.ask(operation, example).await));
    }
    answers
}

/// A single answer, or the first of a batch.
fn first(answer: &Answer) -> (u16, &str) {
    let body = answer.body["replies"]
        .get(0)
        .map_or(&answer.body, |item| &item["body"]);
    let status = body["status"].as_u64().unwrap_or(0);
    (
        u16::try_from(status).unwrap(),
        body["code"].as_str().unwrap_or_default(),
    )
}

#[tokio::test]
async fn a_store_that_is_away_has_done_nothing_and_says_when_to_come_back() {
    let (world, store) = world(LIMITS);
    for kind in [ErrorKind::Unavailable, ErrorKind::NotApplied] {
        store.set(Fault::Before(kind));
        for (operation, answer) in every(&world).await {
            // One is let through here, the other does not ask the store.
            if matches!(operation, "release" | "issue") {
                continue;
            }
            assert_eq!(first(&answer), (503, "SEM0714"), "{operation}");
            if answer.status == 503 {
                assert_eq!(answer.header("retry-after"), Some("1"));
                assert!(answer.detail().contains("nothing was done"), "{answer:?}");
            }
        }
    }
    store.set(Fault::None);
    assert_eq!(world.ask("list", json!({})).await.body["keys"], json!([]));
}

/// The same request closes the rest.
#[tokio::test]
async fn a_closing_that_fails_half_way_does_not_say_that_nothing_was_done() {
    let (world, store) = world(LIMITS);
    for n in 0..8 {
        let claim = json!({"scope": "orders/ada", "id": format!("o-{n}"), "input": "x"});
        assert_eq!(world.ask("claim", claim).await.status, 201);
    }
    let close = || json!({"scope": "orders/ada", "by": "ann", "why": "account deleted"});
    for (kind, problem) in [
        (ErrorKind::Unavailable, (503, "SEM0715", None)),
        // One that no repetition mends is no reason to say that nothing was done.
        (ErrorKind::Corrupt, (500, "SEM0717", None)),
    ] {
        store.set(Fault::HalfWay(kind));
        let stopped = world.ask("close_scope", close()).await;
        assert_eq!(stopped.problem(), problem);
        let detail = stopped.detail();
        assert!(!detail.contains("nothing was done"), "{stopped:?}");
        assert!(
            detail.contains(" keys were closed before that, and stay closed"),
            "{stopped:?}"
        );
    }
    store.set(Fault::None);
    let rest = world.ask("close_scope", close()).await;
    assert_eq!((rest.status, &rest.body["closed"]), (200, &json!(2)), "{rest:?}");
}

#[tokio::test]
async fn a_lost_answer_of_the_store_is_unknown_and_the_same_request_finds_out() {
    let (world, store) = world(LIMITS);
    store.set(Fault::After(ErrorKind::ReplyLost));
    let lost = world.claim(MINE).await;
    assert_eq!(lost.problem(), (503, "SEM0715", None));
    assert_eq!(lost.header("retry-after"), Some("1"));
    assert!(lost.detail().contains("with the same nonce"), "{lost:?}");
    assert_eq!(lost.body["nonce"], MINE);
    store.set(Fault::None);
    let granted = world.claim(MINE).await;
    assert_eq!(granted.status, 201);
    assert_eq!(world.claim(THEIRS).await.status, 409);

    store.set(Fault::After(ErrorKind::ReplyLost));
    let done = json!({"outcome": "succeeded", "output": "x"});
    let lost = world.leased("complete", &granted, done.clone()).await;
    assert_eq!(lost.problem().1, "SEM0715");
    store.set(Fault::None);
    assert_eq!(world.leased("complete", &granted, done).await.status, 200);
    assert_eq!(world.claim(THEIRS).await.body["output"], "x");
}

#[tokio::test]
async fn a_drawn_nonce_is_told_when_the_answer_is_lost() {
    let (world, store) = world(LIMITS);
    store.set(Fault::After(ErrorKind::ReplyLost));
    let body = json!({"scope": "orders", "id": "o-7", "input": "2 teapots"});
    let lost = world.ask("claim", body).await;
    store.set(Fault::None);
    let granted = world.claim(lost.body["nonce"].as_str().unwrap()).await;
    assert_eq!(granted.status, 201, "{granted:?}");
}

#[tokio::test]
async fn a_store_that_does_not_answer_in_time_may_have_done_it() {
    let quick = Limits {
        request_max: Duration::from_millis(30),
        ..LIMITS
    };
    let (world, store) = world(quick);
    store.set(Fault::Silent);
    for (operation, answer) in every(&world).await {
        let wanted = match operation {
            "release" | "issue" => continue,
            "read" | "wait" | "list" => "SEM0714",
            _ => "SEM0715",
        };
        assert_eq!(first(&answer), (503, wanted), "{operation}");
    }
    let detail = world.claim(MINE).await.detail().to_owned();
    assert!(detail.contains("request_ms_max = 30 of [api]"), "{detail}");
}

#[tokio::test]
async fn a_store_that_cannot_be_used_is_500_and_a_full_scope_507() {
    let (world, store) = world(LIMITS);
    for kind in [ErrorKind::Schema, ErrorKind::Corrupt, ErrorKind::IdentityChanged] {
        store.set(Fault::Before(kind));
        let answer = world.claim(MINE).await;
        assert_eq!(answer.problem(), (500, "SEM0717", None));
        assert!(answer.detail().contains(kind.code()), "{answer:?}");
    }
    store.set(Fault::Full);
    assert_eq!(world.claim(MINE).await.problem(), (507, "SEM0718", None));
    // Any other limit is about what was sent, not about the scope.
    store.set(Fault::Before(ErrorKind::LimitExceeded));
    assert_eq!(world.claim(MINE).await.problem(), (413, "SEM0702", None));
}

#[tokio::test]
async fn a_problem_never_shows_what_the_driver_said() {
    let (world, store) = world(LIMITS);
    for kind in [
        ErrorKind::Unavailable,
        ErrorKind::NotApplied,
        ErrorKind::ReplyLost,
        ErrorKind::Schema,
        ErrorKind::Corrupt,
        ErrorKind::Constraint,
        ErrorKind::Invalid,
        ErrorKind::LimitExceeded,
    ] {
        store.set(Fault::Before(kind));
        let (log, listening) = Log::listen();
        for (operation, answer) in every(&world).await {
            if matches!(operation, "release" | "issue") {
                continue;
            }
            let body = answer.body.to_string();
            assert!(body.contains(kind.code()), "{operation}: {body}");
            assert!(!body.contains("db-7"), "{operation}: {body}");
        }
        drop(listening);
        let log = log.text();
        assert!(
            log.lines().any(|line| line.contains(DRIVER)),
            "it is for the log: {log}"
        );
    }
}

#[tokio::test]
async fn before_its_store_is_open_the_api_says_so() {
    let api = Arc::new(super::Api::new(
        Access::default(),
        LIMITS,
        tokio_util::sync::CancellationToken::new(),
    ));
    let world = World {
        router: super::router(Arc::clone(&api)),
        api,
        clock: Arc::default(),
    };
    let answer = world.claim(MINE).await;
    assert_eq!(answer.problem(), (503, "SEM0714", None));
    assert!(answer.detail().contains("/readyz says why"), "{answer:?}");
}

/// Rule K4: the caller leaves before the answer; nobody will ever know the nonce that was drawn.
#[tokio::test]
async fn a_claim_whose_caller_left_is_withdrawn_when_its_nonce_was_drawn_here() {
    let (world, store) = world(LIMITS);
    for (nonce, stays) in [(None, false), (Some(MINE), true)] {
        store.set(Fault::Silent);
        let mut body = json!({"scope": "orders", "id": "o-7", "input": "2 teapots"});
        if let Some(nonce) = nonce {
            body["nonce"] = json!(nonce);
        }
        let asking = world.send(request("claim", body.to_string()));
        // Dropped, as hyper does when the connection ends.
        assert!(
            tokio::time::timeout(Duration::from_millis(50), asking)
                .await
                .is_err()
        );
        store.set(Fault::None);
        let mut freed = false;
        for _ in 0..50 {
            let found = world.ask("read", json!({"scope": "orders", "id": "o-7"})).await;
            freed = found.status == 404;
            if freed || stays {
                break;
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(
            freed, !stays,
            "the caller's own nonce can be asked again (rule K3)"
        );
    }
}
