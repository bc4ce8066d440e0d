//! Connections that are used again, and those that must not be.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::stream;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

use super::upstream::read;
use super::{World, post, request};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// An upstream whose connections are the test's, one after the other; each answers its requests with this text.
struct Kept {
    address: std::net::SocketAddr,
    connections: Arc<AtomicUsize>,
    /// Says when a connection was closed by the gateway.
    closed: mpsc::UnboundedReceiver<()>,
}

impl Kept {
    async fn start(answer: &'static str, closes: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        let (gone, closed) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                let gone = gone.clone();
                tokio::spawn(async move {
                    while !read(&mut stream).await.is_empty() {
                        stream.write_all(answer.as_bytes()).await.unwrap();
                        if closes {
                            break;
                        }
                    }
                    let _ = gone.send(());
                });
            }
        });
        Self {
            address,
            connections,
            closed,
        }
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn a_connection_is_used_again_only_where_both_sides_know_where_the_answer_ended() {
    for (answer, closes, body, kept) in [
        (OK, false, "ok", true),
        ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", false, "", true),
        ("HTTP/1.1 204 No Content\r\n\r\n", false, "", true),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1;x\r\nk\r\n0\r\n\r\n",
            false,
            "ok",
            true,
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx: y\r\n\r\n",
            false,
            "ok",
            true,
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
            false,
            "ok",
            false,
        ),
        (
            "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
            false,
            "ok",
            false,
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n",
            false,
            "ok",
            false,
        ),
        ("HTTP/1.1 200 OK\r\nx: y\r\n\r\nok", true, "ok", false),
    ] {
        let upstream = Kept::start(answer, closes).await;
        let world = World::new(upstream.address, "");
        for key in ["a", "b"] {
            let told = world.send(post(key)).await;
            assert!(told.status < 300 && told.body == body, "{answer}: {told:?}");
        }
        assert_eq!(upstream.connections(), if kept { 1 } else { 2 }, "{answer}");
    }
}

/// It closed the connection at rest, so nothing of the next request was lost on it.
#[tokio::test]
async fn a_connection_that_the_upstream_closed_at_rest_takes_no_request() {
    let mut upstream = Kept::start(OK, true).await;
    let world = World::new(upstream.address, "");
    for (n, key) in ["a", "b", "c"].into_iter().enumerate() {
        assert_eq!(world.send(post(key)).await.status, 200, "{key}");
        assert_eq!(upstream.connections(), n + 1);
        upstream.closed.recv().await.unwrap();
        // The runtime looks at its sockets.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_connection_at_rest_serves_a_request_that_streams() {
    let upstream = Kept::start(OK, false).await;
    let world = World::new(upstream.address, "");
    let streams = || {
        let mut streams = request("PUT", "/orders", "a");
        let pieces = [Ok::<_, std::io::Error>("ab")];
        *streams.body_mut() = axum::body::Body::from_stream(stream::iter(pieces));
        streams
    };
    assert_eq!(world.send(post("a")).await.status, 200);
    assert_eq!(world.send(streams()).await.status, 200);
    assert_eq!(upstream.connections(), 1);
}

/// No request comes that would find it too old.
#[tokio::test]
async fn a_connection_that_rests_for_too_long_is_closed() {
    let mut upstream = Kept::start(OK, false).await;
    let world = World::new(upstream.address, "upstream_idle_ms = 30");
    assert_eq!(world.send(post("a")).await.status, 200);
    upstream.closed.recv().await.unwrap();
}

/// Enough to fill what the system holds for a socket.
const LONG: usize = 16 << 20;

#[tokio::test]
async fn an_answer_may_come_before_the_request_was_written_whole() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let says = "HTTP/1.1 413 Content Too Large\r\ncontent-length: 3\r\n\r\nbig";
    let (answered, has_answered) = oneshot::channel();
    let upstream = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 64]).await.unwrap();
        stream.write_all(says.as_bytes()).await.unwrap();
        // It is closed, not used again: there is an end, and it comes before that of the body.
        has_answered.await.unwrap();
        rest(&mut stream).await
    });
    let world = World::new(address, &format!("request_bytes_max = {LONG}"));
    let mut long = post("a");
    *long.body_mut() = axum::body::Body::from(vec![b' '; LONG]);
    let told = world.send(long).await;
    assert_eq!((told.status, &told.body[..]), (413, &b"big"[..]));
    answered.send(()).unwrap();
    assert!(upstream.await.unwrap() < LONG);
}

/// How many bytes still come.
async fn rest(stream: &mut TcpStream) -> usize {
    let mut all = 0;
    let mut buffer = vec![0; 64 << 10];
    loop {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return all,
            Ok(read) => all += read,
        }
    }
}
