//! Kafka with listeners that are encrypted or ask who comes, beside the open one.

use std::fs;
use std::path::Path;

use super::guard::free_port;
use super::kafka::{KafkaServer, Listeners};

/// What the guarded listeners show and want.
#[derive(Debug, Clone)]
pub struct KafkaGuards {
    /// The broker's certificate, in PEM.
    pub certificate_pem: String,
    /// Its key, PKCS #8 in PEM.
    pub key_pem: String,
    /// The authority of the clients' certificates, in PEM.
    pub clients_ca_pem: String,
    /// The one user.
    pub user: String,
    /// The user's password: no quotes, no backslashes.
    pub password: String,
}

/// A Kafka node with three guarded listeners. Its own port stays open, for the tests' own questions.
#[derive(Debug)]
pub struct GuardedKafka {
    /// The node.
    pub server: KafkaServer,
    /// Port that speaks TLS and wants a client's certificate.
    pub tls: u16,
    /// Port that speaks TLS and wants a user, by `SCRAM-SHA-512` or `PLAIN`.
    pub sasl_tls: u16,
    /// Port that wants a user by `PLAIN` and is not encrypted.
    pub sasl: u16,
}

impl GuardedKafka {
    /// Starts a node of one's own.
    ///
    /// # Panics
    /// As [`KafkaServer::start`].
    #[must_use]
    pub fn start(guards: &KafkaGuards) -> Self {
        let [tls, sasl_tls, sasl] = [free_port(), free_port(), free_port()];
        let more = Listeners {
            ports: vec![("SSL", tls), ("SASL_SSL", sasl_tls), ("SASL_PLAINTEXT", sasl)],
            properties: Some(&|root| properties(root, guards)),
            format: vec![
                "--add-scram".to_owned(),
                // As few iterations as there may be.
                format!(
                    "SCRAM-SHA-512=[name={},password={},iterations=4096]",
                    guards.user, guards.password
                ),
            ],
        };
        Self {
            server: KafkaServer::start_with(None, &more),
            tls,
            sasl_tls,
            sasl,
        }
    }

    /// A folder for what goes with it, such as its clients' certificates: it goes when the node does, also in a static that is never
    /// dropped.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.server.folder()
    }
}

fn properties(root: &Path, guards: &KafkaGuards) -> String {
    let write = |name: &str, text: &str| {
        let path = root.join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let own = write(
        "server.pem",
        &format!("{}{}", guards.key_pem, guards.certificate_pem),
    );
    let clients = write("clients.pem", &guards.clients_ca_pem);
    let security = "org.apache.kafka.common.security";
    let plain = format!(
        "plain.sasl.jaas.config={security}.plain.PlainLoginModule required user_{}=\"{}\";",
        guards.user, guards.password
    );
    format!(
        "ssl.keystore.type=PEM\n\
         ssl.keystore.location={own}\n\
         ssl.truststore.type=PEM\n\
         ssl.truststore.location={clients}\n\
         listener.name.ssl.ssl.client.auth=required\n\
         listener.name.sasl_ssl.sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN\n\
         listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={security}.scram.ScramLoginModule required;\n\
         listener.name.sasl_ssl.{plain}\n\
         listener.name.sasl_plaintext.sasl.enabled.mechanisms=PLAIN\n\
         listener.name.sasl_plaintext.{plain}\n"
    )
}
