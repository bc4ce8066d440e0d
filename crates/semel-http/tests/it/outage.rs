//! Cut the store at claim, renewal, completion and abandonment; what a route's policy then does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use semel_core::claim::{Reconcile, ReconcileError, Verdict};
use semel_core::{Key, OwnerLost, RetryPolicy, StoredOutcome, Token};
use semel_http::response::StoredResponse;
use semel_http::{Event, IdempotencyLayer, Outage};

use super::support::*;

on_each_store![
    closed_refuses_and_open_runs_without_protection_and_says_so,
    an_open_route_still_refuses_what_it_can_judge,
    a_silent_store_that_tells_nothing_either_is_away,
    open_does_not_pass_a_store_that_is_there_and_takes_no_claim,
    a_store_that_takes_no_claim_is_named_by_its_own_code,
    a_full_store_refuses_and_throws_nothing_away,
    a_store_that_is_away_at_renewal_stops_nothing_under_hold,
    a_store_that_is_away_at_renewal_stops_a_run_that_may_be_repeated,
    a_run_that_ends_unknown_while_the_store_is_away_reads_unknown_when_its_lease_ends,
    a_completion_that_is_lost_for_good_is_held_rerun_or_reconciled,
    a_hook_that_cannot_tell_leaves_the_key_unknown,
];

/// paySphere#1919, and what a route may choose instead.
async fn closed_refuses_and_open_runs_without_protection_and_says_so(world: World) {
    let (world, store) = world.faulty();
    for (outage, status, guarantee, ran, event) in [
        (Outage::Closed, 503, None, 0, Event::StoreDown),
        (Outage::Open, 201, Some("none"), 2, Event::OpenPassed),
    ] {
        let runs = Runs::default();
        let layer = world.layer_with(|config| config.outage = outage);
        let app = counting(&layer, &runs);
        store.fail("claim", Fault::Down, 2);
        for _ in 0..2 {
            let answer = send(&app, post("a")).await;
            assert_eq!(answer.status, status, "{outage:?}");
            if guarantee.is_some() {
                assert_eq!(
                    (answer.header("semel-guarantee"), answer.outcome()),
                    (guarantee, "succeeded")
                );
            } else {
                assert_eq!(
                    (answer.code().as_str(), answer.header("retry-after")),
                    ("SEM0411", Some("2"))
                );
                assert!(
                    answer.detail().contains("store_ms_max = 5000 ms"),
                    "{}",
                    answer.detail()
                );
            }
        }
        assert_eq!((runs.count(), layer.counts().get(event)), (ran, 2), "{outage:?}");
    }
    let runs = Runs::default();
    let layer = world.layer_with(|config| config.outage = Outage::Open);
    let failing = app(&layer, &runs, |_| async { panic!("after the charge") });
    store.fail("claim", Fault::Down, 1);
    let answer = send(&failing, post("b")).await;
    assert_eq!((answer.status, answer.outcome()), (500, "unknown"));
}

/// A record that cannot be read, or a batcher that is full or closed: the first request may be running.
async fn open_does_not_pass_a_store_that_is_there_and_takes_no_claim(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let layer = world.layer_with(|config| config.outage = Outage::Open);
    let app = counting(&layer, &runs);
    for (fault, code) in [
        (Fault::Corrupt, "SEM0411"),
        (Fault::Full, "SEM0411"),
        (Fault::NoRoom, "SEM0430"),
        (Fault::TooLarge, "SEM0430"),
    ] {
        store.fail("claim", fault, 3);
        let answer = send(&app, post("a")).await;
        assert_eq!(
            (answer.status, answer.code().as_str(), answer.outcome()),
            (503, code, "refused"),
            "{fault:?}"
        );
        store.fail("claim", fault, 0);
    }
    assert_eq!(runs.count(), 0);
}

/// Nobody looks for an outage, or raises `store_ms_max`, where a record is damaged or a batcher is full.
async fn a_store_that_takes_no_claim_is_named_by_its_own_code(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    // Shorter than the pause before a claim is sent again: its time ends while the store has turned it away.
    let soon = world.layer_with(|config| {
        config.outage = Outage::Open;
        config.store_ms_max = 10;
    });
    for (layer, fault, code) in [
        (&world.layer(), Fault::Corrupt, "SEM0203"),
        (&world.layer(), Fault::Full, "SEM0104"),
        (&soon, Fault::Full, "SEM0104"),
    ] {
        store.fail("claim", fault, u32::MAX);
        let answer = send(&counting(layer, &runs), post("a")).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (503, "SEM0411"),
            "{fault:?}"
        );
        let text = answer.detail();
        assert!(text.contains(code) && !text.contains("store_ms_max"), "{text}");
    }
    assert_eq!(runs.count(), 0);
}

