//! `[destinations]`: what the webhooks of all relays ask of one host.

use semel_client::DestinationPolicy;

use super::read::Table;
use super::spec::{Section, field};

/// `[destinations]`.
pub(crate) const DESTINATIONS: Section = Section {
    header: "[destinations]",
    about: "What the webhooks of all relays together ask of one host (`host:port`). After `failures_max` failures in a \
            row (no answer, 408, 429, 5xx) a host is left alone for a pause that doubles up to `pause_ms_max`, but for \
            one event that tries at its end.",
    fields: &[
        field(
            "concurrency_max",
            "number",
            "256",
            "requests on their way to one host at most",
        ),
        field(
            "failures_max",
            "number",
            "20",
            "failures in a row after which a host is left alone",
        ),
        field("pause_ms_initial", "ms", "500", "the first pause"),
        field("pause_ms_max", "ms", "5000", "the longest pause"),
    ],
};

/// Reads it.
pub(crate) fn read(table: &Table<'_>) -> DestinationPolicy {
    let mut policy = DestinationPolicy::default();
    if let Some(number) = table.number("concurrency_max", 1..=100_000) {
        policy.concurrency_max = usize::try_from(number).unwrap_or(usize::MAX);
    }
    if let Some(number) = table.number("failures_max", 1..=1_000_000) {
        policy.breaker.failures_max = u32::try_from(number).unwrap_or(u32::MAX);
    }
    let wait = |name| table.number(name, 1..=86_400_000);
    let pause = &mut policy.breaker.pause;
    pause.initial_ms = wait("pause_ms_initial").unwrap_or(pause.initial_ms);
    pause.cap_ms = wait("pause_ms_max").unwrap_or(pause.cap_ms);
    policy
}
