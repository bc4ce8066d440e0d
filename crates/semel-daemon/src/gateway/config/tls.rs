//! Certificates and keys: read when the configuration is, so that a wrong file is a mistake with its line.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::Uri;
use hyper_rustls::ConfigBuilderExt as _;
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use semel_core::error::chain;
use semel_core::{Clock as _, SystemClock};

use super::{UPSTREAM_TLS, UpstreamHttp};
use crate::config::read::{At, Table};
use crate::gateway::x509;

/// What clients are shown; `None` after a mistake.
pub(super) fn server(table: &Table<'_>, folder: &Path) -> Option<Arc<ServerConfig>> {
    table.require("cert", "\"server.pem\"");
    table.require("key", "\"server.key\"");
    let (chain, key) = pair(table, folder)??;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| table.mistake(table.span(), format!("TLS cannot be set up: {error}"), MATCH_FIX))
        .ok()?;
    let mut config = builder
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| mismatch(table, &error))
        .ok()?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Some(Arc::new(config))
}

const MATCH_FIX: &str = "give the certificate and the key that belong together, both in PEM";

fn mismatch(table: &Table<'_>, error: &rustls::Error) {
    table.mistake(
        table.span(),
        format!("`cert` and `key` do not fit each other: {error}"),
        MATCH_FIX,
    );
}

type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// `cert` and `key`: the outer `None` after a mistake, the inner one where both are left out.
fn pair(table: &Table<'_>, folder: &Path) -> Option<Option<Pair>> {
    let cert = table.text("cert");
    let key = table.text("key");
    match (cert, key) {
        (Some(cert), Some(key)) => {
            let chain = certificates(table, &cert, folder);
            let key = private_key(table, &key, folder);
            let chain = chain?;
            in_force(table, &cert, &chain)?;
            Some(Some((chain, key?)))
        }
        (None, None) if !table.has("cert") && !table.has("key") => Some(None),
        (Some(At { span, .. }), None) if !table.has("key") => {
            table.mistake(
                span,
                "`cert` has no `key`",
                "name the file with its private key, too",
            );
            None
        }
        (None, Some(At { span, .. })) if !table.has("cert") => {
            table.mistake(
                span,
                "`key` has no `cert`",
                "name the file with its certificate, too",
            );
            None
        }
        _ => None,
    }
}

fn certificates(table: &Table<'_>, at: &At<String>, folder: &Path) -> Option<Vec<CertificateDer<'static>>> {
    let path: PathBuf = folder.join(&at.value);
    let read = CertificateDer::pem_file_iter(&path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(found) if !found.is_empty() => Some(found),
        Ok(_) => {
            let message = format!("{} holds no certificate", path.display());
            table.mistake(
                at.span.clone(),
                message,
                "name a PEM file with -----BEGIN CERTIFICATE-----",
            );
            None
        }
        Err(error) => {
            let message = format!("{} cannot be read: {}", path.display(), chain(&error));
            let fix = "name a PEM file that semel may read; a relative one is looked for beside semel.toml";
            table.mistake(at.span.clone(), message, fix);
            None
        }
    }
}

fn private_key(table: &Table<'_>, at: &At<String>, folder: &Path) -> Option<PrivateKeyDer<'static>> {
    let path: PathBuf = folder.join(&at.value);
    PrivateKeyDer::from_pem_file(&path)
        .map_err(|error| {
            // The error names what is missing, never what is there.
            let message = format!(
                "{} holds no private key that can be read: {}",
                path.display(),
                chain(&error)
            );
            let fix =
                "name a PEM file with -----BEGIN PRIVATE KEY-----, without a passphrase, that semel may read";
            table.mistake(at.span.clone(), message, fix);
        })
        .ok()
}

/// Refuses a certificate that is not valid now.
fn in_force(table: &Table<'_>, at: &At<String>, chain: &[CertificateDer<'_>]) -> Option<()> {
    let (from, until) = chain.first().and_then(|leaf| x509::validity(leaf))?;
    let now = SystemClock.now().0 / 1_000_000;
    let message = if now > until {
        format!("the certificate in {} has expired", at.value)
    } else if now < from {
        format!("the certificate in {} is not valid yet", at.value)
    } else {
        return Some(());
    };
    table.mistake(
        at.span.clone(),
        message,
        "renew it, then send SIGHUP; or mend the clock of this machine",
    );
    None
}

type Client = Option<(Arc<ClientConfig>, ServerName<'static>)>;

/// TLS to the upstream: the outer `None` after a mistake, the inner one for http://.
pub(super) fn client(
    gateway: &Table<'_>,
    upstream: Option<&Uri>,
    http: UpstreamHttp,
    folder: &Path,
) -> Option<Client> {
    let table = gateway.table("upstream_tls", &UPSTREAM_TLS);
    let upstream = upstream?;
    if upstream.scheme_str() != Some("https") {
        if let Some(table) = &table {
            let fix = "write https:// in `upstream`, or leave `upstream_tls` out";
            gateway.mistake(table.span(), "`upstream_tls` is for an https:// upstream", fix);
            return None;
        }
        if http == UpstreamHttp::Auto {
            let fix = "write \"1\" or \"2\"";
            gateway.mistake(
                gateway.span(),
                "`upstream_http = \"auto\"` needs an https:// upstream",
                fix,
            );
            return None;
        }
        return Some(None);
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .ok()?;
    let builder = match &table {
        Some(table) if table.has("ca") => builder.with_root_certificates(authorities(table, folder)?),
        _ => builder.with_webpki_roots(),
    };
    let mut config = match &table {
        Some(table) => match pair(table, folder)? {
            Some((chain, key)) => builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| mismatch(table, &error))
                .ok()?,
            None => builder.with_no_client_auth(),
        },
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = match http {
        UpstreamHttp::One => vec![b"http/1.1".to_vec()],
        UpstreamHttp::Two => vec![b"h2".to_vec()],
        UpstreamHttp::Auto => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
    };
    let given = table.as_ref().and_then(|table| table.text("server_name"));
    let (name, span) = match given {
        Some(At { value, span }) => (value, span),
        None => {
            let host = upstream.host().unwrap_or_default();
            (host.trim_matches(['[', ']']).to_owned(), gateway.span())
        }
    };
    match ServerName::try_from(name) {
        Ok(name) => Some(Some((Arc::new(config), name))),
        Err(_) => {
            gateway.mistake(
                span,
                "this is no name of a server",
                "write a host name or an IP address",
            );
            None
        }
    }
}

fn authorities(table: &Table<'_>, folder: &Path) -> Option<RootCertStore> {
    let at = table.text("ca")?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates(table, &at, folder)? {
        if let Err(error) = roots.add(certificate) {
            let fix = "name a PEM file with the certificates of authorities";
            table.mistake(at.span, format!("`ca` holds no authority: {error}"), fix);
            return None;
        }
    }
    // Finds what the handshake would.
    let provider = Arc::new(ring::default_provider());
    if let Err(error) = WebPkiServerVerifier::builder_with_provider(Arc::new(roots.clone()), provider).build()
    {
        table.mistake(
            at.span,
            format!("`ca` cannot be used: {error}"),
            "name other authorities",
        );
        return None;
    }
    Some(roots)
}
