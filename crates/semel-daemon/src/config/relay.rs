//! `[[relay]]`: from an outbox to a sink.

use std::ops::RangeInclusive;
use std::time::Duration;

use semel_core::mapping::Mapping;
use semel_core::relay::{Poison, REPLAY_PER_SECOND_MAX, RelayPolicy};
use semel_core::store::{SHARDS_MAX, StreamLimit};
use semel_outbox::Delayed;

use super::read::{At, Table};
use super::sink::{self, SinkConfig};
use super::spec::{Section, field, required, secret};

/// `[[relay]]`.
pub(crate) const RELAY: Section = Section {
    header: "[[relay]]",
    about: "Publishes the events of an outbox: at least once, with the same id every time, in order per key.",
    fields: &[
        required("name", "name", "how logs, metrics and `/readyz` call it"),
        field(
            "store",
            "name of a store",
            "the one in `[store]`",
            "whose outbox it reads",
        ),
        field(
            "streams",
            "list of texts",
            "`[\"default\"]`",
            "the streams it publishes, as named at enqueue",
        ),
        field(
            "shards",
            "number",
            "1 for SQLite, 4 for PostgreSQL, MariaDB and MySQL",
            "parts of a stream that different processes can own; another number changes the stream while its relays run",
        ),
        required(
            "sink",
            "table",
            "where events go: `{ webhook = { … } }`, or `kafka`, `redis`, `rabbitmq`, `nats`",
        ),
        field(
            "topic",
            "text",
            "`{topic}`",
            "the topic that events are sent to: a template in which `{topic}` is the one that the event names",
        ),
        field(
            "topics",
            "table of texts",
            "none",
            "the topic for events of some topics, such as `{ orders = \"shop-orders-v2\" }`; goes before `topic`",
        ),
        field(
            "headers_drop",
            "list of texts",
            "none",
            "headers of events that are not sent, in any case of letters",
        ),
        secret(field(
            "headers_add",
            "table of texts",
            "none",
            "headers that every event gets behind its own; drop the same name to replace it",
        )),
        field(
            "cloudevents",
            "word",
            "`binary`",
            "`binary` sends data as it was written and its attributes as headers; `structured` sends both as one JSON \
             document (`application/cloudevents+json`), a tombstone excepted",
        ),
        field(
            "poison",
            "word",
            "`block`",
            "what becomes of an event that the receiver refuses again and again: `block` stops its shard, `park_key` \
             sets it and the later events of its key aside, `skip` sets it alone aside",
        ),
        field(
            "attempts_max",
            "number",
            "5",
            "refusals of one event before it is poison, however long they take",
        ),
        field(
            "retry_initial_ms",
            "ms",
            "100",
            "the wait after the first refusal; each next one is twice as long",
        ),
        field(
            "retry_cap_ms",
            "ms",
            "30000",
            "the longest wait between two attempts, or while a receiver is away",
        ),
        field("send_timeout_ms", "ms", "10000", "how long one delivery may take"),
        field(
            "lease_ms",
            "ms",
            "15000",
            "how long a dead process keeps its shards from the others",
        ),
        field(
            "idle_max_ms",
            "ms",
            "100",
            "the longest wait between two looks into an empty outbox",
        ),
        field(
            "window_rows",
            "number",
            "8000 (Kafka's transactional mode: 4 × `transaction_rows_max`)",
            "events held in memory at most, shared by the shards that the process owns (500 each at least; in transactions each has all)",
        ),
        field(
            "window_bytes_max",
            "bytes",
            "33554432",
            "bytes of events held in memory, shared in the same way (1 MiB each at least)",
        ),
        field(
            "keep_ms",
            "ms",
            "3600000",
            "how long published events stay in the outbox",
        ),
        field(
            "delayed_every_ms",
            "ms",
            "500",
            "how often to look for delayed events whose time has come, at the latest: so much later they may come",
        ),
        field(
            "delayed_rows_max",
            "number",
            "500",
            "delayed events moved into the outbox in one transaction at most",
        ),
        field(
            "replay_per_second",
            "number",
            "1000",
            "events of a replay with the same ids that a shard sends in a second at most, so that live ones are not pushed aside; \
             `0` is no bound",
        ),
        field(
            "backlog_rows_max",
            "number",
            "what is set stays; at first, no limit",
            "events that may wait in each stream before more are refused at enqueue (SEM0260), counted once a second; `0` lifts \
             the limit",
        ),
        field(
            "backlog_age_max_ms",
            "ms",
            "what is set stays; at first, no limit",
            "how long the oldest event of a stream may wait before more are refused at enqueue (SEM0260); `0` lifts the limit. \
             Where one of the two is written, the one that is not is lifted",
        ),
    ],
};

