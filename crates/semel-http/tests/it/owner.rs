//! Owners that are slow, lost, or overtaken.

use std::convert::Infallible;
use std::time::Duration;

use http_body_util::BodyExt as _;
use semel_core::claim::{Keep, Settlement, Verdict};
use semel_core::{Claim, ClaimReply, Key, KeyStoreExt, LeaseReply, Nonce, OwnerLost, Scope, StoredOutcome};
use semel_http::response::StoredResponse;
use tower::{Layer as _, ServiceExt as _, service_fn};

use super::grpc::unary;
use super::support::*;

on_each_store![
    a_claim_is_renewed_while_its_handler_runs,
    a_slow_owner_still_completes_after_its_lease_and_the_key_is_done,
    a_lost_owner_is_run_again_only_where_the_claim_says_so,
    an_owner_whose_key_was_settled_answers_what_the_record_says,
    an_owner_whose_key_was_settled_and_who_gives_it_back_answers_what_the_record_says,
    a_stream_whose_key_was_settled_and_that_gives_it_back_breaks_off,
    a_key_settled_in_words_answers_with_the_verdict_and_the_words,
    a_run_that_may_be_repeated_stops_when_its_lease_can_have_ended,
    a_stream_goes_on_for_longer_than_its_lease_where_a_run_may_be_repeated,
    a_silent_store_does_not_put_off_the_stop_of_a_run_that_may_be_repeated,
    a_withdrawal_that_outlives_its_lease_is_unknown_and_not_made_twice,
    a_lease_with_no_time_left_has_ended,
    a_clock_that_jumps_never_makes_a_key_run_twice,
];

fn key(id: &str) -> Key {
    Key::new(Scope::new("tests").unwrap(), id).unwrap()
}

async fn a_claim_is_renewed_while_its_handler_runs(world: World) {
    let (world, store) = world.faulty();
    let (runs, gate) = (Runs::default(), Gate::default());
    // A third of it passes in real time; the store's clock moves by hand.
    let app = gated(&world.layer_with(|config| config.lease_ms = 60), &runs, &gate);
    let first = send_soon(&app, post("a"));
    gate.arrived().await;
    for _ in 0..3 {
        world.clock.advance_ms(50);
        let before = store.calls("extend");
        until("it is renewed", async || store.calls("extend") > before).await;
    }
    gate.open();
    let first = first.await.unwrap();
    assert_eq!((first.status, first.outcome()), (201, "succeeded"));
}

/// Rule K1: time alone never makes a token stale.
async fn a_slow_owner_still_completes_after_its_lease_and_the_key_is_done(world: World) {
    let (runs, gate) = (Runs::default(), Gate::default());
    let app = gated(&world.layer(), &runs, &gate);
    let slow = send_soon(&app, post("a"));
    gate.arrived().await;
    world.leases_end();
    assert_eq!(send(&app, post("a")).await.code(), "SEM0406");
    gate.open();
    assert_eq!(slow.await.unwrap().status, 201);
    let again = send(&app, post("a")).await;
    assert_eq!(
        (again.status, &again.body[..], again.replayed()),
        (201, &b"run 1"[..], true)
    );
    assert_eq!(runs.count(), 1);
}

/// express-idempotency#32, powertools#8049: at lease end the stored policy decides.
async fn a_lost_owner_is_run_again_only_where_the_claim_says_so(world: World) {
    for owner_lost in [OwnerLost::Hold, OwnerLost::Rerun] {
        let (runs, gate) = (Runs::default(), Gate::default());
        let dying = world.layer_with(|config| config.owner_lost = owner_lost);
        let id = format!("{owner_lost:?}");
        let lost = send_soon(&gated(&dying, &runs, &gate), post(&id));
        gate.arrived().await;
        world.leases_end();
        let answer = send(&counting(&world.layer(), &runs), post(&id)).await;
        match owner_lost {
            OwnerLost::Hold => assert_eq!((answer.code().as_str(), runs.count()), ("SEM0406", 1)),
            OwnerLost::Rerun => assert_eq!((&answer.body[..], runs.count()), (&b"run 2"[..], 2)),
        }
        lost.abort();
    }
}

/// Rule K11: somebody settled the key while its owner was slow.
async fn an_owner_whose_key_was_settled_answers_what_the_record_says(world: World) {
    let (runs, gate) = (Runs::default(), Gate::default());
    let app = gated(&world.layer(), &runs, &gate);
    let slow = send_soon(&app, post("a"));
    gate.arrived().await;
    world.leases_end();
    an_operator_settles(&world, "a").await;
    gate.open();
    for answer in [slow.await.unwrap(), send(&app, post("a")).await] {
        assert_eq!(
            (answer.status, &answer.body[..]),
            (200, &b"as the operator found it"[..])
        );
        assert!(answer.replayed());
    }
}

type Says = fn() -> http::Response<semel_http::Body>;

