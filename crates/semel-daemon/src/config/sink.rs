//! Where a relay's events go.

pub(crate) mod kafka_access;
pub(crate) mod nats;
pub(crate) mod rabbitmq;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::read::Table;
use super::server::Secret;
use super::sink_redis::{self, RedisConfig};
use super::spec::{Section, field, required, secret};

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
        field("redis", "table", "", "Redis Streams"),
        field(
            "rabbitmq",
            "table",
            "",
            "RabbitMQ; needs a build with `--features rabbitmq`",
        ),
        field(
            "nats",
            "table",
            "",
            "NATS JetStream; needs a build with `--features nats`",
        ),
    ],
};

/// `sink.webhook`.
pub(crate) const WEBHOOK: Section = Section {
    header: "sink.webhook",
    about: "Each event is one POST, repeated with the same `Idempotency-Key` until the receiver has it.",
    fields: &[
        required("url", "http URL", "where events are posted"),
        field(
            "topic_in_path",
            "true or false",
            "`false`",
            "whether the event's topic is added to the path: `URL/TOPIC`",
        ),
        secret(field(
            "headers",
            "table of texts",
            "none",
            "headers added to every request, such as `authorization = \"Bearer ${SHOP_TOKEN}\"`; none that the sink or HTTP sets",
        )),
        field(
            "in_flight_max",
            "number",
            "64",
            "requests on their way at most, for each shard",
        ),
        field("connect_timeout_ms", "ms", "3000", "how long connecting may take"),
        secret(field(
            "secrets",
            "list of texts",
            "none: nothing is signed",
            "secrets to sign with (Standard Webhooks), such as `[\"${SHIPPING_SECRET}\"]`: `whsec_` and the base64 of 24 to 64 \
             random bytes; two while one is being replaced",
        )),
        field(
            "allow_private",
            "true or false",
            "`true`",
            "whether addresses that are not public may be posted to; `false` refuses them when connecting, whatever the \
             host's name says: for URLs that come from somebody else",
        ),
    ],
};

/// `sink.kafka`.
pub(crate) const KAFKA: Section = Section {
    header: "sink.kafka",
    about: "Each event goes to the Kafka topic that it names, with `acks=all`: by an idempotent producer, or in Kafka \
            transactions that hold the relay's cursor too, so that the event is there exactly once for readers with \
            `isolation.level=read_committed`.",
    fields: &[
        required(
            "brokers",
            "list of texts",
            "`host:port` of some brokers of the cluster",
        ),
        field(
            "mode",
            "word",
            "`idempotent`",
            "`idempotent`: at least once; `transactional`: exactly once into the log",
        ),
        field(
            "name",
            "name",
            "none",
            "required by `transactional`: names the outbox among all that publish into this cluster; transactional ids \
             and cursor topics begin with it",
        ),
        field(
            "cursor_topic",
            "text",
            "`semel-cursor-NAME`",
            "`transactional`: the cursor topics are called this, a dash and the stream; made when missing, `compact` only",
        ),
        field(
            "cursor_replication",
            "number",
            "the broker's default",
            "`transactional`: replication factor of a cursor topic that is made",
        ),
        field(
            "transaction_rows_max",
            "number",
            "5000",
            "`transactional`: events of one transaction at most",
        ),
        field(
            "transaction_timeout_ms",
            "ms",
            "10000",
            "`transactional`: after this long the broker ends the transaction of a relay that died",
        ),
        field(
            "linger_ms",
            "ms",
            "1 (transactional: 2)",
            "how long a record may wait to be joined by others in a batch",
        ),
        field(
            "tls",
            "table",
            "none: nothing is encrypted",
            "encrypts; `tls = {}` trusts the machine's authorities",
        ),
        field("sasl", "table", "none", "who the relay is"),
        field("in_flight_max", "number", "5000", "records on their way at most"),
        field(
            "in_flight_bytes_max",
            "bytes",
            "134217728",
            "bytes on their way at most",
        ),
        secret(field(
            "properties",
            "table of texts",
            "none",
            "further settings of librdkafka, such as `compression.type`; those that carry a guarantee are refused",
        )),
    ],
};

/// Where events go.
#[derive(Debug, Clone)]
pub(crate) enum SinkConfig {
    /// HTTP.
    Webhook(WebhookConfig),
    /// Kafka.
    Kafka(KafkaConfig),
    /// Redis Streams.
    Redis(RedisConfig),
    /// RabbitMQ.
    Rabbitmq(rabbitmq::RabbitmqConfig),
    /// NATS JetStream.
    Nats(nats::NatsConfig),
}

