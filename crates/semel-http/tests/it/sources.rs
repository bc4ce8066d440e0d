//! Where a key may stand, and which requests need one.

use http::{HeaderName, Method, Request};
use semel_core::{Key, KeyStoreExt, Scope};
use semel_http::{BodyKey, Config, Event, IdempotencyLayer, Pointer, Route};

use super::support::*;

on_each_store![
    a_key_in_an_alias_or_in_the_body_names_the_same_record,
    sources_that_disagree_are_refused_before_the_store_is_touched,
    a_route_has_settings_of_its_own,
    a_route_in_axum_has_settings_of_its_own,
];

fn sources(config: &mut Config) {
    config.aliases = vec![HeaderName::from_static("paypal-request-id")];
    config.body_keys = vec![BodyKey::Json(Pointer::new("/request_id").unwrap())];
}

fn json(headers: &[(&str, &str)], body: &'static str) -> Request<axum::body::Body> {
    let mut request = Request::post("/orders").header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(axum::body::Body::from(body)).unwrap()
}

async fn a_key_in_an_alias_or_in_the_body_names_the_same_record(world: World) {
    let runs = Runs::default();
    let app = counting(&world.layer_with(sources), &runs);
    let body = r#"{"request_id":"a"}"#;
    for headers in [
        &[("idempotency-key", "\"a\"")][..],
        &[("paypal-request-id", "a")],
        &[],
        &[("idempotency-key", "a"), ("paypal-request-id", "\"a\"")],
    ] {
        assert_eq!(send(&app, json(headers, body)).await.body, "run 1", "{headers:?}");
    }
    assert_eq!(
        send(&app, json(&[], "{}")).await.body,
        "run 2",
        "no key, none needed"
    );
    let stored = Key::new(Scope::new("tests").unwrap(), "a").unwrap();
    assert!(world.store.read(&stored).await.unwrap().is_some());
}

async fn sources_that_disagree_are_refused_before_the_store_is_touched(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let layer = world.layer_with(|config| {
        sources(config);
        config.required_for = vec![Method::POST];
    });
    let app = counting(&layer, &runs);
    for (request, code) in [
        (
            json(&[("idempotency-key", "a"), ("paypal-request-id", "b")], "{}"),
            "SEM0402",
        ),
        (
            json(&[("idempotency-key", "a")], r#"{"request_id":"b"}"#),
            "SEM0402",
        ),
        (json(&[], r#"{"request_id":7}"#), "SEM0402"),
        (json(&[], r#"{"request_id":"a","request_id":"a"}"#), "SEM0402"),
        (json(&[], "{}"), "SEM0401"),
        (json(&[], "no json"), "SEM0401"),
    ] {
        let answer = send(&app, request).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, code));
    }
    assert_eq!((store.calls("claim"), runs.count()), (0, 0));
    assert_eq!(layer.counts().get(Event::Refused), 6);
}

async fn a_route_has_settings_of_its_own(world: World) {
    let runs = Runs::default();
    let strict = Config {
        required_for: vec![Method::POST],
        ..Config::default()
    };
    let ignoring = Config {
        ignored_for: vec![Method::PUT],
        ..Config::default()
    };
    let layer = IdempotencyLayer::builder(world.store.clone())
        .anonymous_scope("tests")
        .config(ignoring)
        .route("payments", strict)
        .choose(|request| match request.uri.path() {
            "/payments" => Route::Named("payments"),
            "/search" => Route::Off,
            "/misspelt" => Route::Named("payment"),
            _ => Route::Default,
        })
        .build()
        .unwrap();
    let app = counting(&layer, &runs);
    let keyless = |uri: &str| Request::post(uri).body(axum::body::Body::empty()).unwrap();
    assert_eq!(send(&app, keyless("/payments")).await.code(), "SEM0401");
    assert_eq!(send(&app, keyless("/orders")).await.status, 201);
    for (method, uri, keyed) in [
        ("POST", "/orders", true),
        ("POST", "/payments", true),
        ("POST", "/search", false),
        ("PUT", "/orders", false),
        ("POST", "/misspelt", true),
    ] {
        let key = format!("{method}{uri}");
        let first = send(&app, request(method, uri, &key, "{}")).await;
        let again = send(&app, request(method, uri, &key, "{}")).await;
        assert_eq!((first.status, again.replayed()), (201, keyed), "{method} {uri}");
    }
}

/// The layer of one route, made from the layer of all.
async fn a_route_in_axum_has_settings_of_its_own(world: World) {
    use axum::routing::post as on_post;
    let layer = world.layer();
    let strict = Config {
        required_for: vec![Method::POST],
        ..layer.config().clone()
    };
    let strict = layer.with_config(strict).unwrap();
    let app = axum::Router::new()
        .route("/payments", on_post(|| async { "paid" }).layer(strict))
        .route("/orders", on_post(|| async { "ordered" }).layer(layer.clone()));
    let keyless = |uri: &str| Request::post(uri).body(axum::body::Body::empty()).unwrap();
    assert_eq!(send(&app, keyless("/payments")).await.code(), "SEM0401");
    assert_eq!(send(&app, keyless("/orders")).await.body, "ordered");
    assert_eq!(
        send(&app, request("POST", "/payments", "a", "{}")).await.body,
        "paid"
    );
    assert!(
        send(&app, request("POST", "/payments", "a", "{}"))
            .await
            .replayed()
    );
    assert_eq!(layer.counts().get(Event::New), 1, "counters are shared");
}
