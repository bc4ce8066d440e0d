//! What one gateway counts, and what keeps it from filling the log.

use std::sync::atomic::AtomicI64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use semel_core::{Clock as _, SystemClock};
use semel_http::Event;
use semel_http::headers::{IDEMPOTENT_REPLAYED, SEMEL_OUTCOME};
use semel_http::policy::OutcomeWord;

use crate::run::metrics::{GatewayLabels, GatewayMetrics};

/// The words of an outcome, and none.
const OUTCOMES: [&str; 6] = ["succeeded", "refused", "running", "unknown", "mismatch", "none"];

/// Counters of one gateway, found once and shared by its threads.
pub(crate) struct Stats {
    name: String,
    metrics: GatewayMetrics,
    /// By outcome, replayed or not, first digit of the status.
    answered: [[[OnceLock<Counter>; 6]; 2]; 6],
    /// By what keyed requests came to, in the order of `Event::ALL`.
    keys: Vec<Counter>,
    in_flight: Gauge<i64, AtomicI64>,
    tunnels: Gauge<i64, AtomicI64>,
    latency: Histogram,
    /// Requests without an answer of the upstream, by what is known.
    pub(crate) failed: Failed,
    /// Requests whose end was asked for and found.
    pub(crate) reconciled: Counter,
    /// Whether the next failure is logged.
    pub(crate) quiet: Quiet,
    /// Whether it is logged that `reconcile_url` does not know.
    pub(crate) quiet_reconcile: Quiet,
    /// Whether it is logged that `auth_url` does not say who calls.
    pub(crate) quiet_auth: Quiet,
}

/// Counters by reason.
pub(crate) struct Failed {
    gateway: String,
    family: Family<[(&'static str, String); 2], Counter>,
}

impl Failed {
    /// The counter of a reason.
    pub(crate) fn get(&self, reason: &str) -> Counter {
        let labels = [("gateway", self.gateway.clone()), ("reason", reason.to_owned())];
        self.family.get_or_create(&labels).clone()
    }
}

/// Counts one down when dropped.
pub(crate) struct Counted(Gauge<i64, AtomicI64>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Stats {
    /// Counters of this gateway.
    pub(crate) fn new(name: &str, metrics: &GatewayMetrics) -> Arc<Self> {
        let labels = [("gateway", name.to_owned())];
        Arc::new(Self {
            name: name.to_owned(),
            answered: Default::default(),
            keys: Event::ALL
                .iter()
                .map(|event| {
                    let labels = [("gateway", name.to_owned()), ("event", event.as_str().to_owned())];
                    metrics.keys.get_or_create(&labels).clone()
                })
                .collect(),
            in_flight: metrics.in_flight.get_or_create(&labels).clone(),
            tunnels: metrics.tunnels.get_or_create(&labels).clone(),
            latency: metrics.latency.get_or_create(&labels).clone(),
            failed: Failed {
                gateway: name.to_owned(),
                family: metrics.failed.clone(),
            },
            reconciled: metrics.reconciled.get_or_create(&labels).clone(),
            quiet: Quiet::default(),
            quiet_reconcile: Quiet::default(),
            quiet_auth: Quiet::default(),
            metrics: metrics.clone(),
        })
    }

    /// A request is being served, until [`Self::ends`].
    pub(crate) fn begins(&self) {
        self.in_flight.inc();
    }

    /// One is no longer being served.
    pub(crate) fn ends(&self) {
        self.in_flight.dec();
    }

    /// A tunnel is open until the result is dropped.
    pub(crate) fn tunnel(&self) -> Counted {
        self.tunnels.inc();
        Counted(self.tunnels.clone())
    }

    /// The upstream took this long to the head of its answer.
    pub(crate) fn answered_after(&self, time: Duration) {
        self.latency.observe(time.as_secs_f64());
    }

    /// Counts what a keyed request came to.
    pub(crate) fn key(&self, event: Event) {
        let at = Event::ALL.iter().position(|known| *known == event);
        if let Some(counter) = at.and_then(|at| self.keys.get(at)) {
            counter.inc();
        }
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, status: StatusCode, headers: &HeaderMap) {
        let word = OutcomeWord::read(headers.get(SEMEL_OUTCOME)).map_or("none", OutcomeWord::as_str);
        let outcome = OUTCOMES.iter().position(|known| *known == word).unwrap_or(5);
        let replayed = usize::from(headers.contains_key(IDEMPOTENT_REPLAYED));
        let digit = status.as_u16() / 100;
        let slot = self
            .answered
            .get(outcome)
            .and_then(|by| by.get(replayed))
            .and_then(|by| by.get(usize::from(digit)));
        let Some(slot) = slot else { return };
        slot.get_or_init(|| {
            let labels = GatewayLabels {
                gateway: self.name.clone(),
                outcome: word.to_owned(),
                replayed: u8::from(replayed == 1),
                status: digit,
            };
            self.metrics.answered.get_or_create(&labels).clone()
        })
        .inc();
    }
}

/// Lets something be said now and then, and counts what was not.
#[derive(Debug, Default)]
pub(crate) struct Quiet(semel_core::quiet::Quiet);

impl Quiet {
    /// How often it was not said since the last time, when it may be said now.
    pub(crate) fn may_speak(&self) -> Option<u64> {
        self.0.may_speak(SystemClock.monotonic())
    }
}
