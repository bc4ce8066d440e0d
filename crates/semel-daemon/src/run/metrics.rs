//! `/metrics`, in the OpenMetrics text format.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use semel_core::claim::SweepReport;

use super::health::Health;

/// The registry and what it holds.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    gateway: Family<GatewayLabels, Counter>,
    swept: Family<SweptLabels, Counter>,
}

/// Labels of `semel_gateway_requests_total`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct GatewayLabels {
    /// The gateway's name.
    pub(crate) gateway: String,
    /// What `Semel-Outcome` said; `none` without it.
    pub(crate) outcome: String,
    /// 1 where a stored answer was given.
    pub(crate) replayed: u8,
    /// The first digit of the status.
    pub(crate) status: u16,
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
        let gateway = Family::default();
        let help = "Requests through a gateway, by outcome, replay and first digit of the status";
        registry.register("gateway_requests", help, gateway.clone());
        let swept = Family::default();
        let help = "Keys whose time was over: now unknown, only a tombstone, or gone";
        registry.register("keys_swept", help, swept.clone());
        Self {
            registry: Mutex::new(registry),
            gateway,
            swept,
        }
    }

    /// Counts an answer of a gateway.
    pub(crate) fn gateway_answered(&self, labels: GatewayLabels) {
        self.gateway.get_or_create(&labels).inc();
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

/// What the system says of this process; absent where there is no `/proc`.
#[derive(Debug)]
struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if let Some(bytes) = resident_bytes() {
            let gauge = ConstGauge::new(bytes);
            let metric = encoder.encode_descriptor(
                "process_resident_memory",
                "Memory that this process holds",
                Some(&Unit::Bytes),
                gauge.metric_type(),
            )?;
            gauge.encode(metric)?;
        }
        if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
            let gauge = ConstGauge::new(i64::try_from(entries.count()).unwrap_or(i64::MAX));
            let metric = encoder.encode_descriptor(
                "process_open_fds",
                "File descriptors that this process holds",
                None,
                gauge.metric_type(),
            )?;
            gauge.encode(metric)?;
        }
        if let Some(seconds) = cpu_seconds() {
            let counter = ConstCounter::new(seconds);
            let metric = encoder.encode_descriptor(
                "process_cpu",
                "Processor time used since the start",
                Some(&Unit::Seconds),
                counter.metric_type(),
            )?;
            counter.encode(metric)?;
        }
        Ok(())
    }
}

/// Resident memory: the second number of `/proc/self/statm`, in pages.
fn resident_bytes() -> Option<i64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: i64 = text.split_whitespace().nth(1)?.parse().ok()?;
    i64::try_from(rustix::param::page_size()).ok()?.checked_mul(pages)
}

/// User and system time: fields 14 and 15 of `/proc/self/stat`, counted after the name in brackets.
fn cpu_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    let per_second = rustix::param::clock_ticks_per_second();
    Some((user + system) / per_second as f64)
}
