//! `[[relay]]`: from an outbox to a sink.

use super::read::Table;
use super::sink::{self, SinkConfig};
use super::spec::{Section, field, required};

/// `[[relay]]`.
pub(crate) const RELAY: Section = Section {
    header: "[[relay]]",
    about: "Publishes the events of an outbox. One table per destination.",
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
        required(
            "sink",
            "table",
            "where events go: `{ webhook = { … } }` or `{ kafka = { … } }`",
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
    /// Where events go.
    pub(crate) sink: SinkConfig,
}

/// Reads one `[[relay]]`.
pub(crate) fn read(table: &Table<'_>) -> Option<RelayConfig> {
    let name = table.name();
    let store = table.store();
    let streams = table.texts("streams");
    if streams.as_ref().is_some_and(Vec::is_empty) {
        table.mistake(
            table.span(),
            "`streams` is an empty list",
            "name a stream, or leave the line out",
        );
    }
    table.require("sink", "{ webhook = { url = \"http://…\" } }");
    let sink = table
        .table("sink", &sink::SINK)
        .and_then(|table| sink::read(&table));
    Some(RelayConfig {
        name: name?,
        store: store?,
        streams: streams.map_or_else(
            || vec!["default".to_owned()],
            |list| list.into_iter().map(|at| at.value).collect(),
        ),
        sink: sink?,
    })
}
