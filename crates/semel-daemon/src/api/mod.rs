//! The key API: every transition of a key over HTTP and JSON, for services in any language.
//!
//! [`routes`] is the table that the dispatcher and the OpenAPI document are both made from; [`request`] reads bodies,
//! [`operations`] asks the store, [`reply`] and [`problem`] answer. No protocol is decided here: what comes of a claim is
//! decided by [`semel_core::claim::step`].
//!
//! # Guarantees
//! - An answer 200 or 201 was durable before it was sent. 4xx changed nothing. 503 says whether anything can have been
//!   stored: `store-away` and `overloaded` no, `reply-lost` perhaps, and then the same request may be sent again.
//! - A claim whose nonce the caller chose can be asked again after a lost answer (rule K3). A nonce that was drawn here is
//!   withdrawn when its caller leaves before the answer (rule K4), tried again for at least its lease.
//! - A settlement goes on when its caller leaves, and has its line in the log.
//! - What a store's driver says (hosts, users, statements) is in the log, never in an answer.
//!
//! # Not guaranteed
//! That the answer reaches the caller. A claim without a nonce of the caller's own whose answer is lost behind the daemon
//! blocks its key until the lease ends, and is unknown then.

pub(crate) mod access;
mod http;
mod octets;
pub(crate) mod openapi;
mod operations;
mod orphan;
mod problem;
pub(crate) mod reply;
pub(crate) mod request;
mod routes;
mod waking;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use semel_core::KeyStore;
use semel_keys::Issuer;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use access::Access;
use orphan::WITHDRAWALS_MAX;
use waking::Waking;

pub(crate) use http::router;

/// How much and how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes of a body.
    pub(crate) body_bytes_max: usize,
    /// The longest wait, whatever is asked for.
    pub(crate) wait_max: Duration,
    /// How long the body and each call to the store may take.
    pub(crate) request_max: Duration,
    /// Requests in work at a time, those that wait not counted.
    pub(crate) requests_max: usize,
    /// Bytes of outputs in one answer of several items.
    pub(crate) reply_bytes_max: usize,
    /// Requests that wait for a key at a time.
    pub(crate) waiters_max: usize,
}

/// What the handlers share.
pub(crate) struct Api {
    store: OnceLock<Arc<dyn KeyStore>>,
    access: ArcSwap<Access>,
    issuer: Option<Issuer>,
    limits: Limits,
    working: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    waking: Arc<Waking>,
    withdrawing: Arc<Semaphore>,
    /// What goes on when its caller leaves.
    tasks: TaskTracker,
    stop: CancellationToken,
    metrics: Metrics,
}

impl Api {
    /// An API whose store is not open yet.
    pub(crate) fn new(access: Access, limits: Limits, stop: CancellationToken) -> Self {
        Self {
            store: OnceLock::new(),
            access: ArcSwap::from_pointee(access),
            issuer: None,
            limits,
            working: Arc::new(Semaphore::new(limits.requests_max)),
            waiting: Arc::new(Semaphore::new(limits.waiters_max)),
            waking: Arc::default(),
            withdrawing: Arc::new(Semaphore::new(WITHDRAWALS_MAX)),
            tasks: TaskTracker::new(),
            stop,
            metrics: Metrics::default(),
        }
    }

    /// The same that also issues ids.
    pub(crate) fn with_issuer(self, issuer: Option<Issuer>) -> Self {
        Self { issuer, ..self }
    }

    /// The same whose tasks are among these, which the daemon waits for when it stops.
    pub(crate) fn with_tasks(self, tasks: TaskTracker) -> Self {
        Self { tasks, ..self }
    }

    /// Goes by these tokens from now on.
    pub(crate) fn admit(&self, access: Access) {
        self.access.store(Arc::new(access));
    }

    /// Serves this store from now on; only the first one counts.
    pub(crate) fn serve(&self, store: Arc<dyn KeyStore>) {
        let _ = self.store.set(store);
    }

    /// What it counts.
    pub(crate) const fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

/// Labels of `semel_api_requests_total`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    operation: &'static str,
    status: u16,
}

/// What is counted.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    requests: Family<Labels, Counter>,
    waiting: Gauge,
}

impl Metrics {
    /// Adds them to `/metrics`.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "Requests to the key API, by operation and status";
        registry.register("api_requests", help, self.requests.clone());
        let help = "Requests to the key API that wait for the end of a key's run";
        registry.register("api_waiting", help, self.waiting.clone());
    }

    fn answered(&self, operation: &'static str, status: u16) {
        self.requests.get_or_create(&Labels { operation, status }).inc();
    }
}
