//! The same key at the same time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::support::*;

on_each_store![
    twenty_equal_posts_over_two_instances_run_once_and_get_equal_answers,
    a_slow_key_does_not_hold_up_another,
    a_client_that_gives_up_changes_nothing_and_its_retry_replays,
    a_duplicate_runs_by_itself_when_the_first_gave_the_key_back,
    a_duplicate_waits_at_most_the_cap_and_is_told_when_to_come_back,
    a_duplicate_waits_at_most_the_cap_also_for_a_silent_store,
    a_gateway_that_asks_is_sent_back_what_it_sent_with_running_alone,
    a_duplicate_of_a_lost_owner_stops_waiting_when_the_lease_ends,
    a_store_that_tells_wakes_a_waiter_of_another_process_at_once,
    a_duplicate_is_told_to_come_back_when_runs_usually_end,
    a_client_that_leaves_a_waiting_duplicate_gives_its_place_back,
    a_drain_waits_for_runs_with_and_without_clients_and_says_who_is_left,
];

on_servers_too![
    twenty_equal_posts_over_two_instances_run_once_and_get_equal_answers,
    a_slow_key_does_not_hold_up_another,
    a_client_that_gives_up_changes_nothing_and_its_retry_replays,
];

/// laravel-idempotency#1: two instances share nothing but the store.
async fn twenty_equal_posts_over_two_instances_run_once_and_get_equal_answers(world: World) {
    let (runs, gate) = (Runs::default(), Gate::default());
    let apps = [
        gated(&world.layer(), &runs, &gate),
        gated(&world.layer(), &runs, &gate),
    ];
    let all: Vec<_> = (0..20).map(|n| send_soon(&apps[n % 2], post("a"))).collect();
    gate.arrived().await;
    gate.open();
    let mut replayed = 0;
    for answer in all {
        let answer = answer.await.unwrap();
        assert_eq!((answer.status, &answer.body[..]), (201, &b"run 1"[..]));
        replayed += u32::from(answer.replayed());
    }
    assert_eq!((runs.count(), replayed), (1, 19));
}

/// django-idempotency-key#60.
async fn a_slow_key_does_not_hold_up_another(world: World) {
    let (runs, gate) = (Runs::default(), Gate::default());
    let layer = world.layer();
    let slow = send_soon(&gated(&layer, &runs, &gate), post("slow"));
    gate.arrived().await;
    assert_eq!(send(&counting(&layer, &runs), post("quick")).await.status, 201);
    gate.open();
    assert_eq!(slow.await.unwrap().status, 201);
}

/// dotnet-starter-kit#1333.
async fn a_client_that_gives_up_changes_nothing_and_its_retry_replays(world: World) {
    let (runs, gate) = (Runs::default(), Gate::default());
    let layer = world.layer();
    let app = gated(&layer, &runs, &gate);
    let first = send_soon(&app, post("a"));
    gate.arrived().await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled(), "the client is gone");
    gate.open();
    layer.drain().await;
    let again = send(&app, post("a")).await;
    assert_eq!((again.status, &again.body[..]), (201, &b"run 1"[..]));
    assert!(again.replayed());
    assert_eq!(runs.count(), 1);
}

async fn a_duplicate_runs_by_itself_when_the_first_gave_the_key_back(world: World) {
    let (runs, gate) = (Runs::default(), Gate::default());
    let app = {
        let gate = gate.clone();
        app(&world.layer(), &runs, move |n| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                answer(if n == 1 { 429 } else { 201 }, format!("run {n}"))
            }
        })
    };
    let first = send_soon(&app, post("a"));
    gate.arrived().await;
    let second = send_soon(&app, post("a"));
    gate.open();
    assert_eq!(first.await.unwrap().status, 429);
    let second = second.await.unwrap();
    assert_eq!(
        (second.status, &second.body[..], second.replayed()),
        (201, &b"run 2"[..], false)
    );
}

