//! `[saga]`: the coordinator.

use std::time::Duration;

use semel_core::limits::RETENTION_MS_MAX;

use super::read::Table;
use super::spec::{Section, field};

/// Sagas that one process works on at a time: 1 to this many.
pub(crate) const CONCURRENCY_MAX: u64 = 1_000_000;

/// `[saga]`.
pub(crate) const SAGA: Section = Section {
    header: "[saga]",
    about: "The saga coordinator and its API on the daemon's own address.",
    fields: &[
        field(
            "enabled",
            "true or false",
            "`true` where the section is there",
            "whether it runs",
        ),
        field(
            "store",
            "name of a store",
            "the one in `[store]`",
            "where sagas live",
        ),
        field(
            "concurrency",
            "number",
            "2000",
            "sagas that this process works on at a time; more are left to other processes, or wait",
        ),
        field(
            "per_destination_max",
            "number",
            "32",
            "calls at a time to one host, shared by all sagas",
        ),
        field(
            "lease_ms",
            "ms",
            "10000",
            "how long the sagas of a dead process wait for another one",
        ),
        field(
            "poll_ms",
            "ms",
            "500",
            "how often sagas are looked for that other processes submitted or left behind",
        ),
        field(
            "retention_ms",
            "ms",
            "2592000000",
            "how long an ended saga is kept whole (30 days)",
        ),
        field(
            "tombstone_ms",
            "ms",
            "31536000000",
            "how long its id is remembered after that (a year); later it could run again",
        ),
        field(
            "participants",
            "list of http URLs",
            "any",
            "what steps may call: these URLs and what is below them; a definition that calls another is refused",
        ),
    ],
};

/// The coordinator.
#[derive(Debug, Clone)]
pub(crate) struct SagaConfig {
    /// Its store's name.
    pub(crate) store: String,
    /// Sagas worked on at a time.
    pub(crate) concurrency: usize,
    /// Calls at a time to one host.
    pub(crate) per_destination_max: usize,
    /// How long a dead coordinator's sagas wait.
    pub(crate) lease: Duration,
    /// How often due sagas are looked for.
    pub(crate) poll: Duration,
    /// How long an ended saga is kept.
    pub(crate) retention_ms: i64,
    /// How long its id is remembered after that.
    pub(crate) tombstone_ms: i64,
    /// What steps may call; empty for anything.
    pub(crate) participants: Vec<String>,
}

/// Reads `[saga]`; `None` when it is switched off.
pub(crate) fn read(table: &Table<'_>) -> Option<SagaConfig> {
    let enabled = table.boolean("enabled").unwrap_or(true);
    let store = table.saga_store();
    let size = |name, max, default| {
        let number = table.number(name, 1..=max).unwrap_or(default);
        usize::try_from(number).unwrap_or(usize::MAX)
    };
    let ms = |name, range, default| table.number(name, range).unwrap_or(default);
    let kept = |name, default| {
        let max = RETENTION_MS_MAX.unsigned_abs();
        i64::try_from(ms(name, 0..=max, default)).unwrap_or(RETENTION_MS_MAX)
    };
    let concurrency = size("concurrency", CONCURRENCY_MAX, 2_000);
    let per_destination_max = size("per_destination_max", 100_000, 32);
    let lease = Duration::from_millis(ms("lease_ms", 100..=86_400_000, 10_000));
    let poll = Duration::from_millis(ms("poll_ms", 1..=3_600_000, 500));
    let (retention_ms, tombstone_ms) = (
        kept("retention_ms", 30 * 86_400_000),
        kept("tombstone_ms", 365 * 86_400_000),
    );
    let participants = table.texts("participants").unwrap_or_default();
    for url in &participants {
        if !url.value.starts_with("http://") && !url.value.starts_with("https://") {
            let fix = "write them like \"http://127.0.0.1:9001\"";
            table.mistake(url.span.clone(), "this participant is no http URL", fix);
        }
    }
    enabled.then_some(SagaConfig {
        store: store?,
        concurrency,
        per_destination_max,
        lease,
        poll,
        retention_ms,
        tombstone_ms,
        participants: participants.into_iter().map(|at| at.value).collect(),
    })
}
