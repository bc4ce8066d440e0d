//! What an answer means for the key.

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::Full;
use semel_http::{Body, ClaimInfo, Disposition, KeepFor};
use tower::{Layer, ServiceExt, service_fn};

use super::support::*;

on_each_store![
    a_panic_is_unknown_and_is_not_run_again,
    an_ambiguous_error_is_unknown_and_is_not_run_again,
    answers_that_prove_nothing_happened_give_the_key_back,
    a_wrong_one_time_code_then_the_right_one_is_judged_anew_where_the_route_says_so,
    a_handler_may_refuse_by_extension_or_by_header,
    a_handler_may_keep_its_answer_out_of_the_store,
    a_handler_may_say_that_nothing_happened_or_that_it_is_settled,
    an_inner_semels_running_is_never_stored,
    a_handler_may_shorten_how_long_its_answer_is_kept,
    a_service_that_fails_without_an_answer_is_unknown,
    a_handler_knows_its_key_token_and_attempt,
];

on_servers_too![
    answers_that_prove_nothing_happened_give_the_key_back,
    a_service_that_fails_without_an_answer_is_unknown,
];

/// At once, and after the lease as well.
async fn unknown_afterwards(world: &World, app: &axum::Router, runs: &Runs, key: &str) {
    told_unknown(app, runs, key).await;
    world.leases_end();
    told_unknown(app, runs, key).await;
}

async fn told_unknown(app: &axum::Router, runs: &Runs, key: &str) {
    let again = send(app, post(key)).await;
    assert_eq!(
        (again.status, again.code().as_str(), again.outcome()),
        (409, "SEM0406", "unknown")
    );
    assert_eq!(
        again.header("retry-after"),
        None,
        "time does not settle it (rule K11)"
    );
    assert_eq!(runs.count(), 1);
}

/// actor-ts#984: charges, then throws.
async fn a_panic_is_unknown_and_is_not_run_again(world: World) {
    let runs = Runs::default();
    let app = app(&world.layer(), &runs, |_| async { panic!("charged, then this") });
    let first = send(&app, post("a")).await;
    assert_eq!(
        (first.status, first.code().as_str(), first.outcome()),
        (500, "SEM0413", "unknown")
    );
    unknown_afterwards(&world, &app, &runs, "a").await;
}

async fn an_ambiguous_error_is_unknown_and_is_not_run_again(world: World) {
    for status in [500, 502, 504, 408, 503] {
        let (runs, key) = (Runs::default(), status.to_string());
        let app = app(
            &world.layer(),
            &runs,
            move |_| async move { answer(status, "oh no") },
        );
        let first = send(&app, post(&key)).await;
        assert_eq!(
            (first.status, &first.body[..], first.outcome()),
            (status, &b"oh no"[..], "unknown")
        );
        unknown_afterwards(&world, &app, &runs, &key).await;
    }
}

async fn answers_that_prove_nothing_happened_give_the_key_back(world: World) {
    let runs = Runs::default();
    let app = app(&world.layer(), &runs, |n| async move {
        let statuses = [401, 403, 425, 429, 503, 200];
        let mut response = answer(statuses[(n - 1) as usize], format!("run {n}"));
        if response.status() == 503 {
            response
                .headers_mut()
                .insert("retry-after", HeaderValue::from_static("1"));
        }
        response
    });
    for n in 1..=5 {
        let refused = send(&app, post("a")).await;
        assert_eq!((refused.outcome(), refused.replayed()), ("refused", false));
        assert_eq!(refused.body, format!("run {n}"));
    }
    let done = send(&app, post("a")).await;
    assert_eq!((done.status, done.outcome()), (200, "succeeded"));
    assert!(send(&app, post("a")).await.replayed());
    assert_eq!(runs.count(), 6);
}

/// Truxify#2869.
async fn a_wrong_one_time_code_then_the_right_one_is_judged_anew_where_the_route_says_so(world: World) {
    let runs = Runs::default();
    let layer =
        world.layer_with(|config| config.status.release_on = vec![http::StatusCode::UNPROCESSABLE_ENTITY]);
    let app = app(&layer, &runs, |n| async move {
        answer(if n == 1 { 422 } else { 200 }, "")
    });
    assert_eq!(send(&app, post("a")).await.status, 422);
    assert_eq!(send(&app, post("a")).await.status, 200);
    assert!(send(&app, post("a")).await.replayed());
}

async fn a_handler_may_refuse_by_extension_or_by_header(world: World) {
    for by_header in [false, true] {
        let runs = Runs::default();
        let app = app(&world.layer(), &runs, move |_| async move {
            let mut response = answer(409, "out of stock");
            if by_header {
                response
                    .headers_mut()
                    .insert("semel-outcome", HeaderValue::from_static("refused"));
            } else {
                response.extensions_mut().insert(Disposition::Refused);
            }
            response
        });
        let key = by_header.to_string();
        let (first, again) = (send(&app, post(&key)).await, send(&app, post(&key)).await);
        assert_eq!(
            (first.status, first.outcome(), first.replayed()),
            (409, "refused", false)
        );
        assert_eq!(
            (again.status, again.outcome(), again.replayed()),
            (409, "refused", true)
        );
        assert_eq!((again.body, runs.count()), (first.body, 1));
    }
}

