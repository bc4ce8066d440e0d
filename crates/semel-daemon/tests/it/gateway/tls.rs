//! TLS for clients and to the upstream.

use std::path::Path;
use std::sync::Arc;

use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::ring;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use semel_testkit::servers::free_port;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::bed::{Bed, Seen, Upstream, app, gateway};
use crate::daemon::{Folder, run, texts, until};

/// An authority of this test.
struct Authority {
    certificate: rcgen::Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        Self { certificate, issuer }
    }

    /// Certificate and key for a name, valid until a year.
    fn issue(&self, name: &str, until: i32) -> (rcgen::Certificate, KeyPair) {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// Writes both as `NAME.pem` and `NAME.key`.
    fn write(&self, folder: &Path, file: &str, name: &str, until: i32) {
        let (certificate, key) = self.issue(name, until);
        std::fs::write(folder.join(format!("{file}.pem")), certificate.pem()).unwrap();
        std::fs::write(folder.join(format!("{file}.key")), key.serialize_pem()).unwrap();
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        roots
    }

    /// The answer to `GET /` over TLS with this protocol, and the certificate that was shown.
    async fn get(&self, port: u16, name: &str, protocol: &str) -> Result<(u16, Vec<u8>), String> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots())
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let stream = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
            .map_err(|error| error.to_string())?;
        let shown = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol.as_bytes()));
        let request = Request::get(if protocol == "h2" {
            "https://localhost/"
        } else {
            "/"
        })
        .header("host", "localhost")
        .body(Empty::<bytes::Bytes>::new())
        .unwrap();
        let answer = if protocol == "h2" {
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                    .await
                    .unwrap();
            tokio::spawn(connection);
            sender.send_request(request).await.unwrap()
        } else {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
                .await
                .unwrap();
            tokio::spawn(connection);
            sender.send_request(request).await.unwrap()
        };
        let status = answer.status().as_u16();
        answer.into_body().collect().await.unwrap();
        Ok((status, shown))
    }
}

const TLS: &str = "anonymous = true\ntls = { cert = \"server.pem\", key = \"server.key\" }\n";

#[tokio::test]
async fn clients_speak_http_1_and_2_over_tls_and_a_new_certificate_is_taken_at_sighup() {
    let authority = Authority::new();
    let upstream = Upstream::start().await;
    let port = free_port();
    let folder = Folder::new(&format!(
        "[store]\nurl = \"memory:\"\n{}",
        gateway("api", port, upstream.port, TLS)
    ));
    authority.write(folder.path(), "server", "localhost", 2100);
    let daemon = folder.start().await;
    daemon.until_ready().await;
    let (status, first) = authority.get(port, "localhost", "h2").await.unwrap();
    assert_eq!(status, 200);
    let (status, again) = authority.get(port, "localhost", "http/1.1").await.unwrap();
    assert_eq!((status, &again), (200, &first));
    let other = Authority::new().get(port, "localhost", "h2").await.unwrap_err();
    assert!(other.contains("invalid peer certificate"), "{other}");

    authority.write(folder.path(), "server", "localhost", 2100);
    daemon.hang_up();
    until("the new certificate is shown", async || {
        authority.get(port, "localhost", "h2").await.unwrap().1 != first
    })
    .await;

    // An expired one changes nothing, and the log says which.
    let (_, now) = authority.get(port, "localhost", "h2").await.unwrap();
    authority.write(folder.path(), "server", "localhost", 2001);
    daemon.hang_up();
    until("the expired certificate is refused", async || {
        daemon
            .metric("semel_config_reloads_total{result=\"refused\"}")
            .await
            == Some(1.0)
    })
    .await;
    assert_eq!(authority.get(port, "localhost", "h2").await.unwrap().1, now);
    let log = daemon.log();
    assert!(
        log.contains("SEM0474") && log.contains("server.pem has expired"),
        "{log}"
    );
}

