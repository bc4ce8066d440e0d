//! The coordinator as a role.

use std::sync::Arc;

use semel_core::saga::Status;
use semel_saga::{Coordinator, CoordinatorConfig, HttpParticipants, SagaHandle};

use crate::config::SagaConfig;
use crate::run::Context;
use crate::run::health::Part;
use crate::run::stores::Handle;
use crate::run::supervise::{Ended, supervise};

/// Starts the coordinator.
pub(crate) fn start(config: &SagaConfig, store: &Handle, context: &Arc<Context>) {
    let role = Role {
        config: config.clone(),
        store: store.clone(),
        part: context.health.part("saga", "coordinator"),
        context: Arc::clone(context),
    };
    let part = role.part.clone();
    supervise(context, part, move || role.clone().run());
}

#[derive(Clone)]
struct Role {
    config: SagaConfig,
    store: Handle,
    part: Part,
    context: Arc<Context>,
}

impl Role {
    async fn run(self) -> Result<(), Ended> {
        let stop = self.context.stop.clone();
        self.part.waiting("its store is not open yet");
        let store = tokio::select! {
            store = self.store.ready() => store,
            () = stop.cancelled() => return Ok(()),
        };
        let sagas = store.sagas().ok_or_else(|| Ended {
            why: "sagas on PostgreSQL are not there yet".to_owned(),
            needs_a_person: true,
        })?;
        // A missing or newer schema shows here, by name, instead of in each of the coordinator's rounds.
        SagaHandle::of_store(Arc::clone(&sagas))
            .list(Some(Status::Stuck), None, 1)
            .await?;
        let participants = Arc::new(HttpParticipants::default());
        let settings = CoordinatorConfig {
            lease: self.config.lease,
            poll: self.config.poll,
            owned_max: self.config.concurrency,
            ..CoordinatorConfig::default()
        };
        let coordinator = Coordinator::new(sagas, participants, settings).map_err(|limit| Ended {
            why: limit.to_string(),
            needs_a_person: true,
        })?;
        self.part.ready();
        coordinator.run(stop).await;
        Ok(())
    }
}
