//! Settings that cannot end well, code of the user that panics at the edges, and stores and hooks that say nothing.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use semel_core::claim::{Reconcile, State, Verdict};
use semel_core::{Keep, Key, KeyStoreExt as _, Token};
use semel_keys::{BoxError, Failed, NotRun, OnOwnerLost, Outcome, Ran, idempotent};
use semel_testkit::faulty::Fault;
use tokio::sync::oneshot;

use super::{Runs, World};
use crate::support::key;

async fn soon<T>(answer: impl Future<Output = T>) -> T {
    let answer = tokio::time::timeout(Duration::from_secs(20), answer);
    answer.await.expect("no end by itself")
}

#[tokio::test]
async fn a_retention_outside_its_limits_runs_nothing_and_is_named() {
    let (world, runs, key) = (World::new(), Runs::default(), key());
    for retention_ms in [0, i64::MAX] {
        let once = world.once.clone().keep(Keep {
            retention_ms,
            ..Keep::default()
        });
        let runs = runs.clone();
        let call = once.run(&key, "input", move |_| async move {
            Ok(format!("run {}", runs.next()))
        });
        let error = call.await.unwrap_err().to_string();
        assert!(error.contains("retention_ms"), "{error}");
    }
    assert_eq!((runs.count(), world.store.calls("claim")), (0, 0));
}

struct Unconvertible;

impl From<Unconvertible> for Bytes {
    fn from(_: Unconvertible) -> Self {
        panic!("cannot be written down")
    }
}

/// The effect is there by then: "not run" would have the caller run it again.
#[tokio::test]
async fn an_output_that_panics_as_it_is_turned_into_bytes_is_unknown() {
    let (world, key) = (World::new(), key());
    let call = world.once.run(&key, "input", |_| async { Ok(Unconvertible) });
    let ran = call.await.unwrap();
    assert_eq!(ran.outcome, Outcome::Unknown);
    let why = ran.source.unwrap().to_string();
    assert!(why.contains("panicked: cannot be written down"), "{why}");
    let record = world.store.read(&key).await.unwrap().unwrap();
    assert!(matches!(record.state, State::Unknown { .. }));
}

#[derive(Debug)]
struct Unprintable;

impl fmt::Display for Unprintable {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("cannot be printed")
    }
}

impl std::error::Error for Unprintable {}

#[tokio::test]
async fn an_error_that_panics_as_it_is_printed_keeps_its_verdict() {
    let world = World::new();
    let call = |failed: fn() -> Failed| {
        let once = world.once.clone();
        async move {
            let key = key();
            let call = once.run(&key, "input", move |_| async move { Err::<&str, _>(failed()) });
            call.await.unwrap().outcome
        }
    };
    let outcome = call(|| Failed::unknown(Unprintable)).await;
    assert_eq!(outcome, Outcome::Unknown);
    let outcome = call(|| Failed::released(Unprintable)).await;
    assert!(matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
    assert_eq!(
        (world.store.calls("abandon"), world.store.calls("release")),
        (1, 1)
    );
}

#[tokio::test]
async fn a_store_that_panics_after_the_effect_makes_it_unknown_not_unrun() {
    let (world, key) = (World::new(), key());
    world.store.fail("complete", Fault::Panic, 1);
    let ran: Ran = world
        .once
        .run(&key, "input", |_| async { Ok("sent") })
        .await
        .unwrap();
    assert_eq!(ran.outcome, Outcome::Unknown);
    assert_eq!(world.store.calls("abandon"), 1);
    let again = world
        .once
        .run(&key, "input", |_| async { Ok("never") })
        .await
        .unwrap();
    assert_eq!((again.outcome, again.replayed), (Outcome::Unknown, true));
}

#[tokio::test]
async fn a_store_that_panics_at_the_claim_ran_nothing_and_the_nonce_is_withdrawn() {
    let (world, key) = (World::new(), key());
    world.store.fail("claim", Fault::Panic, 1);
    let error = world
        .once
        .run(&key, "input", |_| async { Ok("never") })
        .await
        .unwrap_err();
    assert!(matches!(error, NotRun::Store(_)), "{error}");
    assert_eq!(world.store.calls("release"), 1);
}

/// The process may end as soon as the short form has answered.
#[tokio::test]
async fn the_short_form_ends_when_its_outcome_is_stored() {
    let (world, key) = (World::new(), key());
    world.store.fail("complete", Fault::Down, 2);
    let ran = idempotent(&world.store, &key, b"input", || async { Ok("sent") })
        .await
        .unwrap();
    assert_eq!(ran.outcome, Outcome::Succeeded("sent".into()));
    let record = world.store.read(&key).await.unwrap().unwrap();
    assert!(matches!(record.state, State::Done { .. }), "{record:?}");
}

#[tokio::test]
async fn a_duplicate_waits_no_longer_than_it_may_for_a_store_that_says_nothing() {
    let (world, key) = (World::with(|config| config.wait_ms_max = 200), key());
    let (end, ended) = oneshot::channel::<()>();
    let first = tokio::spawn({
        let (once, key) = (world.once.clone(), key.clone());
        async move {
            let call = once.run(&key, "input", |_| async {
                ended.await?;
                Ok("done")
            });
            call.await
        }
    });
    world.store.called("claim", 1).await;
    world.store.fail("read", Fault::Silent, 1);
    let second = soon(world.once.run(&key, "input", |_| async { Ok("never") })).await;
    let error = second.unwrap_err();
    assert!(matches!(error, NotRun::Running { .. }), "{error}");
    end.send(()).unwrap();
    first.await.unwrap().unwrap();
}

struct Silent;

#[async_trait::async_trait]
impl Reconcile for Silent {
    async fn reconcile(&self, _: &Key, _: Token) -> Result<Option<Verdict>, BoxError> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_hook_that_says_nothing_leaves_the_key_unknown() {
    let world = World::with(|config| {
        config.owner_lost = OnOwnerLost::Reconcile(std::sync::Arc::new(Silent));
        config.reconcile_ms_max = 50;
    });
    let key = key();
    let lose = world.once.run(&key, "input", |_| async {
        Err::<&str, _>(Failed::unknown("lost"))
    });
    lose.await.unwrap();
    let again = soon(world.once.run(&key, "input", |_| async { Ok("never") }))
        .await
        .unwrap();
    assert_eq!((again.outcome, again.replayed), (Outcome::Unknown, true));
}

struct DidNotHappen;

#[async_trait::async_trait]
impl Reconcile for DidNotHappen {
    async fn reconcile(&self, _: &Key, _: Token) -> Result<Option<Verdict>, BoxError> {
        Ok(Some(Verdict::DidNotHappen))
    }
}

#[tokio::test]
async fn a_store_that_says_nothing_to_a_settlement_holds_nobody_up() {
    let world = World::with(|config| {
        config.owner_lost = OnOwnerLost::Reconcile(std::sync::Arc::new(DidNotHappen));
        config.store_ms_max = 50;
    });
    let key = key();
    let lose = world.once.run(&key, "input", |_| async {
        Err::<&str, _>(Failed::unknown("lost"))
    });
    lose.await.unwrap();
    world.store.fail("settle", Fault::Silent, 1);
    let again = soon(world.once.run(&key, "input", |_| async { Ok("never") }))
        .await
        .unwrap();
    assert_eq!((again.outcome, again.replayed), (Outcome::Unknown, true));
}
