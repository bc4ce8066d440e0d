//! A service that can be tested: each answer has the number of its run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{AUTHORIZATION, ETAG, LINK, LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use axum::routing::{get, post};

/// For how long `/slow` works.
const SLOW: Duration = Duration::from_millis(600);

/// Runs so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Runs(Arc<AtomicU32>);

async fn order(State(runs): State<Runs>, headers: HeaderMap) -> Response<Body> {
    let run = runs.0.fetch_add(1, Ordering::SeqCst) + 1;
    let who = headers.get(AUTHORIZATION).or(headers.get("x-user"));
    let who = who.map(|value| value.to_str().unwrap().to_owned());
    let body = serde_json::json!({ "order": run, "who": who });
    let mut answer = Response::new(Body::from(body.to_string()));
    *answer.status_mut() = StatusCode::CREATED;
    let headers = answer.headers_mut();
    headers.insert(LOCATION, format!("/orders/{run}").parse().unwrap());
    headers.insert(ETAG, format!("\"v{run}\"").parse().unwrap());
    headers.append(LINK, HeaderValue::from_static("</a>; rel=\"up\""));
    headers.append(LINK, HeaderValue::from_static("</b>; rel=\"next\""));
    headers.append(SET_COOKIE, HeaderValue::from_static("session=secret"));
    headers.insert("x-name", HeaderValue::from_bytes(b"Andr\xe9").unwrap());
    answer
}

async fn slow(runs: State<Runs>, headers: HeaderMap) -> Response<Body> {
    let answer = order(runs, headers).await;
    tokio::time::sleep(SLOW).await;
    answer
}

/// The operations, without anything that deduplicates.
pub(crate) fn operations(runs: &Runs) -> Router {
    Router::new()
        .route("/orders", post(order))
        .route("/other", post(order))
        .route("/slow", post(slow))
        .with_state(runs.clone())
}

/// The operations behind a layer, and their count in front of it.
pub(crate) fn counted(runs: &Runs, operations: Router) -> Router {
    let count = |State(runs): State<Runs>| async move { runs.0.load(Ordering::SeqCst).to_string() };
    Router::new()
        .route("/runs", get(count))
        .with_state(runs.clone())
        .merge(operations)
}

/// Serves it and says on which port.
pub(crate) async fn serve(app: Router) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, app).await });
    port
}
