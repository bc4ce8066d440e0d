//! `/metrics`, in the OpenMetrics text format.

mod gateways;
mod process;
mod quotas;
mod relays;

use std::fmt;
use std::sync::{Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use semel_core::claim::SweepReport;
use semel_core::saga::Status;
use semel_core::store::Backlog;
use semel_outbox::RelayHandle;

pub(crate) use gateways::{GatewayLabels, GatewayMetrics};
use process::Process;
use quotas::Quotas;
use relays::{Backlogs, Relays};

use super::health::Health;

/// The registry and what it holds.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    /// What gateways count.
    pub(crate) gateways: GatewayMetrics,
    swept: Family<SweptLabels, Counter>,
    sagas: Family<SagaLabels, Gauge>,
    relays: Relays,
    backlog: Backlogs,
    quotas: Quotas,
}

/// Labels of `semel_sagas`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SagaLabels {
    state: &'static str,
}

/// Labels of `semel_keys_swept_total`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SweptLabels {
    store: String,
    to: &'static str,
}

impl Metrics {
    /// The metrics that every daemon has.
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("semel");
        registry.register(
            "build",
            "Which semel this is",
            Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]),
        );
        registry.register_collector(Box::new(Process));
        let gateways = GatewayMetrics::register(&mut registry);
        let swept = Family::default();
        let help = "Keys whose time was over: now unknown, only a tombstone, or gone";
        registry.register("keys_swept", help, swept.clone());
        let sagas = Family::default();
        registry.register(
            "sagas",
            "Sagas in the store, by state; stuck ones need a person",
            sagas.clone(),
        );
        let relays = Relays::default();
        registry.register_collector(Box::new(relays.clone()));
        let backlog = Backlogs::default();
        backlog.register(&mut registry);
        let quotas = Quotas::default();
        registry.register_collector(Box::new(quotas.clone()));
        Self {
            registry: Mutex::new(registry),
            gateways,
            swept,
            sagas,
            relays,
            backlog,
            quotas,
        }
    }

    /// Shows a relay from now on, in place of an earlier one of its name and stream.
    pub(crate) fn watch_relay(&self, name: &str, handle: RelayHandle) {
        self.relays.watch(name, handle);
    }

    /// Shows how many sagas there are; a state that is not named has none.
    pub(crate) fn sagas(&self, counts: &[(Status, u64)]) {
        for status in Status::ALL {
            let count = counts
                .iter()
                .find(|(of, _)| *of == status)
                .map_or(0, |(_, count)| *count);
            let state = status.as_str();
            self.sagas
                .get_or_create(&SagaLabels { state })
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Shows what the quota of a store has refused.
    pub(crate) fn watch_quota(&self, store: &str, refused: impl Fn() -> u64 + Send + Sync + 'static) {
        self.quotas.watch(store, refused);
    }

    /// Shows how an outbox stands.
    pub(crate) fn outbox(&self, store: &str, backlog: &Backlog) {
        self.backlog.set(store, backlog);
    }

    /// Shows the partitions of an outbox.
    pub(crate) fn partitions(&self, store: &str, found: &semel_core::store::Partitions) {
        self.backlog.set_partitions(store, found);
    }

    /// Counts keys that were swept.
    pub(crate) fn keys_swept(&self, store: &str, report: &SweepReport) {
        for (to, count) in [
            ("unknown", report.unknown),
            ("tombstone", report.tombstoned),
            ("gone", report.removed),
        ] {
            let store = store.to_owned();
            self.swept.get_or_create(&SweptLabels { store, to }).inc_by(count);
        }
    }

    /// Adds metrics while the daemon starts.
    pub(crate) fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Adds `semel_ready` of every part.
    pub(crate) fn watch_health(&self, health: &Health) {
        let health = HealthMetrics(health.clone());
        self.register(|registry| registry.register_collector(Box::new(health)));
    }

    /// The text that Prometheus reads.
    ///
    /// # Errors
    /// A metric could not be written, which is a mistake in semel.
    pub(crate) fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

#[derive(Debug)]
struct HealthMetrics(Health);

impl Collector for HealthMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let gauge = ConstGauge::new(0_i64);
        let mut metric = encoder.encode_descriptor(
            "ready",
            "Whether a part makes progress (1) or not (0); /readyz says why",
            None,
            gauge.metric_type(),
        )?;
        for (kind, name, ready) in self.0.each_ready() {
            let labels = [("kind", kind), ("name", name.as_str())];
            ConstGauge::new(i64::from(ready)).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
