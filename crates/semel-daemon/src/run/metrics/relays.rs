//! Relays and outboxes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};
use semel_core::store::{Backlog, Partitions};
use semel_outbox::{RelayHandle, RelayStats};

/// Every relay's handle, by its name and stream. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Relays(Arc<Mutex<BTreeMap<(String, String), RelayHandle>>>);

/// A counter of a relay: its name, its help, and where it is found.
type CounterOf = (&'static str, &'static str, fn(&RelayStats) -> u64);

const COUNTERS: &[CounterOf] = &[
    ("relay_published", "Events that the receiver has", |stats| {
        stats.published
    }),
    (
        "relay_retries",
        "Deliveries that failed and are repeated",
        |stats| stats.retries,
    ),
    ("relay_parked", "Events set aside as exceptions", |stats| {
        stats.excepted
    }),
    (
        "relay_cleaned",
        "Published events deleted from the outbox",
        |stats| stats.cleaned,
    ),
    ("relay_shards_acquired", "Shards taken over", |stats| {
        stats.acquired
    }),
    (
        "relay_shards_given",
        "Shards given up because another relay held too few",
        |stats| stats.given,
    ),
    (
        "relay_shards_lost",
        "Shards that another process took over",
        |stats| stats.lost,
    ),
];

impl Relays {
    pub(super) fn watch(&self, name: &str, handle: RelayHandle) {
        let key = (name.to_owned(), handle.stats().stream);
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key, handle);
    }
}

