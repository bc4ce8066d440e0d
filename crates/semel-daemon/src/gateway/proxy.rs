//! From a request to the upstream's answer, and what is known when there is none.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::ConnectInfo;
use http::{HeaderName, HeaderValue, Method, Request, Response, Uri, Version, header};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use semel_core::error::chain;
use semel_http::headers::{SEMEL_DEADLINE_MS, SEMEL_NO_STORE};
use semel_http::{Body, ClaimInfo, Disposition, Problem, ProblemKind};
use tower::Service;

use super::deadline::{Answer, Moving};
use super::forward;

/// The way to the upstream.
#[derive(Debug, Clone)]
pub(crate) struct ProxyConfig {
    /// Scheme, host, and a path that is put before the request's.
    pub(crate) upstream: Uri,
    /// How long connecting may take.
    pub(crate) connect: Duration,
    /// How long a whole answer to a keyed request may take.
    pub(crate) total: Duration,
    /// How long an idle connection is kept.
    pub(crate) idle: Duration,
    /// Whether a proxy in front says who asked.
    pub(crate) trust_forwarded: bool,
    /// The field that says who asks; it reaches the upstream whatever the client calls it.
    pub(crate) principal: Option<HeaderName>,
}

/// Sends requests on. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Proxy {
    client: Client<HttpConnector, Moving>,
    config: Arc<ProxyConfig>,
}

impl Proxy {
    /// Opens no connection yet.
    pub(crate) fn new(config: ProxyConfig) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(config.connect));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(config.idle)
            // Only a request of which nothing was written, on a connection found closed: hyper hands those back whole.
            .retry_canceled_requests(true)
            .build(connector);
        Self {
            client,
            config: Arc::new(config),
        }
    }

    async fn send(self, request: Request<Body>) -> Response<Body> {
        let (mut parts, body) = request.into_parts();
        let Some(uri) = forward::target(&self.config.upstream, &parts.uri) else {
            return not_supported("this gateway forwards paths, not CONNECT or the like");
        };
        if parts.method == Method::CONNECT || wants_websocket(&parts.headers) {
            return not_supported("this gateway does not carry WebSockets or tunnels");
        }
        parts.uri = uri;
        parts.version = Version::HTTP_11;
        let peer = parts
            .extensions
            .get::<ConnectInfo<SocketAddr>>()
            .map(|peer| peer.0.ip());
        forward::request(
            &mut parts.headers,
            peer.map(|ip: IpAddr| ip.to_canonical()),
            self.config.trust_forwarded,
            self.config.principal.as_ref(),
        );
        let claim = parts.extensions.get::<ClaimInfo>().cloned();
        parts.extensions.clear();
        let total = self.config.total;
        if let Some(claim) = &claim {
            claim.set_headers(&mut parts.headers);
            let ms = u64::try_from(total.as_millis()).unwrap_or(u64::MAX);
            parts.headers.insert(SEMEL_DEADLINE_MS, HeaderValue::from(ms));
        }
        let keyed = claim.is_some();
        let (body, moved) = Moving::new(body);
        let sending = self.client.request(Request::from_parts(parts, body));
        let began = tokio::time::sleep(total);
        let answer = if keyed {
            tokio::time::timeout(total, sending).await.ok()
        } else {
            // A long upload is not a slow upstream: the time counts from the last byte that moved.
            tokio::select! {
                answer = sending => Some(answer),
                () = moved.still_for(total) => None,
            }
        };
        match answer {
            Some(Ok(answer)) => {
                let (mut parts, body) = answer.into_parts();
                forward::strip_hop_by_hop(&mut parts.headers, None);
                if !keyed {
                    parts.headers.remove(SEMEL_NO_STORE);
                }
                Response::from_parts(parts, Body::new(Answer::new(body, keyed.then_some(began))))
            }
            Some(Err(error)) if nothing_sent(&error) => {
                tracing::warn!(upstream = %self.config.upstream, error = chain(&error), "upstream unreachable");
                let detail = "nothing was sent to it; send the same request again later";
                failed(
                    &Problem::new(ProblemKind::UpstreamUnreachable, detail).retry_after(1),
                    Disposition::NotExecuted,
                )
            }
            Some(Err(error)) => {
                tracing::warn!(upstream = %self.config.upstream, error = chain(&error), "upstream broke off");
                failed(&broke_off(), Disposition::Unknown)
            }
            None => {
                tracing::warn!(upstream = %self.config.upstream, total_timeout_ms = total.as_millis(), "no answer in time");
                failed(&too_slow(), Disposition::Unknown)
            }
        }
    }
}

impl Service<Request<Body>> for Proxy {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let proxy = self.clone();
        Box::pin(async move { Ok(proxy.send(request).await) })
    }
}

/// Whether it is certain that no byte of the request left: no connection, or a pooled one that was closed before it
/// took the request.
fn nothing_sent(error: &hyper_util::client::legacy::Error) -> bool {
    let canceled = std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<hyper::Error>())
        .is_some_and(hyper::Error::is_canceled);
    error.is_connect() || canceled
}

pub(super) fn broke_off() -> Problem {
    let detail = "the request was sent and the connection broke before the whole answer had come; it may have been \
                  done, and is not sent again in silence";
    Problem::new(ProblemKind::UpstreamBroken, detail)
}

pub(super) fn too_slow() -> Problem {
    let detail = "the request was sent and no whole answer came within total_timeout_ms; it may have been done, and \
                  is not sent again in silence";
    Problem::new(ProblemKind::UpstreamTimeout, detail)
}

fn not_supported(detail: &str) -> Response<Body> {
    failed(
        &Problem::new(ProblemKind::NotSupported, detail),
        Disposition::NotExecuted,
    )
}

fn failed(problem: &Problem, disposition: Disposition) -> Response<Body> {
    let mut response = problem.response();
    response.extensions_mut().insert(disposition);
    response
}

/// Other upgrades may be ignored by a server, and are: their headers belong to the connection.
fn wants_websocket(headers: &http::HeaderMap) -> bool {
    headers.get_all(header::UPGRADE).iter().any(|value| {
        value
            .as_bytes()
            .to_ascii_lowercase()
            .windows(9)
            .any(|word| word == b"websocket")
    })
}
