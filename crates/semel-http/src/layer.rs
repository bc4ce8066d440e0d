//! The layer.

use std::sync::Arc;
use std::time::Duration;

use semel_core::KeyStore;
use semel_core::limits::LimitExceeded;
use tower_layer::Layer;

use crate::builder::Builder;
use crate::config::Config;
use crate::observe::Counts;
use crate::route::Routes;
use crate::service::Idempotency;

/// Makes a service's unsafe requests idempotent by their `Idempotency-Key`. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct IdempotencyLayer {
    routes: Arc<Routes>,
}

impl IdempotencyLayer {
    /// Starts a layer over this store. A scope must be chosen before it can be built.
    #[must_use]
    pub fn builder(store: Arc<dyn KeyStore>) -> Builder {
        Builder::new(store)
    }

    pub(crate) fn new(routes: Routes) -> Self {
        Self {
            routes: Arc::new(routes),
        }
    }

    /// The same layer with other settings, for one route: `post(pay).layer(layer.with_config(strict)?)`. Store, scope,
    /// waiters, places and counters stay shared, and [`drain`](Self::drain) of either waits for both.
    ///
    /// # Errors
    /// The first setting that is outside its limits.
    pub fn with_config(&self, config: Config) -> Result<Self, LimitExceeded> {
        config.check()?;
        Ok(Self::new(self.routes.only(config)))
    }

    /// The layer's own settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.routes.base.config
    }

    /// Waits until every run and every outcome still to be stored has ended. Call it after the server has stopped
    /// taking requests, within the time that a stop may take: what is cut off reads as unknown when its lease ends.
    pub async fn drain(&self) {
        self.routes.base.tasks.close();
        self.routes.base.tasks.wait().await;
    }

    /// The same, but no longer than this; the number of those that were still at work then.
    pub async fn drain_within(&self, time: Duration) -> usize {
        match tokio::time::timeout(time, self.drain()).await {
            Ok(()) => 0,
            Err(_) => self.in_flight(),
        }
    }

    /// Runs and outcomes still to be stored, now.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.routes.base.tasks.len()
    }

    /// What became of the keyed requests so far.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.routes.base.counts
    }
}

impl std::fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("config", self.config())
            .finish_non_exhaustive()
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Idempotency<S> {
        Idempotency::new(inner, Arc::clone(&self.routes))
    }
}
