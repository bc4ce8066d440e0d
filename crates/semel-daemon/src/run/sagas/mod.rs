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
mod watched;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use semel_core::saga::CheckedDefinition;
use semel_core::store::SagaStore;
use semel_saga::SagaHandle;
use tokio::sync::watch;
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
    /// The coordinator, once it runs.
    running: watch::Receiver<Option<SagaHandle>>,
    token: Option<Secret>,
    body_bytes_max: usize,
    wait_max: Duration,
    participants: Arc<[String]>,
    stop: CancellationToken,
    definitions: Arc<Mutex<HashMap<[u8; 32], CheckedDefinition>>>,
}

/// Starts the coordinator; hands back the routes of its API.
pub(crate) fn start(
    config: &SagaConfig,
    server: &ServerConfig,
    store: Handle,
    context: &Arc<Context>,
) -> Router {
    api::router(Api {
        running: role::start(config, server, store.clone(), context),
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
        let store = self.store.now().and_then(|store| store.sagas().ok());
        store.ok_or_else(|| {
            Problem::unavailable("the store of sagas is not open: /readyz says why; nothing was done")
        })
    }

    /// The running coordinator: it stores what it is told in groups, and takes it up at once.
    fn sagas(&self) -> Result<SagaHandle, Problem> {
        // Asked first, because it says more when it is away.
        self.store()?;
        let running = self.running.borrow().clone();
        running.ok_or_else(|| Problem::unavailable("the coordinator is starting; nothing was done"))
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