impl Collector for Relays {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let relays = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<(&str, RelayStats)> = relays
            .iter()
            .map(|((name, _), handle)| (name.as_str(), handle.stats()))
            .collect();
        for (metric, help, of) in COUNTERS {
            let kind = ConstCounter::new(0_u64).metric_type();
            let mut family = encoder.encode_descriptor(metric, help, None, kind)?;
            for (name, stats) in &all {
                let labels = [("relay", *name), ("stream", stats.stream.as_str())];
                ConstCounter::new(of(stats)).encode(family.encode_family(&labels)?)?;
            }
        }
        let kind = ConstCounter::new(0_u64).metric_type();
        let help = "Deliveries that failed, by class: away and destination spend no attempt, message does";
        let mut family = encoder.encode_descriptor("relay_errors", help, None, kind)?;
        for (name, stats) in &all {
            for (class, count) in [
                ("away", stats.away),
                ("destination", stats.destination),
                ("message", stats.refused),
            ] {
                let labels = [
                    ("relay", *name),
                    ("stream", stats.stream.as_str()),
                    ("class", class),
                ];
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        let gauge = ConstGauge::new(0_i64).metric_type();
        let help = "1 for the reason for which a shard of this process sends nothing";
        let mut family = encoder.encode_descriptor("relay_pause", help, None, gauge)?;
        for (name, stats) in &all {
            for (shard, paused) in stats
                .shards
                .iter()
                .filter_map(|it| Some((it, it.paused.as_ref()?)))
            {
                let index = shard.shard.index.to_string();
                let labels = [
                    ("relay", *name),
                    ("stream", stats.stream.as_str()),
                    ("shard", index.as_str()),
                    ("reason", paused.kind.as_str()),
                ];
                ConstGauge::new(1_i64).encode(family.encode_family(&labels)?)?;
            }
        }
        let help = "Age of the oldest event that is read and not yet delivered";
        let mut family = encoder.encode_descriptor("relay_lag", help, Some(&Unit::Seconds), gauge)?;
        for (name, stats) in &all {
            for shard in &stats.shards {
                let index = shard.shard.index.to_string();
                let labels = [
                    ("relay", *name),
                    ("stream", stats.stream.as_str()),
                    ("shard", index.as_str()),
                ];
                ConstGauge::new(shard.lag_ms as f64 / 1_000.0).encode(family.encode_family(&labels)?)?;
            }
        }
        let help = "Whether a shard of this process sends nothing (1); /readyz says why";
        let mut family = encoder.encode_descriptor("relay_paused", help, None, gauge)?;
        for (name, stats) in &all {
            for shard in &stats.shards {
                let index = shard.shard.index.to_string();
                let labels = [
                    ("relay", *name),
                    ("stream", stats.stream.as_str()),
                    ("shard", index.as_str()),
                ];
                ConstGauge::new(i64::from(shard.paused.is_some())).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// Labels of the outbox gauges.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutboxLabels {
    store: String,
    stream: String,
}

/// Labels of the gauges of one shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ShardLabels {
    store: String,
    stream: String,
    shard: u16,
}

/// Labels of the gauges of a store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StoreLabels {
    store: String,
}

/// How the outboxes stand, whoever relays them.
#[derive(Debug, Clone, Default)]
pub(super) struct Backlogs {
    shard_rows: Family<ShardLabels, Gauge>,
    shard_oldest: Family<ShardLabels, Gauge<f64, AtomicU64>>,
    rows: Family<OutboxLabels, Gauge>,
    oldest: Family<OutboxLabels, Gauge<f64, AtomicU64>>,
    exceptions: Family<OutboxLabels, Gauge>,
    orphans: Family<OutboxLabels, Gauge>,
    partitions: Family<StoreLabels, Gauge>,
    partitions_ahead: Family<StoreLabels, Gauge>,
    partition_oldest: Family<StoreLabels, Gauge<f64, AtomicU64>>,
    partition_waits: Family<StoreLabels, Gauge>,
}

impl Backlogs {
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Events of a shard that wait to be published; counted up to 10000";
        registry.register("outbox_shard_rows", help, self.shard_rows.clone());
        let help = "Age of the oldest event of a shard that waits; 0 when none does";
        registry.register_with_unit(
            "outbox_shard_oldest",
            help,
            Unit::Seconds,
            self.shard_oldest.clone(),
        );
        let help = "Events that wait to be published; counted up to 10000 for each shard";
        registry.register("outbox_rows", help, self.rows.clone());
        let help = "Age of the oldest event that waits";
        registry.register_with_unit("outbox_oldest", help, Unit::Seconds, self.oldest.clone());
        let help = "Events in the exceptions table";
        registry.register("outbox_exceptions", help, self.exceptions.clone());
        let help = "1 for a stream that events name and nobody publishes";
        registry.register("outbox_orphan_stream", help, self.orphans.clone());
        let help = "Partitions of an outbox that is in partitions";
        registry.register("outbox_partitions", help, self.partitions.clone());
        let help = "Partitions whose time has not begun yet";
        registry.register("outbox_partitions_ahead", help, self.partitions_ahead.clone());
        let help = "For how long the time of the oldest partition is over";
        let oldest = self.partition_oldest.clone();
        registry.register_with_unit("outbox_partition_oldest", help, Unit::Seconds, oldest);
        let help = "Sessions and transactions that delay the drop of a partition";
        registry.register("outbox_partition_waits", help, self.partition_waits.clone());
    }

    pub(super) fn set_partitions(&self, store: &str, found: &Partitions) {
        let labels = StoreLabels {
            store: store.to_owned(),
        };
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.partitions
            .get_or_create(&labels)
            .set(gauge(found.parts.len()));
        self.partitions_ahead
            .get_or_create(&labels)
            .set(gauge(found.ahead()));
        self.partition_oldest
            .get_or_create(&labels)
            .set(found.oldest_ms() as f64 / 1_000.0);
        self.partition_waits
            .get_or_create(&labels)
            .set(gauge(found.waits.len()));
    }

    pub(super) fn set(&self, store: &str, backlog: &Backlog) {
        let mut streams: BTreeMap<&str, (u64, i64, u64)> = BTreeMap::new();
        for shard in &backlog.shards {
            let (rows, oldest, exceptions) = streams.entry(&shard.shard.stream).or_default();
            *rows += shard.rows;
            *oldest = (*oldest).max(shard.oldest_ms.unwrap_or(0));
            *exceptions += shard.exceptions;
            let labels = ShardLabels {
                store: store.to_owned(),
                stream: shard.shard.stream.clone(),
                shard: shard.shard.index,
            };
            let count = i64::try_from(shard.rows).unwrap_or(i64::MAX);
            self.shard_rows.get_or_create(&labels).set(count);
            let oldest = shard.oldest_ms.unwrap_or(0) as f64 / 1_000.0;
            self.shard_oldest.get_or_create(&labels).set(oldest);
        }
        let labels = |stream: &str| OutboxLabels {
            store: store.to_owned(),
            stream: stream.to_owned(),
        };
        let gauge = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        for (stream, (rows, oldest, exceptions)) in streams {
            self.rows.get_or_create(&labels(stream)).set(gauge(rows));
            self.oldest
                .get_or_create(&labels(stream))
                .set(oldest as f64 / 1_000.0);
            self.exceptions
                .get_or_create(&labels(stream))
                .set(gauge(exceptions));
            self.orphans.remove(&labels(stream));
        }
        for stream in &backlog.orphan_streams {
            self.orphans.get_or_create(&labels(stream)).set(1);
        }
    }
}
