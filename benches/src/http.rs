//! What the HTTP layer costs beside bare axum: over sockets with each store, and alone on one thread.

use std::sync::Arc;

use axum::Router;
use axum::routing::post;
use http::StatusCode;
use semel_core::KeyStore;
use semel_http::IdempotencyLayer;

use crate::Plan;

pub(crate) mod alone;
mod sockets;

/// Bytes of an answer.
const ANSWER: usize = 200;

pub(crate) async fn run(plan: Plan) {
    alone::run(plan, None);
    sockets::run(plan).await;
}

fn orders() -> Router {
    Router::new().route(
        "/orders",
        post(|body: bytes::Bytes| async move {
            let mut answer = format!("{{\"order\":7,\"bytes\":{},\"note\":\"", body.len());
            answer.extend(std::iter::repeat_n('x', ANSWER - 2 - answer.len()));
            answer.push_str("\"}");
            (StatusCode::CREATED, answer)
        }),
    )
}

fn keyed(store: Arc<dyn KeyStore>) -> Router {
    let layer = IdempotencyLayer::builder(store)
        .anonymous_scope("bench")
        .require_key()
        .build()
        .unwrap();
    orders().layer(layer)
}
