//! `sink.kafka.tls` and `sink.kafka.sasl`: how a relay comes to the brokers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::config::read::Table;
use crate::config::server::Secret;
use crate::config::spec::{Section, field, required, secret};

/// `sink.kafka.tls`.
pub(crate) const TLS: Section = Section {
    header: "sink.kafka.tls",
    about: "Encrypts the way to the brokers, and checks their certificates with the names in them. In a build with \
            `--features kafka-tls`. The files are read for each client that is made.",
    fields: &[
        field(
            "ca_file",
            "path",
            "the machine's authorities",
            "a file of certificates to trust, in PEM, instead of the machine's",
        ),
        field(
            "cert_file",
            "path",
            "none",
            "what the relay shows to brokers that ask for it: its certificate, and those between it and the authority behind \
             it, in PEM; needs `key_file`",
        ),
        field(
            "key_file",
            "path",
            "none",
            "the key of `cert_file`, in PEM, without a password",
        ),
    ],
};

/// `sink.kafka.sasl`.
pub(crate) const SASL: Section = Section {
    header: "sink.kafka.sasl",
    about: "Who the relay is. `PLAIN` sends the password itself: add `tls`.",
    fields: &[
        required(
            "mechanism",
            "word",
            "`SCRAM-SHA-512`, `SCRAM-SHA-256` (both in a build with `--features kafka-tls`) or `PLAIN`",
        ),
        required("user", "text", "name of the user"),
        secret(required(
            "password",
            "text",
            "the user's password, such as `\"${KAFKA_PASSWORD}\"`",
        )),
    ],
};

/// How a relay comes to the brokers.
#[derive(Debug, Clone, Default)]
#[cfg_attr(
    not(feature = "kafka"),
    expect(dead_code, reason = "read and checked by every build, used by one with Kafka")
)]
pub(crate) struct KafkaAccess {
    /// Encrypted.
    pub(crate) tls: Option<Tls>,
    /// Under a name.
    pub(crate) sasl: Option<Sasl>,
}

/// `sink.kafka.tls`.
#[derive(Debug, Clone)]
#[cfg_attr(
    not(feature = "kafka"),
    expect(dead_code, reason = "read and checked by every build, used by one with Kafka")
)]
pub(crate) struct Tls {
    /// Authorities to trust.
    pub(crate) ca_file: Option<PathBuf>,
    /// The client's certificate and its key.
    pub(crate) client: Option<(PathBuf, PathBuf)>,
}

/// `sink.kafka.sasl`.
#[derive(Debug, Clone)]
#[cfg_attr(
    not(feature = "kafka"),
    expect(dead_code, reason = "read and checked by every build, used by one with Kafka")
)]
pub(crate) struct Sasl {
    /// How the password is proved.
    pub(crate) mechanism: Mechanism,
    /// The user.
    pub(crate) user: String,
    /// The user's password.
    pub(crate) password: Secret,
}

/// How a password is proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mechanism {
    /// By itself.
    Plain,
    /// `SCRAM-SHA-256`.
    ScramSha256,
    /// `SCRAM-SHA-512`.
    ScramSha512,
}

const MECHANISMS: &[(&str, Mechanism)] = &[
    ("SCRAM-SHA-512", Mechanism::ScramSha512),
    ("SCRAM-SHA-256", Mechanism::ScramSha256),
    ("PLAIN", Mechanism::Plain),
];

/// Reads both tables of `sink.kafka`.
pub(super) fn read(kafka: &Table<'_>, properties: &BTreeMap<String, String>) -> KafkaAccess {
    let tls = kafka.table("tls", &TLS).map(|table| read_tls(&table));
    let sasl = kafka.table("sasl", &SASL).and_then(|table| {
        let sasl = read_sasl(&table)?;
        if sasl.mechanism == Mechanism::Plain && tls.is_none() {
            let fix = "add tls = {}, or take SCRAM-SHA-512";
            table.doubt(
                table.span(),
                "everybody on the way to the brokers can read the password",
                fix,
            );
        }
        Some(sasl)
    });
    let access = KafkaAccess { tls, sasl };
    #[cfg(feature = "kafka")]
    if let Err(error) = access.to_kafka().check(properties) {
        let fix = match error.code() {
            semel_kafka::TLS_MISSING => "build it with: cargo build --release --features kafka-tls",
            _ => "mend tls, sasl or properties",
        };
        kafka.mistake(kafka.span(), semel_core::error::chain(&error), fix);
    }
    #[cfg(not(feature = "kafka"))]
    let _ = properties;
    access
}

fn read_tls(table: &Table<'_>) -> Tls {
    let path = |name| table.text(name).map(|text| PathBuf::from(text.value));
    if table.has("cert_file") != table.has("key_file") {
        let fix = "write both, or neither";
        table.mistake(table.span(), "`cert_file` and `key_file` belong together", fix);
    }
    Tls {
        ca_file: path("ca_file"),
        client: path("cert_file").zip(path("key_file")),
    }
}

fn read_sasl(table: &Table<'_>) -> Option<Sasl> {
    table.require("mechanism", "\"SCRAM-SHA-512\"");
    table.require("user", "\"shop\"");
    table.require("password", "\"${KAFKA_PASSWORD}\"");
    let (mechanism, user) = (table.word("mechanism", MECHANISMS), table.text("user"));
    let password = table.text("password");
    Some(Sasl {
        mechanism: mechanism?,
        user: user?.value,
        password: Secret::new(password?.value),
    })
}

#[cfg(feature = "kafka")]
impl KafkaAccess {
    /// The same for a client.
    pub(crate) fn to_kafka(&self) -> semel_kafka::KafkaAccess {
        use semel_kafka::SaslMechanism;
        let tls = self.tls.as_ref().map(|tls| semel_kafka::KafkaTls {
            ca_file: tls.ca_file.clone(),
            client: tls
                .client
                .clone()
                .map(|(cert_file, key_file)| semel_kafka::KafkaCertificate { cert_file, key_file }),
        });
        let sasl = self.sasl.as_ref().map(|sasl| semel_kafka::KafkaSasl {
            mechanism: match sasl.mechanism {
                Mechanism::Plain => SaslMechanism::Plain,
                Mechanism::ScramSha256 => SaslMechanism::ScramSha256,
                Mechanism::ScramSha512 => SaslMechanism::ScramSha512,
            },
            user: sasl.user.clone(),
            password: sasl.password.reveal().to_owned(),
        });
        semel_kafka::KafkaAccess { tls, sasl }
    }
}
