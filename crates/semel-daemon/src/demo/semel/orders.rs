//! The orders service.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};
use bytes::Bytes;
use http::StatusCode;
use semel_core::claim::succeeded;
use semel_core::host::uuid_v7;
use semel_core::{Event, Fingerprint, Key, OwnerLost, StoreError, SystemClock, wire};
use semel_http::{ClaimInfo, Disposition, IdempotencyLayer};
use semel_sqlite::Sqlite;
use semel_sqlite::tx::{Once, OnceOptions, enqueue_many, once};
use serde_json::json;

use super::participants::{self, Work};
use super::saga::Shipments;
use crate::demo::load::NewOrder;
use crate::demo::shop::{Map, Step};
use crate::demo::trouble::{Doing as _, Trouble};

/// Milliseconds of a claim: how long a killed copy keeps a key from the other.
const LEASE_MS: i64 = 4_000;
/// Milliseconds that a duplicate waits for the first one's answer.
const WAIT_MS_MAX: u64 = 2_000;

#[derive(Clone)]
struct Orders {
    db: Sqlite,
    saga: Arc<Shipments>,
}

/// `POST /orders` behind the layer, and the orders' own steps of the saga.
pub(super) fn router(db: Sqlite, map: &Map) -> Result<Router, Trouble> {
    let config = semel_http::Config {
        // Safe, because the handler below writes nothing outside of its one transaction, and that under a key of its
        // own: when a copy dies in the middle, the other may run the request again.
        owner_lost: OwnerLost::Rerun,
        lease_ms: LEASE_MS,
        wait_ms_max: WAIT_MS_MAX,
        ..semel_http::Config::default()
    };
    let layer = IdempotencyLayer::builder(Arc::new(db.clone()))
        .config(config)
        .anonymous_scope("orders")
        .require_key()
        .build()
        .doing("set up the Idempotency-Key layer")?;
    let state = Orders {
        db: db.clone(),
        saga: Arc::new(Shipments::of(map)?),
    };
    let orders = Router::new()
        .route("/orders", post(place))
        .layer(layer)
        .with_state(state);
    Ok(orders.merge(participants::router(
        db,
        &[Work::OPEN, Work::CANCEL, Work::CONFIRM],
    )))
}

/// Answers only after the commit. Whatever fails, nothing has happened yet or the retry will find what has.
async fn place(
    State(shop): State<Orders>,
    Extension(claim): Extension<ClaimInfo>,
    Json(order): Json<NewOrder>,
) -> Response {
    match accept(&shop, &claim.key.child("accept"), order).await {
        Ok(Some(body)) => {
            let headers = [("content-type", "application/json"), (wire::GUARANTEE, "atomic")];
            (StatusCode::CREATED, headers, body).into_response()
        }
        Ok(None) => later(),
        Err(error) => {
            tracing::warn!(error = semel_core::error::chain(&error), "not accepted");
            later()
        }
    }
}

/// The key is given back: the next try runs the handler again, which finds out by its own key.
fn later() -> Response {
    let mut response = (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "1")]).into_response();
    response.extensions_mut().insert(Disposition::NotExecuted);
    response
}

/// The order, its event, its saga's submission and the answer: one commit.
async fn accept(shop: &Orders, key: &Key, order: NewOrder) -> Result<Option<Bytes>, StoreError> {
    let mut tx = shop.db.begin().await?;
    let asked = Fingerprint::of(json!(order).to_string().as_bytes());
    let pending = match once(&mut tx, key, asked, OnceOptions::default()).await? {
        Once::First(pending) => pending,
        Once::Done { outcome, .. } => return Ok(Some(Bytes::copy_from_slice(outcome.bytes()))),
        Once::Busy { .. } | Once::Unknown { .. } | Once::Mismatch | Once::Gone { .. } => return Ok(None),
    };
    let step = Step {
        order_id: uuid_v7(&SystemClock).to_string(),
        order,
    };
    sqlx::query("INSERT INTO orders (id, reference, status, body) VALUES (?1, ?2, 'placed', ?3)")
        .bind(&step.order_id)
        .bind(&step.order.reference)
        .bind(json!(step.order).to_string())
        .execute(&mut *tx)
        .await
        .map_err(|error| semel_sqlite::classify("insert order", error))?;
    enqueue_many(&mut tx, &[placed(&step), shop.saga.submission(&step)]).await?;
    let body = json!({"order": step.order_id, "status": "accepted"}).to_string();
    pending.complete(&mut tx, succeeded(body.clone())).await?;
    shop.db.commit(tx).await?;
    Ok(Some(body.into()))
}

/// What shipping hears about the order.
fn placed(step: &Step) -> Event {
    Event::new(uuid_v7(&SystemClock), "orders", "order.placed")
        .with_stream("events")
        .with_key(step.order_id.clone())
        .with_data("application/json", json!(step).to_string())
}