async fn a_duplicate_waits_at_most_the_cap_and_is_told_when_to_come_back(world: World) {
    let (runs, gate) = (Runs::default(), Gate::default());
    for (wait_ms_max, waiters_per_key_max, limit) in [
        (0, 64, "wait_ms_max = 0 ms"),
        (20, 64, "wait_ms_max = 20 ms"),
        (60_000, 0, "waiters_per_key_max = 0 "),
    ] {
        let layer = world.layer_with(|config| {
            config.wait_ms_max = wait_ms_max;
            config.waiters_per_key_max = waiters_per_key_max;
        });
        let app = gated(&layer, &runs, &gate);
        let key = format!("{wait_ms_max}-{waiters_per_key_max}");
        let first = send_soon(&app, post(&key));
        gate.arrived().await;
        let second = tokio::time::timeout(Duration::from_secs(30), send(&app, post(&key)))
            .await
            .unwrap();
        assert_eq!(
            (second.status, second.code().as_str(), second.outcome()),
            (409, "SEM0405", "running")
        );
        assert_eq!(second.header("retry-after"), Some("1"));
        assert!(second.detail().contains(limit), "{limit}: {}", second.detail());
        gate.open_once();
        assert_eq!(first.await.unwrap().status, 201);
    }
}

/// By it the gateway knows that this layer runs the key that it sent. The handler does not see it, and what it says has no weight.
async fn a_gateway_that_asks_is_sent_back_what_it_sent_with_running_alone(world: World) {
    let (runs, gate) = (Runs::default(), Gate::default());
    let layer = world.layer_with(|config| config.wait_ms_max = 0);
    let handler = {
        let gate = gate.clone();
        move |_| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                let mut made = answer(201, "made");
                made.headers_mut().insert("semel-hop", "4711".parse().unwrap());
                made
            }
        }
    };
    let app = app(&layer, &runs, handler);
    let asked = || {
        let mut request = post("a");
        request.headers_mut().insert("semel-hop", "4711".parse().unwrap());
        request
    };
    let first = send_soon(&app, asked());
    gate.arrived().await;
    let second = send(&app, asked()).await;
    assert_eq!(
        (second.outcome(), second.header("semel-hop")),
        ("running", Some("4711"))
    );
    let unasked = send(&app, post("a")).await;
    assert_eq!(
        (unasked.outcome(), unasked.header("semel-hop")),
        ("running", None)
    );
    gate.open();
    assert_eq!(first.await.unwrap().header("semel-hop"), None);
    let replay = send(&app, asked()).await;
    assert!(
        replay.replayed() && replay.header("semel-hop").is_none(),
        "{replay:?}"
    );
}

/// The owner is another process, which has died: nobody will ever wake the waiter.
async fn a_duplicate_waits_at_most_the_cap_also_for_a_silent_store(world: World) {
    let (world, store) = world.faulty();
    let (runs, gate) = (Runs::default(), Gate::default());
    let layer = world.layer_with(|config| config.wait_ms_max = 20);
    let app = gated(&layer, &runs, &gate);
    let first = send_soon(&app, post("a"));
    gate.arrived().await;
    store.fail("read", Fault::Silent, u32::MAX);
    let second = tokio::time::timeout(Duration::from_secs(20), send(&app, post("a")))
        .await
        .unwrap();
    assert_eq!((second.status, second.code().as_str()), (409, "SEM0405"));
    gate.open();
    assert_eq!(first.await.unwrap().status, 201);
}

async fn a_duplicate_of_a_lost_owner_stops_waiting_when_the_lease_ends(world: World) {
    let (world, store) = world.faulty();
    let (runs, gate) = (Runs::default(), Gate::default());
    let dead = gated(&world.layer_with(|config| config.run_ms_max = 1), &runs, &gate);
    let _never = send_soon(&dead, post("a"));
    gate.arrived().await;
    let other = counting(&world.layer_with(|config| config.wait_ms_max = 60_000), &runs);
    let waiting = send_soon(&other, post("a"));
    until("it waits", async || store.calls("read") > 0).await;
    world.leases_end();
    let answer = waiting.await.unwrap();
    assert_eq!((answer.status, answer.code().as_str()), (409, "SEM0406"));
    assert_eq!(runs.count(), 1);
}

