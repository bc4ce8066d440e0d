//! Waiting: woken by the end, capped, limited, ended by the daemon's stop.

use std::sync::Arc;
use std::time::Duration;

use semel_core::model::MemoryKeys;
use semel_core::{Clock as _, SystemClock};
use semel_testkit::faulty::{Fault, FaultyKeys};
use serde_json::{Value, json};

use super::{Access, LIMITS, Limits, MINE, THEIRS, World};

fn wait(wait_ms: u64) -> Value {
    json!({"scope": "orders", "id": "o-7", "wait_ms": wait_ms})
}

/// Waits until so many requests wait.
async fn until_waiting(world: &World, count: i64) {
    let deadline = SystemClock.monotonic() + Duration::from_secs(20);
    while world.api.metrics().waiting.get() != count {
        assert!(SystemClock.monotonic() < deadline, "nobody waits");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn the_end_of_a_run_wakes_those_who_wait_for_it() {
    for (operation, more, status) in [
        ("complete", json!({"outcome": "succeeded", "output": "x"}), 200),
        ("abandon", json!({}), 200),
        ("release", json!({}), 404),
    ] {
        let world = World::new();
        let lease = world.claim(MINE).await;
        let waiting = tokio::spawn({
            let world = world.clone();
            async move { world.ask("wait", wait(20_000)).await }
        });
        until_waiting(&world, 1).await;
        let began = SystemClock.monotonic();
        world.leased(operation, &lease, more).await;
        let answer = waiting.await.unwrap();
        assert_eq!(answer.status, status, "{operation}");
        let took = SystemClock.monotonic() - began;
        assert!(
            took < Duration::from_secs(10),
            "{operation}: woken, not timed out: {took:?}"
        );
        assert_eq!(world.api.metrics().waiting.get(), 0);
    }
}

#[tokio::test]
async fn a_claim_that_waits_gets_what_came_of_the_first_one() {
    let world = World::new();
    let lease = world.claim(MINE).await;
    let claiming = |nonce: &str| json!({"scope": "orders", "id": "o-7", "input": "2 teapots", "nonce": nonce, "wait_ms": 20_000});
    let waiting = tokio::spawn({
        let world = world.clone();
        async move { world.ask("claim", claiming(THEIRS)).await }
    });
    until_waiting(&world, 1).await;
    world
        .leased(
            "complete",
            &lease,
            json!({"outcome": "succeeded", "output": "order 7"}),
        )
        .await;
    let answer = waiting.await.unwrap();
    assert_eq!((answer.status, &answer.body["output"]), (200, &json!("order 7")));
}

#[tokio::test]
async fn a_claim_that_waits_is_granted_what_the_first_one_gave_back() {
    let world = World::new();
    let lease = world.claim(MINE).await;
    let waiting = tokio::spawn({
        let world = world.clone();
        let body =
            json!({"scope": "orders", "id": "o-7", "input": "2 teapots", "nonce": THEIRS, "wait_ms": 20_000});
        async move { world.ask("claim", body).await }
    });
    until_waiting(&world, 1).await;
    world.leased("release", &lease, json!({})).await;
    assert_eq!(waiting.await.unwrap().status, 201);
}

#[tokio::test]
async fn an_end_that_nobody_here_made_is_found_by_looking() {
    let world = World::new();
    world.claim(MINE).await;
    let waiting = tokio::spawn({
        let world = world.clone();
        async move { world.ask("wait", wait(20_000)).await }
    });
    until_waiting(&world, 1).await;
    world.clock.advance_ms(30_000);
    assert_eq!(waiting.await.unwrap().body["state"], "unknown");
}

#[tokio::test]
async fn waiting_ends_at_its_cap_and_says_how_it_stands() {
    let capped = Limits {
        wait_max: Duration::from_millis(30),
        ..LIMITS
    };
    let store = Arc::new(MemoryKeys::default());
    let world = World::with(store, Access::default(), capped, Arc::default());
    assert_eq!(
        world.ask("wait", wait(1_000)).await.status,
        404,
        "nothing to wait for"
    );
    world.claim(MINE).await;
    let answer = world.ask("wait", wait(300_000)).await;
    assert_eq!((answer.status, &answer.body["state"]), (200, &json!("claimed")));
    let body =
        json!({"scope": "orders", "id": "o-7", "input": "2 teapots", "nonce": THEIRS, "wait_ms": 300_000});
    assert_eq!(world.ask("claim", body).await.problem().1, "SEM0707");
}

#[tokio::test]
async fn only_so_many_may_wait_and_the_others_are_told() {
    let world = World::new();
    let lease = world.claim(MINE).await;
    let waiting: Vec<_> = (0..LIMITS.waiters_max)
        .map(|_| {
            let world = world.clone();
            tokio::spawn(async move { world.ask("wait", wait(20_000)).await })
        })
        .collect();
    until_waiting(&world, 4).await;
    let refused = world.ask("wait", wait(1)).await;
    assert_eq!(refused.problem(), (503, "SEM0716", None));
    assert!(
        refused.detail().contains("waiters_max = 4 of [api]"),
        "{refused:?}"
    );
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(
        world.claim(THEIRS).await.status,
        409,
        "those that do not wait go on"
    );
    world
        .leased("complete", &lease, json!({"outcome": "succeeded"}))
        .await;
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn the_daemons_stop_ends_every_wait() {
    let world = World::new();
    world.claim(MINE).await;
    let waiting = tokio::spawn({
        let world = world.clone();
        async move { world.ask("wait", wait(20_000)).await }
    });
    until_waiting(&world, 1).await;
    world.api.stop.cancel();
    assert_eq!(waiting.await.unwrap().body["state"], "claimed");
}

#[tokio::test]
async fn those_who_leave_give_up_their_place() {
    let world = World::new();
    world.claim(MINE).await;
    let asking = world.ask("wait", wait(20_000));
    assert!(
        tokio::time::timeout(Duration::from_millis(50), asking)
            .await
            .is_err()
    );
    until_waiting(&world, 0).await;
    assert_eq!(world.api.waiting.available_permits(), LIMITS.waiters_max);
}

#[tokio::test]
async fn a_store_that_says_nothing_to_a_subscription_holds_no_wait_up() {
    let limit = Duration::from_secs(60);
    // By the wait's own end, by the time a store may take for an answer, and by the daemon's stop.
    for (request_max, wait_ms, stop) in [
        (limit * 10, 30, false),
        (Duration::from_millis(10), 20_000, false),
        (limit * 10, 20_000, true),
    ] {
        let store = FaultyKeys::over(MemoryKeys::default());
        let limits = Limits {
            request_max,
            ..LIMITS
        };
        let world = World::with(
            Arc::<FaultyKeys>::clone(&store),
            Access::default(),
            limits,
            Arc::default(),
        );
        let lease = world.claim(MINE).await;
        store.fail("subscribe", Fault::Silent, 1);
        let acting = async {
            store.called("subscribe", 1).await;
            if stop {
                world.api.stop.cancel();
            } else if wait_ms > 1_000 {
                store.called("read", 1).await;
                let done = json!({"outcome": "succeeded", "output": "x"});
                world.leased("complete", &lease, done).await;
            }
        };
        let waiting = tokio::time::timeout(limit, world.ask("wait", wait(wait_ms)));
        let (answer, ()) = tokio::join!(waiting, acting);
        let answer = answer.expect("it does not wait for the subscription");
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}
