//! The orders service: looks the key up, writes the order and its event in one transaction, runs the checkout, and
//! remembers the answer.
//!
//! Why people write it so: the order and its event *are* in one transaction, as the outbox pattern wants it; and the
//! answer can only be remembered once it is known, which is at the end.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::post;
use axum::{Json, Router};
use semel_core::SystemClock;
use semel_core::host::uuid_v7;
use serde_json::json;
use sqlx::SqlitePool;

use super::http::{CallError, Client};
use super::{Failed, checkout, dedup, poller};
use crate::demo::load::NewOrder;
use crate::demo::shop::{Map, Step};

#[derive(Clone)]
struct Orders {
    db: SqlitePool,
    client: Client,
    map: Map,
}

/// `POST /orders`.
pub(super) fn router(db: SqlitePool, client: Client, map: Map) -> Router {
    Router::new()
        .route("/orders", post(place))
        .with_state(Orders { db, client, map })
}

async fn place(
    State(shop): State<Orders>,
    headers: HeaderMap,
    Json(order): Json<NewOrder>,
) -> Result<Response, Failed> {
    let Some(key) = dedup::key(&headers) else {
        return Ok(dedup::answer(
            400,
            json!({"error": "Idempotency-Key is missing"}).to_string(),
        ));
    };
    if let Some(answer) = dedup::seen(&shop.db, &key).await? {
        return Ok(answer);
    }
    let step = Step {
        order_id: uuid_v7(&SystemClock).to_string(),
        order,
    };
    insert(&shop.db, &step).await?;

    match checkout::checkout(&shop.client, &shop.map, &step).await {
        Ok(()) => {
            set_status(&shop.db, &step.order_id, "confirmed").await?;
            let body = json!({"order": step.order_id, "status": "confirmed"}).to_string();
            dedup::remember(&shop.db, &key, StatusCode::CREATED, &body).await?;
            Ok(dedup::answer(201, body))
        }
        Err(CallError::Refused(why)) => {
            set_status(&shop.db, &step.order_id, "cancelled").await?;
            let body = json!({"error": why}).to_string();
            dedup::remember(&shop.db, &key, StatusCode::CONFLICT, &body).await?;
            Ok(dedup::answer(409, body))
        }
        // Not remembered: the customer should be able to try again.
        Err(CallError::Failed(why)) => {
            set_status(&shop.db, &step.order_id, "failed").await?;
            Ok(dedup::answer(502, json!({"error": why}).to_string()))
        }
    }
}

async fn insert(db: &SqlitePool, step: &Step) -> Result<(), Failed> {
    let mut tx = db.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::query("INSERT INTO orders (id, reference, status, body) VALUES (?1, ?2, 'new', ?3)")
        .bind(&step.order_id)
        .bind(&step.order.reference)
        .bind(json!(step.order).to_string())
        .execute(&mut *tx)
        .await?;
    poller::enqueue(&mut tx, step).await?;
    tx.commit().await?;
    Ok(())
}

async fn set_status(db: &SqlitePool, order_id: &str, status: &str) -> Result<(), Failed> {
    sqlx::query("UPDATE orders SET status = ?2 WHERE id = ?1")
        .bind(order_id)
        .bind(status)
        .execute(db)
        .await?;
    Ok(())
}
