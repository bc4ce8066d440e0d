//! Shadow mode: what would have been, and nothing in the way.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use semel_http::{Body, Config, Event, IdempotencyLayer, Mode};
use tower::{Layer, ServiceExt};

use super::support::*;

on_each_store![
    shadow_mode_reports_and_neither_replays_nor_refuses,
    shadow_mode_is_not_in_the_way_when_the_store_is,
    shadow_mode_waits_for_no_silent_store,
    shadow_mode_passes_a_slow_body_on_whole,
    shadow_records_mean_nothing_once_keys_are_enforced,
];

fn shadow(world: &World) -> (IdempotencyLayer, Arc<Mutex<Vec<Event>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let config = Config {
        mode: Mode::Shadow,
        required_for: vec![http::Method::POST],
        request_bytes_max: 10,
        store_ms_max: 60_000,
        body_idle_ms: 20,
        // Long enough for a store on a busy machine.
        shadow_ms_max: 2_000,
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

async fn shadow_mode_waits_for_no_silent_store(world: World) {
    let (world, store) = world.faulty();
    let (layer, seen) = shadow(&world);
    let runs = Runs::default();
    let app = counting(&layer, &runs);
    for (n, operation) in ["claim", "complete"].into_iter().enumerate() {
        store.fail(operation, Fault::Silent, 1);
        let answer = tokio::time::timeout(Duration::from_secs(20), send_soon(&app, post(operation)))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(answer.body, format!("run {}", n + 1));
    }
    assert_eq!(*seen.lock().unwrap(), [Event::StoreDown, Event::ShadowNew]);
}

async fn shadow_mode_passes_a_slow_body_on_whole(world: World) {
    let (layer, seen) = shadow(&world);
    let echo = tower::service_fn(|request: Request<Body>| async {
        let sent = request.into_body().collect().await.unwrap().to_bytes();
        Ok::<_, std::convert::Infallible>(answer(200, sent))
    });
    let (to, from) = tokio::sync::mpsc::channel::<Bytes>(1);
    let body = futures_util::stream::unfold(from, |mut from| async {
        let data = from.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(Frame::data(data)), from))
    });
    let request = post("slow").map(|_| Body::new(StreamBody::new(body)));
    let answer = tokio::spawn(layer.layer(echo).oneshot(request));
    to.send(Bytes::from_static(b"one ")).await.unwrap();
    until("it is called slow", async || !seen.lock().unwrap().is_empty()).await;
    to.send(Bytes::from_static(b"two")).await.unwrap();
    drop(to);
    let whole = answer
        .await
        .unwrap()
        .unwrap()
        .into_body()
        .collect()
        .await
        .unwrap();
    assert_eq!(whole.to_bytes(), "one two");
    assert_eq!(*seen.lock().unwrap(), [Event::ShadowRefused]);
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
