//! Where a relay's events go.

use super::read::Table;
use super::spec::{Section, field, required};

/// `sink` of a relay.
pub(crate) const SINK: Section = Section {
    header: "sink",
    about: "Exactly one of these.",
    fields: &[
        field("webhook", "table", "", "HTTP POST with CloudEvents headers"),
        field(
            "kafka",
            "table",
            "",
            "Kafka; needs a build with `--features kafka`",
        ),
    ],
};

/// `sink.webhook`.
pub(crate) const WEBHOOK: Section = Section {
    header: "sink.webhook",
    about: "Each event is one POST, repeated with the same `Idempotency-Key` until the receiver has it.",
    fields: &[required("url", "http URL", "where events are posted")],
};

/// `sink.kafka`.
pub(crate) const KAFKA: Section = Section {
    header: "sink.kafka",
    about: "Each event goes to the Kafka topic that it names, by an idempotent producer with `acks=all`.",
    fields: &[required(
        "brokers",
        "list of texts",
        "`host:port` of some brokers of the cluster",
    )],
};

/// Where events go.
#[derive(Debug, Clone)]
pub(crate) enum SinkConfig {
    /// HTTP.
    Webhook {
        /// Where events are posted.
        url: http::Uri,
    },
    /// Kafka.
    Kafka {
        /// Some brokers of the cluster.
        brokers: Vec<String>,
    },
}

/// Reads a sink.
pub(crate) fn read(table: &Table<'_>) -> Option<SinkConfig> {
    let webhook = table.table("webhook", &WEBHOOK);
    let kafka = table.table("kafka", &KAFKA);
    if table.has("webhook") && table.has("kafka") {
        let fix = "keep one; a second [[relay]] can serve the other";
        table.mistake(table.span(), "a sink is either webhook or kafka", fix);
    } else if !table.has("webhook") && !table.has("kafka") {
        let fix = "write sink = { webhook = { url = \"http://…\" } }";
        table.mistake(table.span(), "the sink says neither webhook nor kafka", fix);
    }
    let webhook = webhook.map(|table| {
        table.require("url", "\"http://127.0.0.1:8080/events\"");
        Some(SinkConfig::Webhook {
            url: table.http_url("url")?.value,
        })
    });
    let kafka = kafka.map(|table| {
        table.require("brokers", "[\"127.0.0.1:9092\"]");
        let brokers = table.texts("brokers");
        if !cfg!(feature = "kafka") {
            let fix = "build it with: cargo build --release --features kafka";
            table.mistake(table.span(), "this build of semel has no Kafka", fix);
        }
        Some(SinkConfig::Kafka {
            brokers: brokers?.into_iter().map(|at| at.value).collect(),
        })
    });
    webhook.or(kafka)?
}
