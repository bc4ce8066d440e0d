//! What is known when the upstream gives no clear answer.

use std::net::SocketAddr;
use std::sync::Arc;

use semel_http::Body;

use super::super::Outgoing;
use super::upstream::{Does, Upstream, answer};
use super::{World, post};

/// Unknown at once for the first caller, unknown for every retry, and sent once.
async fn is_unknown(world: &World, upstream: &Upstream, status: u16, code: &str) {
    let first = world.send(post("a")).await;
    assert_eq!((first.status, first.outcome()), (status, "unknown"), "{first:?}");
    assert_eq!(first.code(), code);
    world.leases_end();
    let again = world.send(post("a")).await;
    assert_eq!(
        (again.status, again.code().as_str(), again.outcome()),
        (409, "SEM0406", "unknown")
    );
    assert_eq!(again.header("retry-after"), None);
    assert_eq!(upstream.count(), 1, "nothing is sent twice");
}

/// idempotent-proxy: nothing was sent, so the key is free at once and the next try runs.
#[tokio::test]
async fn a_refused_connection_gives_the_key_back_at_once() {
    let upstream = Upstream::start(|_| Does::Closes).await;
    let address = upstream.address;
    upstream.stop().await;
    let world = World::new(address, "");
    let refused = world.send(post("a")).await;
    assert_eq!(
        (refused.status, refused.code().as_str(), refused.outcome()),
        (502, "SEM0421", "refused")
    );
    assert_eq!(refused.header("retry-after"), Some("1"));
    let upstream = Upstream::at(address, |_| answer("201 Created", &[], "done")).await;
    let runs = world.send(post("a")).await;
    assert_eq!(
        (runs.status, &runs.body[..], runs.replayed()),
        (201, &b"done"[..], false)
    );
    assert!(world.send(post("a")).await.replayed());
    assert_eq!(upstream.count(), 1);
}

/// Else anybody who sends slowly makes others' requests unknown, with nothing sent of them.
#[tokio::test]
async fn a_connection_that_is_busy_with_another_ones_upload_is_not_waited_for() {
    let early = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    let upstream = Upstream::start(move |n| match n {
        1..=3 => Does::Hangs(early),
        _ => answer("201 Created", &[], "done"),
    })
    .await;
    let world = World::new(upstream.address, "first_byte_timeout_ms = 400");
    for _ in 0..3 {
        let endless = futures_util::stream::pending::<Result<bytes::Bytes, std::convert::Infallible>>();
        let mut upload = super::request("PUT", "/upload", "x");
        *upload.body_mut() = axum::body::Body::from_stream(endless);
        assert_eq!(world.send(upload).await.status, 200);
    }
    let runs = world.send(post("a")).await;
    assert_eq!((runs.status, runs.outcome()), (201, "succeeded"), "{runs:?}");
}

/// The time of the answer's head does not run while there is no connection.
#[tokio::test]
async fn a_connection_that_is_not_had_in_time_gives_the_key_back_whatever_the_other_times() {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    // Its queue is full and nobody takes from it: the system answers no more.
    let full = socket.listen(1).unwrap();
    let address = full.local_addr().unwrap();
    let waiting: Vec<_> = [
        tokio::net::TcpStream::connect(address).await,
        tokio::net::TcpStream::connect(address).await,
    ]
    .into_iter()
    .map(Result::unwrap)
    .collect();
    let world = World::new(address, "connect_timeout_ms = 600\nfirst_byte_timeout_ms = 200");
    let refused = world.send(post("a")).await;
    assert_eq!(
        (refused.status, refused.code().as_str(), refused.outcome()),
        (502, "SEM0421", "refused")
    );
    drop((full, waiting));
}

#[tokio::test]
async fn a_connection_that_closes_after_the_request_was_sent_is_unknown() {
    let upstream = Upstream::start(|_| Does::Closes).await;
    is_unknown(&World::new(upstream.address, ""), &upstream, 502, "SEM0422").await;
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_unknown() {
    let half = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf";
    let upstream = Upstream::start(|_| Does::Sends(half.to_owned())).await;
    is_unknown(&World::new(upstream.address, ""), &upstream, 502, "SEM0422").await;
}

#[tokio::test]
async fn what_is_no_http_is_unknown() {
    let upstream = Upstream::start(|_| Does::Sends("hello\r\n\r\n".to_owned())).await;
    is_unknown(&World::new(upstream.address, ""), &upstream, 502, "SEM0422").await;
}

#[tokio::test]
async fn an_upstream_that_hangs_is_unknown() {
    let upstream = Upstream::start(|_| Does::Hangs("")).await;
    is_unknown(
        &World::new(upstream.address, "total_timeout_ms = 100"),
        &upstream,
        504,
        "SEM0423",
    )
    .await;
}

#[tokio::test]
async fn an_answer_whose_body_hangs_is_unknown() {
    let half = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf";
    let upstream = Upstream::start(move |_| Does::Hangs(half)).await;
    let world = World::new(upstream.address, "total_timeout_ms = 100");
    is_unknown(&world, &upstream, 504, "SEM0423").await;
}

#[tokio::test]
async fn server_errors_are_unknown() {
    for status in [
        "500 Oops",
        "502 Bad Gateway",
        "504 Gateway Timeout",
        "503 Busy",
        "501 Not Implemented",
        "408 Request Timeout",
    ] {
        let upstream = Upstream::start(|_| answer(status, &["retry-after: 1"], "?")).await;
        let status = status[..3].parse().unwrap();
        is_unknown(&World::new(upstream.address, ""), &upstream, status, "none").await;
    }
}

#[tokio::test]
async fn a_trusted_upstreams_503_gives_the_key_back() {
    let upstream = Upstream::start(|n| {
        if n == 1 {
            answer("503 Busy", &["retry-after: 1"], "")
        } else {
            answer("200 OK", &[], "done")
        }
    })
    .await;
    let world = World::new(upstream.address, "trust_unavailable = true");
    assert_eq!(world.send(post("a")).await.outcome(), "refused");
    assert_eq!(world.send(post("a")).await.body, "done");
}

/// The client gives up; the upstream's answer is there for its retry.
#[tokio::test]
async fn a_client_that_gives_up_does_not_stop_the_request() {
    let upstream = Upstream::start(|_| answer("201 Created", &[], "done")).await;
    let world = World::new(upstream.address, "");
    let gateway = Arc::clone(&world.gateway);
    let request = post("a").map(|body| Outgoing::layer(Body::new(body), None));
    let first =
        tokio::spawn(async move { gateway.on(0).unwrap().call(request, None).await.unwrap().status() });
    while upstream.count() == 0 {
        tokio::task::yield_now().await;
    }
    first.abort();
    let again = world.send(post("a")).await;
    assert_eq!((again.status, &again.body[..]), (201, &b"done"[..]));
    assert_eq!(upstream.count(), 1);
}

/// No route to it: the connect time-out ends it, and nothing was sent.
#[tokio::test]
async fn an_upstream_that_cannot_be_connected_to_in_time_gives_the_key_back() {
    // A listener whose queue is full answers no connection.
    let listener = std::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let mut fill = Vec::new();
    loop {
        let connect = tokio::net::TcpStream::connect(address);
        match tokio::time::timeout(std::time::Duration::from_millis(200), connect).await {
            Ok(Ok(stream)) => fill.push(stream),
            _ => break,
        }
    }
    let world = World::new(address, "connect_timeout_ms = 100");
    let answer = world.send(post("a")).await;
    assert_eq!((answer.status, answer.code().as_str()), (502, "SEM0421"));
}
