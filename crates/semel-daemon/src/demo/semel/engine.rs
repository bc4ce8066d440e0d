//! TEMPORARY engine by library.
use crate::demo::shop::Map;
use crate::demo::trouble::{Doing as _, Trouble};
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use http::StatusCode;
use semel_core::saga::{Definition, SagaId};
use semel_outbox::{Relay, RelayConfig};
use semel_saga::{Coordinator, CoordinatorConfig, HttpParticipants, SagaHandle};
use semel_sqlite::Sqlite;
use semel_webhook::{WebhookConfig, WebhookSink};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

pub(super) async fn router(orders: Sqlite, engine: Sqlite, map: &Map, port: u16) -> Result<Router, Trouble> {
    let coordinator = Coordinator::new(
        Arc::new(engine),
        Arc::new(HttpParticipants::default()),
        CoordinatorConfig {
            lease: Duration::from_secs(2),
            ..CoordinatorConfig::default()
        },
    )
    .doing("coordinator")?;
    let handle = coordinator.handle();
    tokio::spawn(async move {
        coordinator.run(CancellationToken::new()).await;
        tracing::error!("coordinator ended");
    });
    Ok(Router::new().route("/sagas", post(submit)).with_state(handle))
}

#[derive(serde::Deserialize)]
struct Submit {
    id: SagaId,
    definition: Definition,
    input: Box<serde_json::value::RawValue>,
}

async fn submit(State(handle): State<SagaHandle>, Json(submit): Json<Submit>) -> StatusCode {
    let Ok(definition) = submit.definition.check() else {
        return StatusCode::BAD_REQUEST;
    };
    match handle
        .submit(&definition, submit.id, submit.input.get().to_owned())
        .await
    {
        Ok(_) => StatusCode::CREATED,
        Err(error) => {
            tracing::warn!(%error, "submit");
            StatusCode::SERVICE_UNAVAILABLE
        }
    }
}