/// Rule K11: subscribe, then read. The store here tells only when the test says so, and a look now and then would take 2 s.
async fn a_store_that_tells_wakes_a_waiter_of_another_process_at_once(world: World) {
    let told = Arc::new(Notify::new());
    let store = FaultyKeys::over(world.store.clone());
    store.tells(told.clone());
    let mut telling = world.clone();
    telling.store = store.clone();
    let (runs, gate) = (Runs::default(), Gate::default());
    let first = send_soon(&gated(&world.layer(), &runs, &gate), post("a"));
    gate.arrived().await;
    let other = telling.layer_with(|config| config.wait_ms_max = 60_000);
    let waiting = send_soon(&counting(&other, &runs), post("a"));
    // Its pauses have grown to the longest.
    until("it looks now and then only", async || store.calls("read") > 8).await;
    let looks = store.calls("read");
    assert_eq!(store.calls("subscribe"), 1, "a hint that was not spent is kept");
    gate.open();
    assert_eq!(first.await.unwrap().status, 201);
    told.notify_waiters();
    let answer = waiting.await.unwrap();
    assert_eq!(
        (&answer.body[..], answer.replayed(), runs.count()),
        (&b"run 1"[..], true, 1)
    );
    assert!(store.calls("read") <= looks + 2, "it was woken, it did not look");
}

async fn a_duplicate_is_told_to_come_back_when_runs_usually_end(world: World) {
    let (runs, gate) = (Runs::default(), Gate::default());
    let layer = world.layer_with(|config| config.wait_ms_max = 0);
    let slow = app(&layer, &runs, |_| async {
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        answer(201, "slow")
    });
    send(&slow, post("slow")).await;
    let app = gated(&layer, &runs, &gate);
    let first = send_soon(&app, post("a"));
    gate.arrived().await;
    let second = send(&app, post("a")).await;
    // One of 1.1 s, or of more on a busy machine.
    let seconds: u32 = second.header("retry-after").unwrap().parse().unwrap();
    assert!(second.outcome() == "running" && seconds >= 2, "{second:?}");
    gate.open();
    first.await.unwrap();
}

async fn a_client_that_leaves_a_waiting_duplicate_gives_its_place_back(world: World) {
    let (world, store) = world.faulty();
    let (runs, gate) = (Runs::default(), Gate::default());
    let layer = world.layer_with(|config| {
        config.waiters_max = 1;
        config.wait_ms_max = 60_000;
    });
    let app = gated(&layer, &runs, &gate);
    let first = send_soon(&app, post("a"));
    gate.arrived().await;
    let gone = send_soon(&app, post("a"));
    until("it waits", async || store.calls("read") > 0).await;
    let third = send(&app, post("a")).await;
    assert_eq!(third.outcome(), "running", "no place is left");
    assert!(third.detail().contains("waiters_max = 1 "), "{}", third.detail());
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    let stays = send_soon(&app, post("a"));
    gate.open();
    assert_eq!(first.await.unwrap().status, 201);
    assert!(stays.await.unwrap().replayed());
    assert_eq!(runs.count(), 1);
}

async fn a_drain_waits_for_runs_with_and_without_clients_and_says_who_is_left(world: World) {
    let (runs, gate) = (Runs::default(), Gate::default());
    let layer = world.layer();
    let app = gated(&layer, &runs, &gate);
    let (stays, goes) = (send_soon(&app, post("stays")), send_soon(&app, post("goes")));
    gate.arrived().await;
    gate.arrived().await;
    goes.abort();
    assert!(goes.await.unwrap_err().is_cancelled());
    assert_eq!(layer.drain_within(Duration::from_millis(50)).await, 2);
    gate.open();
    assert_eq!(layer.drain_within(Duration::from_secs(30)).await, 0);
    assert_eq!(stays.await.unwrap().status, 201);
    assert!(send(&app, post("goes")).await.replayed());
}
