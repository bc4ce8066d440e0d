//! The store is cut at claim, at renewal, at completion.

use std::sync::Arc;

use semel_core::{KeyStoreExt as _, RetryPolicy, Token};
use semel_keys::{BatchConfig, Batched, Failed, Idempotent, NotRun, Outage, Outcome, RunConfig};
use semel_testkit::faulty::Fault;

use super::{Runs, World};
use crate::support::{key, request};

fn quick(config: &mut RunConfig) {
    config.completion_retry.initial_ms = 1;
}

async fn run(world: &World, runs: &Runs, key: &semel_core::Key) -> Result<semel_keys::Ran, NotRun> {
    let runs = runs.clone();
    let call = world.once.run(key, "input", move |_| async move {
        Ok::<_, Failed>(format!("run {}", runs.next()))
    });
    call.await
}

#[tokio::test]
async fn down_at_the_claim_runs_nothing() {
    let (world, runs, key) = (World::new(), Runs::default(), key());
    world.store.fail("claim", Fault::Down, 1);
    let error = run(&world, &runs, &key).await.unwrap_err();
    assert!(error.to_string().contains("nothing was run"), "{error}");
    assert_eq!((error.code(), runs.count()), ("SEM0104", 0));
    assert_eq!(
        world.store.calls("release"),
        0,
        "it is certain that the claim never arrived"
    );
    assert!(!run(&world, &runs, &key).await.unwrap().replayed);
}

#[tokio::test]
async fn down_at_the_claim_under_open_runs_and_says_so() {
    let world = World::with(|config| config.outage = Outage::Open);
    let key = key();
    world.store.fail("claim", Fault::Down, 1);
    let ran = world
        .once
        .run(&key, "input", |run| async move { Ok(format!("{:?}", run.token)) });
    let ran = ran.await.unwrap();
    assert_eq!(
        ran.outcome,
        Outcome::Succeeded(format!("{:?}", None::<Token>).into())
    );
    assert!(ran.unguarded && ran.source.is_some() && ran.retained_until.is_none());
    assert_eq!(world.once.unguarded(), 1);
    assert!(!run(&world, &Runs::default(), &key).await.unwrap().unguarded);
}

/// The store is there. What stands in front of it is too busy, or on its way out: a duplicate may be running.
#[tokio::test]
async fn open_does_not_pass_a_full_or_closed_batcher() {
    let world = World::new();
    let config = BatchConfig {
        lanes: Some(1),
        queue_items_max: 1,
        ..BatchConfig::default()
    };
    let batched = Batched::with(Arc::clone(&world.store), &config).unwrap();
    let open = RunConfig {
        outage: Outage::Open,
        ..RunConfig::default()
    };
    let once = Idempotent::with(batched.clone(), open).unwrap();
    let turned_away = async || {
        let key = key();
        let never = once.run(&key, "input", |_| async { Ok("never") });
        match never.await {
            Err(error) => error.code(),
            Ok(ran) => panic!("{ran:?}"),
        }
    };
    let hold = world.store.hold("claim");
    let claiming = || {
        let (batched, claim) = (batched.clone(), request());
        tokio::spawn(async move { batched.claim(&claim).await })
    };
    let first = claiming();
    world.store.called("claim", 1).await;
    let second = claiming();
    while batched.waiting() < 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(turned_away().await, "SEM0110");
    drop(hold);
    for claiming in [first, second] {
        claiming.await.unwrap().unwrap();
    }
    world.store.fail("claim", Fault::NoRoom, 1);
    assert_eq!(turned_away().await, "SEM0104", "a store without room is there");
    batched.close().await;
    assert_eq!(turned_away().await, "SEM0116");
    assert_eq!(once.unguarded(), 0);
}

