//! Callers that leave before their answer.

use std::sync::Arc;

use semel_core::model::MemoryKeys;
use semel_testkit::faulty::{Fault, FaultyKeys};
use serde_json::{Value, json};

use super::{Access, LIMITS, Log, MINE, World, request};

fn world() -> (World, Arc<FaultyKeys>) {
    let store = FaultyKeys::over(MemoryKeys::default());
    let world = World::with(
        Arc::<FaultyKeys>::clone(&store),
        Access::default(),
        LIMITS,
        Arc::default(),
    );
    (world, store)
}

/// Asks, and leaves when the store was asked, as hyper drops a request whose connection ends.
async fn ask_and_leave(world: &World, store: &FaultyKeys, operation: &'static str, body: Value) {
    let times = store.calls(operation) as usize + 1;
    tokio::select! {
        answer = world.send(request(operation, body.to_string())) => panic!("{answer:?}"),
        () = store.called(operation, times) => {}
    }
}

/// What was begun for callers that are gone has ended.
async fn quiet(world: &World) {
    world.api.tasks.close();
    world.api.tasks.wait().await;
}

/// Rule K4: the store is away for a moment just when the caller leaves.
#[tokio::test]
async fn a_withdrawal_that_fails_is_tried_again() {
    let (world, store) = world();
    store.fail("claim", Fault::Silent, 1);
    store.fail("release", Fault::Down, 2);
    let body = json!({"scope": "orders", "id": "o-7", "input": "2 teapots"});
    ask_and_leave(&world, &store, "claim", body).await;
    quiet(&world).await;
    assert_eq!(store.calls("release"), 3);
    let found = world.ask("read", json!({"scope": "orders", "id": "o-7"})).await;
    assert_eq!(found.status, 404, "{found:?}");
}

#[tokio::test]
async fn a_withdrawal_that_never_succeeds_ends_with_the_daemon_as_an_error() {
    let (world, store) = world();
    let (log, _listening) = Log::listen();
    store.fail("claim", Fault::Silent, 1);
    store.fail("release", Fault::Down, u32::MAX);
    let body = json!({"scope": "orders", "id": "o-7", "input": "2 teapots"});
    ask_and_leave(&world, &store, "claim", body).await;
    store.called("release", 1).await;
    world.api.stop.cancel();
    quiet(&world).await;
    let log = log.text();
    let line = log.lines().find(|line| line.contains("could not be withdrawn"));
    assert!(
        line.is_some_and(|line| line.contains("ERROR") && line.contains("o-7")),
        "{log}"
    );
}

#[tokio::test]
async fn a_settlement_whose_caller_left_is_logged() {
    let (world, store) = world();
    let lease = world.claim(MINE).await;
    world.leased("abandon", &lease, json!({})).await;
    let (log, _listening) = Log::listen();
    let hold = store.hold("settle");
    let body = json!({"scope": "orders", "id": "o-7", "token": lease.body["token"], "verdict": "did_not_happen",
                      "by": "ann", "why": "not at the bank"});
    ask_and_leave(&world, &store, "settle", body).await;
    drop(hold);
    quiet(&world).await;
    let log = log.text();
    let line = log
        .lines()
        .find(|line| line.contains("somebody settles a key over the API"));
    let parts = ["by=\"ann\"", "not at the bank", "o-7", "result=\"settled\""];
    assert!(
        line.is_some_and(|line| parts.iter().all(|part| line.contains(part))),
        "{log}"
    );
    let found = world.ask("read", json!({"scope": "orders", "id": "o-7"})).await;
    assert_eq!(found.status, 404, "{found:?}");
}

#[tokio::test]
async fn a_closing_whose_caller_left_is_logged() {
    let (world, store) = world();
    world.claim(MINE).await;
    let (log, _listening) = Log::listen();
    let hold = store.hold("settle");
    let body = json!({"scope": "orders", "by": "ann", "why": "account deleted"});
    let answer = world.send(request("close_scope", body.to_string()));
    tokio::select! {
        answer = answer => panic!("{answer:?}"),
        () = store.called("settle", 1) => {}
    }
    drop(hold);
    quiet(&world).await;
    let log = log.text();
    let line = log
        .lines()
        .find(|line| line.contains("somebody closes a scope over the API"));
    let parts = ["by=\"ann\"", "account deleted", "1 keys closed"];
    assert!(
        line.is_some_and(|line| parts.iter().all(|part| line.contains(part))),
        "{log}"
    );
}