/// Rule K11: what the slow handler says of its run (nothing happened, or nobody knows) is not the key's end any more.
async fn an_owner_whose_key_was_settled_and_who_gives_it_back_answers_what_the_record_says(world: World) {
    let cases: [(&str, Says); 4] = [
        ("away", || {
            let mut later = answer(503, "later");
            let headers = later.headers_mut();
            headers.insert("retry-after", http::HeaderValue::from_static("1"));
            later
        }),
        ("who", || answer(401, "who are you?")),
        ("failed", || answer(500, "oh no")),
        ("panic", || panic!("after the charge")),
    ];
    for (id, says) in cases {
        let (runs, gate) = (Runs::default(), Gate::default());
        let waits = gate.clone();
        let app = app(&world.layer(), &runs, move |_| {
            let gate = waits.clone();
            async move {
                gate.pass().await;
                says()
            }
        });
        let slow = send_soon(&app, post(id));
        gate.arrived().await;
        world.leases_end();
        an_operator_settles(&world, id).await;
        gate.open();
        for answer in [slow.await.unwrap(), send(&app, post(id)).await] {
            assert_eq!(
                (answer.status, &answer.body[..], answer.outcome()),
                (200, &b"as the operator found it"[..], "succeeded"),
                "{id}"
            );
        }
        assert_eq!(runs.count(), 1);
    }
}

/// Its head is out already, so its end is not to look whole.
async fn a_stream_whose_key_was_settled_and_that_gives_it_back_breaks_off(world: World) {
    // What nobody runs without signing in, and what may have been done: said behind the body only.
    for status in ["16", "13"] {
        let gate = Gate::default();
        let layer = world.layer_with(|config| config.response_bytes_max = 1);
        let waits = gate.clone();
        let service = layer.layer(service_fn(move |_: http::Request<semel_http::Body>| {
            let gate = waits.clone();
            async move {
                gate.pass().await;
                Ok::<_, Infallible>(unary(status, true))
            }
        }));
        let slow = async {
            let response = service.oneshot(post(status)).await.unwrap();
            response.into_body().collect().await
        };
        let settled = async {
            gate.arrived().await;
            world.leases_end();
            an_operator_settles(&world, status).await;
            gate.open();
        };
        let (whole, ()) = tokio::join!(slow, settled);
        assert!(whole.is_err(), "{status}: {whole:?}");
    }
}

async fn an_operator_settles(world: &World, id: &str) {
    let settled = StoredResponse {
        trailers: Vec::new(),
        status: http::StatusCode::OK,
        headers: Vec::new(),
        body: "as the operator found it".into(),
    };
    let record = world.store.read(&key(id)).await.unwrap().unwrap();
    let settlement = Settlement {
        key: key(id),
        token: record.lease().unwrap().token,
        verdict: Verdict::Happened(StoredOutcome::Succeeded(settled.encode())),
        keep: Keep::default(),
    };
    let reply = world.store.settle(&settlement).await.unwrap();
    assert!(matches!(reply, LeaseReply::Ok(_)));
}

/// A person who settles a key has a verdict and words, not an answer in the form in which a handler's is stored.
async fn a_key_settled_in_words_answers_with_the_verdict_and_the_words(world: World) {
    let (runs, gate) = (Runs::default(), Gate::default());
    let app = gated(&world.layer(), &runs, &gate);
    for (id, verdict, outcome) in [
        ("r", StoredOutcome::Refused("no stock".into()), "refused"),
        ("s", StoredOutcome::Succeeded("order 7".into()), "succeeded"),
        ("e", StoredOutcome::Refused(bytes::Bytes::new()), "refused"),
    ] {
        let lost = send_soon(&app, post(id));
        gate.arrived().await;
        world.leases_end();
        let record = world.store.read(&key(id)).await.unwrap().unwrap();
        let settlement = Settlement {
            key: key(id),
            token: record.lease().unwrap().token,
            verdict: Verdict::Happened(verdict.clone()),
            keep: Keep::default(),
        };
        let reply = world.store.settle(&settlement).await.unwrap();
        assert!(matches!(reply, LeaseReply::Ok(_)));
        let answer = send(&app, post(id)).await;
        assert_eq!((answer.status, answer.outcome()), (410, outcome));
        assert_eq!(answer.code(), "SEM0407");
        let words = std::str::from_utf8(verdict.bytes()).unwrap();
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        assert!(text.contains(words) && text.contains("somebody looked"), "{text}");
        assert!(!text.contains("damaged"), "{text}");
        lost.abort();
    }
}

/// Under `Rerun` another owner may begin at the lease's end, so this one ends before it.
async fn a_run_that_may_be_repeated_stops_when_its_lease_can_have_ended(world: World) {
    let (world, store) = world.faulty();
    let (runs, gate) = (Runs::default(), Gate::default());
    store.fail("extend", Fault::Down, u32::MAX);
    let layer = world.layer_with(|config| {
        config.owner_lost = OwnerLost::Rerun;
        config.lease_ms = 60;
    });
    let app = gated(&layer, &runs, &gate);
    let first = tokio::time::timeout(Duration::from_secs(30), send(&app, post("a")))
        .await
        .unwrap();
    // The store's clock stood still: its record is still this owner's, and no answer of it is known.
    assert_eq!((first.status, first.code().as_str()), (409, "SEM0406"));
    tokio::time::timeout(Duration::from_secs(30), layer.drain())
        .await
        .unwrap();
}

