//! How to connect.

use std::time::Duration;

use semel_core::{ErrorKind, StoreError};

/// Settings of one Redis.
#[derive(Clone)]
pub struct Config {
    /// `redis://user:password@host:port/database`, `rediss://` with the feature `tls`. For a cluster one or more nodes,
    /// separated by commas; the others are found by themselves.
    pub url: String,
    /// Whether it is a cluster. Default false.
    pub cluster: bool,
    /// What every name in Redis begins with: 1 to 64 letters, digits, `.`, `_` and `-`. Two stores in one database need
    /// two of them. Default `semel`.
    pub prefix: String,
    /// How long connecting may take. Default 5 s.
    pub connect_timeout: Duration,
    /// How long a reply may take; then the outcome is unknown. Default 5 s.
    pub reply_timeout: Duration,
    /// Replicas that must have confirmed a write before it is answered (`WAIT`); a reply below it is an unknown outcome.
    /// Makes a fail-over less likely to forget, never impossible: `WAIT` counts what this connection has written, so that a
    /// call repeated over another one, which finds its work done and writes nothing, is answered without asking the replicas
    /// again. Not in a cluster. Default 0.
    pub replicas_min: u32,
    /// Certificates for `rediss://`. Default: the authorities of the machine (`SSL_CERT_FILE` names others), no certificate of
    /// this client.
    pub tls: Tls,
    /// How often the server's settings are looked at again (rule K8). Default 30 s.
    pub check_every: Duration,
}

/// Certificates of an encrypted connection, as PEM. Without the feature `tls` none can be given.
#[derive(Clone, Default)]
pub struct Tls {
    /// The authorities that may have signed the server's certificate; `None` for those of the machine.
    pub ca_pem: Option<Vec<u8>>,
    /// What this client shows to a server that asks for it (`tls-auth-clients yes`, which is Redis' default).
    pub client: Option<ClientCertificate>,
}

/// A client's certificate and its key.
#[derive(Clone)]
pub struct ClientCertificate {
    /// The certificate, and those between it and the authority behind it.
    pub certificate_pem: Vec<u8>,
    /// Its key.
    pub key_pem: Vec<u8>,
}

impl std::fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientCertificate").finish_non_exhaustive()
    }
}

impl Config {
    /// The defaults for this URL.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            cluster: false,
            prefix: "semel".to_owned(),
            connect_timeout: Duration::from_secs(5),
            reply_timeout: Duration::from_secs(5),
            replicas_min: 0,
            tls: Tls::default(),
            check_every: Duration::from_secs(30),
        }
    }

    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let allowed = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        if self.prefix.is_empty() || self.prefix.len() > 64 || !self.prefix.chars().all(allowed) {
            let text = "prefix has 1 to 64 letters, digits, `.`, `_` and `-`: choose another one";
            return Err(StoreError::new(ErrorKind::Invalid, "connect", text));
        }
        let encrypted = self.url.split(',').all(|url| url.trim().starts_with("rediss://"));
        if (self.tls.ca_pem.is_some() || self.tls.client.is_some()) && !(encrypted && cfg!(feature = "tls")) {
            let text = "certificates are for addresses that begin with rediss://, in a build with the feature `tls`: \
                        change the URL, or leave them out";
            return Err(StoreError::new(ErrorKind::Invalid, "connect", text));
        }
        let certificate = b"-----BEGIN CERTIFICATE-----";
        let holds_one = |pem: &Vec<u8>| pem.windows(certificate.len()).any(|window| window == certificate);
        if self.tls.ca_pem.as_ref().is_some_and(|pem| !holds_one(pem)) {
            let text = "ca_pem holds no certificate as PEM: give the authority's file, not its path";
            return Err(StoreError::new(ErrorKind::Invalid, "connect", text));
        }
        if self.cluster && self.replicas_min > 0 {
            let text = "replicas_min does not work in a cluster: leave it out";
            return Err(StoreError::new(ErrorKind::Invalid, "connect", text));
        }
        Ok(())
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL may hold a password.
        f.debug_struct("Config")
            .field("cluster", &self.cluster)
            .field("prefix", &self.prefix)
            .field("replicas_min", &self.replicas_min)
            .finish_non_exhaustive()
    }
}
