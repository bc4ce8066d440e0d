//! Over a socket: what a replay looks like on the wire beside the first answer.

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::support::*;

on_each_store![a_replay_has_the_body_and_framing_of_the_first_answer];

/// Status, headers, body.
type Case = (u16, &'static [(&'static str, &'static str)], &'static [u8]);

const CASES: [Case; 7] = [
    (201, &[("location", "/orders/7")], b"made"),
    (200, &[], b""),
    (204, &[("etag", "\"1\"")], b""),
    (304, &[("etag", "\"1\"")], b""),
    (205, &[], b""),
    (
        200,
        &[("content-encoding", "gzip"), ("vary", "accept-encoding")],
        b"\x1f\x8b\x08\x00\xff\xfe\r\n\r\n\x00",
    ),
    (404, &[("content-type", "application/problem+json")], b"{}"),
];

async fn a_replay_has_the_body_and_framing_of_the_first_answer(world: World) {
    let layer = world.layer();
    for (n, (status, headers, body)) in CASES.into_iter().enumerate() {
        let app = app(&layer, &Runs::default(), move |_| async move {
            let mut response = answer(status, Bytes::from_static(body));
            for (name, value) in headers {
                response
                    .headers_mut()
                    .append(HeaderName::from_static(name), HeaderValue::from_static(value));
            }
            response
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let (first_head, first_body) = exchange(port, n).await;
        let (again_head, again_body) = exchange(port, n).await;
        server.abort();
        assert_eq!(first_body, body, "{status}");
        assert_eq!(again_body, body, "{status}");
        assert!(
            first_head[0].starts_with(&format!("HTTP/1.1 {status} ")),
            "{first_head:?}"
        );
        let own = |head: &[String]| {
            let ours = ["date", "idempotent-replayed", "semel-retained-until"];
            let mut own: Vec<String> = head
                .iter()
                .filter(|line| !ours.iter().any(|name| line.starts_with(name)))
                .cloned()
                .collect();
            own.sort();
            own
        };
        assert_eq!(own(&first_head), own(&again_head), "{status}");
        assert!(
            again_head.contains(&"idempotent-replayed: true".to_owned()),
            "{again_head:?}"
        );
    }
}

/// The lines of the head, and the body up to the end of the connection.
async fn exchange(port: u16, n: usize) -> (Vec<String>, Vec<u8>) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = format!(
        "POST /orders HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nidempotency-key: framing-{n}\r\n\
         content-length: 2\r\n\r\n{{}}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    (
        head.split("\r\n").map(str::to_owned).collect(),
        bytes[end + 4..].to_vec(),
    )
}