impl SinkConfig {
    /// Events of one transaction, where there are transactions.
    pub(crate) fn transaction_rows(&self) -> Option<usize> {
        match self {
            Self::Kafka(kafka) => kafka.transactional.as_ref().map(|it| it.rows_max),
            Self::Webhook(_) | Self::Redis(_) | Self::Rabbitmq(_) | Self::Nats(_) => None,
        }
    }
}

/// `sink.webhook`.
#[derive(Clone)]
pub(crate) struct WebhookConfig {
    /// Where events are posted.
    pub(crate) url: http::Uri,
    /// Whether the topic is added to the path.
    pub(crate) topic_in_path: bool,
    /// More headers; they may hold passwords.
    pub(crate) headers: BTreeMap<String, String>,
    /// Requests on their way.
    pub(crate) in_flight_max: usize,
    /// How long connecting may take.
    pub(crate) connect_timeout: Duration,
    /// Secrets to sign with.
    pub(crate) secrets: Vec<Secret>,
    /// Whether addresses that are not public may be posted to.
    pub(crate) allow_private: bool,
}

impl fmt::Debug for WebhookConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookConfig")
            .field("url", &semel_client::origin(&self.url))
            .finish_non_exhaustive()
    }
}

/// `sink.kafka`.
#[derive(Clone)]
#[cfg_attr(
    not(feature = "kafka"),
    expect(dead_code, reason = "read and checked by every build, used by one with Kafka")
)]
pub(crate) struct KafkaConfig {
    /// Some brokers of the cluster.
    pub(crate) brokers: Vec<String>,
    /// How long a record may wait for others.
    pub(crate) linger: Duration,
    /// Records on their way.
    pub(crate) in_flight_max: usize,
    /// Bytes on their way.
    pub(crate) in_flight_bytes_max: usize,
    /// Events and cursor in transactions of Kafka.
    pub(crate) transactional: Option<TransactionalConfig>,
    /// How to get in.
    pub(crate) access: kafka_access::KafkaAccess,
    /// Further settings; they may hold passwords.
    pub(crate) properties: BTreeMap<String, String>,
}

/// `sink.kafka` with `mode = "transactional"`.
#[derive(Debug, Clone)]
#[cfg_attr(
    not(feature = "kafka"),
    expect(dead_code, reason = "read and checked by every build, used by one with Kafka")
)]
pub(crate) struct TransactionalConfig {
    /// Names the outbox in the cluster.
    pub(crate) name: String,
    /// What the cursor topics' names begin with.
    pub(crate) cursor_topic: Option<String>,
    /// Replication factor of those that are made.
    pub(crate) cursor_replication: Option<i32>,
    /// Events of one transaction.
    pub(crate) rows_max: usize,
    /// How long the broker lets a transaction be open.
    pub(crate) timeout: Duration,
}

impl fmt::Debug for KafkaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaConfig")
            .field("brokers", &self.brokers)
            .finish_non_exhaustive()
    }
}

/// Messages on their way to a broker.
const IN_FLIGHT: RangeInclusive<u64> = 1..=100_000;
/// How long connecting may take.
const CONNECT_MS: RangeInclusive<u64> = 1..=60_000;

fn size(table: &Table<'_>, name: &'static str, range: RangeInclusive<u64>, default: usize) -> usize {
    let number = table.number(name, range);
    number.map_or(default, |number| usize::try_from(number).unwrap_or(usize::MAX))
}

/// Reads a sink.
pub(crate) fn read(table: &Table<'_>) -> Option<SinkConfig> {
    let webhook = table.table("webhook", &WEBHOOK);
    let kafka = table.table("kafka", &KAFKA);
    let redis = table.table("redis", &sink_redis::REDIS);
    let rabbitmq = table.table("rabbitmq", &rabbitmq::RABBITMQ);
    let nats = table.table("nats", &nats::NATS);
    let kinds = || SINK.fields.iter().map(|field| field.name);
    let named: Vec<_> = kinds().filter(|kind| table.has(kind)).collect();
    if named.len() > 1 {
        let message = format!("a sink is one thing, and this one is {}", named.join(" and "));
        let fix = "keep one; a second [[relay]] can serve the other";
        table.mistake(table.span(), message, fix);
    } else if named.is_empty() {
        let all = kinds().collect::<Vec<_>>().join(", ");
        let fix = "write sink = { webhook = { url = \"http://…\" } }";
        table.mistake(table.span(), format!("the sink says none of {all}"), fix);
    }
    // All that are there are read, for their mistakes.
    let read = [
        webhook.and_then(|table| read_webhook(&table)),
        kafka.and_then(|table| read_kafka(&table)),
        redis.and_then(|table| sink_redis::read(&table).map(SinkConfig::Redis)),
        rabbitmq.and_then(|table| rabbitmq::read(&table).map(SinkConfig::Rabbitmq)),
        nats.and_then(|table| nats::read(&table).map(SinkConfig::Nats)),
    ];
    read.into_iter().flatten().next()
}