/// Whoever holds the file is not the store being away, and may be running the key.
#[tokio::test]
async fn open_does_not_pass_a_sqlite_file_that_another_process_holds() {
    let dir = tempfile::tempdir().unwrap();
    let open = async || {
        let config = semel_sqlite::Config::new(dir.path().join("keys.db"));
        semel_sqlite::Sqlite::open(config).await.unwrap()
    };
    let (db, other) = (open().await, open().await);
    db.migrate().await.unwrap();
    let store: Arc<dyn semel_core::KeyStore> = Arc::new(semel_keys::Batched::new(db));
    let layer = IdempotencyLayer::builder(store)
        .config(semel_http::Config {
            outage: Outage::Open,
            // Shorter than the store waits for the file.
            store_ms_max: 300,
            ..semel_http::Config::default()
        })
        .anonymous_scope("tests")
        .build()
        .unwrap();
    let runs = Runs::default();
    let app = counting(&layer, &runs);
    let held = other.begin().await.unwrap();
    let answer = send(&app, post("a")).await;
    assert_eq!(
        (answer.status, answer.code().as_str(), runs.count()),
        (503, "SEM0411", 0)
    );
    assert!(answer.detail().contains("SEM0104"), "{}", answer.detail());
    held.rollback().await.unwrap();
    layer.drain().await;
    assert_eq!(send(&app, post("a")).await.body, "run 1");
}

async fn a_silent_store_that_tells_nothing_either_is_away(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let layer = world.layer_with(|config| {
        config.outage = Outage::Open;
        config.store_ms_max = 100;
    });
    let app = counting(&layer, &runs);
    for (read, ran) in [(Fault::Silent, 1), (Fault::Down, 2)] {
        store.fail("claim", Fault::Silent, 1);
        store.fail("read", read, 1);
        let answer = send(&app, post(&format!("{read:?}"))).await;
        assert_eq!((answer.status, runs.count()), (201, ran), "{read:?}");
    }
}

async fn an_open_route_still_refuses_what_it_can_judge(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let app = counting(&world.layer_with(|config| config.outage = Outage::Open), &runs);
    store.fail("claim", Fault::Down, u32::MAX);
    assert_eq!(send(&app, post("")).await.code(), "SEM0402");
    assert_eq!(runs.count(), 0);
}

/// stregsystemet-rs#54.
async fn a_full_store_refuses_and_throws_nothing_away(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    for outage in [Outage::Closed, Outage::Open] {
        let layer = world.layer_with(|config| config.outage = outage);
        let app = counting(&layer, &runs);
        assert_eq!(send(&app, post("kept")).await.body, "run 1");
        store.fail("claim", Fault::NoRoom, 1);
        let full = send(&app, post("new")).await;
        assert_eq!(
            (
                full.status,
                full.code().as_str(),
                full.outcome(),
                full.header("retry-after")
            ),
            (503, "SEM0430", "refused", Some("60"))
        );
        assert!(send(&app, post("kept")).await.replayed());
        assert_eq!((runs.count(), layer.counts().get(Event::StoreFull)), (1, 1));
    }
}

fn short(config: &mut semel_http::Config) {
    config.lease_ms = 300;
}

async fn a_store_that_is_away_at_renewal_stops_nothing_under_hold(world: World) {
    let (world, store) = world.faulty();
    let (runs, gate) = (Runs::default(), Gate::default());
    let app = gated(&world.layer_with(short), &runs, &gate);
    store.fail("extend", Fault::Down, 3);
    let first = send_soon(&app, post("a"));
    gate.arrived().await;
    until("it is renewed again", async || store.calls("extend") > 4).await;
    gate.open();
    let first = first.await.unwrap();
    assert_eq!((first.status, first.outcome()), (201, "succeeded"));
    assert!(send(&app, post("a")).await.replayed());
}

async fn a_store_that_is_away_at_renewal_stops_a_run_that_may_be_repeated(world: World) {
    let (world, store) = world.faulty();
    let (runs, gate) = (Runs::default(), Gate::default());
    let layer = world.layer_with(|config| {
        short(config);
        config.owner_lost = OwnerLost::Rerun;
        config.wait_ms_max = 0;
    });
    let app = gated(&layer, &runs, &gate);
    store.fail("extend", Fault::Down, u32::MAX);
    let first = send_soon(&app, post("a"));
    gate.arrived().await;
    let first = first.await.unwrap();
    assert_ne!(first.status, 201, "its handler was stopped");
    assert_eq!(store.calls("complete"), 0);
    gate.open();
    world.leases_end();
    assert_eq!(send(&app, post("a")).await.body, "run 2");
}

