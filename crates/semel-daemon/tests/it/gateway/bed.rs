//! An upstream with everything a proxy can break, and a client that writes bytes.

use std::convert::Infallible;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{any, get, post};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::TokioIo;
use semel_testkit::servers::free_port;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;

use crate::daemon::{Daemon, Folder};

/// What an upstream saw and may do.
#[derive(Default)]
pub(super) struct Seen {
    /// Requests, as `METHOD TARGET`.
    requests: Mutex<Vec<String>>,
    charges: AtomicU32,
    /// Lets the next part of `/events`, or the answer of `/slow`, go.
    pub(super) go: Notify,
}

impl Seen {
    pub(super) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    pub(super) fn charges(&self) -> u32 {
        self.charges.load(Ordering::SeqCst)
    }
}

/// Bytes of `/large`: more than sockets take in.
pub(super) const LARGE: usize = 64 << 20;

/// A running upstream.
pub(super) struct Upstream {
    pub(super) port: u16,
    pub(super) seen: Arc<Seen>,
}

impl Upstream {
    pub(super) async fn start() -> Self {
        let seen = Arc::new(Seen::default());
        let app = app(Arc::clone(&seen));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { port, seen }
    }
}

pub(super) fn app(seen: Arc<Seen>) -> Router {
    Router::new()
        .route("/charge", post(charge))
        .route("/slow", post(slow))
        .route("/upload", any(upload))
        .route("/events", get(events))
        .route("/trailers", any(trailers))
        .route("/echo", get(echo))
        .route("/large", get(|| async { vec![b'x'; LARGE] }))
        .fallback(|| async { "hello" })
        .layer(axum::middleware::from_fn_with_state(
            Arc::clone(&seen),
            |State(seen): State<Arc<Seen>>, request: Request, next: axum::middleware::Next| async move {
                let line = format!("{} {}", request.method(), request.uri());
                seen.requests.lock().unwrap().push(line);
                next.run(request).await
            },
        ))
        .with_state(seen)
}

async fn charge(State(seen): State<Arc<Seen>>, body: Bytes) -> String {
    let n = seen.charges.fetch_add(1, Ordering::SeqCst) + 1;
    format!("charge {n} of {}", body.len())
}

async fn slow(State(seen): State<Arc<Seen>>) -> String {
    let n = seen.charges.fetch_add(1, Ordering::SeqCst) + 1;
    seen.go.notified().await;
    format!("slow {n}")
}

async fn upload(body: Body) -> String {
    match body.collect().await {
        Ok(whole) => whole.to_bytes().len().to_string(),
        Err(_) => "broken".to_owned(),
    }
}

/// Three events, each when it is let go.
async fn events(State(seen): State<Arc<Seen>>) -> Response {
    let parts = futures_util::stream::unfold((seen, 0), |(seen, n)| async move {
        if n == 3 {
            return None;
        }
        seen.go.notified().await;
        Some((Ok::<_, Infallible>(format!("data: {n}\n\n")), (seen, n + 1)))
    });
    Response::builder()
        .header(header::CONTENT_TYPE, "text/event-stream")
        .body(Body::from_stream(parts))
        .unwrap()
}

/// The trailers that came, in the answer's own trailers.
async fn trailers(request: Request) -> Response {
    let whole = request.into_body().collect().await.unwrap();
    let mut back = HeaderMap::new();
    back.insert("x-back", HeaderValue::from_static("7"));
    let came = whole
        .trailers()
        .and_then(|trailers| trailers.get("x-sum"))
        .cloned();
    let came = came.map_or_else(|| "none".to_owned(), |sum| sum.to_str().unwrap().to_owned());
    let frames = vec![
        Ok::<_, Infallible>(Frame::data(Bytes::from(came))),
        Ok(Frame::trailers(back)),
    ];
    Response::builder()
        .header(header::TRAILER, "x-back")
        .body(Body::new(StreamBody::new(futures_util::stream::iter(frames))))
        .unwrap()
}

/// A WebSocket as far as a proxy can see: 101, then bytes come back in capitals.
async fn echo(mut request: Request) -> Response {
    let Some(asked) = request.headers().get(header::UPGRADE).cloned() else {
        return Response::new(Body::from("no upgrade"));
    };
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut stream = TokioIo::new(upgrade.await.unwrap());
        let mut buffer = [0; 64];
        while let Ok(read) = stream.read(&mut buffer).await {
            if read == 0 {
                break;
            }
            let back = buffer[..read].to_ascii_uppercase();
            stream.write_all(&back).await.unwrap();
        }
    });
    Response::builder()
        .status(101)
        .header(header::CONNECTION, "upgrade")
        .header(header::UPGRADE, asked)
        .body(Body::empty())
        .unwrap()
}

