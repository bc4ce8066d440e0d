//! The gateways: listening from the start, serving as soon as their store is open.

use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use semel_core::error::chain;
use semel_core::wire;
use semel_http::{Problem, ProblemKind};
use tower::ServiceExt as _;

use super::Context;
use super::health::Part;
use super::listen::{Bound, PortError};
use super::metrics::GatewayLabels;
use super::stores::Handle;
use crate::gateway::{self, GatewayConfig};

/// A gateway whose port is taken.
pub(crate) struct Gateway {
    config: GatewayConfig,
    bound: Bound,
    store: Handle,
}

/// What answers, once the store is open.
#[derive(Default)]
struct Slot {
    router: OnceLock<Router>,
    drain: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
}

/// What the front of one gateway needs.
#[derive(Clone)]
struct Front {
    name: String,
    slot: Arc<Slot>,
    context: Arc<Context>,
}

impl Gateway {
    /// Takes its port.
    ///
    /// # Errors
    /// The port cannot be had.
    pub(crate) async fn bind(config: GatewayConfig, store: Handle) -> Result<Self, PortError> {
        let field = format!("listen of [[gateway]] {}", config.name);
        let bound = Bound::bind(config.listen.value, field).await?;
        Ok(Self { config, bound, store })
    }

    /// Serves until the daemon stops, and then ends what it began.
    pub(crate) fn start(self, context: &Arc<Context>) {
        let part = context.health.part("gateway", &self.config.name);
        tracing::info!(gateway = self.config.name, address = %self.bound.address(), "gateway listens");
        let slot = Arc::new(Slot::default());
        let front = Router::new().fallback(answer).with_state(Front {
            name: self.config.name.clone(),
            slot: Arc::clone(&slot),
            context: Arc::clone(context),
        });
        let serving = self.bound.serve(front, Arc::clone(context));
        let opening = open(self.config, self.store, part, Arc::clone(&slot));
        let stop = context.stop.clone();
        context.tasks.spawn(async move {
            tokio::select! {
                () = opening => {}
                () = stop.cancelled() => {}
            }
        });
        context.tasks.spawn(async move {
            serving.await;
            let drain = slot.drain.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(drain) = drain {
                drain.await;
            }
        });
    }
}

/// Waits for the store and puts the service in place.
async fn open(config: GatewayConfig, store: Handle, part: Part, slot: Arc<Slot>) {
    part.waiting("its store is not open yet");
    let keys = store.ready().await.keys();
    match gateway::service(&config, keys) {
        Ok(service) => {
            *slot.drain.lock().unwrap_or_else(PoisonError::into_inner) = Some(service.drain);
            // Only this task sets it.
            let _ = slot.router.set(service.router);
            part.ready();
        }
        Err(why) => part.stopped(why),
    }
}

/// Passes a request on, and counts how it ended.
async fn answer(State(front): State<Front>, request: Request) -> Response {
    let response = match front.slot.router.get() {
        Some(router) => match router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        },
        None => {
            let detail = "the store of keys is not open: /readyz of semel says why; nothing was sent, send the same \
                          request again later";
            Problem::new(ProblemKind::StoreUnavailable, detail)
                .retry_after(1)
                .response()
                .into_response()
        }
    };
    let text = |name| {
        let value = response.headers().get(name)?.to_str().ok()?;
        Some(value.to_owned())
    };
    front.context.metrics.gateway_answered(GatewayLabels {
        gateway: front.name,
        outcome: text(wire::OUTCOME).unwrap_or_else(|| "none".to_owned()),
        replayed: u8::from(text(wire::IDEMPOTENT_REPLAYED).is_some()),
        status: response.status().as_u16() / 100,
    });
    response
}

/// How often keys past their time are swept, and how many at once.
const SWEEP: Duration = Duration::from_secs(10);
const SWEEP_MAX: u32 = 500;

/// Forgets keys past their time in a store. Records read the same, swept or not, so a failure only delays.
pub(crate) fn start_sweeper(name: &str, store: Handle, context: &Arc<Context>) {
    let (name, metrics, stop) = (
        name.to_owned(),
        Arc::clone(&context.metrics),
        context.stop.clone(),
    );
    let sweeping = async move {
        let keys = store.ready().await.keys();
        loop {
            match keys.sweep(SWEEP_MAX).await {
                Ok(report) => {
                    metrics.keys_swept(&name, &report);
                    if report.unknown + report.tombstoned + report.removed >= u64::from(SWEEP_MAX) {
                        tokio::task::yield_now().await;
                        continue;
                    }
                }
                Err(error) => tracing::debug!(store = name, error = chain(&error), "keys were not swept"),
            }
            tokio::time::sleep(SWEEP).await;
        }
    };
    context.tasks.spawn(async move {
        tokio::select! {
            () = sweeping => {}
            () = stop.cancelled() => {}
        }
    });
}
