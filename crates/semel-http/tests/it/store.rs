//! A store that is away, slow, or loses its replies.

use semel_core::RetryPolicy;

use super::support::*;

on_each_store![
    down_before_the_claim_runs_nothing_and_says_when_to_come_back,
    a_claim_whose_reply_is_lost_is_asked_again_and_runs_once,
    a_claim_that_is_never_answered_is_taken_back,
    down_after_the_effect_sends_the_answer_and_stores_it_behind,
    a_completion_whose_reply_is_lost_is_recognised,
    down_for_good_after_the_effect_ends_unknown,
    an_outcome_too_large_for_the_store_is_remembered_as_done,
    a_key_that_cannot_be_given_back_is_given_back_later,
    a_mismatch_that_cannot_be_looked_at_is_no_final_word,
    a_mismatch_whose_record_has_gone_meanwhile_is_claimed_again,
];

/// paySphere#1919.
async fn down_before_the_claim_runs_nothing_and_says_when_to_come_back(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let app = counting(&world.layer(), &runs);
    store.fail("claim", Fault::Down, 1);
    let first = send(&app, post("a")).await;
    assert_eq!(
        (first.status, first.code().as_str(), first.outcome()),
        (503, "SEM0411", "refused")
    );
    assert_eq!((first.header("retry-after"), runs.count()), (Some("2"), 0));
    assert_eq!(send(&app, post("a")).await.status, 201);
    assert_eq!(
        store.calls("release"),
        0,
        "it is certain that the claim never arrived"
    );
}

/// Rule K3: the same nonce gets the same token.
async fn a_claim_whose_reply_is_lost_is_asked_again_and_runs_once(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let app = counting(&world.layer(), &runs);
    store.fail("claim", Fault::ReplyLost, 1);
    assert_eq!(send(&app, post("a")).await.body, "run 1");
    assert_eq!((store.calls("claim"), runs.count()), (2, 1));
}

/// Rule K4: the claim arrived, the reply never came; without a withdrawal the key would end unknown.
async fn a_claim_that_is_never_answered_is_taken_back(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let layer = world.layer_with(|config| config.store_ms_max = 300);
    let app = counting(&layer, &runs);
    store.fail("claim", Fault::Silent, 1);
    assert_eq!(send(&app, post("a")).await.code(), "SEM0411");
    layer.drain().await;
    world.leases_end();
    assert_eq!(send(&app, post("a")).await.body, "run 1");
}

/// paySphere#1919, the other half.
async fn down_after_the_effect_sends_the_answer_and_stores_it_behind(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let layer = world.layer();
    let app = counting(&layer, &runs);
    store.fail("complete", Fault::Down, 3);
    let first = send(&app, post("a")).await;
    assert_eq!(
        (first.status, &first.body[..], first.outcome()),
        (201, &b"run 1"[..], "succeeded")
    );
    assert_eq!(first.header("semel-retained-until"), None, "nothing is kept yet");
    layer.drain().await;
    let again = send(&app, post("a")).await;
    assert_eq!(
        (again.status, &again.body[..], again.replayed()),
        (201, &b"run 1"[..], true)
    );
    assert_eq!((store.calls("complete"), runs.count()), (4, 1));
}

/// Rule K2.
async fn a_completion_whose_reply_is_lost_is_recognised(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let layer = world.layer();
    let app = counting(&layer, &runs);
    store.fail("complete", Fault::ReplyLost, 1);
    assert_eq!(send(&app, post("a")).await.body, "run 1");
    layer.drain().await;
    assert_eq!(store.calls("complete"), 2);
    assert!(send(&app, post("a")).await.replayed());
}

async fn down_for_good_after_the_effect_ends_unknown(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let layer = world.layer_with(|config| {
        config.completion_retry = RetryPolicy {
            initial_ms: 1,
            attempts_max: 3,
            ..RetryPolicy::default()
        };
    });
    let app = counting(&layer, &runs);
    store.fail("complete", Fault::Down, u32::MAX);
    assert_eq!(send(&app, post("a")).await.body, "run 1");
    layer.drain().await;
    world.leases_end();
    assert_eq!(send(&app, post("a")).await.code(), "SEM0406");
    assert_eq!(runs.count(), 1);
}

async fn an_outcome_too_large_for_the_store_is_remembered_as_done(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let app = counting(&world.layer(), &runs);
    store.fail("complete", Fault::TooLarge, 1);
    assert_eq!(send(&app, post("a")).await.body, "run 1");
    assert_eq!(send(&app, post("a")).await.code(), "SEM0407");
    assert_eq!(runs.count(), 1);
}

async fn a_key_that_cannot_be_given_back_is_given_back_later(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let layer = world.layer();
    let app = app(&layer, &runs, |n| async move {
        answer(if n == 1 { 429 } else { 201 }, "")
    });
    store.fail("release", Fault::Down, 2);
    assert_eq!(send(&app, post("a")).await.status, 429);
    layer.drain().await;
    assert_eq!(send(&app, post("a")).await.status, 201);
}

/// It may be the same request under another recipe. Not even an open route runs a key that is known.
async fn a_mismatch_that_cannot_be_looked_at_is_no_final_word(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let layer = world.layer_with(|config| {
        config.outage = semel_http::Outage::Open;
        config.store_ms_max = 300;
    });
    let app = counting(&layer, &runs);
    assert_eq!(send(&app, post("a")).await.status, 201);
    let other = || request("POST", "/orders", "a", "{\"other\":1}");
    for fault in [Fault::Down, Fault::Silent] {
        store.fail("read", fault, 1);
        let answer = send(&app, other()).await;
        assert_eq!(
            (answer.status, answer.code().as_str(), answer.outcome()),
            (503, "SEM0411", "refused"),
            "{fault:?}"
        );
    }
    assert_eq!(send(&app, other()).await.code(), "SEM0404");
    assert_eq!(runs.count(), 1);
}

/// The first one was refused between the claim and the look.
async fn a_mismatch_whose_record_has_gone_meanwhile_is_claimed_again(world: World) {
    let (world, store) = world.faulty();
    let (runs, gate) = (Runs::default(), Gate::default());
    let layer = world.layer();
    let held = gate.clone();
    let refuses = app(&layer, &runs, move |_| {
        let gate = held.clone();
        async move {
            gate.pass().await;
            answer(429, "later")
        }
    });
    let first = send_soon(&refuses, post("a"));
    gate.arrived().await;
    let reading = store.hold("read");
    let other = request("POST", "/orders", "a", "{\"other\":1}");
    let second = send_soon(&counting(&layer, &runs), other);
    store.called("read", 1).await;
    gate.open();
    assert_eq!(first.await.unwrap().status, 429);
    drop(reading);
    assert_eq!(second.await.unwrap().status, 201);
}
