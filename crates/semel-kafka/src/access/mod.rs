//! How a client comes to the brokers: encrypted or not, and as whom.

mod refusal;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rdkafka::ClientConfig;
use semel_core::{ErrorKind, StoreError};

pub(crate) use self::refusal::why_not;
use crate::client::canonical;

/// The code of an error for what a build with TLS would do.
pub const TLS_MISSING: &str = "SEM0303";

/// How a client comes to the brokers. By default neither encrypted nor under a name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KafkaAccess {
    /// Encrypts, and checks who the brokers are: their certificates with the names in them. For builds with the feature
    /// `tls`.
    pub tls: Option<KafkaTls>,
    /// Says who the client is.
    pub sasl: Option<KafkaSasl>,
}

/// Certificates of encrypted connections: files in PEM, read anew for each client that is made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KafkaTls {
    /// Authorities to trust, instead of the machine's.
    pub ca_file: Option<PathBuf>,
    /// What the client shows to brokers that ask for it.
    pub client: Option<KafkaCertificate>,
}

/// A client's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaCertificate {
    /// The certificate, and those between it and the authority behind it.
    pub cert_file: PathBuf,
    /// Its key, without a password.
    pub key_file: PathBuf,
}

/// Who a client says it is.
#[derive(Clone, PartialEq, Eq)]
pub struct KafkaSasl {
    /// How it proves that.
    pub mechanism: SaslMechanism,
    /// Name of the user.
    pub user: String,
    /// The user's password.
    pub password: String,
}

impl fmt::Debug for KafkaSasl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSasl")
            .field("mechanism", &self.mechanism)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// How a password is proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaslMechanism {
    /// `PLAIN`: the password itself goes to the broker. Without TLS everybody on the way reads it.
    Plain,
    /// `SCRAM-SHA-256`. For builds with the feature `tls`, also where the connection is not encrypted.
    ScramSha256,
    /// `SCRAM-SHA-512`, as before.
    ScramSha512,
}

impl SaslMechanism {
    /// Kafka's name for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

impl KafkaAccess {
    /// Whether a client with this access and these properties can be made by this build, and its files can be read.
    ///
    /// # Errors
    /// `Invalid`: `SEM0303` where the build lacks TLS; a file that cannot be opened; a property that says again what this
    /// says.
    pub fn check(&self, properties: &BTreeMap<String, String>) -> Result<(), StoreError> {
        self.fits(properties, has_tls())
    }

    fn fits(&self, properties: &BTreeMap<String, String>, has_tls: bool) -> Result<(), StoreError> {
        if let Some(what) = self.needs_tls(properties).filter(|_| !has_tls) {
            let text = format!(
                "{what} needs OpenSSL, which this build has not: build it with the feature `kafka-tls` (of the crate \
                 semel-kafka: `tls`)"
            );
            return Err(invalid(text).with_code(TLS_MISSING));
        }
        let own = self.settings();
        for name in properties.keys().map(|name| canonical(name)) {
            if own.iter().any(|(taken, _)| *taken == name) {
                let text = format!("`{name}` follows from `tls` and `sasl`: remove it from properties");
                return Err(invalid(text));
            }
        }
        for file in self.files() {
            File::open(file).map_err(|error| {
                let text = format!("the file {} cannot be read", file.display());
                invalid(text).with_source(error)
            })?;
        }
        Ok(())
    }

    /// What of this or of the properties needs TLS in the build.
    fn needs_tls(&self, properties: &BTreeMap<String, String>) -> Option<String> {
        if self.tls.is_some() {
            return Some("`tls`".to_owned());
        }
        match &self.sasl {
            Some(sasl) if sasl.mechanism != SaslMechanism::Plain => {
                return Some(format!("the mechanism {}", sasl.mechanism.name()));
            }
            _ => {}
        }
        let needs = |(name, value): &(&String, &String)| match canonical(name) {
            "security.protocol" => value.to_ascii_lowercase().ends_with("ssl"),
            "sasl.mechanisms" => value.starts_with("SCRAM-") || *value == "OAUTHBEARER",
            name => name.starts_with("ssl."),
        };
        let (name, _) = properties.iter().find(needs)?;
        Some(format!("the property `{name}`"))
    }

    fn files(&self) -> impl Iterator<Item = &Path> {
        let tls = self.tls.iter();
        tls.flat_map(|tls| {
            let client = tls.client.iter();
            let client = client.flat_map(|client| [&client.cert_file, &client.key_file]);
            tls.ca_file.iter().chain(client).map(PathBuf::as_path)
        })
    }

