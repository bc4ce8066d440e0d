//! The daemon's own address: health, readiness, metrics, sagas.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{HeaderMap, StatusCode, header};
use serde::Serialize;

use super::Context;
use super::health::Shown;
use super::listen::Bound;
use super::problem::Problem;
use crate::config::ServerConfig;
use crate::config::server::Secret;

/// What the handlers share.
#[derive(Clone)]
struct Shared {
    context: Arc<Context>,
    token: Option<Secret>,
}

/// Serves until the daemon stops.
pub(crate) fn start(bound: Bound, config: &ServerConfig, sagas: Option<Router>, context: &Arc<Context>) {
    context.metrics.watch_health(&context.health);
    let shared = Shared {
        context: Arc::clone(context),
        token: config.token.clone(),
    };
    let router = Router::new()
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .fallback(|| async {
            Problem::not_found("there are /healthz, /readyz, /metrics and, where [saga] is on, /sagas")
        })
        .with_state(shared)
        .merge(sagas.unwrap_or_default());
    let serving = bound.serve(router, Arc::clone(context));
    context.tasks.spawn(serving);
}

/// The body of `/readyz`.
#[derive(Debug, Serialize)]
struct Readiness {
    ready: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stopping: bool,
    parts: Vec<Shown>,
}

/// 200 when every part makes progress, else 503 with the reasons.
async fn readyz(State(shared): State<Shared>, headers: HeaderMap) -> Response {
    let health = &shared.context.health;
    let stopping = shared.context.stop.is_cancelled();
    let ready = !stopping && health.ready();
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let body = Readiness {
        ready,
        stopping,
        parts: health.show(may_see(shared.token.as_ref(), &headers)),
    };
    (status, axum::Json(body)).into_response()
}

async fn metrics(State(shared): State<Shared>) -> Response {
    let Ok(text) = shared.context.metrics.text() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// Whether a request carries the token, where there is one.
pub(crate) fn may_see(token: Option<&Secret>, headers: &HeaderMap) -> bool {
    let Some(token) = token else { return true };
    let given = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    // Hashes are compared, so that the time it takes says nothing about the token.
    given.is_some_and(|given| {
        semel_core::key::derive(&[given]) == semel_core::key::derive(&[token.reveal().as_bytes()])
    })
}
