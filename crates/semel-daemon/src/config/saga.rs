//! `[saga]`: the coordinator.

use std::time::Duration;

use super::read::Table;
use super::spec::{Section, field};

/// Sagas that one process works on at a time: 1 to this many.
pub(crate) const CONCURRENCY_MAX: u64 = 10_000;

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
            "64",
            "sagas that this process works on at a time",
        ),
        field(
            "lease_ms",
            "ms",
            "10000",
            "how long a dead process keeps its sagas from the others",
        ),
        field(
            "poll_ms",
            "ms",
            "500",
            "how often a process looks for sagas that nobody works on",
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
    /// How long a dead process keeps its sagas.
    pub(crate) lease: Duration,
    /// How often to look for sagas that are due.
    pub(crate) poll: Duration,
    /// What steps may call; empty for anything.
    pub(crate) participants: Vec<String>,
}

/// Reads `[saga]`; `None` when it is switched off.
pub(crate) fn read(table: &Table<'_>) -> Option<SagaConfig> {
    let enabled = table.boolean("enabled").unwrap_or(true);
    let store = table.store();
    let concurrency = table.number("concurrency", 1..=CONCURRENCY_MAX);
    let lease = table.number("lease_ms", 1_000..=3_600_000).unwrap_or(10_000);
    let poll = table.number("poll_ms", 1..=60_000).unwrap_or(500);
    let participants = table.texts("participants").unwrap_or_default();
    for url in &participants {
        if !url.value.starts_with("http://") && !url.value.starts_with("https://") {
            let fix = "write them like \"http://127.0.0.1:9001\"";
            table.mistake(url.span.clone(), "this participant is no http URL", fix);
        }
    }
    enabled.then_some(SagaConfig {
        store: store?,
        concurrency: concurrency.map_or(64, |n| usize::try_from(n).unwrap_or(usize::MAX)),
        lease: Duration::from_millis(lease),
        poll: Duration::from_millis(poll),
        participants: participants.into_iter().map(|at| at.value).collect(),
    })
}
