//! Requests that are judged before the store is touched.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use futures_util::StreamExt;
use http::{HeaderValue, Method, Request};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use semel_http::{Config, IdempotencyLayer};

use super::support::*;

fn world() -> (World, std::sync::Arc<FaultyKeys>) {
    World::memory().faulty()
}

async fn refused(app: &Router, request: Request<axum::body::Body>, status: u16, code: &str) -> Answer {
    let answer = send(app, request).await;
    assert_eq!((answer.status, answer.code().as_str()), (status, code));
    assert!(answer.headers.contains_key("semel-guarantee"));
    answer
}

#[tokio::test]
async fn a_missing_key_is_refused_where_one_is_required_and_passes_elsewhere() {
    let (world, store) = world();
    let runs = Runs::default();
    let keyless = |method: &str| {
        let mut request = request(method, "/orders", "x", "{}");
        request.headers_mut().remove("idempotency-key");
        request
    };
    let required = world.layer_with(|config| config.required_for = vec![Method::POST, Method::PATCH]);
    let app = counting(&required, &runs);
    refused(&app, keyless("POST"), 400, "SEM0401").await;
    refused(&app, keyless("PATCH"), 400, "SEM0401").await;
    assert_eq!(runs.count(), 0);
    for method in ["PUT", "DELETE", "GET"] {
        let passed = send(&app, keyless(method)).await;
        assert_eq!((passed.status, passed.outcome()), (201, "none"), "untouched");
    }
    assert_eq!(
        send(&counting(&world.layer(), &runs), keyless("POST"))
            .await
            .status,
        201
    );
    assert_eq!((runs.count(), store.calls("claim")), (4, 0));
}

#[tokio::test]
async fn a_key_that_is_not_exactly_one_valid_key_is_refused_before_the_store_is_touched() {
    let (world, store) = world();
    let runs = Runs::default();
    let app = counting(&world.layer(), &runs);
    for bad in ["", "\"\"", "a b", "a, b", "\"open", &"k".repeat(256)] {
        refused(&app, post(bad), 400, "SEM0402").await;
    }
    let mut twice = post("a");
    twice
        .headers_mut()
        .append("idempotency-key", HeaderValue::from_static("a"));
    refused(&app, twice, 400, "SEM0402").await;
    assert_eq!((runs.count(), store.calls("claim")), (0, 0));
}

