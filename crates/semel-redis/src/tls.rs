//! Encrypted connections: which certificates, and what a failed one means.

use redis::RedisError;
use rustls::{AlertDescription, Error};

use crate::config::Tls;
use crate::error::io_error;

/// What the driver is given; `None` for the authorities of the machine.
pub(crate) fn certificates(tls: &Tls) -> Option<redis::TlsCertificates> {
    let client = tls.client.as_ref().map(|client| redis::ClientTlsConfig {
        client_cert: client.certificate_pem.clone(),
        client_key: client.key_pem.clone(),
    });
    (client.is_some() || tls.ca_pem.is_some()).then(|| redis::TlsCertificates {
        client_tls: client,
        root_cert: tls.ca_pem.clone(),
    })
}

/// What is wrong, if it is about certificates or the protocol.
pub(crate) fn explain(error: &RedisError) -> Option<&'static str> {
    let tls = io_error(error)?.get_ref()?.downcast_ref::<Error>()?;
    Some(match tls {
        Error::InvalidCertificate(_) => {
            "the server's certificate is not trusted or not for this name: give the authority that signed it (ca_pem, or \
             SSL_CERT_FILE for the machine's), and the name in the certificate as the host of the URL"
        }
        Error::AlertReceived(AlertDescription::ProtocolVersion) => {
            "the server's versions of TLS are too old; it must speak 1.2 or 1.3"
        }
        Error::AlertReceived(_) => {
            "the server refuses the client's certificate, or wants one: give it one that its authority has signed, or set \
             tls-auth-clients no there"
        }
        Error::InvalidMessage(_) => {
            "the server does not speak TLS on this port: use redis://, or its TLS port"
        }
        _ => "the encrypted connection failed; the source of this error says how",
    })
}
