//! The layer.

use std::sync::Arc;

use semel_core::KeyStore;
use tower_layer::Layer;

use crate::builder::Builder;
use crate::service::Idempotency;
use crate::shared::Shared;

/// Makes a service's unsafe requests idempotent by their `Idempotency-Key`. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct IdempotencyLayer {
    shared: Arc<Shared>,
}

impl IdempotencyLayer {
    /// Starts a layer over this store. A scope must be chosen before it can be built.
    #[must_use]
    pub fn builder(store: Arc<dyn KeyStore>) -> Builder {
        Builder::new(store)
    }

    pub(crate) fn new(shared: Shared) -> Self {
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Waits until every run and every outcome still to be stored has ended. Call it after the server has stopped
    /// taking requests, within the time that a stop may take: what is cut off reads as unknown when its lease ends.
    pub async fn drain(&self) {
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    /// Runs and outcomes still to be stored, now.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.tasks.len()
    }
}

impl std::fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("config", &self.shared.config)
            .finish_non_exhaustive()
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Idempotency<S> {
        Idempotency::new(inner, Arc::clone(&self.shared))
    }
}
