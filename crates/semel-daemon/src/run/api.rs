//! The key API as a role: listening from the start, serving as soon as its store is open.

use std::sync::Arc;

use super::Context;
use super::health::Part;
use super::listen::{Bound, PortError};
use super::stores::Handle;
use crate::api::{self, Api};
use crate::config::ApiConfig;

/// A key API that has its port.
pub(crate) struct KeyApi {
    config: ApiConfig,
    bound: Bound,
    store: Handle,
}

impl KeyApi {
    /// Takes its port.
    ///
    /// # Errors
    /// The port cannot be had.
    pub(crate) async fn bind(config: ApiConfig, store: Handle) -> Result<Self, PortError> {
        let bound = Bound::bind(config.listen, "[api] listen").await?;
        Ok(Self { config, bound, store })
    }

    /// Serves until the daemon stops, and then ends what it began.
    pub(crate) fn start(self, context: &Arc<Context>) -> Arc<Api> {
        let Self { config, bound, store } = self;
        let part = context.health.part("api", "keys");
        let tokens = config.access.asks();
        tracing::info!(address = %bound.address(), tokens, "the key API listens");
        let api = Api::new(config.access, config.limits, context.stop.clone())
            .with_issuer(config.issuer)
            .with_tasks(context.tasks.clone());
        let api = Arc::new(api);
        context
            .metrics
            .register(|registry| api.metrics().register(registry));
        let serving = bound.serve(api::router(Arc::clone(&api)), Arc::clone(context));
        context.tasks.spawn(serving);
        let stop = context.stop.clone();
        let serving = Arc::clone(&api);
        context.tasks.spawn(async move {
            tokio::select! {
                () = open(&serving, store, part) => {}
                () = stop.cancelled() => {}
            }
        });
        api
    }
}

async fn open(api: &Api, store: Handle, part: Part) {
    part.waiting("its store is not open yet");
    api.serve(store.keys().await);
    part.ready();
}