#[tokio::test]
async fn safe_methods_ignore_a_key() {
    let (world, store) = world();
    let runs = Runs::default();
    let app = counting(&world.layer(), &runs);
    for method in ["GET", "HEAD", "OPTIONS"] {
        send(&app, request(method, "/orders", "a", "")).await;
        send(&app, request(method, "/orders", "not a key", "")).await;
    }
    assert_eq!((runs.count(), store.calls("claim")), (6, 0));
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_with_the_limit_named_however_it_is_sent() {
    let (world, store) = world();
    let runs = Runs::default();
    let app = counting(&world.layer_with(|config| config.request_bytes_max = 10), &runs);
    let known = post("a").map(|_| axum::body::Body::from("12345678901"));
    let chunks = ["123456", "78901"].map(|text| Ok::<_, Infallible>(Frame::data(Bytes::from(text))));
    let streamed = post("a").map(|_| axum::body::Body::new(StreamBody::new(tokio_stream(chunks))));
    for request in [known, streamed] {
        let answer = refused(&app, request, 413, "SEM0403").await;
        assert!(String::from_utf8_lossy(&answer.body).contains("request_bytes_max = 10"));
    }
    assert_eq!(store.calls("claim"), 0);
    let fits = post("a").map(|_| axum::body::Body::from("1234567890"));
    assert_eq!(send(&app, fits).await.status, 201);
}

#[tokio::test]
async fn a_body_that_breaks_off_runs_nothing() {
    let (world, store) = world();
    let runs = Runs::default();
    let app = counting(&world.layer(), &runs);
    let chunks = [
        Ok(Frame::data(Bytes::from("12"))),
        Err(std::io::Error::other("reset")),
    ];
    let broken = post("a").map(|_| axum::body::Body::new(StreamBody::new(tokio_stream(chunks))));
    refused(&app, broken, 400, "SEM0414").await;
    assert_eq!((runs.count(), store.calls("claim")), (0, 0));
}

#[tokio::test]
async fn credentials_under_an_anonymous_scope_are_refused() {
    let (world, _) = world();
    let runs = Runs::default();
    let app = counting(&world.layer(), &runs);
    let mut signed_in = post("a");
    signed_in
        .headers_mut()
        .insert("authorization", HeaderValue::from_static("Bearer x"));
    refused(&app, signed_in, 500, "SEM0410").await;
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn more_runs_than_allowed_are_refused_and_those_whose_clients_left_count() {
    let (world, _) = world();
    let (runs, gate) = (Runs::default(), Gate::default());
    let layer = world.layer_with(|config| config.running_max = 1);
    let app = gated(&layer, &runs, &gate);
    let first = send_soon(&app, post("a"));
    gate.arrived().await;
    first.abort();
    let answer = refused(&app, post("b"), 503, "SEM0412").await;
    assert_eq!(answer.header("retry-after"), Some("2"));
    gate.open();
    until("the first has ended", async || layer.in_flight() == 0).await;
    assert_eq!(send(&app, post("b")).await.status, 201);
}

#[tokio::test]
async fn a_request_without_a_key_is_not_buffered() {
    let (world, _) = world();
    let layer = world.layer_with(|config| config.request_bytes_max = 1);
    let echo = axum::routing::post(|request: axum::extract::Request| async move {
        // An axum body of a whole buffer knows its length; a stream does not.
        let known = http_body::Body::size_hint(request.body()).exact().is_some();
        format!(
            "{known} {}",
            request.into_body().collect().await.unwrap().to_bytes().len()
        )
    });
    let app = Router::new().fallback(echo).layer(layer);
    let chunks = ["12", "34"].map(|text| Ok::<_, Infallible>(Frame::data(Bytes::from(text))));
    let request = Request::post("/")
        .body(axum::body::Body::new(StreamBody::new(tokio_stream(chunks))))
        .unwrap();
    assert_eq!(send(&app, request).await.body, "false 4");
}

/// The target as it was before any router cut its prefix off; in axum that is `OriginalUri`.
#[derive(Clone)]
struct Whole(&'static str);

#[tokio::test]
async fn a_nested_layer_can_name_the_whole_target() {
    let (world, _) = world();
    let runs = Runs::default();
    let layer = IdempotencyLayer::builder(world.store.clone())
        .anonymous_scope("tests")
        .target(|request| {
            let whole = request.extensions.get::<Whole>();
            whole.map_or_else(Vec::new, |whole| whole.0.as_bytes().to_vec())
        })
        .build()
        .unwrap();
    let app = Router::new()
        .nest("/a", counting(&layer, &runs))
        .nest("/b", counting(&layer, &runs));
    let to = |target: &'static str| {
        let mut request = request("POST", target, "k", "");
        request.extensions_mut().insert(Whole(target));
        request
    };
    assert_eq!(send(&app, to("/a/x")).await.status, 201);
    assert_eq!(
        send(&app, to("/b/x")).await.status,
        422,
        "though both routers see /x"
    );
}

#[test]
fn settings_outside_their_limits_are_refused_by_name() {
    let build = |change: fn(&mut Config)| {
        let mut config = Config::default();
        change(&mut config);
        let store = World::memory().store;
        IdempotencyLayer::builder(store)
            .config(config)
            .anonymous_scope("s")
            .build()
            .unwrap_err()
            .to_string()
    };
    for (change, name) in [
        ((|c| c.key_bytes_max = 256) as fn(&mut Config), "key_bytes_max"),
        (|c| c.lease_ms = 0, "lease_ms"),
        (|c| c.keep.retention_ms = 0, "retention"),
        (|c| c.response_bytes_max = 2 << 20, "response_bytes_max"),
        (|c| c.running_max = 0, "running_max"),
    ] {
        assert!(build(change).contains(name), "{}", build(change));
    }
    let empty = IdempotencyLayer::builder(World::memory().store)
        .anonymous_scope("")
        .build();
    assert!(empty.unwrap_err().to_string().contains("scope"));
}

#[tokio::test]
async fn an_unknown_key_links_to_where_its_state_can_be_seen() {
    let (world, _) = world();
    let layer = IdempotencyLayer::builder(world.store.clone())
        .anonymous_scope("tests")
        .status_url(|key| format!("https://ops.example/keys/{}", String::from_utf8_lossy(key.id())))
        .build()
        .unwrap();
    let runs = Runs::default();
    let app = app(&layer, &runs, |_| async { answer(500, "") });
    send(&app, post("a")).await;
    world.leases_end();
    let unknown = refused(&app, post("a"), 409, "SEM0406").await;
    assert_eq!(
        unknown.header("link"),
        Some("<https://ops.example/keys/a>; rel=\"monitor\"")
    );
}

/// A stream of these items.
fn tokio_stream<T: Send + 'static>(
    items: impl IntoIterator<Item = T>,
) -> impl futures_util::Stream<Item = T> + Send {
    futures_util::stream::iter(items.into_iter().collect::<Vec<_>>())
}

/// A client of HTTP/2 could hold a buffer per stream for ever.
#[tokio::test]
async fn a_body_that_pauses_for_too_long_is_refused_and_nothing_is_run() {
    let (world, store) = world();
    let runs = Runs::default();
    let app = counting(&world.layer_with(|config| config.body_idle_ms = 20), &runs);
    let first = futures_util::stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"{")))]);
    let body = StreamBody::new(first.chain(futures_util::stream::pending()));
    let slow = post("a").map(|_| axum::body::Body::new(body));
    let refused = tokio::time::timeout(Duration::from_secs(20), refused(&app, slow, 400, "SEM0414"));
    let said = refused.await.unwrap().body;
    assert!(
        String::from_utf8_lossy(&said).contains("body_idle_ms = 20 ms"),
        "{said:?}"
    );
    assert_eq!((runs.count(), store.calls("claim")), (0, 0));
    assert_eq!(send(&app, post("a")).await.body, "run 1", "the key is free");
}
