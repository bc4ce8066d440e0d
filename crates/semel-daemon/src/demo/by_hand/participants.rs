//! Payments, stock and shipping: each call is looked up by its key, done, and remembered.
//!
//! Why people write it so: "the caller retries, so be idempotent": the same helper as in orders, around the work.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::post;
use axum::{Json, Router};
use serde_json::json;
use sqlx::SqlitePool;

use super::{Failed, dedup};
use crate::demo::shop::{Effect, Step, record, refusal, think};

pub(super) fn payments(db: SqlitePool) -> Router {
    router(db, &[Effect::Charge, Effect::Refund])
}

pub(super) fn stock(db: SqlitePool) -> Router {
    router(db, &[Effect::Reserve, Effect::Release])
}

/// Shipping also receives the order events, and writes to the customer about each.
pub(super) fn shipping(db: SqlitePool) -> Router {
    router(db, &[Effect::Ship, Effect::Notify])
}

fn router(db: SqlitePool, effects: &[Effect]) -> Router {
    let router = effects.iter().fold(Router::new(), |router, &effect| {
        let handler = move |State(db): State<SqlitePool>, headers: HeaderMap, Json(step): Json<Step>| async move {
            handle(&db, effect, &headers, &step).await
        };
        router.route(&format!("/{}", effect.name()), post(handler))
    });
    router.with_state(db)
}

async fn handle(
    db: &SqlitePool,
    effect: Effect,
    headers: &HeaderMap,
    step: &Step,
) -> Result<Response, Failed> {
    let key = dedup::key(headers).unwrap_or_default();
    if let Some(answer) = dedup::seen(db, &key).await? {
        return Ok(answer);
    }
    think().await;
    if let Some(why) = refusal(effect, &step.order) {
        return Ok(dedup::answer(409, why.to_owned()));
    }
    let mut connection = db.acquire().await?;
    record(&mut connection, effect, step).await?;
    drop(connection);
    let body = json!({"done": effect.name()}).to_string();
    dedup::remember(db, &key, StatusCode::OK, &body).await?;
    Ok(dedup::answer(200, body))
}
