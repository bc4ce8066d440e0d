//! The one HTTP client of Semel, used by the gateway, the webhook sink and the saga's participants.
//!
//! # Guarantees
//! - Every call ends by its deadline, with at most [`Limits::response_bytes_max`] bytes of answer held in memory.
//! - An error says what is known: [`ClientErrorKind::NotSent`] only when no byte of the request can have reached
//!   the peer; everything later is [`ClientErrorKind::Unknown`].
//! - Nothing is repeated and no redirect is followed: those decisions belong to the caller's protocol.
//! - With [`Limits::allow_private`] off, no connection is made to an address that is not public, whatever its name says
//!   (no proxy is used, so the address that is looked at is the one that is connected to).
//!
//! [`Destinations`] bounds what many callers ask of one host at once, and spares one that does not answer.
//!
//! # Cancel safety
//! Dropping the future closes the connection; the peer may or may not have acted, as after a time-out.
//!
//! ```
//! use semel_client::{HttpClient, Limits};
//! # async fn f() -> Result<(), semel_client::ClientError> {
//! let client = HttpClient::new(Limits::default());
//! let request = http::Request::post("http://127.0.0.1:8080/charge")
//!     .header("idempotency-key", "order-7")
//!     .body(bytes::Bytes::from_static(b"{}"))
//!     .expect("a valid request");
//! let answer = client.send(request, std::time::Duration::from_secs(5)).await?;
//! assert!(answer.status().is_success());
//! # Ok(()) }
//! ```

mod destinations;
mod guard;

use std::sync::OnceLock;
use std::time::Duration;

pub use self::destinations::{Closed, DestinationPolicy, DestinationState, Destinations, Door, Entered};
use self::guard::{PrivateAddress, Resolver};

use bytes::{Bytes, BytesMut};
use http::response::Parts;
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

/// Bounds of one client.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of an answer's body at most; a longer one is an error. Default 1 MiB.
    pub response_bytes_max: usize,
    /// How long connecting may take. Default 3 s.
    pub connect_timeout: Duration,
    /// Idle connections kept per host. Default 32.
    pub idle_per_host_max: usize,
    /// Whether loopback, private, link-local and other addresses that are not public may be connected to. Default yes:
    /// who calls services of one's own network needs it. Turn it off for URLs that come from outside.
    pub allow_private: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            response_bytes_max: 1 << 20,
            connect_timeout: Duration::from_secs(3),
            idle_per_host_max: 32,
            allow_private: true,
        }
    }
}

/// What is known after a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientErrorKind {
    /// No connection could be made: it is certain that the peer saw nothing of this request.
    NotSent,
    /// No connection was made, because the address is not public and [`Limits::allow_private`] is off.
    Private,
    /// Bytes may have left: the peer may have acted.
    Unknown,
    /// The peer answered, with more than [`Limits::response_bytes_max`] bytes.
    ResponseTooLarge,
}

/// Why a call brought no answer. Its text names scheme, host and port and no more of the URL: path and query may be secrets.
#[derive(Debug, thiserror::Error)]
#[error("{kind_text} {target}: {detail}", kind_text = kind_text(*.kind))]
pub struct ClientError {
    kind: ClientErrorKind,
    target: String,
    detail: String,
    head: Option<Box<(StatusCode, HeaderMap)>>,
}

const fn kind_text(kind: ClientErrorKind) -> &'static str {
    match kind {
        ClientErrorKind::NotSent => "could not reach",
        ClientErrorKind::Private => "will not connect to",
        ClientErrorKind::Unknown => "no whole answer from",
        ClientErrorKind::ResponseTooLarge => "too long an answer from",
    }
}

impl ClientError {
    /// What is known about the request.
    #[must_use]
    pub const fn kind(&self) -> ClientErrorKind {
        self.kind
    }

    /// The answer's status, where its head came before things went wrong: also where its body was too long, was cut off,
    /// or did not end by the deadline.
    #[must_use]
    pub fn status(&self) -> Option<StatusCode> {
        self.head.as_ref().map(|head| head.0)
    }

    /// The answer's headers, where there is a [`ClientError::status`].
    #[must_use]
    pub fn headers(&self) -> Option<&HeaderMap> {
        self.head.as_ref().map(|head| &head.1)
    }
}

#[cfg(feature = "tls")]
type Connector = hyper_rustls::HttpsConnector<HttpConnector<Resolver>>;
#[cfg(not(feature = "tls"))]
type Connector = HttpConnector<Resolver>;

