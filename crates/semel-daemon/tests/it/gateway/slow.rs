//! Slow clients, idle ones, and too many.

use std::time::{Duration, Instant};

use super::bed::{Bed, LARGE, Raw, blocking};
use crate::daemon::until;

/// Far longer than the limits of these tests.
const FAR: Duration = Duration::from_secs(15);

#[tokio::test]
async fn a_client_that_sends_its_head_or_body_too_slowly_or_nothing_at_all_is_closed() {
    let bed = Bed::start("head_timeout_ms = 300\nbody_idle_ms = 300\nclient_idle_ms = 400").await;
    for begun in [
        "",
        "GET / HTTP/1.1\r\nHos",
        "POST /charge HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 9\r\n\r\n{",
        "PUT /upload HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let port = bed.port;
        blocking(move || {
            let mut raw = Raw::connect(port);
            raw.send(begun);
            let began = Instant::now();
            let rest = raw.rest();
            assert!(began.elapsed() < FAR, "{begun:?}");
            assert!(!rest.starts_with("HTTP/1.1 2"), "{rest}");
        })
        .await;
    }
    assert_eq!(bed.upstream.seen.charges(), 0, "nothing was run");
    // One that drips, each byte in time, does not pass the limit of the head by it.
    let port = bed.port;
    blocking(move || {
        let mut raw = Raw::connect(port);
        let began = Instant::now();
        let dripped = "GET / HTTP/1.1\r\nHost: a\r\n"
            .bytes()
            .cycle()
            .take_while(|_| began.elapsed() < FAR);
        let closed = dripped
            .map(|byte| {
                std::thread::sleep(Duration::from_millis(50));
                raw.try_send(byte)
            })
            .any(|sent| !sent);
        assert!(closed, "it was never closed");
    })
    .await;
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answer_is_closed() {
    let bed = Bed::start("body_idle_ms = 300").await;
    let mut raw = bed.connect();
    raw.send("GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let open = "semel_gateway_in_flight{gateway=\"api\"}";
    until("the gateway has given up", async || {
        bed.daemon.log().contains("body_idle_ms") && bed.daemon.metric(open).await == Some(0.0)
    })
    .await;
    let got = blocking(move || raw.rest()).await;
    assert!(
        got.starts_with("HTTP/1.1 200") && got.len() < LARGE,
        "{} bytes",
        got.len()
    );
}

#[tokio::test]
async fn a_request_that_takes_long_is_not_an_idle_connection() {
    let bed = Bed::start("head_timeout_ms = 200\nbody_idle_ms = 200\nclient_idle_ms = 200").await;
    let mut raw = bed.connect();
    let seen = std::sync::Arc::clone(&bed.upstream.seen);
    blocking(move || {
        raw.send("POST /slow HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n");
        std::thread::sleep(Duration::from_millis(900));
        seen.go.notify_one();
        assert!(raw.answer().ends_with("slow 1"));
        raw.rest();
    })
    .await;
}

#[tokio::test]
async fn connections_over_the_limit_wait_until_one_ends() {
    let bed = Bed::start("connections_max = 1\nthreads = 1").await;
    let (first, mut second) = (bed.connect(), bed.connect());
    let port = bed.port;
    blocking(move || {
        let mut first = first;
        first.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(first.answer().ends_with("hello"));
        second.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        assert!(
            second.silent_for(Duration::from_millis(300)),
            "it was not served yet"
        );
        drop(first);
        assert!(second.rest().ends_with("hello"));
        Raw::connect(port).send("");
    })
    .await;
}
