//! Requests as a test wants them: on connections of their own, cut short, with headers that no client would send.

use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tower::ServiceExt as _;

use super::options::Options;

/// Bytes of an answer's body that are read at most.
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// One request.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) path: String,
    /// Values of the key's header, each a line.
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) body: Bytes,
    /// Instead of, or beside, the headers of every request.
    pub(super) instead: Option<(HeaderName, HeaderValue)>,
}

/// A whole answer.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Opens connections to the target.
#[derive(Clone)]
pub(super) struct Wire {
    connector: HttpsConnector<HttpConnector>,
    base: Uri,
    timeout: Duration,
}

/// An open connection, ready for one request.
pub(super) struct Ready(SendRequest<Full<Bytes>>);

type Stream = MaybeHttpsStream<TokioIo<tokio::net::TcpStream>>;

impl Wire {
    pub(super) fn new(options: &Options) -> Self {
        Self::to(options.base.clone(), options.timeout)
    }

    fn to(base: Uri, timeout: Duration) -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(timeout));
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_webpki_roots()
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        Self {
            connector,
            base,
            timeout,
        }
    }

    /// Every step has an end: a target may accept a connection and then say or read nothing.
    async fn in_time<T>(
        &self,
        what: impl std::fmt::Display,
        step: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        match tokio::time::timeout(self.timeout, step).await {
            Ok(done) => done,
            Err(_) => Err(format!(
                "{what} within {} ms (--timeout-ms)",
                self.timeout.as_millis()
            )),
        }
    }

    async fn connect(&self) -> Result<Stream, String> {
        let connecting = async {
            let stream = self.connector.clone().oneshot(self.base.clone()).await;
            stream.map_err(|error| format!("cannot connect to {}: {error}", self.base))
        };
        self.in_time(
            format_args!("no connection to {}", self.base),
            Box::pin(connecting),
        )
        .await
    }

    /// Opens a connection.
    pub(super) async fn ready(&self) -> Result<Ready, String> {
        let stream = self.connect().await?;
        let opening = async { handshake(stream).await.map_err(|error| error.to_string()) };
        let (send, connection) = self.in_time("no HTTP connection", Box::pin(opening)).await?;
        // It ends with the last sender, or when the target closes.
        tokio::spawn(connection);
        Ok(Ready(send))
    }

    /// Sends on an open connection and reads the whole answer.
    pub(super) async fn send_on(
        &self,
        ready: Ready,
        request: Request<Full<Bytes>>,
    ) -> Result<Answer, String> {
        let mut send = ready.0;
        let call = async {
            let answer = send
                .send_request(request)
                .await
                .map_err(|error| format!("no answer: {error}"))?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| format!("{} and no whole body: {error}", head.status))?;
            Ok(Answer {
                status: head.status,
                headers: head.headers,
                body: body.to_bytes(),
            })
        };
        self.in_time("no answer", Box::pin(call)).await
    }

    /// Sends on a connection of its own.
    pub(super) async fn send(&self, request: Request<Full<Bytes>>) -> Result<Answer, String> {
        self.send_on(self.ready().await?, request).await
    }

    /// Writes a request by hand, `body_bytes` of its body at most, and hands the connection over.
    pub(super) async fn begin(
        &self,
        request: Request<Full<Bytes>>,
        body: &Bytes,
        body_bytes: usize,
    ) -> Result<impl AsyncRead + AsyncWrite + Unpin + use<>, String> {
        let mut stream = TokioIo::new(self.connect().await?);
        let mut head = format!("{} {} HTTP/1.1\r\n", request.method(), request.uri()).into_bytes();
        for (name, value) in request.headers() {
            head.extend_from_slice(name.as_str().as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value.as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
        head.extend_from_slice(&body[..body_bytes.min(body.len())]);
        let write = async {
            let written = async {
                stream.write_all(&head).await?;
                stream.flush().await
            };
            written
                .await
                .map_err(|error: std::io::Error| format!("cannot send: {error}"))
        };
        self.in_time("the request was not read", Box::pin(write)).await?;
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts connections and keeps them, without a word.
    async fn silent() -> (u16, tokio::task::JoinHandle<()>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let accepting = tokio::spawn(async move {
            let mut kept = Vec::new();
            loop {
                kept.push(listener.accept().await.unwrap());
            }
        });
        (port, accepting)
    }

    #[tokio::test]
    async fn a_target_that_accepts_and_says_nothing_ends_by_the_time_out() {
        let (port, accepting) = silent().await;
        // More than the sockets of both sides hold.
        let body = Bytes::from(vec![b'x'; 64 << 20]);
        for scheme in ["http", "https"] {
            let base = format!("{scheme}://127.0.0.1:{port}").parse().unwrap();
            let wire = Wire::to(base, Duration::from_millis(100));
            let request = || Request::post("/").body(Full::new(body.clone())).unwrap();
            let all = async {
                let sent = wire.send(request()).await.map(drop);
                let begun = wire.begin(request(), &body, usize::MAX).await.map(drop);
                [sent, begun]
            };
            let all = tokio::time::timeout(Duration::from_secs(60), all).await;
            for end in all.expect("it ends") {
                let error = end.unwrap_err();
                assert!(
                    error.contains("within 100 ms (--timeout-ms)"),
                    "{scheme}: {error}"
                );
            }
        }
        accepting.abort();
    }
}