async fn a_run_that_ends_unknown_while_the_store_is_away_reads_unknown_when_its_lease_ends(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let layer = world.layer_with(|config| config.wait_ms_max = 0);
    let failing = app(&layer, &runs, |_| async { panic!("charged, then this") });
    store.fail("abandon", Fault::Down, 1);
    assert_eq!(send(&failing, post("a")).await.outcome(), "unknown");
    assert_eq!(
        send(&failing, post("a")).await.outcome(),
        "running",
        "nobody could be told"
    );
    world.leases_end();
    assert_eq!(send(&failing, post("a")).await.outcome(), "unknown");
    assert_eq!((runs.count(), layer.counts().get(Event::EndedUnknown)), (1, 1));
}

type Judge = fn() -> Result<Option<Verdict>, ReconcileError>;

/// Looks where the effect would be.
struct AtTheBank {
    verdict: Judge,
    asked: AtomicU32,
}

impl AtTheBank {
    fn that(verdict: Judge) -> Arc<Self> {
        Arc::new(Self {
            verdict,
            asked: AtomicU32::new(0),
        })
    }
}

#[async_trait]
impl Reconcile for AtTheBank {
    async fn reconcile(&self, _: &Key, _: Token) -> Result<Option<Verdict>, ReconcileError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        (self.verdict)()
    }
}

fn found() -> Result<Option<Verdict>, ReconcileError> {
    let answer = StoredResponse {
        status: http::StatusCode::CREATED,
        headers: Vec::new(),
        trailers: Vec::new(),
        body: "found at the bank".into(),
    };
    Ok(Some(Verdict::Happened(StoredOutcome::Succeeded(answer.encode()))))
}

/// The hard case: the effect is done, its outcome is lost; then the policy decides.
async fn a_completion_that_is_lost_for_good_is_held_rerun_or_reconciled(world: World) {
    let (world, store) = world.faulty();
    let layer = |owner_lost, hook: Option<Arc<AtTheBank>>| {
        let config = semel_http::Config {
            owner_lost,
            completion_retry: RetryPolicy {
                initial_ms: 1,
                attempts_max: 3,
                ..RetryPolicy::default()
            },
            ..semel_http::Config::default()
        };
        let builder = IdempotencyLayer::builder(world.store.clone()).config(config);
        let builder = match hook {
            Some(hook) => builder.reconcile(hook),
            None => builder,
        };
        builder.anonymous_scope("tests").build().unwrap()
    };
    let happened = AtTheBank::that(found);
    let never = AtTheBank::that(|| Ok(Some(Verdict::DidNotHappen)));
    for (key, layer, status, body, ran) in [
        ("hold", layer(OwnerLost::Hold, None), 409, "", 1),
        ("rerun", layer(OwnerLost::Rerun, None), 201, "run 2", 2),
        (
            "happened",
            layer(OwnerLost::Hold, Some(happened.clone())),
            201,
            "found at the bank",
            1,
        ),
        (
            "did not",
            layer(OwnerLost::Hold, Some(never.clone())),
            201,
            "run 2",
            2,
        ),
    ] {
        let key = format!("\"{key}\"");
        let runs = Runs::default();
        let app = counting(&layer, &runs);
        store.fail("complete", Fault::Down, u32::MAX);
        let first = send(&app, post(&key)).await;
        assert_eq!(
            (first.status, &first.body[..]),
            (201, &b"run 1"[..]),
            "the answer was sent"
        );
        layer.drain().await;
        assert_eq!(layer.counts().get(Event::StoredLater), 1);
        store.fail("complete", Fault::Down, 0);
        world.leases_end();
        let again = send(&app, post(&key)).await;
        assert_eq!((again.status, runs.count()), (status, ran), "{key}");
        if !body.is_empty() {
            assert_eq!(again.body, body, "{key}");
            assert_eq!(send(&app, post(&key)).await.body, body, "{key}: and stays so");
        }
    }
    assert_eq!(happened.asked.load(Ordering::SeqCst), 1);
}

async fn a_hook_that_cannot_tell_leaves_the_key_unknown(world: World) {
    let hooks: [Judge; 2] = [|| Ok(None), || Err("the bank is closed".into())];
    for (n, verdict) in hooks.into_iter().enumerate() {
        let layer = IdempotencyLayer::builder(world.store.clone())
            .reconcile(AtTheBank::that(verdict))
            .anonymous_scope("tests")
            .build()
            .unwrap();
        let runs = Runs::default();
        let app = app(&layer, &runs, |_| async { answer(500, "oh no") });
        let key = n.to_string();
        send(&app, post(&key)).await;
        assert_eq!(send(&app, post(&key)).await.code(), "SEM0406");
        assert_eq!(runs.count(), 1);
    }
}