#[tokio::test]
async fn check_names_what_is_wrong_with_a_certificate() {
    let authority = Authority::new();
    for (what, says) in [
        ("missing", "server.pem cannot be read"),
        ("no key", "holds no private key that can be read"),
        ("other key", "`cert` and `key` do not fit each other"),
        ("expired", "the certificate in server.pem has expired"),
        ("empty", "holds no certificate"),
    ] {
        let folder = Folder::new(&format!(
            "[store]\nurl = \"memory:\"\n{}",
            gateway("api", 1, 2, TLS)
        ));
        authority.write(
            folder.path(),
            "server",
            "localhost",
            if what == "expired" { 2001 } else { 2100 },
        );
        match what {
            "missing" => std::fs::remove_file(folder.file("server.pem")).unwrap(),
            "no key" => std::fs::write(folder.file("server.key"), "nothing").unwrap(),
            "other key" => std::fs::write(
                folder.file("server.key"),
                KeyPair::generate().unwrap().serialize_pem(),
            )
            .unwrap(),
            "empty" => std::fs::write(folder.file("server.pem"), "nothing").unwrap(),
            _ => {}
        }
        let (out, _, code) = texts(&run(folder.path(), &["check", "--offline"]));
        assert_eq!(code, 2, "{what}: {out}");
        assert!(out.contains(says) && out.contains("semel.toml:"), "{what}: {out}");
    }
}

/// An upstream that shows this certificate and asks for one of the same authority.
async fn secure_upstream(authority: &Authority, name: &str) -> (u16, Arc<Seen>) {
    let (certificate, key) = authority.issue(name, 2100);
    let provider = Arc::new(ring::default_provider());
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(authority.roots()), Arc::clone(&provider))
            .build()
            .unwrap();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(
            vec![CertificateDer::from(certificate.der().to_vec())],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Arc::new(Seen::default());
    let app = app(Arc::clone(&seen));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, app) = (acceptor.clone(), app.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let service = hyper_util::service::TowerToHyperService::new(app);
                let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    (port, seen)
}

#[tokio::test]
async fn the_upstream_is_checked_against_the_authority_and_the_name_that_are_set_and_shown_a_certificate() {
    let authority = Authority::new();
    let (upstream, seen) = secure_upstream(&authority, "inner.example").await;
    let whole =
        "ca = \"ca.pem\", cert = \"client.pem\", key = \"client.key\", server_name = \"inner.example\"";
    for (tls, http, works) in [
        (whole, "1", true),
        (whole, "2", true),
        (whole, "auto", true),
        (
            "cert = \"client.pem\", key = \"client.key\", server_name = \"inner.example\"",
            "1",
            false,
        ),
        (
            "ca = \"ca.pem\", cert = \"client.pem\", key = \"client.key\"",
            "1",
            false,
        ),
    ] {
        let port = free_port();
        let lines = format!("anonymous = true\nupstream_http = \"{http}\"\nupstream_tls = {{ {tls} }}\n");
        let config =
            gateway("api", port, upstream, &lines).replace("upstream = \"http:", "upstream = \"https:");
        let folder = Folder::new(&format!("[store]\nurl = \"memory:\"\n{config}"));
        authority.write(folder.path(), "client", "client", 2100);
        std::fs::write(folder.file("ca.pem"), authority.certificate.pem()).unwrap();
        let daemon = folder.start().await;
        daemon.until_ready().await;
        let before = seen.charges();
        let answer = super::send(port, "/charge", "k").await;
        if works {
            assert_eq!(answer.status(), 200, "{tls} {http}: {answer:?}\n{}", daemon.log());
            assert_eq!(seen.charges(), before + 1);
        } else {
            // Nothing was sent: the key is free.
            assert_eq!(answer.status(), 502, "{tls} {http}: {answer:?}");
            assert_eq!(crate::daemon::json(&answer)["code"], "SEM0421");
            assert_eq!(seen.charges(), before);
        }
    }
}

/// A client that speaks no TLS is told nothing and costs nothing.
#[tokio::test]
async fn plain_bytes_on_a_tls_port_end_the_connection() {
    let authority = Authority::new();
    let upstream = Upstream::start().await;
    let port = free_port();
    let lines = format!("{TLS}head_timeout_ms = 300\n");
    let folder = Folder::new(&format!(
        "[store]\nurl = \"memory:\"\n{}",
        gateway("api", port, upstream.port, &lines)
    ));
    authority.write(folder.path(), "server", "localhost", 2100);
    let daemon = folder.start().await;
    daemon.until_ready().await;
    let bed = Bed {
        upstream,
        folder,
        daemon,
        port,
    };
    for bytes in ["GET / HTTP/1.1\r\nHost: a\r\n\r\n", "\x16"] {
        let answer = bed.raw(bytes).await;
        assert!(!answer.contains("HTTP"), "{answer:?}");
    }
    assert_eq!(bed.upstream.seen.requests(), Vec::<String>::new());
}
