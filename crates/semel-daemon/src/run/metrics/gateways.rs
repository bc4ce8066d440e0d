//! Gateways.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

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

/// One label: the gateway's name.
type ByGateway<M, C = fn() -> M> = Family<[(&'static str, String); 1], M, C>;

/// Families of all gateways. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct GatewayMetrics {
    pub(crate) answered: Family<GatewayLabels, Counter>,
    pub(crate) keys: Family<[(&'static str, String); 2], Counter>,
    pub(crate) in_flight: ByGateway<Gauge>,
    pub(crate) tunnels: ByGateway<Gauge>,
    pub(crate) latency: ByGateway<Histogram>,
    pub(crate) failed: Family<[(&'static str, String); 2], Counter>,
    pub(crate) reconciled: ByGateway<Counter>,
    pub(crate) reloads: Family<[(&'static str, &'static str); 1], Counter>,
}

impl GatewayMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            answered: Family::default(),
            keys: Family::default(),
            in_flight: Family::new_with_constructor(Gauge::default),
            tunnels: Family::new_with_constructor(Gauge::default),
            // 0.5 ms to 16 s.
            latency: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.000_5, 2.0, 16))),
            failed: Family::default(),
            reconciled: Family::new_with_constructor(Counter::default),
            reloads: Family::default(),
        };
        registry.register(
            "gateway_requests",
            "Requests through a gateway, by outcome, replay and first digit of the status",
            metrics.answered.clone(),
        );
        registry.register(
            "gateway_keys",
            "Requests with a key, by what they came to; store_down and open_passed tell of a store that is away",
            metrics.keys.clone(),
        );
        registry.register(
            "gateway_in_flight",
            "Requests that a gateway works on",
            metrics.in_flight.clone(),
        );
        registry.register(
            "gateway_tunnels",
            "WebSockets and the like that are open",
            metrics.tunnels.clone(),
        );
        registry.register_with_unit(
            "gateway_upstream",
            "Time to the head of the upstream's answer",
            Unit::Seconds,
            metrics.latency.clone(),
        );
        registry.register(
            "gateway_upstream_failed",
            "Requests without an answer of the upstream: not sent, broken off, too slow",
            metrics.failed.clone(),
        );
        registry.register(
            "gateway_reconciled",
            "Requests whose end was not known and was asked for",
            metrics.reconciled.clone(),
        );
        registry.register(
            "config_reloads",
            "Times that the configuration was read again, and taken over or refused",
            metrics.reloads.clone(),
        );
        metrics
    }
}