/// Rule K3: the same nonce gets the same token.
#[tokio::test]
async fn a_claim_whose_reply_is_lost_is_asked_again_and_runs_once() {
    let (world, runs, key) = (World::new(), Runs::default(), key());
    world.store.fail("claim", Fault::ReplyLost, 1);
    assert_eq!(
        run(&world, &runs, &key).await.unwrap().outcome,
        Outcome::Succeeded("run 1".into())
    );
    assert_eq!((world.store.calls("claim"), runs.count()), (2, 1));
}

/// Rule K4: it arrived and the reply never came; without a withdrawal the key would end unknown.
#[tokio::test]
async fn a_claim_that_is_never_answered_is_taken_back() {
    let world = World::with(|config| {
        config.store_ms_max = 100;
        quick(config);
    });
    let (runs, key) = (Runs::default(), key());
    world.store.fail("claim", Fault::Silent, 1);
    let error = run(&world, &runs, &key).await.unwrap_err();
    assert!(error.to_string().contains("store_ms_max = 100"), "{error}");
    world.once.drain().await;
    world.lease_ends();
    assert_eq!(
        run(&world, &runs, &key).await.unwrap().outcome,
        Outcome::Succeeded("run 1".into())
    );
}

/// Rule K4: the policy says how often what failed is tried again; the withdrawal has not been tried yet.
#[tokio::test]
async fn a_claim_without_an_answer_is_withdrawn_even_when_nothing_is_repeated() {
    let world = World::with(|config| {
        config.store_ms_max = 100;
        config.completion_retry.attempts_max = 1;
    });
    let (runs, key) = (Runs::default(), key());
    world.store.fail("claim", Fault::Silent, 1);
    run(&world, &runs, &key).await.unwrap_err();
    world.once.drain().await;
    assert_eq!(world.store.calls("release"), 1);
    let ran = run(&world, &runs, &key).await.unwrap();
    assert_eq!(ran.outcome, Outcome::Succeeded("run 1".into()));
}

#[tokio::test]
async fn down_at_the_renewal_stops_nothing_under_hold() {
    let world = World::with(|config| config.lease_ms = 60);
    let key = key();
    world.store.fail("extend", Fault::Down, 3);
    let store = world.store.clone();
    let ran = world.once.run(&key, "input", move |_| async move {
        store.called("extend", 5).await;
        Ok("done")
    });
    assert_eq!(ran.await.unwrap().outcome, Outcome::Succeeded("done".into()));
}

/// The effect exists: its outcome is told, and stored behind it.
#[tokio::test]
async fn down_at_the_completion_tells_the_outcome_and_stores_it_later() {
    let (world, runs, key) = (World::with(quick), Runs::default(), key());
    world.store.fail("complete", Fault::Down, 3);
    let ran = run(&world, &runs, &key).await.unwrap();
    assert_eq!(
        (ran.outcome, ran.retained_until),
        (Outcome::Succeeded("run 1".into()), None)
    );
    assert!(ran.source.is_some());
    world.once.drain().await;
    let again = run(&world, &runs, &key).await.unwrap();
    assert_eq!(
        (again.outcome, again.replayed),
        (Outcome::Succeeded("run 1".into()), true)
    );
    assert_eq!((world.store.calls("complete"), runs.count()), (4, 1));
}

/// Rule K2.
#[tokio::test]
async fn a_completion_whose_reply_is_lost_is_recognised() {
    let (world, runs, key) = (World::with(quick), Runs::default(), key());
    world.store.fail("complete", Fault::ReplyLost, 1);
    run(&world, &runs, &key).await.unwrap();
    world.once.drain().await;
    assert_eq!(world.store.calls("complete"), 2);
    assert!(run(&world, &runs, &key).await.unwrap().replayed);
}

