//! Sagas: the coordinator as a role, and its API.
//!
//! # Guarantees
//! A submission is answered with 201 only when it is durable (rule R4). The same id with the same input and definition
//! is answered with how the saga stands, with another one by 409: repeating a submission is always safe.
//!
//! # Not guaranteed
//! That equal JSON with other spaces is the same input: bytes are compared.

mod api;
mod request;
mod role;
mod view;

pub(crate) use role::start;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use semel_core::saga::{CheckedDefinition, SagaId};
use semel_core::store::{RequestReply, SagaRequest, SagaStore, Submission, SubmitReply};
use tokio_util::sync::CancellationToken;

use super::Context;
use super::problem::Problem;
use super::stores::Handle;
use crate::config::server::Secret;
use crate::config::{SagaConfig, ServerConfig};

/// Definitions kept in memory for showing sagas; beyond that they are read again.
const DEFINITIONS_KEPT: usize = 256;

/// What the handlers share. Cheap to clone.
#[derive(Clone)]
struct Api {
    store: Handle,
    token: Option<Secret>,
    body_bytes_max: usize,
    wait_max: Duration,
    participants: Arc<[String]>,
    stop: CancellationToken,
    definitions: Arc<Mutex<HashMap<[u8; 32], CheckedDefinition>>>,
}

/// The API's routes.
pub(crate) fn routes(
    config: &SagaConfig,
    server: &ServerConfig,
    store: Handle,
    context: &Arc<Context>,
) -> Router {
    api::router(Api {
        store,
        token: server.token.clone(),
        body_bytes_max: server.body_bytes_max,
        wait_max: server.wait_max,
        participants: config.participants.clone().into(),
        stop: context.stop.clone(),
        definitions: Arc::default(),
    })
}

impl Api {
    fn store(&self) -> Result<Arc<dyn SagaStore>, Problem> {
        let store = self.store.now().and_then(|store| store.sagas());
        store.ok_or_else(|| {
            Problem::unavailable("the store of sagas is not open: /readyz says why; nothing was done")
        })
    }

    async fn submit(&self, submission: Submission) -> Result<SubmitReply, Problem> {
        let mut replies = self.store()?.submit_sagas(&[submission]).await?;
        replies
            .pop()
            .ok_or_else(|| Problem::internal("the store gave no answer"))
    }

    async fn request(&self, id: &SagaId, wanted: &SagaRequest) -> Result<RequestReply, Problem> {
        Ok(self.store()?.request_saga(id, wanted).await?)
    }

    /// A definition, from memory where it is known.
    async fn definition(&self, hash: &[u8; 32]) -> Result<Option<CheckedDefinition>, Problem> {
        let known = |definitions: &Mutex<HashMap<_, CheckedDefinition>>| {
            let definitions = definitions.lock().unwrap_or_else(PoisonError::into_inner);
            definitions.get(hash).cloned()
        };
        if let Some(definition) = known(&self.definitions) {
            return Ok(Some(definition));
        }
        let Some(json) = self.store()?.saga_definition(hash).await? else {
            return Ok(None);
        };
        let Ok(definition) = CheckedDefinition::from_json(&json) else {
            return Ok(None);
        };
        let mut definitions = self.definitions.lock().unwrap_or_else(PoisonError::into_inner);
        if definitions.len() >= DEFINITIONS_KEPT {
            definitions.clear();
        }
        definitions.insert(*hash, definition.clone());
        Ok(Some(definition))
    }
}