/// A pooled client for HTTP/1.1 and, over TLS, HTTP/2. Cheap to clone.
#[derive(Clone)]
pub struct HttpClient {
    inner: Client<Connector, Full<Bytes>>,
    limits: Limits,
}

impl std::fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpClient")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl HttpClient {
    /// A client with these limits. Opens no connection yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let mut http = HttpConnector::new_with_resolver(Resolver::new(limits.allow_private));
        http.set_connect_timeout(Some(limits.connect_timeout));
        http.set_nodelay(true);
        #[cfg(feature = "tls")]
        let connector = {
            http.enforce_http(false);
            hyper_rustls::HttpsConnectorBuilder::new()
                .with_webpki_roots()
                .https_or_http()
                .enable_all_versions()
                .wrap_connector(http)
        };
        #[cfg(not(feature = "tls"))]
        let connector = http;
        let inner = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(limits.idle_per_host_max)
            .retry_canceled_requests(false)
            .build(connector);
        Self { inner, limits }
    }

    /// Sends one request, once, and reads the whole answer, all within `deadline`.
    ///
    /// # Errors
    /// See [`ClientErrorKind`]. A status is never an error here.
    pub async fn send(
        &self,
        request: Request<Bytes>,
        deadline: Duration,
    ) -> Result<Response<Bytes>, ClientError> {
        let url = request.uri().clone();
        let head: OnceLock<Parts> = OnceLock::new();
        let result = match tokio::time::timeout(deadline, self.exchange(request, &head)).await {
            Ok(result) => result,
            Err(_) => {
                let text = match head.get() {
                    Some(_) => format!("its end did not come within {} ms", deadline.as_millis()),
                    None => format!("nothing within {} ms", deadline.as_millis()),
                };
                Err((ClientErrorKind::Unknown, text))
            }
        };
        let (kind, detail, head) = match (result, head.into_inner()) {
            (Ok(body), Some(head)) => return Ok(Response::from_parts(head, body)),
            (Ok(_), None) => (ClientErrorKind::Unknown, "no head".to_owned(), None),
            (Err((kind, detail)), head) => (kind, detail, head),
        };
        Err(ClientError {
            kind,
            target: origin(&url),
            detail,
            head: head.map(|head| Box::new((head.status, head.headers))),
        })
    }

    /// The answer's body, its head in `head` as soon as that is there.
    async fn exchange(
        &self,
        request: Request<Bytes>,
        head: &OnceLock<Parts>,
    ) -> Result<Bytes, (ClientErrorKind, String)> {
        // A literal address is not resolved: it is looked at here. All others are by the resolver.
        if !self.limits.allow_private
            && let Some(address) = request.uri().host().and_then(guard::literal)
            && !guard::is_public(address)
        {
            let text = PrivateAddress { address }.to_string();
            return Err((ClientErrorKind::Private, text));
        }
        let answer = self.inner.request(request.map(Full::new)).await;
        let answer = answer.map_err(|e| match private(&e) {
            Some(private) => (ClientErrorKind::Private, private.to_string()),
            None if e.is_connect() => (ClientErrorKind::NotSent, chain(&e)),
            None => (ClientErrorKind::Unknown, chain(&e)),
        })?;
        let (parts, mut body) = answer.into_parts();
        head.get_or_init(|| parts);
        let mut bytes = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| (ClientErrorKind::Unknown, chain(&e)))?;
            if let Ok(data) = frame.into_data() {
                if bytes.len() + data.len() > self.limits.response_bytes_max {
                    let text = format!(
                        "more than response_bytes_max = {}",
                        self.limits.response_bytes_max
                    );
                    return Err((ClientErrorKind::ResponseTooLarge, text));
                }
                bytes.extend_from_slice(&data);
            }
        }
        Ok(bytes.freeze())
    }
}

/// What may be shown of a URL: `scheme://host:port`. Paths and queries of webhooks hold tokens.
#[must_use]
pub fn origin(url: &Uri) -> String {
    let scheme = url.scheme_str().unwrap_or("http");
    let host = url.host().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{scheme}://{host}:{port}"),
        None => format!("{scheme}://{host}"),
    }
}

/// The guard's refusal, if this is what is behind an error.
fn private<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a PrivateAddress> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(private) = error.downcast_ref() {
            return Some(private);
        }
        next = error.source();
    }
    None
}

/// An error and its sources on one line; hyper's own message leaves the cause out.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}