fn read_kafka(table: &Table<'_>) -> Option<SinkConfig> {
    table.require("brokers", "[\"127.0.0.1:9092\"]");
    let brokers = table.texts("brokers");
    if brokers.as_ref().is_some_and(Vec::is_empty) {
        table.mistake(
            table.span(),
            "`brokers` is an empty list",
            "name a broker, such as \"127.0.0.1:9092\"",
        );
    }
    if !cfg!(feature = "kafka") {
        let fix = "build it with: cargo build --release --features kafka";
        table.mistake(table.span(), "this build of semel has no Kafka", fix);
    }
    let properties = table.properties("properties");
    let access = kafka_access::read(table, &properties);
    let mode = table.word("mode", &[("idempotent", false), ("transactional", true)]);
    let transactional = read_transactional(table, mode.unwrap_or(false));
    let linger_default = if transactional.is_some() { 0 } else { 5 };
    Some(SinkConfig::Kafka(KafkaConfig {
        linger: Duration::from_millis(table.number("linger_ms", 0..=10_000).unwrap_or(linger_default)),
        transactional,
        in_flight_max: size(table, "in_flight_max", IN_FLIGHT, 5_000),
        in_flight_bytes_max: size(table, "in_flight_bytes_max", 1..=2 << 30, 128 << 20),
        access,
        properties,
        brokers: brokers?.into_iter().map(|at| at.value).collect(),
    }))
}

/// The fields of transactional mode, which mean nothing in the other.
fn read_transactional(table: &Table<'_>, on: bool) -> Option<TransactionalConfig> {
    let rows_max = table.number("transaction_rows_max", 1..=100_000).unwrap_or(5_000);
    let timeout = table
        .number("transaction_timeout_ms", 1_000..=900_000)
        .unwrap_or(10_000);
    let replication = table.number("cursor_replication", 1..=100);
    let (name, cursor_topic) = (table.text("name"), table.text("cursor_topic"));
    if !on {
        let fields = [
            "name",
            "cursor_topic",
            "cursor_replication",
            "transaction_rows_max",
            "transaction_timeout_ms",
        ];
        for field in fields.into_iter().filter(|field| table.has(field)) {
            let what = format!("`{field}` is of transactional mode");
            table.mistake(
                table.span(),
                what,
                "add mode = \"transactional\", or take the line out",
            );
        }
        return None;
    }
    table.require("name", "\"orders\"");
    for (field, at) in [("name", &name), ("cursor_topic", &cursor_topic)] {
        if let Some(at) = at
            && let Err(limit) = semel_core::event::check_name(field, &at.value)
        {
            table.mistake(at.span.clone(), limit.to_string(), "use a-z A-Z 0-9 . _ -");
        }
    }
    Some(TransactionalConfig {
        name: name?.value,
        cursor_topic: cursor_topic.map(|at| at.value),
        cursor_replication: replication.and_then(|n| i32::try_from(n).ok()),
        rows_max: usize::try_from(rows_max).unwrap_or(usize::MAX),
        timeout: Duration::from_millis(timeout),
    })
}

fn read_webhook(table: &Table<'_>) -> Option<SinkConfig> {
    table.require("url", "\"http://127.0.0.1:8080/events\"");
    let url = table.http_url("url");
    if let Some(url) = &url
        && url
            .value
            .authority()
            .is_some_and(|authority| authority.as_str().contains('@'))
    {
        let fix =
            "take it out of the URL and write headers = { authorization = \"Basic ${NAME_AND_PASSWORD}\" }";
        table.mistake(url.span.clone(), "`url` holds a user name", fix);
    }
    let in_flight = table.number("in_flight_max", 1..=10_000).unwrap_or(64);
    let connect = table.number("connect_timeout_ms", 1..=60_000).unwrap_or(3_000);
    let topic_in_path = table.boolean("topic_in_path").unwrap_or(false);
    let secrets = table.texts("secrets").unwrap_or_default();
    for secret in &secrets {
        if semel_core::signature::Secret::parse(&secret.value).is_err() {
            let message = "a webhook secret is `whsec_` and the base64 of 24 to 64 random bytes";
            let fix = "make one with: echo whsec_$(openssl rand -base64 32)";
            table.mistake(secret.span.clone(), message, fix);
        }
    }
    let headers = table.properties("headers");
    Some(SinkConfig::Webhook(WebhookConfig {
        url: url?.value,
        topic_in_path,
        headers,
        in_flight_max: usize::try_from(in_flight).unwrap_or(usize::MAX),
        connect_timeout: Duration::from_millis(connect),
        secrets: secrets.into_iter().map(|at| Secret::new(at.value)).collect(),
        allow_private: table.boolean("allow_private").unwrap_or(true),
    }))
}
