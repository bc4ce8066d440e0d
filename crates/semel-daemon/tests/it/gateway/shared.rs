//! Several gateways, one store.

use std::collections::BTreeSet;

use semel_testkit::servers::free_port;

use super::bed::{Bed, Raw, Upstream, blocking, gateway};
use super::send;
use crate::daemon::{Folder, until};

/// laravel-idempotency#1, idempot-js#182: 20 equal requests at once over two instances.
#[tokio::test]
async fn twenty_equal_requests_over_two_processes_are_one_run_and_twenty_equal_answers() {
    let upstream = Upstream::start().await;
    let shared = tempfile::tempdir().unwrap();
    let store = format!(
        "[store]\nurl = \"sqlite:{}\"\n",
        shared.path().join("keys.db").display()
    );
    let mut daemons = Vec::new();
    for _ in 0..2 {
        let port = free_port();
        let folder = Folder::new(&format!(
            "{store}{}",
            gateway("api", port, upstream.port, "principal_header = \"X-User\"")
        ));
        let daemon = folder.start().await;
        daemon.until_ready().await;
        daemons.push((port, daemon, folder));
    }
    for key in ["a", "b", "c"] {
        let before = upstream.seen.charges();
        let mut sending = Vec::new();
        for n in 0..20 {
            let port = daemons[n % 2].0;
            sending.push(tokio::spawn(async move { send(port, "/charge", key).await }));
        }
        let mut bodies = BTreeSet::new();
        for answer in sending {
            let answer = answer.await.unwrap();
            assert_eq!(answer.status(), 200, "{answer:?}");
            bodies.insert(answer.body().clone());
        }
        assert_eq!(
            (bodies.len(), upstream.seen.charges()),
            (1, before + 1),
            "{bodies:?}"
        );
    }
}

#[tokio::test]
async fn what_a_killed_gateway_had_sent_is_unknown_at_the_other_and_what_it_had_stored_is_replayed() {
    let upstream = Upstream::start().await;
    let shared = tempfile::tempdir().unwrap();
    let store = format!(
        "[store]\nurl = \"sqlite:{}\"\n",
        shared.path().join("keys.db").display()
    );
    let lines = "principal_header = \"X-User\"\nlease_ms = 1000\nwait_ms_max = 0";
    let start = async |port| {
        let folder = Folder::new(&format!("{store}{}", gateway("api", port, upstream.port, lines)));
        let daemon = folder.start().await;
        daemon.until_ready().await;
        (daemon, folder)
    };
    let (one, two) = (free_port(), free_port());
    let (mut first, _one) = start(one).await;
    let (_second, _two) = start(two).await;
    assert_eq!(send(one, "/charge", "done").await.status(), 200);
    let cut = tokio::spawn(async move {
        let request = http::Request::post(format!("http://127.0.0.1:{one}/slow"))
            .header("idempotency-key", "cut")
            .header("x-user", "alice")
            .body(bytes::Bytes::from_static(b"{}"))
            .unwrap();
        let client = semel_client::HttpClient::new(semel_client::Limits::default());
        client.send(request, crate::daemon::LIMIT).await
    });
    until("it is with the upstream", async || upstream.seen.charges() == 2).await;
    assert_eq!(send(two, "/slow", "cut").await.status(), 409, "it runs elsewhere");
    first.process.kill();
    assert!(cut.await.unwrap().is_err());
    let replayed = send(two, "/charge", "done").await;
    assert_eq!(replayed.headers()["idempotent-replayed"], "true");
    until("the lease of the dead one has ended", async || {
        let answer = send(two, "/slow", "cut").await;
        crate::daemon::json(&answer)["code"] == "SEM0406"
    })
    .await;
    assert_eq!(upstream.seen.charges(), 2);
}

/// A request whose body came after the signal, and whose client then went away: it runs, so its end is recorded.
#[tokio::test]
async fn what_began_after_sigterm_is_recorded_though_its_client_is_gone() {
    let Bed {
        upstream,
        folder,
        daemon,
        port,
    } = Bed::with("sqlite:semel.db", "anonymous = true").await;
    let mut raw = Raw::connect(port);
    raw.send("POST /slow HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n{");
    let open = "semel_gateway_in_flight{gateway=\"api\"}";
    until("its head has come", async || {
        daemon.metric(open).await == Some(1.0)
    })
    .await;
    let stopping = tokio::spawn(daemon.stop());
    // Its port is closed once the gateway has taken the signal.
    until("the gateway ends", async || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_err()
    })
    .await;
    raw.send("}");
    until("it runs", async || upstream.seen.charges() == 1).await;
    blocking(move || raw.hang_up()).await;
    upstream.seen.go.notify_one();
    let (code, log) = stopping.await.unwrap();
    assert_eq!(code, 0, "{log}");
    let daemon = folder.start().await;
    daemon.until_ready().await;
    let again = blocking(move || {
        let mut raw = Raw::connect(port);
        raw.send("POST /slow HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}");
        raw.answer()
    })
    .await;
    assert!(
        again.ends_with("slow 1") && again.contains("idempotent-replayed: true"),
        "{again}"
    );
    assert_eq!(upstream.seen.charges(), 1);
}

#[tokio::test]
async fn sigterm_lets_requests_end_and_takes_those_that_wait_to_be_accepted() {
    let bed = Bed::with("sqlite:keys.db", "principal_header = \"X-User\"\nthreads = 1").await;
    let port = bed.port;
    let slow = tokio::spawn(async move { send(port, "/slow", "k").await });
    until("it is with the upstream", async || {
        bed.upstream.seen.charges() == 1
    })
    .await;
    let seen = std::sync::Arc::clone(&bed.upstream.seen);
    let stopping = tokio::spawn(async move { bed.daemon.stop().await });
    until("it accepts no more", async || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_err()
    })
    .await;
    seen.go.notify_one();
    let answer = slow.await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.body()[..]),
        (200, &b"slow 1"[..])
    );
    assert_eq!(answer.headers()["semel-outcome"], "succeeded");
    let (code, log) = stopping.await.unwrap();
    assert_eq!(code, 0, "{log}");
    assert!(!log.contains("cut off"), "{log}");
}
