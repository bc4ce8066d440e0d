//! `semel run` as a gateway: what its keys survive.

mod bed;
mod crash;
mod cut;
mod read_only;
mod reload;
mod shared;
mod slow;
mod tls;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::routing::post;
use bytes::Bytes;
use http::{Request, Response};
use semel_client::{HttpClient, Limits};
use semel_testkit::servers::free_port;

use crate::daemon::{Folder, LIMIT, json, until};

/// An upstream that counts what it does; `/slow` does it and then waits.
struct Upstream {
    port: u16,
    done: Arc<AtomicU32>,
}

impl Upstream {
    async fn start() -> Self {
        let done = Arc::new(AtomicU32::new(0));
        let charge = |waits: bool| {
            let done = Arc::clone(&done);
            move || {
                let n = done.fetch_add(1, Ordering::SeqCst) + 1;
                async move {
                    if waits {
                        std::future::pending::<()>().await;
                    }
                    format!("charge {n}")
                }
            }
        };
        let app = Router::new()
            .route("/charge", post(charge(false)))
            .route("/slow", post(charge(true)));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { port, done }
    }

    fn done(&self) -> u32 {
        self.done.load(Ordering::SeqCst)
    }
}

async fn send(port: u16, path: &str, key: &str) -> Response<Bytes> {
    let headers = [("idempotency-key", key), ("x-user", "alice")];
    crate::daemon::post(format!("http://127.0.0.1:{port}{path}"), &headers, "{}").await
}

#[tokio::test]
async fn answers_survive_kill_9_and_a_request_cut_off_by_it_is_unknown_and_not_sent_again() {
    let upstream = Upstream::start().await;
    let port = free_port();
    let folder = Folder::new(&format!(
        "[store]\nurl = \"sqlite:semel.db\"\n[[gateway]]\nname = \"api\"\nlisten = \"127.0.0.1:{port}\"\n\
         upstream = \"http://127.0.0.1:{}\"\nprincipal_header = \"X-User\"\nlease_ms = 1000\nwait_ms_max = 0\n",
        upstream.port
    ));
    let mut daemon = folder.start().await;
    daemon.until_ready().await;
    let first = send(port, "/charge", "a").await;
    assert_eq!(
        (first.status().as_u16(), &first.body()[..]),
        (200, &b"charge 1"[..])
    );
    assert_eq!(first.headers()["semel-guarantee"], "guarded");
    let slow = tokio::spawn(async move {
        let request = Request::post(format!("http://127.0.0.1:{port}/slow"))
            .header("idempotency-key", "b")
            .header("x-user", "alice")
            .body(Bytes::from_static(b"{}"))
            .unwrap();
        HttpClient::new(Limits::default()).send(request, LIMIT).await
    });
    until("the slow request is with the upstream", async || {
        upstream.done() == 2
    })
    .await;
    daemon.process.kill();
    assert!(slow.await.unwrap().is_err(), "its connection broke");

    let daemon = folder.start().await;
    daemon.until_ready().await;
    let again = send(port, "/charge", "a").await;
    assert_eq!(
        (again.status().as_u16(), &again.body()[..]),
        (200, &b"charge 1"[..])
    );
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    until("the lease of the dead owner has ended", async || {
        let answer = send(port, "/slow", "b").await;
        assert_eq!(answer.status(), 409);
        json(&answer)["code"] == "SEM0406"
    })
    .await;
    assert_eq!(upstream.done(), 2);
    let (code, log) = daemon.stop().await;
    assert_eq!(code, 0, "{log}");
}

#[tokio::test]
async fn while_its_store_is_not_open_a_gateway_refuses_in_words_a_client_understands() {
    let upstream = Upstream::start().await;
    let port = free_port();
    let folder = Folder::new(&format!(
        "[store]\nurl = \"postgres://app@127.0.0.1:1/shop\"\n[[gateway]]\nname = \"api\"\n\
         listen = \"127.0.0.1:{port}\"\nupstream = \"http://127.0.0.1:{}\"\nprincipal_header = \"X-User\"\n",
        upstream.port
    ));
    let daemon = folder.start().await;
    let refused = send(port, "/charge", "a").await;
    assert_eq!(refused.status(), 503);
    assert_eq!(json(&refused)["code"], "SEM0411", "{refused:?}");
    assert_eq!(json(&refused)["outcome"], "refused");
    assert_eq!(refused.headers()["semel-outcome"], "refused");
    assert_eq!(refused.headers()["retry-after"], "1");
    assert_eq!(upstream.done(), 0);
    drop(daemon);
}

#[tokio::test]
async fn a_stop_waits_for_what_was_begun() {
    let upstream = Upstream::start().await;
    let port = free_port();
    let folder = Folder::new(&format!(
        "[store]\nurl = \"sqlite:semel.db\"\n[[gateway]]\nname = \"api\"\nlisten = \"127.0.0.1:{port}\"\n\
         upstream = \"http://127.0.0.1:{}\"\nprincipal_header = \"X-User\"\ntotal_timeout_ms = 1000\n",
        upstream.port
    ));
    let daemon = folder.start().await;
    daemon.until_ready().await;
    // Its client leaves at once: only the drain waits for it.
    let gone = tokio::spawn(async move { send(port, "/slow", "a").await });
    until("the request is with the upstream", async || upstream.done() == 1).await;
    gone.abort();
    let (code, log) = daemon.stop().await;
    assert_eq!(code, 0, "{log}");
    assert!(
        log.contains("no answer in time"),
        "the run was ended before the process was:\n{log}"
    );
    assert!(!log.contains("cut off what did not end"), "{log}");
}
