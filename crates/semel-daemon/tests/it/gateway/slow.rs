//! Slow clients, idle ones, and too many.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

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
    let bed = Bed::start("head_timeout_ms = 5000\nbody_idle_ms = 200\nclient_idle_ms = 200").await;
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

/// Server-sent events and large downloads: what flows is not idle, however long it takes.
#[tokio::test]
async fn an_answer_that_takes_long_is_not_an_idle_connection() {
    let bed = Bed::start("head_timeout_ms = 5000\nbody_idle_ms = 200\nclient_idle_ms = 200").await;
    let mut raw = bed.connect();
    let seen = std::sync::Arc::clone(&bed.upstream.seen);
    blocking(move || {
        raw.send("GET /events HTTP/1.1\r\nHost: a\r\n\r\n");
        raw.until("\r\n\r\n");
        for n in 0..3 {
            std::thread::sleep(Duration::from_millis(600));
            seen.go.notify_one();
            raw.until(&format!("data: {n}\n\n"));
        }
        // Then it is idle, and ends.
        raw.rest();
    })
    .await;
}

/// The limits of an HTTP/2 client are those of others: each stream's body, and the connection between requests,
/// however many pings it answers.
#[tokio::test]
async fn a_stream_whose_body_stops_ends_and_so_does_an_idle_connection_that_only_pings() {
    let bed = Bed::start("body_idle_ms = 300\nclient_idle_ms = 900").await;
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", bed.port))
        .await
        .unwrap();
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_millis(100))
        .keep_alive_timeout(FAR)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    for (n, method) in ["POST", "PUT"].into_iter().enumerate() {
        let begun = futures_util::stream::iter([Ok::<_, std::io::Error>(bytes::Bytes::from("{"))]);
        let stops = axum::body::Body::from_stream(begun.chain(futures_util::stream::pending()));
        let request = http::Request::builder()
            .method(method)
            .uri("http://shop.example/charge")
            .header("idempotency-key", n)
            .body(stops)
            .unwrap();
        let answer = tokio::time::timeout(FAR, sender.send_request(request)).await;
        let answer = answer.expect("body_idle_ms ends it");
        assert!(
            !answer.is_ok_and(|answer| answer.status().is_success()),
            "{method}"
        );
    }
    assert_eq!(bed.upstream.seen.charges(), 0);
    let ended = tokio::time::timeout(FAR, connection).await;
    assert!(ended.is_ok(), "client_idle_ms ends it");
    drop(sender);
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