    /// librdkafka's settings.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        let protocol = match (&self.tls, &self.sasl) {
            (None, None) => return Vec::new(),
            (Some(_), None) => "ssl",
            (None, Some(_)) => "sasl_plaintext",
            (Some(_), Some(_)) => "sasl_ssl",
        };
        let mut settings = vec![("security.protocol", protocol.to_owned())];
        let file = |path: &Path| path.to_string_lossy().into_owned();
        if let Some(tls) = &self.tls {
            settings.extend(tls.ca_file.as_deref().map(|ca| ("ssl.ca.location", file(ca))));
            if let Some(client) = &tls.client {
                settings.push(("ssl.certificate.location", file(&client.cert_file)));
                settings.push(("ssl.key.location", file(&client.key_file)));
            }
        }
        if let Some(sasl) = &self.sasl {
            settings.push(("sasl.mechanisms", sasl.mechanism.name().to_owned()));
            settings.push(("sasl.username", sasl.user.clone()));
            settings.push(("sasl.password", sasl.password.clone()));
        }
        settings
    }

    /// Whether connections are neither encrypted nor under a name.
    pub(crate) fn is_open(&self, properties: &BTreeMap<String, String>) -> bool {
        self.settings().is_empty()
            && properties
                .get("security.protocol")
                .is_none_or(|protocol| protocol.eq_ignore_ascii_case("plaintext"))
    }
}

fn invalid(text: String) -> StoreError {
    StoreError::new(ErrorKind::Invalid, "kafka configuration", text)
}

/// Whether librdkafka was built with TLS: by this crate's feature, or by another user of `rdkafka` in the same build.
fn has_tls() -> bool {
    static BUILT: OnceLock<bool> = OnceLock::new();
    *BUILT.get_or_init(|| {
        let native = ClientConfig::new().create_native_config();
        let features = native.and_then(|native| native.get("builtin.features"));
        // Not told, librdkafka has the last word.
        features.map_or(true, |features| {
            features.split(',').any(|one| one.trim() == "ssl")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sasl(mechanism: SaslMechanism) -> KafkaAccess {
        KafkaAccess {
            tls: None,
            sasl: Some(KafkaSasl {
                mechanism,
                user: "shop".to_owned(),
                password: "open sesame".to_owned(),
            }),
        }
    }

    fn property(name: &str, value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(name.to_owned(), value.to_owned())])
    }

    #[test]
    fn what_needs_tls_is_refused_by_a_build_without_it_and_the_feature_is_named() {
        let tls = KafkaAccess {
            tls: Some(KafkaTls::default()),
            sasl: None,
        };
        let none = KafkaAccess::default();
        for (access, properties) in [
            (tls, BTreeMap::new()),
            (sasl(SaslMechanism::ScramSha256), BTreeMap::new()),
            (sasl(SaslMechanism::ScramSha512), BTreeMap::new()),
            (none.clone(), property("security.protocol", "SASL_SSL")),
            (none.clone(), property("security.protocol", "ssl")),
            (none.clone(), property("sasl.mechanism", "SCRAM-SHA-512")),
            (none.clone(), property("ssl.ca.location", "/ca.pem")),
        ] {
            let error = access.fits(&properties, false).unwrap_err();
            assert_eq!((error.code(), error.kind()), (TLS_MISSING, ErrorKind::Invalid));
            assert!(error.to_string().contains("`kafka-tls`"), "{error}");
            access.fits(&properties, true).unwrap();
        }
        for (access, properties) in [
            (none.clone(), BTreeMap::new()),
            (none.clone(), property("security.protocol", "sasl_plaintext")),
            (none, property("sasl.mechanism", "PLAIN")),
            (sasl(SaslMechanism::Plain), BTreeMap::new()),
        ] {
            access.fits(&properties, false).unwrap();
        }
    }

    #[test]
    fn a_build_knows_whether_it_has_tls() {
        assert!(has_tls() || !cfg!(feature = "tls"));
    }

    #[test]
    fn what_is_said_twice_or_cannot_be_read_is_refused_and_no_password_is_shown() {
        let mut access = sasl(SaslMechanism::Plain);
        for name in ["security.protocol", "sasl.mechanism", "sasl.password"] {
            let error = access.fits(&property(name, "x"), true).unwrap_err();
            assert!(error.to_string().contains("remove it from properties"), "{error}");
        }
        access.tls = Some(KafkaTls {
            ca_file: Some("no-such-file.pem".into()),
            client: None,
        });
        let error = access.fits(&BTreeMap::new(), true).unwrap_err();
        assert!(error.to_string().contains("no-such-file.pem"), "{error}");
        assert!(!format!("{access:?}").contains("sesame"), "{access:?}");
    }
}