#[tokio::test]
async fn down_for_good_after_the_effect_ends_unknown_and_is_not_run_again() {
    let world = World::with(|config| {
        config.completion_retry = RetryPolicy {
            initial_ms: 1,
            attempts_max: 3,
            ..RetryPolicy::default()
        };
    });
    let (runs, key) = (Runs::default(), key());
    world.store.fail("complete", Fault::Down, u32::MAX);
    run(&world, &runs, &key).await.unwrap();
    world.once.drain().await;
    world.lease_ends();
    assert_eq!(run(&world, &runs, &key).await.unwrap().outcome, Outcome::Unknown);
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn a_key_that_cannot_be_given_back_is_given_back_later() {
    let (world, key) = (World::with(quick), key());
    world.store.fail("release", Fault::Down, 2);
    let ran = world.once.run(&key, "input", |_| async {
        Err::<&str, _>(Failed::released("not now"))
    });
    ran.await.unwrap();
    world.once.drain().await;
    let again = world
        .once
        .run(&key, "input", |_| async { Ok("now") })
        .await
        .unwrap();
    assert_eq!(again.outcome, Outcome::Succeeded("now".into()));
}

/// Each call would leave a withdrawal behind, for ten minutes, and all would ask again when the store is back.
#[tokio::test]
async fn a_store_that_hangs_leaves_a_bounded_number_behind() {
    for outage in [Outage::Closed, Outage::Open] {
        let world = World::with(|config| {
            config.store_ms_max = 50;
            config.behind_max = 4;
            config.outage = outage;
        });
        let (runs, keys) = (Runs::default(), [(); 10].map(|()| key()));
        let (claims, releases) = (world.store.hold("claim"), world.store.hold("release"));
        for (n, key) in keys.iter().enumerate() {
            match (run(&world, &runs, key).await, outage) {
                (Ok(ran), Outage::Open) => assert!(ran.unguarded),
                (Err(error), Outage::Closed) => {
                    let limit = if n < 4 {
                        "store_ms_max = 50"
                    } else {
                        "behind_max = 4"
                    };
                    assert_eq!(error.code(), if n < 4 { "SEM0105" } else { "SEM0104" });
                    assert!(error.to_string().contains(limit), "{n}: {error}");
                }
                (other, _) => panic!("{n}, {outage:?}: {other:?}"),
            }
        }
        assert_eq!(world.store.calls("claim"), 4, "the others were not sent");
        assert_eq!(world.once.behind(), 4);
        let unguarded = if outage == Outage::Open { 10 } else { 0 };
        assert_eq!(
            (runs.count(), world.once.unguarded()),
            (unguarded, u64::from(unguarded))
        );
        drop((claims, releases));
        world.once.drain().await;
        assert_eq!(world.once.behind(), 0);
        // All four are withdrawn, and new ones pass.
        for key in &keys {
            let ran = run(&world, &runs, key).await.unwrap();
            assert!(!ran.replayed && !ran.unguarded, "{ran:?}");
        }
    }
}

#[tokio::test]
async fn outcomes_that_wait_for_the_store_are_bounded_in_bytes() {
    let world = World::with(|config| {
        quick(config);
        config.behind_bytes_max = 3_000;
    });
    let large = async |key: &semel_core::Key| {
        let call = world
            .once
            .run(key, "input", |_| async { Ok::<_, Failed>(vec![b'x'; 2_000]) });
        call.await.unwrap()
    };
    let keys = [key(), key(), key()];
    world.store.fail("complete", Fault::Down, u32::MAX);
    for key in &keys[..2] {
        assert_eq!(
            large(key).await.outcome,
            Outcome::Succeeded(vec![b'x'; 2_000].into())
        );
    }
    world.store.fail("complete", Fault::Down, 0);
    world.once.drain().await;
    assert_eq!(
        large(&keys[0]).await.outcome,
        Outcome::Succeeded(vec![b'x'; 2_000].into())
    );
    assert_eq!(
        large(&keys[1]).await.outcome,
        Outcome::NotKept,
        "done, and not kept"
    );
    // Their bytes are given back.
    large(&keys[2]).await;
    assert!(large(&keys[2]).await.replayed);
}

#[test]
fn a_limit_of_none_behind_is_refused() {
    let config = RunConfig {
        behind_max: 0,
        ..RunConfig::default()
    };
    assert!(config.check().unwrap_err().to_string().contains("behind_max"));
}
