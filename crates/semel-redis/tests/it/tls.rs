//! `rediss://`: a server's own authority, a client's certificate, and what is said when they do not fit.

use std::time::Duration;

use semel_core::claim::ClaimReply;
use semel_core::{ErrorKind, KeyStoreExt as _, StoreError};
use semel_redis::{ClientCertificate, Config, Redis};
use semel_testkit::certificates::Authority;
use semel_testkit::laws::keys::{duplicate, is_ok};
use semel_testkit::servers::{RedisServer, free_port};

use super::world::{completion, request};

/// What this authority says a client or a server is.
fn issue(authority: &Authority, name: &str) -> ClientCertificate {
    let (certificate, key) = authority.issue(name);
    ClientCertificate {
        certificate_pem: certificate.into_bytes(),
        key_pem: key.into_bytes(),
    }
}

/// A server that speaks TLS on a second port.
struct TlsServer {
    authority: Authority,
    port: u16,
    server: RedisServer,
    _folder: tempfile::TempDir,
}

impl TlsServer {
    fn start(name: &str, auth_clients: &str) -> Self {
        let authority = Authority::new();
        let shown = issue(&authority, name);
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (certificate, key) = (
            write("server.pem", &shown.certificate_pem),
            write("server.key", &shown.key_pem),
        );
        let ca = write("ca.pem", authority.pem.as_bytes());
        let port = free_port();
        let server = RedisServer::start(&[
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &certificate,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &ca,
            "--tls-auth-clients",
            auth_clients,
        ]);
        Self {
            authority,
            port,
            server,
            _folder: folder,
        }
    }

    fn config(&self, ca: Option<&Authority>, client: Option<ClientCertificate>) -> Config {
        let mut config = Config::new(format!("rediss://127.0.0.1:{}/0", self.port));
        config.tls.ca_pem = ca.map(|ca| ca.pem.clone().into_bytes());
        config.tls.client = client;
        config
    }
}

async fn refused(config: Config) -> StoreError {
    Redis::connect(config).await.unwrap_err()
}

#[tokio::test]
async fn keys_live_on_a_redis_with_an_authority_of_its_own() {
    let tls = TlsServer::start("127.0.0.1", "no");
    let store = Redis::connect(tls.config(Some(&tls.authority), None))
        .await
        .unwrap();
    let claim = request();
    let ClaimReply::Granted { lease, .. } = store.claim(&claim).await.unwrap() else {
        panic!("not granted")
    };
    assert!(is_ok(
        store.complete(&completion(&claim, lease, "done")).await.unwrap()
    ));
    let again = store.claim(&duplicate(&claim)).await.unwrap();
    assert!(matches!(again, ClaimReply::Done { .. }), "{again:?}");
    // It was this server, and not by the port beside it.
    let plain = Redis::connect(Config::new(tls.server.url())).await.unwrap();
    assert!(plain.read(&claim.key).await.unwrap().is_some());
}

#[tokio::test]
async fn an_authority_that_did_not_sign_and_a_name_that_is_another_are_refused() {
    let tls = TlsServer::start("127.0.0.1", "no");
    let elsewhere = TlsServer::start("redis.example", "no");
    for config in [
        tls.config(Some(&Authority::new()), None),
        // Of the machine's authorities none has signed it.
        tls.config(None, None),
        elsewhere.config(Some(&elsewhere.authority), None),
    ] {
        let error = refused(config).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("certificate is not trusted") && text.contains("ca_pem"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_server_that_asks_for_the_clients_certificate_gets_it_or_says_so() {
    let tls = TlsServer::start("127.0.0.1", "yes");
    let trusted = issue(&tls.authority, "orders");
    let store = Redis::connect(tls.config(Some(&tls.authority), Some(trusted))).await;
    assert!(store.unwrap().claim(&request()).await.is_ok());
    let foreign = issue(&Authority::new(), "orders");
    for client in [None, Some(foreign)] {
        let error = refused(tls.config(Some(&tls.authority), client)).await;
        let text = error.to_string();
        assert!(text.contains("client's certificate"), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
    }
}

#[tokio::test]
async fn plain_to_an_encrypted_port_and_the_other_way_round_are_told_apart_from_a_server_that_is_away() {
    let tls = TlsServer::start("127.0.0.1", "no");
    let error = refused(Config::new(format!("redis://127.0.0.1:{}/0", tls.port))).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("use rediss://"), "{error:?}");

    // A plain server waits for the end of a line, which may or may not come in what a client of TLS sends first.
    let mut config = Config::new(tls.server.url().replace("redis://", "rediss://"));
    config.connect_timeout = Duration::from_millis(500);
    let error = refused(config).await;
    assert!(
        error.to_string().contains("does not speak TLS on this port"),
        "{error:?}"
    );
}

#[tokio::test]
async fn certificates_that_would_not_be_used_or_cannot_be_read_are_refused() {
    let authority = Authority::new();
    let mut config = Config::new("redis://127.0.0.1:1/0");
    config.tls.ca_pem = Some(authority.pem.clone().into_bytes());
    let error = refused(config).await;
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("rediss://"), "{error}");
    let mut config = Config::new("rediss://127.0.0.1:1/0");
    config.tls.ca_pem = Some(b"not a certificate".to_vec());
    let error = refused(config.clone()).await;
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("ca_pem"), "{error}");
    config.tls.client = Some(issue(&authority, "orders"));
    assert!(!format!("{config:?}").contains("PRIVATE KEY"));
}