/// Renewals while the handler ran count for its answer's body, too.
async fn a_stream_goes_on_for_longer_than_its_lease_where_a_run_may_be_repeated(world: World) {
    let (world, store) = world.faulty();
    let (runs, gate) = (Runs::default(), Gate::default());
    let layer = world.layer_with(|config| {
        config.owner_lost = OwnerLost::Rerun;
        config.lease_ms = 3_000;
        config.response_bytes_max = 10;
    });
    let waits = gate.clone();
    let app = app(&layer, &runs, move |_| {
        let gate = waits.clone();
        async move {
            gate.pass().await;
            answer(200, vec![b'x'; 1_000])
        }
    });
    let first = send_soon(&app, post("a"));
    gate.arrived().await;
    until("it is longer than its lease", async || store.calls("extend") >= 4).await;
    gate.open();
    assert_eq!(first.await.unwrap().body.len(), 1_000);
    assert_eq!(send(&app, post("a")).await.code(), "SEM0407");
    assert_eq!(runs.count(), 1);
}

async fn a_silent_store_does_not_put_off_the_stop_of_a_run_that_may_be_repeated(world: World) {
    let (world, store) = world.faulty();
    let (runs, gate) = (Runs::default(), Gate::default());
    store.fail("extend", Fault::Silent, u32::MAX);
    let layer = world.layer_with(|config| {
        config.owner_lost = OwnerLost::Rerun;
        config.lease_ms = 60;
        config.store_ms_max = 60_000;
    });
    let app = gated(&layer, &runs, &gate);
    // In a task of its own, which nothing wakes but the run itself; by its lease, not by store_ms_max.
    let first = tokio::time::timeout(Duration::from_secs(20), send_soon(&app, post("a")))
        .await
        .unwrap()
        .unwrap();
    assert_eq!((first.status, first.code().as_str()), (409, "SEM0406"));
    let said = String::from_utf8_lossy(&first.body);
    assert!(said.contains("may run") && !said.contains("operator"), "{said}");
}

/// powertools#8049: the claim is no longer renewed, and the run goes on.
async fn a_withdrawal_that_outlives_its_lease_is_unknown_and_not_made_twice(world: World) {
    let (runs, gate) = (Runs::default(), Gate::default());
    let layer = world.layer_with(|config| {
        config.run_ms_max = 1;
        config.wait_ms_max = 0;
    });
    let app = gated(&layer, &runs, &gate);
    let slow = send_soon(&app, post("a"));
    gate.arrived().await;
    world.leases_end();
    for _ in 0..3 {
        assert_eq!(send(&app, post("a")).await.code(), "SEM0406");
    }
    gate.open();
    assert_eq!(slow.await.unwrap().body, "run 1");
    assert!(send(&app, post("a")).await.replayed());
    assert_eq!(runs.count(), 1);
}

fn claimed(lease_ms: i64) -> Claim {
    Claim {
        key: key("a"),
        fingerprint: semel_core::Fingerprint::of(b"another build's"),
        nonce: Nonce::random(),
        owner_lost: OwnerLost::Hold,
        lease_ms,
    }
}

/// powertools#4759: exactly at its end there is no time left, and that is not "no end".
async fn a_lease_with_no_time_left_has_ended(world: World) {
    let claim = claimed(1_000);
    let again = Claim {
        nonce: Nonce::random(),
        ..claim.clone()
    };
    world.store.claim(&claim).await.unwrap();
    world.clock.advance_ms(999);
    let busy = world.store.claim(&again).await.unwrap();
    assert_eq!(busy, ClaimReply::Busy { lease_left_ms: 1 });
    world.clock.advance_ms(1);
    let ended = world.store.claim(&again).await.unwrap();
    assert!(matches!(ended, ClaimReply::Unknown { .. }), "{ended:?}");
}

/// The store's clock is set back by a day, then forth by two.
async fn a_clock_that_jumps_never_makes_a_key_run_twice(world: World) {
    let (runs, gate) = (Runs::default(), Gate::default());
    let layer = world.layer_with(|config| config.wait_ms_max = 0);
    let app = gated(&layer, &runs, &gate);
    world.clock.advance_ms(DAY_MS);
    let first = send_soon(&app, post("a"));
    gate.arrived().await;
    world.clock.advance_ms(-DAY_MS);
    assert_eq!(send(&app, post("a")).await.outcome(), "running");
    world.clock.advance_ms(2 * DAY_MS);
    assert_eq!(send(&app, post("a")).await.outcome(), "unknown");
    gate.open();
    assert_eq!(first.await.unwrap().body, "run 1");
    world.clock.advance_ms(-DAY_MS);
    assert!(send(&app, post("a")).await.replayed());
    world.clock.advance_ms(3 * DAY_MS);
    assert_eq!(send(&app, post("a")).await.code(), "SEM0408");
    assert_eq!(runs.count(), 1);
}

const DAY_MS: i64 = 86_400_000;