/// One relay.
#[derive(Debug, Clone)]
pub(crate) struct RelayConfig {
    /// Its name.
    pub(crate) name: String,
    /// Its store's name.
    pub(crate) store: String,
    /// The streams it publishes.
    pub(crate) streams: Vec<String>,
    /// Shards of each, when the file says.
    pub(crate) shards: Option<u16>,
    /// Where events go.
    pub(crate) sink: SinkConfig,
    /// What is changed about events before they are sent.
    pub(crate) mapping: Mapping,
    /// The numbers of the machine.
    pub(crate) policy: RelayPolicy,
    /// How long a dead owner blocks its shards.
    pub(crate) lease: Duration,
    /// How long published events stay.
    pub(crate) keep: Duration,
    /// How delayed events are moved.
    pub(crate) delayed: Delayed,
    /// What may wait in each stream, when the file says.
    pub(crate) limit: Option<StreamLimit>,
}

/// Milliseconds of waits: up to a day.
const WAIT: RangeInclusive<u64> = 1..=86_400_000;

/// Reads one `[[relay]]`.
pub(crate) fn read(table: &Table<'_>) -> Option<RelayConfig> {
    let name = table.name();
    let store = table.outbox_store();
    let streams = streams(table);
    table.require("sink", "{ webhook = { url = \"http://…\" } }");
    let sink = table
        .table("sink", &sink::SINK)
        .and_then(|table| sink::read(&table));
    let shards = table.number("shards", 1..=u64::from(SHARDS_MAX));
    let lease = table.number("lease_ms", 1_000..=3_600_000).unwrap_or(15_000);
    let keep = table.number("keep_ms", 0..=31_536_000_000).unwrap_or(3_600_000);
    let limit = limit(table);
    let mapping = mapping(table);
    let mut policy = policy(table);
    if let Some(rows_max) = sink.as_ref().and_then(SinkConfig::transaction_rows)
        && !table.has("window_rows")
    {
        // Two transactions on their way, and as much being read meanwhile.
        policy.window_rows = (rows_max * 4).clamp(policy.window_rows, 100_000);
    }
    if policy.send_timeout_ms >= lease {
        table.mistake(
            table.span(),
            "`send_timeout_ms` is not below `lease_ms`: a delivery could outlast the right to make it",
            "raise lease_ms, or lower send_timeout_ms",
        );
    }
    Some(RelayConfig {
        name: name?,
        store: store?,
        streams: streams?,
        shards: shards.and_then(|n| u16::try_from(n).ok()),
        sink: sink?,
        mapping,
        policy,
        lease: Duration::from_millis(lease),
        keep: Duration::from_millis(keep),
        delayed: delayed(table),
        limit,
    })
}

fn streams(table: &Table<'_>) -> Option<Vec<String>> {
    let streams = if table.has("streams") {
        table.texts("streams")?
    } else {
        let default = At {
            value: "default".to_owned(),
            span: table.span(),
        };
        vec![default]
    };
    if streams.is_empty() {
        table.mistake(
            table.span(),
            "`streams` is an empty list",
            "name a stream, or leave the line out",
        );
    }
    for stream in &streams {
        if let Err(limit) = semel_core::store::check_stream(&stream.value, 1) {
            table.mistake(
                stream.span.clone(),
                limit.to_string(),
                "name streams as they are named at enqueue",
            );
        }
        table.claim_stream(stream);
    }
    Some(streams.into_iter().map(|at| at.value).collect())
}