/// A gateway that runs before an upstream.
pub(super) struct Bed {
    pub(super) upstream: Upstream,
    pub(super) folder: Folder,
    pub(super) daemon: Daemon,
    /// The gateway's port.
    pub(super) port: u16,
}

/// The configuration of one gateway.
pub(super) fn gateway(name: &str, port: u16, upstream: u16, lines: &str) -> String {
    format!(
        "[[gateway]]\nname = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\n\
         upstream = \"http://127.0.0.1:{upstream}\"\n{lines}\n"
    )
}

impl Bed {
    /// With these lines of `[[gateway]]`, keys in memory, anonymous.
    pub(super) async fn start(lines: &str) -> Self {
        Self::with("memory:", &format!("anonymous = true\n{lines}")).await
    }

    pub(super) async fn with(store: &str, lines: &str) -> Self {
        let upstream = Upstream::start().await;
        let before = upstream.port;
        Self::to(upstream, before, store, lines).await
    }

    /// The same before what listens on this port.
    pub(super) async fn before(port: u16, lines: &str) -> Self {
        let lines = format!("anonymous = true\n{lines}");
        Self::to(Upstream::start().await, port, "memory:", &lines).await
    }

    async fn to(upstream: Upstream, before: u16, store: &str, lines: &str) -> Self {
        let port = free_port();
        let folder = Folder::new(&format!(
            "[store]\nurl = \"{store}\"\n{}",
            gateway("api", port, before, lines)
        ));
        let daemon = folder.start().await;
        daemon.until_ready().await;
        Self {
            upstream,
            folder,
            daemon,
            port,
        }
    }

    pub(super) fn connect(&self) -> Raw {
        Raw::connect(self.port)
    }

    /// Sends these bytes and reads until the gateway closes or is silent.
    pub(super) async fn raw(&self, bytes: &str) -> String {
        let (port, bytes) = (self.port, bytes.to_owned());
        blocking(move || {
            let mut raw = Raw::connect(port);
            raw.send(&bytes);
            raw.rest()
        })
        .await
    }
}

/// A blocking client, off the runtime on which the upstream runs.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// A client that writes bytes.
pub(super) struct Raw(TcpStream);

/// Longer than an answer takes on a busy machine.
const SILENT: Duration = Duration::from_secs(20);

impl Raw {
    pub(super) fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(SILENT)).unwrap();
        Self(stream)
    }

    pub(super) fn send(&mut self, bytes: &str) {
        self.0.write_all(bytes.as_bytes()).unwrap();
    }

    /// Hangs up, and returns when the other side has noticed and closed its end.
    pub(super) fn hang_up(mut self) {
        self.0.shutdown(std::net::Shutdown::Write).unwrap();
        let read = self.0.read(&mut [0]);
        assert!(matches!(read, Ok(0)), "it answered or held on: {read:?}");
    }

    /// Reads until this was read.
    pub(super) fn until(&mut self, end: &str) -> String {
        let mut all = Vec::new();
        let mut byte = [0];
        while !all.ends_with(end.as_bytes()) {
            match self.0.read(&mut byte) {
                Ok(1) => all.push(byte[0]),
                other => panic!(
                    "{other:?} before {end:?}, after {:?}",
                    String::from_utf8_lossy(&all)
                ),
            }
        }
        String::from_utf8(all).unwrap()
    }

    /// Reads one answer with a `content-length`.
    pub(super) fn answer(&mut self) -> String {
        let head = self.until("\r\n\r\n");
        let length = head
            .to_ascii_lowercase()
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())
            .unwrap_or(0);
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        head + &String::from_utf8(body).unwrap()
    }

    /// Reads until the other side closes. A reset counts as that, silence does not.
    pub(super) fn rest(&mut self) -> String {
        let mut all = Vec::new();
        match self.0.read_to_end(&mut all) {
            Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => {
                panic!("not closed after {:?}: {error}", String::from_utf8_lossy(&all))
            }
            _ => String::from_utf8_lossy(&all).into_owned(),
        }
    }

    /// Whether this byte could still be sent.
    pub(super) fn try_send(&mut self, byte: u8) -> bool {
        self.0.write_all(&[byte]).is_ok()
    }

    /// Whether nothing comes for so long.
    pub(super) fn silent_for(&mut self, time: Duration) -> bool {
        self.0.set_read_timeout(Some(time)).unwrap();
        let silent = self.0.read(&mut [0]).is_err();
        self.0.set_read_timeout(Some(SILENT)).unwrap();
        silent
    }
}
