//! An upstream that speaks HTTP/2 and says, in frames, that it did not take a request.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{World, post, request};

const PREFACE: usize = 24;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const REFUSED_STREAM: u32 = 7;
const INTERNAL_ERROR: u32 = 2;

fn frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, 0], &stream.to_be_bytes(), payload].concat()
}

/// The stream of the next request.
async fn next_stream(stream: &mut TcpStream) -> u32 {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).await.unwrap();
        if head[3] == HEADERS {
            return u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        }
    }
}

/// Sends these settings, and to each request what `says` makes of its stream.
async fn upstream(
    settings: &'static [u8],
    says: impl Fn(u32) -> Vec<u8> + Clone + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let says = says.clone();
            tokio::spawn(async move {
                stream.write_all(&frame(SETTINGS, 0, settings)).await.unwrap();
                stream.read_exact(&mut [0; PREFACE]).await.unwrap();
                loop {
                    let id = next_stream(&mut stream).await;
                    stream.write_all(&says(id)).await.unwrap();
                }
            });
        }
    });
    address
}

fn reset(reason: u32) -> impl Fn(u32) -> Vec<u8> + Clone {
    move |id| frame(RST_STREAM, id, &reason.to_be_bytes())
}

/// RFC 9113, 8.7: the key is given back. Any other reset says nothing.
#[tokio::test]
async fn a_refused_stream_was_certainly_not_looked_at() {
    for (reason, status, outcome, code) in [
        (REFUSED_STREAM, 502, "refused", "SEM0421"),
        (INTERNAL_ERROR, 502, "unknown", "SEM0422"),
    ] {
        let address = upstream(&[], reset(reason)).await;
        let world = World::new(address, "upstream_http = \"2\"");
        let first = world.send(post("a")).await;
        assert_eq!((first.status, first.outcome()), (status, outcome), "{reason}");
        assert_eq!(first.code(), code);
        let again = world.send(post("a")).await;
        let sent = if outcome == "refused" { code } else { "SEM0406" };
        assert_eq!(again.code(), sent, "{reason}");
    }
}

/// It names the last stream that it looked at.
#[tokio::test]
async fn a_stream_behind_the_last_of_a_goodbye_was_certainly_not_looked_at() {
    let goodbye = |_| frame(GOAWAY, 0, &[0; 8]);
    let address = upstream(&[], goodbye).await;
    let world = World::new(address, "upstream_http = \"2\"");
    let first = world.send(post("a")).await;
    assert_eq!((first.outcome(), first.code().as_str()), ("refused", "SEM0421"));
}

#[tokio::test]
async fn a_request_that_waited_for_a_stream_in_vain_was_not_sent() {
    let taken = Arc::new(tokio::sync::Notify::new());
    let takes = Arc::clone(&taken);
    // SETTINGS_MAX_CONCURRENT_STREAMS = 1, and no answer to anything.
    let says = move |_| {
        takes.notify_one();
        Vec::new()
    };
    let address = upstream(&[0, 3, 0, 0, 0, 1], says).await;
    let patient = "upstream_http = \"2\"\nfirst_byte_timeout_ms = 60000\ntotal_timeout_ms = 60000\n\
                   [[gateway.route]]\npaths = [\"/soon\"]\nfirst_byte_timeout_ms = 300";
    let world = World::new(address, patient);
    // One has the stream, one may be on its way to it, and the others stand behind them for good.
    let before = async {
        tokio::join!(
            world.send(post("a")),
            world.send(post("b")),
            world.send(post("c"))
        )
    };
    let behind = async {
        taken.notified().await;
        world.send(request("POST", "/soon", "d")).await
    };
    tokio::select! {
        biased;
        _ = before => panic!("they have no answer"),
        last = behind => assert_eq!((last.outcome(), last.code().as_str()), ("refused", "SEM0421")),
    }
}

/// gRPC servers refuse a request without it.
#[tokio::test]
async fn te_trailers_reaches_an_http2_upstream() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            let mut answer = http::Response::new(());
            if let Some(te) = request.headers().get("te") {
                answer.headers_mut().insert("x-te", te.clone());
            }
            respond.send_response(answer, true).unwrap();
        }
    });
    let world = World::new(address, "upstream_http = \"2\"");
    for keyed in [false, true] {
        let mut call = post("a");
        if !keyed {
            call.headers_mut().remove("idempotency-key");
        }
        let trailers = http::HeaderValue::from_static("trailers");
        call.headers_mut().insert("te", trailers);
        let answer = world.send(call).await;
        assert_eq!(answer.header("x-te"), Some("trailers"), "keyed: {keyed}");
    }
}
