//! What requests leave behind for a store that hangs: a bounded number, of bounded bytes, and nothing of it for good.

use semel_core::RetryPolicy;

use super::support::*;

on_each_store![
    a_store_that_hangs_leaves_a_bounded_number_behind,
    outcomes_that_wait_for_the_store_are_bounded_in_bytes,
    a_withdrawal_that_the_store_will_never_take_is_not_repeated,
    an_outcome_that_the_store_will_never_take_is_not_repeated,
    an_outcome_that_turns_out_too_large_behind_its_answer_is_remembered_as_done,
];

/// Each request would leave a withdrawal behind, for ten minutes, and all would ask again when the store is back.
async fn a_store_that_hangs_leaves_a_bounded_number_behind(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let layer = world.layer_with(|config| {
        config.store_ms_max = 50;
        config.behind_max = 8;
    });
    let app = counting(&layer, &runs);
    let (claims, releases) = (store.hold("claim"), store.hold("release"));
    for n in 0..40 {
        let answer = send(&app, post(&format!("key-{n}"))).await;
        assert_eq!((answer.status, answer.code().as_str()), (503, "SEM0411"));
    }
    assert_eq!(store.calls("claim"), 8, "the others were not sent");
    assert_eq!(runs.count(), 0);
    drop((claims, releases));
    layer.drain().await;
    // All eight are withdrawn, and new ones pass.
    let patient = counting(&world.layer(), &runs);
    for n in 0..10 {
        assert_eq!(send(&patient, post(&format!("key-{n}"))).await.status, 201);
    }
}

async fn outcomes_that_wait_for_the_store_are_bounded_in_bytes(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let layer = world.layer_with(|config| {
        config.completion_retry.initial_ms = 1;
        config.behind_bytes_max = 3_000;
    });
    let app = app(&layer, &runs, |_| async { answer(201, vec![b'x'; 2_000]) });
    store.fail("complete", Fault::Down, u32::MAX);
    for key in ["a", "b"] {
        let first = send(&app, post(key)).await;
        assert_eq!((first.status, first.body.len()), (201, 2_000));
    }
    store.fail("complete", Fault::Down, 0);
    layer.drain().await;
    assert_eq!(send(&app, post("a")).await.body.len(), 2_000);
    assert_eq!(
        send(&app, post("b")).await.code(),
        "SEM0407",
        "done, and not kept"
    );
    assert_eq!(runs.count(), 2);
    // Their bytes are given back.
    assert_eq!(send(&app, post("c")).await.body.len(), 2_000);
    assert!(send(&app, post("c")).await.replayed());
}

fn often(config: &mut semel_http::Config) {
    config.completion_retry = RetryPolicy {
        initial_ms: 1,
        attempts_max: 5,
        ..RetryPolicy::default()
    };
}

async fn a_withdrawal_that_the_store_will_never_take_is_not_repeated(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let layer = world.layer_with(often);
    let app = app(&layer, &runs, |_| async { answer(429, "") });
    store.fail("release", Fault::Corrupt, u32::MAX);
    assert_eq!(send(&app, post("a")).await.status, 429);
    layer.drain().await;
    assert_eq!(
        store.calls("release"),
        2,
        "once while the client waits, once behind it"
    );
}

async fn an_outcome_that_the_store_will_never_take_is_not_repeated(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let layer = world.layer_with(often);
    store.fail("complete", Fault::Corrupt, u32::MAX);
    assert_eq!(send(&counting(&layer, &runs), post("a")).await.status, 201);
    layer.drain().await;
    assert_eq!(
        store.calls("complete"),
        2,
        "once while the client waits, once behind it"
    );
}

async fn an_outcome_that_turns_out_too_large_behind_its_answer_is_remembered_as_done(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let layer = world.layer_with(|config| config.completion_retry.initial_ms = 500);
    let app = counting(&layer, &runs);
    store.fail("complete", Fault::Down, 1);
    assert_eq!(send(&app, post("a")).await.status, 201);
    store.fail("complete", Fault::TooLarge, 1);
    layer.drain().await;
    assert_eq!(send(&app, post("a")).await.code(), "SEM0407");
    assert_eq!((store.calls("complete"), runs.count()), (3, 1));
}
