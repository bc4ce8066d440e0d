//! The coordinator as a supervised role, with its counting and pruning.

use std::sync::Arc;
use std::time::Duration;

use semel_core::error::chain;
use semel_core::store::SagaStore;
use semel_saga::{Coordinator, CoordinatorConfig, HttpParticipants, SagaHandle};
use tokio::sync::watch;

use super::watched::Watched;
use crate::config::{SagaConfig, ServerConfig};
use crate::run::Context;
use crate::run::health::Part;
use crate::run::stores::Handle;
use crate::run::supervise::{Ended, supervise};

/// How often sagas are counted and old ones pruned.
const HOUSEKEEPING: Duration = Duration::from_secs(5);
/// Sagas pruned at once.
const PRUNE_MAX: u32 = 500;

/// What the role needs each time it begins.
#[derive(Clone)]
struct Role {
    config: SagaConfig,
    settings: CoordinatorConfig,
    store: Handle,
    part: Part,
    context: Arc<Context>,
    /// The running coordinator, for the API.
    running: watch::Sender<Option<SagaHandle>>,
}

/// Starts the coordinator; the API finds the running one in what is handed back.
pub(super) fn start(
    config: &SagaConfig,
    server: &ServerConfig,
    store: Handle,
    context: &Arc<Context>,
) -> watch::Receiver<Option<SagaHandle>> {
    let (running, seen) = watch::channel(None);
    let role = Role {
        settings: CoordinatorConfig {
            lease: config.lease,
            poll: config.poll,
            owned_max: config.concurrency,
            per_destination_max: config.per_destination_max,
            stop_grace: server.stop_max,
            ..CoordinatorConfig::default()
        },
        config: config.clone(),
        store,
        part: context.health.part("saga", "coordinator"),
        context: Arc::clone(context),
        running,
    };
    let part = role.part.clone();
    supervise(context, part, move || role.clone().run());
    seen
}

impl Role {
    async fn run(self) -> Result<(), Ended> {
        let stop = self.context.stop.clone();
        self.part.waiting("its store is not open yet");
        let store = tokio::select! {
            store = self.store.ready() => store,
            () = stop.cancelled() => return Ok(()),
        };
        let sagas = store.sagas()?;
        let watched = Arc::new(Watched::new(Arc::clone(&sagas), self.part.clone()));
        let participants = Arc::new(HttpParticipants::default());
        let coordinator =
            Coordinator::new(watched, participants, self.settings.clone()).map_err(|limit| Ended {
                why: limit.to_string(),
                needs_a_person: true,
            })?;
        self.running.send_replace(Some(coordinator.handle()));
        let housekeeping = self.housekeeping(sagas);
        tokio::select! {
            () = coordinator.run(stop) => Ok(()),
            () = housekeeping => Ok(()),
        }
    }

    /// Counts sagas for the metrics and prunes those that ended long ago, for as long as the coordinator runs.
    async fn housekeeping(&self, sagas: Arc<dyn SagaStore>) {
        loop {
            match sagas.count_sagas().await {
                Ok(counts) => self.context.metrics.sagas(&counts),
                Err(error) => tracing::debug!(error = chain(&error), "sagas were not counted"),
            }
            let (retention, tombstone) = (self.config.retention_ms, self.config.tombstone_ms);
            match sagas.prune_sagas(retention, tombstone, PRUNE_MAX).await {
                Ok(0) => {}
                Ok(pruned) => tracing::debug!(pruned, "ended sagas were pruned"),
                Err(error) => tracing::debug!(error = chain(&error), "sagas were not pruned"),
            }
            tokio::time::sleep(HOUSEKEEPING).await;
        }
    }
}