fn delayed(table: &Table<'_>) -> Delayed {
    let default = Delayed::default();
    let every = table.number("delayed_every_ms", 1..=3_600_000);
    let rows = table.number("delayed_rows_max", 1..=100_000);
    Delayed {
        every: every.map_or(default.every, Duration::from_millis),
        rows_max: rows
            .and_then(|rows| u32::try_from(rows).ok())
            .unwrap_or(default.rows_max),
    }
}

fn limit(table: &Table<'_>) -> Option<StreamLimit> {
    let rows = table.number("backlog_rows_max", 0..=StreamLimit::ROWS_MAX);
    let age = table.number("backlog_age_max_ms", 0..=StreamLimit::AGE_MS_MAX.unsigned_abs());
    (rows.is_some() || age.is_some()).then(|| StreamLimit {
        rows_max: rows.filter(|rows| *rows > 0),
        age_max_ms: age.filter(|age| *age > 0).and_then(|age| i64::try_from(age).ok()),
    })
}

fn mapping(table: &Table<'_>) -> Mapping {
    let modes = [("binary", false), ("structured", true)];
    let topic = table.text("topic");
    let dropped = table.texts("headers_drop").unwrap_or_default();
    let mapping = Mapping {
        topics: table.properties("topics"),
        topic: topic.map(|at| at.value),
        headers_drop: dropped.into_iter().map(|at| at.value).collect(),
        headers_add: table
            .properties("headers_add")
            .into_iter()
            .map(|(name, value)| (name, value.into()))
            .collect(),
        structured: table.word("cloudevents", &modes).unwrap_or(false),
    };
    if let Err(limit) = mapping.check() {
        table.mistake(
            table.span(),
            format!("`topic`, `topics` or `headers_add`: {limit}"),
            "use what every sink can send",
        );
    }
    mapping
}

fn policy(table: &Table<'_>) -> RelayPolicy {
    let mut policy = RelayPolicy::default();
    let words = [
        ("block", Poison::Block),
        ("park_key", Poison::ParkKey),
        ("skip", Poison::Skip),
    ];
    policy.poison = table.word("poison", &words).unwrap_or(policy.poison);
    let set = |name, range, value: &mut u64| *value = table.number(name, range).unwrap_or(*value);
    set("retry_initial_ms", WAIT, &mut policy.retry.initial_ms);
    set("retry_cap_ms", WAIT, &mut policy.retry.cap_ms);
    policy.away.cap_ms = policy.retry.cap_ms;
    set("send_timeout_ms", 1..=3_600_000, &mut policy.send_timeout_ms);
    set("idle_max_ms", WAIT, &mut policy.idle_max_ms);
    set("window_bytes_max", 1..=1 << 32, &mut policy.window_bytes);
    if let Some(attempts) = table.number("attempts_max", 1..=1_000_000) {
        policy.retry.attempts_max = u32::try_from(attempts).unwrap_or(u32::MAX);
    }
    if let Some(rate) = table.number("replay_per_second", 0..=u64::from(REPLAY_PER_SECOND_MAX)) {
        policy.replay_per_second = u32::try_from(rate).unwrap_or(u32::MAX);
    }
    // The number of refusals decides, however long they take: a receiver that is away between two of them is no refusal.
    policy.retry.total_ms_max = u64::MAX;
    if let Some(rows) = table.number("window_rows", 1..=100_000) {
        policy.window_rows = usize::try_from(rows).unwrap_or(usize::MAX);
        policy.page_rows = policy.page_rows.min(u32::try_from(rows).unwrap_or(u32::MAX));
    }
    policy.page_bytes = policy.page_bytes.min(policy.window_bytes);
    policy
}