async fn a_handler_may_keep_its_answer_out_of_the_store(world: World) {
    for by_header in [false, true] {
        let runs = Runs::default();
        let app = app(&world.layer(), &runs, move |_| async move {
            let mut response = answer(200, "a secret");
            if by_header {
                response
                    .headers_mut()
                    .insert("semel-no-store", HeaderValue::from_static("1"));
            } else {
                response.extensions_mut().insert(Disposition::NoStore);
            }
            response
        });
        let key = by_header.to_string();
        let first = send(&app, post(&key)).await;
        assert_eq!((first.status, &first.body[..]), (200, &b"a secret"[..]));
        assert_eq!(
            first.header("semel-no-store"),
            None,
            "a word for the layer, not for the client"
        );
        assert_eq!(send(&app, post(&key)).await.code(), "SEM0407");
        assert_eq!(runs.count(), 1);
    }
}

async fn a_handler_may_say_that_nothing_happened_or_that_it_is_settled(world: World) {
    let runs = Runs::default();
    let app = app(&world.layer(), &runs, |n| async move {
        let mut response = answer(500, format!("run {n}"));
        let said = if n == 1 {
            Disposition::NotExecuted
        } else {
            Disposition::Settled
        };
        response.extensions_mut().insert(said);
        response
    });
    assert_eq!(send(&app, post("a")).await.outcome(), "refused");
    assert_eq!(send(&app, post("a")).await.outcome(), "succeeded");
    let again = send(&app, post("a")).await;
    assert_eq!(
        (again.status, &again.body[..], again.replayed()),
        (500, &b"run 2"[..], true)
    );
}

/// Rule K12, with a gateway's policy: the inner layer deduplicates, so the retry asks it again.
async fn an_inner_semels_running_is_never_stored(world: World) {
    let (inner_runs, outer_runs, gate) = (Runs::default(), Runs::default(), Gate::default());
    let inner = gated(
        &World::memory().layer_with(|config| config.wait_ms_max = 0),
        &inner_runs,
        &gate,
    );
    let outer = {
        let inner = inner.clone();
        let layer = world.layer_with(|config| config.status.defer_to_inner = true);
        app(&layer, &outer_runs, move |_| {
            let inner = inner.clone();
            async move { inner.oneshot(post("a")).await.unwrap().map(Body::new) }
        })
    };
    let first = send_soon(&inner, post("a"));
    gate.arrived().await;
    let running = send(&outer, post("a")).await;
    assert_eq!((running.status, running.outcome()), (409, "running"));
    gate.open();
    assert_eq!(first.await.unwrap().status, 201);
    let done = send(&outer, post("a")).await;
    assert_eq!((done.status, &done.body[..]), (201, &b"run 1"[..]));
    assert!(send(&outer, post("a")).await.replayed());
    assert_eq!((inner_runs.count(), outer_runs.count()), (1, 2));
}

async fn a_handler_may_shorten_how_long_its_answer_is_kept(world: World) {
    let runs = Runs::default();
    let app = app(&world.layer(), &runs, |_| async {
        let mut response = answer(200, "");
        response
            .extensions_mut()
            .insert(KeepFor(std::time::Duration::from_secs(60)));
        response
    });
    send(&app, post("a")).await;
    world.clock.advance_ms(59_999);
    assert_eq!(send(&app, post("a")).await.status, 200);
    world.clock.advance_ms(1);
    assert_eq!(send(&app, post("a")).await.code(), "SEM0408");
}

/// Plain tower: the service's own error goes to the first caller as it is.
async fn a_service_that_fails_without_an_answer_is_unknown(world: World) {
    let runs = Runs::default();
    let count = runs.clone();
    let service = world.layer().layer(service_fn(move |_: Request<Body>| {
        count.add();
        async { Err::<Response<Full<Bytes>>, _>("connection reset") }
    }));
    let request = || post("a").map(|_| Full::new(Bytes::from_static(b"{}")));
    let first = service.clone().oneshot(request()).await;
    assert_eq!(first.unwrap_err(), "connection reset");
    let again = service.clone().oneshot(request()).await.unwrap();
    assert_eq!((again.status().as_u16(), runs.count()), (409, 1));
}

async fn a_handler_knows_its_key_token_and_attempt(world: World) {
    let service = world
        .layer()
        .layer(service_fn(|request: Request<Body>| async move {
            let claim = request.extensions().get::<ClaimInfo>().unwrap();
            assert_eq!((claim.key.id(), claim.attempt), (&b"a"[..], 1));
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(claim.token.0.to_string()))))
        }));
    let answer = service
        .oneshot(post("a").map(|_| Full::<Bytes>::default()))
        .await
        .unwrap();
    assert!(answer.headers().contains_key("semel-outcome"));
}
