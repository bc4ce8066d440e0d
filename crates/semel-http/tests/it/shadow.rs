//! Shadow mode: what would have been, and nothing in the way.

use std::sync::{Arc, Mutex};

use http::Request;
use semel_http::{Config, Event, IdempotencyLayer, Mode};

use super::support::*;

on_each_store![
    shadow_mode_reports_and_neither_replays_nor_refuses,
    shadow_mode_is_not_in_the_way_when_the_store_is,
    shadow_records_mean_nothing_once_keys_are_enforced,
];

fn shadow(world: &World) -> (IdempotencyLayer, Arc<Mutex<Vec<Event>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let config = Config {
        mode: Mode::Shadow,
        required_for: vec![http::Method::POST],
        request_bytes_max: 10,
        ..Config::default()
    };
    let to = Arc::clone(&seen);
    let layer = IdempotencyLayer::builder(world.store.clone())
        .config(config)
        .observer(move |event, _: Option<&semel_core::Key>| to.lock().unwrap().push(event))
        .anonymous_scope("tests")
        .build()
        .unwrap();
    (layer, seen)
}

async fn shadow_mode_reports_and_neither_replays_nor_refuses(world: World) {
    let (layer, seen) = shadow(&world);
    let runs = Runs::default();
    let app = app(&layer, &runs, |n| async move {
        answer(if n == 6 { 429 } else { 201 }, format!("run {n}"))
    });
    let keyless = Request::post("/orders").body(axum::body::Body::empty()).unwrap();
    let long = "a body that is too long to keep";
    let mut n = 0;
    for (request, event) in [
        (post("a"), Event::ShadowNew),
        (post("a"), Event::ShadowDuplicate),
        (request("POST", "/refunds", "a", "{}"), Event::ShadowMismatch),
        (post(""), Event::ShadowRefused),
        (keyless, Event::ShadowRefused),
        (post("given back"), Event::ShadowNew),
        (post("given back"), Event::ShadowNew),
        (request("POST", "/orders", "b", long), Event::ShadowRefused),
    ] {
        n += 1;
        let request = if request
            .headers()
            .get("idempotency-key")
            .is_some_and(|key| key == "given back")
        {
            post("\"given back\"")
        } else {
            request
        };
        let answer = send(&app, request).await;
        assert_eq!(answer.body, format!("run {n}"));
        assert_eq!(
            (answer.outcome(), answer.replayed()),
            ("none", false),
            "nothing is added"
        );
        assert_eq!(seen.lock().unwrap().pop(), Some(event), "request {n}");
    }
    assert_eq!(layer.counts().get(Event::ShadowDuplicate), 1);
}

async fn shadow_mode_is_not_in_the_way_when_the_store_is(world: World) {
    let (world, store) = world.faulty();
    let (layer, seen) = shadow(&world);
    let runs = Runs::default();
    let app = counting(&layer, &runs);
    store.fail("claim", Fault::Down, 1);
    assert_eq!(send(&app, post("a")).await.body, "run 1");
    store.fail("complete", Fault::Down, 1);
    assert_eq!(send(&app, post("b")).await.body, "run 2");
    assert_eq!(*seen.lock().unwrap(), [Event::StoreDown, Event::ShadowNew]);
}

async fn shadow_records_mean_nothing_once_keys_are_enforced(world: World) {
    let runs = Runs::default();
    let (layer, _) = shadow(&world);
    assert_eq!(send(&counting(&layer, &runs), post("a")).await.body, "run 1");
    let enforced = counting(&world.layer(), &runs);
    let first = send(&enforced, post("a")).await;
    assert_eq!((&first.body[..], first.replayed()), (&b"run 2"[..], false));
    assert!(send(&enforced, post("a")).await.replayed());
}
