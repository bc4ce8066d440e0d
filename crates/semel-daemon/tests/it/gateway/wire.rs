//! What crosses the gateway on the wire, byte for byte.

use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::bed::{Bed, Raw, blocking};
use crate::daemon::until;

const HEAD: &str = "Host: shop.example\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\n";

/// Two readings of one head are how requests are smuggled: neither reading is done.
#[tokio::test]
async fn a_head_that_may_be_read_in_two_ways_is_refused_and_its_connection_closed() {
    let bed = Bed::start("").await;
    let smuggled = "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    for (head, says) in [
        ("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", "both"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 6\r\n", "both"),
        (
            "transfer-encoding:  chunked\r\nx: y\r\ncontent-length:6\r\n",
            "both",
        ),
        ("Host: other\r\nContent-Length: 0\r\n", "more than one Host"),
    ] {
        let answer = bed
            .raw(&format!("POST /charge HTTP/1.1\r\n{HEAD}{head}\r\n{smuggled}"))
            .await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert!(answer.contains("SEM0471") && answer.contains(says), "{answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    }
    for host in ["a b", "user@a", "a/b", "a:80:81", "a, b"] {
        let answer = bed.raw(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        assert!(
            answer.contains("SEM0471") && answer.contains("no host name"),
            "{answer}"
        );
    }
    let hostless = bed.raw("GET / HTTP/1.1\r\n\r\n").await;
    assert!(hostless.contains("it has no Host"), "{hostless}");
    assert_eq!(bed.upstream.seen.requests(), Vec::<String>::new());
}

/// Its body would reach the upstream compressed, under a head that does not say so any more.
#[tokio::test]
async fn a_body_in_another_transfer_coding_than_chunked_is_not_taken() {
    let bed = Bed::start("").await;
    let body = "2\r\n\x1f\x00\r\n0\r\n\r\n";
    for coding in [
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
    ] {
        let answer = bed
            .raw(&format!(
                "PUT /upload HTTP/1.1\r\nHost: a\r\n{coding}\r\n\r\n{body}"
            ))
            .await;
        assert!(
            answer.starts_with("HTTP/1.1 501") && answer.contains("SEM0424"),
            "{answer}"
        );
    }
    assert_eq!(bed.upstream.seen.requests(), Vec::<String>::new());
}

#[tokio::test]
async fn malformed_heads_are_refused_and_reach_nobody() {
    let bed = Bed::start("").await;
    for bytes in [
        "POST /charge HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "POST /charge HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        "POST /charge HTTP/1.1\r\nHost: a\r\nContent-Length: 1,1\r\n\r\na",
        "POST /charge HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
        "POST /charge HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        "POST /charge HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /charge HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "POST /charge HTTP/1.1\r\nHost: a\r\nX: 1\r\n folded\r\n\r\n",
        "POST /charge HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
        "POST /charge HTTP/1.1\r\nHost: a\r\nX\0: 1\r\n\r\n",
        "POST /cha rge HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /charge HTTP/3.0\r\nHost: a\r\n\r\n",
        "hello\r\n\r\n",
    ] {
        let answer = bed.raw(bytes).await;
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 400") || answer.starts_with("HTTP/1.0 400"),
            "{bytes:?}: {answer}"
        );
    }
    // A body that is malformed after a good head: the key was not claimed.
    let chunk = bed
        .raw(&format!(
            "POST /charge HTTP/1.1\r\n{HEAD}Transfer-Encoding: chunked\r\n\r\nzz\r\n{{}}\r\n0\r\n\r\n"
        ))
        .await;
    assert!(chunk.is_empty() || chunk.starts_with("HTTP/1.1 400"), "{chunk}");
    assert_eq!(bed.upstream.seen.requests(), Vec::<String>::new());
}

#[tokio::test]
async fn limits_of_heads_and_bodies_are_named_in_the_answer() {
    let bed = Bed::start(
        "headers_max = 10\nheader_bytes_max = 2000\nunkeyed_bytes_max = 100\nrequest_bytes_max = 50",
    )
    .await;
    let many = "X-A: 1\r\n".repeat(11);
    let long = format!("X-A: {}\r\n", "a".repeat(2_100));
    let body = "x".repeat(101);
    for (request, status, code, limit) in [
        (
            format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n"),
            431,
            "SEM0470",
            "headers_max = 10",
        ),
        (
            format!("GET / HTTP/1.1\r\nHost: a\r\n{long}\r\n"),
            431,
            "SEM0470",
            "header_bytes_max = 2000",
        ),
        (
            format!("PUT /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\n\r\n{body}"),
            413,
            "SEM0472",
            "unkeyed_bytes_max = 100",
        ),
        (
            format!(
                "PUT /upload HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n{body}\r\n0\r\n\r\n"
            ),
            413,
            "SEM0472",
            "unkeyed_bytes_max = 100",
        ),
        (
            format!(
                "POST /charge HTTP/1.1\r\nConnection: close\r\n{HEAD}Content-Length: 51\r\n\r\n{}",
                &body[..51]
            ),
            413,
            "SEM0403",
            "request_bytes_max = 50",
        ),
    ] {
        let answer = bed.raw(&request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        assert!(answer.contains(code) && answer.contains(limit), "{answer}");
    }
    assert_eq!(bed.upstream.seen.charges(), 0);
}

#[tokio::test]
async fn targets_and_hosts_arrive_as_they_were_sent() {
    let bed = Bed::start("host = \"preserve\"").await;
    for (target, arrives) in [
        ("/a%2Fb/../c//d;x=1?q=%20", "/a%2Fb/../c//d;x=1?q=%20"),
        ("http://other.example/abs?x", "/abs?x"),
    ] {
        let answer = bed
            .raw(&format!(
                "GET {target} HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n"
            ))
            .await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let seen = bed.upstream.seen.requests().pop().unwrap();
        assert_eq!(seen, format!("GET {arrives}"));
    }
    for refused in
        ["CONNECT shop.example:443 HTTP/1.1\r\nHost: shop.example:443\r\nConnection: close\r\n\r\n"]
    {
        let answer = bed.raw(refused).await;
        assert!(
            answer.starts_with("HTTP/1.1 501") && answer.contains("SEM0424"),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn expect_100_is_answered_when_the_body_is_wanted_and_not_when_the_request_is_refused() {
    let bed = Bed::start("").await;
    let mut raw = bed.connect();
    blocking(move || {
        raw.send(&format!("POST /charge HTTP/1.1\r\n{HEAD}Content-Length: 2\r\nExpect: 100-continue\r\n\r\n"));
        assert_eq!(raw.until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
        raw.send("{}");
        let answer = raw.answer();
        assert!(answer.ends_with("charge 1 of 2"), "{answer}");
        // The same connection goes on.
        raw.send("POST /charge HTTP/1.1\r\nHost: a\r\nIdempotency-Key: \r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
        let refused = raw.answer();
        assert!(refused.starts_with("HTTP/1.1 400") && refused.contains("SEM0402"), "{refused}");
    })
    .await;
    assert_eq!(bed.upstream.seen.charges(), 1);
}

#[tokio::test]
async fn an_answer_to_head_has_the_length_and_no_body_whoever_gives_it() {
    let bed = Bed::start("").await;
    let mut raw = bed.connect();
    blocking(move || {
        raw.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
        let head = raw.until("\r\n\r\n").to_ascii_lowercase();
        assert!(
            head.starts_with("http/1.1 200") && head.contains("content-length: 5"),
            "{head}"
        );
        // This gateway's own answer: the next one begins where this ends.
        raw.send("HEAD /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n");
        let refused = raw.until("\r\n\r\n");
        assert!(refused.starts_with("HTTP/1.1 501"), "{refused}");
        raw.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let answer = raw.answer();
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"),
            "{answer}"
        );
    })
    .await;
}

#[tokio::test]
async fn trailers_cross_in_both_directions() {
    let bed = Bed::start("").await;
    let answer = bed
        .raw(
            "PUT /trailers HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: close, te\r\nTrailer: x-sum\r\n\
             Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nx-sum: 42\r\n\r\n",
        )
        .await;
    assert!(answer.contains("\r\n42\r\n"), "the upstream's: {answer}");
    assert!(answer.ends_with("x-back: 7\r\n\r\n"), "the client's: {answer}");
}

/// The first answer and its replay.
#[tokio::test]
async fn trailers_of_an_answer_to_a_request_with_a_key_reach_the_client() {
    let bed = Bed::start("").await;
    for replayed in [false, true] {
        let answer = bed
            .raw(&format!(
                "POST /trailers HTTP/1.1\r\n{HEAD}TE: trailers\r\nConnection: close, te\r\nContent-Length: 2\r\n\r\n{{}}"
            ))
            .await;
        assert_eq!(answer.contains("idempotent-replayed"), replayed, "{answer}");
        assert!(answer.ends_with("x-back: 7\r\n\r\n"), "{answer}");
    }
    assert_eq!(bed.upstream.seen.requests(), ["POST /trailers"]);
}

/// Under the upstream's version nothing but the end of the connection would say where the body ends.
#[tokio::test]
async fn an_answer_of_http_1_0_that_breaks_off_is_seen_to_break_off() {
    let upstream = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = upstream.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut open = Vec::new();
        loop {
            let (mut stream, _) = upstream.accept().await.unwrap();
            assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
            stream
                .write_all(b"HTTP/1.0 200 OK\r\n\r\nhalf of it")
                .await
                .unwrap();
            open.push(stream);
        }
    });
    let lines = "answer_idle_ms = 300\ntotal_timeout_ms = 300\nresponse_bytes_max = 4";
    let bed = Bed::before(port, lines).await;
    for head in ["POST / HTTP/1.1\r\nIdempotency-Key: k", "PUT / HTTP/1.1"] {
        let answer = bed
            .raw(&format!("{head}\r\nHost: a\r\nContent-Length: 0\r\n\r\n"))
            .await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("transfer-encoding: chunked\r\n"), "{answer}");
        assert!(
            answer.contains("half of it") && !answer.ends_with("0\r\n\r\n"),
            "{answer}"
        );
    }
}

/// A tunnel is a connection like any other.
#[tokio::test]
async fn a_websocket_holds_its_place_among_the_connections() {
    // One thread: another would take the place to wait for a client of its own.
    let bed = Bed::start("connections_max = 1\nthreads = 1").await;
    let port = bed.port;
    blocking(move || {
        let mut tunnel = Raw::connect(port);
        tunnel.send("GET /echo HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\none");
        tunnel.until("ONE");
        let mut next = Raw::connect(port);
        next.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(
            next.silent_for(std::time::Duration::from_millis(300)),
            "it was let in beside a tunnel"
        );
        tunnel.hang_up();
        assert!(next.answer().ends_with("hello"));
    })
    .await;
}

#[tokio::test]
async fn a_websocket_passes_through_and_ends_when_the_daemon_stops() {
    let bed = Bed::start("").await;
    let port = bed.port;
    let (told, telling) = tokio::sync::oneshot::channel();
    let talk = tokio::task::spawn_blocking(move || {
        let mut raw = Raw::connect(port);
        raw.send("GET /echo HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\nearly");
        let head = raw.until("\r\n\r\n").to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 101"), "{head}");
        assert!(
            head.contains("upgrade: websocket") && head.contains("connection: upgrade"),
            "{head}"
        );
        assert_eq!(raw.until("EARLY"), "EARLY");
        // What looks like a request is bytes now.
        raw.send("content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n");
        raw.until("CHUNKED\r\n\r\n");
        told.send(()).unwrap();
        raw.rest()
    });
    telling.await.unwrap();
    assert_eq!(
        bed.daemon.metric("semel_gateway_tunnels{gateway=\"api\"}").await,
        Some(1.0)
    );
    let (code, log) = bed.daemon.stop().await;
    assert_eq!(code, 0, "{log}");
    assert!(!log.contains("cut off"), "{log}");
    assert_eq!(talk.await.unwrap(), "");
}

#[tokio::test]
async fn events_pass_as_they_come() {
    let bed = Bed::start("").await;
    let mut raw = bed.connect();
    let seen = std::sync::Arc::clone(&bed.upstream.seen);
    blocking(move || {
        raw.send("GET /events HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        raw.until("text/event-stream\r\n");
        for n in 0..3 {
            seen.go.notify_one();
            raw.until(&format!("data: {n}\n\n"));
        }
        raw.rest();
    })
    .await;
}

#[tokio::test]
async fn http_2_by_prior_knowledge_carries_keys_and_streams_on_both_sides() {
    let bed = Bed::start("upstream_http = \"2\"").await;
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", bed.port))
        .await
        .unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let mut answers = Vec::new();
    for n in 0..6 {
        let mut sender = sender.clone();
        answers.push(tokio::spawn(async move {
            let request = Request::post("http://shop.example/charge")
                .header("idempotency-key", format!("k{}", n % 2))
                .body(Full::new(bytes::Bytes::from_static(b"{}")))
                .unwrap();
            let answer = sender.send_request(request).await.unwrap();
            let outcome = answer.headers()["semel-outcome"].to_str().unwrap().to_owned();
            (
                answer.status().as_u16(),
                outcome,
                answer.into_body().collect().await.unwrap().to_bytes(),
            )
        }));
    }
    for answer in answers {
        let (status, outcome, body) = answer.await.unwrap();
        assert_eq!((status, outcome.as_str()), (200, "succeeded"), "{body:?}");
    }
    assert_eq!(bed.upstream.seen.charges(), 2);
}

/// Counts of the metrics page, and what floods the log where nobody limits it.
#[tokio::test]
async fn an_upstream_that_is_away_is_counted_each_time_and_logged_now_and_then() {
    let bed = Bed::start("").await;
    let text = std::fs::read_to_string(bed.folder.file("semel.toml")).unwrap();
    let gone = semel_testkit::servers::free_port();
    let text = text.replace(
        &format!(":{}\"\nanonymous", bed.upstream.port),
        &format!(":{gone}\"\nanonymous"),
    );
    std::fs::write(bed.folder.file("semel.toml"), text).unwrap();
    bed.daemon.hang_up();
    until("the configuration is taken over", async || {
        bed.daemon
            .metric("semel_config_reloads_total{result=\"taken\"}")
            .await
            == Some(1.0)
    })
    .await;
    for _ in 0..50 {
        let answer = bed
            .raw("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            .await;
        assert!(
            answer.starts_with("HTTP/1.1 502") && answer.contains("SEM0421"),
            "{answer}"
        );
    }
    let failed = "semel_gateway_upstream_failed_total{gateway=\"api\",reason=\"not_sent\"}";
    assert_eq!(bed.daemon.metric(failed).await, Some(50.0));
    assert_eq!(
        bed.daemon
            .metric("semel_gateway_in_flight{gateway=\"api\"}")
            .await,
        Some(0.0)
    );
    let lines = bed.daemon.log().matches("upstream unreachable").count();
    assert!((1..10).contains(&lines), "{lines} lines for 50 requests");
}

/// A client that speaks gRPC sees neither the status of HTTP nor the body of a problem: with a key or without, it gets a
/// status of its own.
#[tokio::test]
async fn what_the_gateway_refuses_is_a_grpc_status_to_who_speaks_grpc() {
    let bed = Bed::start("unkeyed_bytes_max = 100").await;
    let grpc = "Host: a\r\nContent-Type: application/grpc-web+proto\r\nConnection: close\r\n";
    for (target, more, status, code, outcome) in [
        (
            "/charge",
            "Idempotency-Key: \r\nContent-Length: 0\r\n",
            "3",
            "SEM0402",
            "refused",
        ),
        ("/upload", "Content-Length: 101\r\n", "8", "SEM0472", "refused"),
        (
            "/charge",
            "Transfer-Encoding: gzip, chunked\r\n",
            "12",
            "SEM0424",
            "refused",
        ),
    ] {
        let answer = bed
            .raw(&format!("POST {target} HTTP/1.1\r\n{grpc}{more}\r\n"))
            .await;
        let answer = answer.to_ascii_lowercase();
        assert!(
            answer.starts_with("http/1.1 200") && answer.ends_with("\r\n\r\n"),
            "{answer}"
        );
        for line in [
            format!("grpc-status: {status}\r\n"),
            format!("semel-outcome: {outcome}\r\n"),
            "content-type: application/grpc-web+proto\r\n".to_owned(),
            format!("({}): ", code.to_ascii_lowercase()),
        ] {
            assert!(answer.contains(&line), "{line}: {answer}");
        }
    }
    assert_eq!(bed.upstream.seen.requests(), Vec::<String>::new());
}
