//! The gateway: Idempotency-Key in front of an upstream that knows nothing of it.
//!
//! A request of the configured methods and paths that carries a key goes through the layer of `semel-http`; every
//! other passes through, its bodies streamed both ways.
//!
//! # Guarantees
//! - A keyed request is sent at most once, and every retry gets the first answer. Nothing is sent again after a byte of
//!   it may have left; only a connection that could not be had, or was found closed before it took the request, counts
//!   as nothing sent: the key is given back.
//! - A broken connection, a time-out, 408 and every 5xx are unknown: the retry is told so and is not sent. With
//!   `trust_unavailable` the upstream's 501, and 503 with `Retry-After`, give the key back.
//! - Crash of the gateway after a request was sent: its key reads as unknown when its lease ends.
//! - An inner Semel's `running` and `unknown` are passed on and never stored: the retry asks it again (rule K12).
//!
//! # What the upstream sees and may say
//! `Idempotency-Key` as the client sent it, `Semel-Token`, `Semel-Attempt` and `Semel-Deadline-Ms`; the same names
//! from a client are taken out. It may answer with `Semel-Outcome: refused` (nothing happened, keep this) and
//! `Semel-No-Store`. It is told who asked by `X-Forwarded-For`, `-Host`, `-Proto` and `Forwarded`.
//!
//! # Not guaranteed
//! That the principal is true: it is what the header says, so nothing but the proxy that verifies it may reach this
//! port. A retry gets the stored answer without the upstream's judging again whether the caller may see it.
//!
//! # Not yet
//! WebSockets and other upgrades, TLS on either side, HTTP/2 to the upstream, trailers of keyed requests, resending to
//! an upstream that is declared to deduplicate by itself, a reconcile hook that settles unknown keys.

mod config;
mod deadline;
mod forward;
mod proxy;
mod routes;
#[cfg(test)]
mod tests;

pub(crate) use config::{GATEWAY, GatewayConfig, read};

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use http::{Request, Response};
use semel_core::{KeyStore, Scope};
use semel_http::{Body, Idempotency, IdempotencyLayer, ScopeError};
use tower::Layer as _;

use config::Principal;
use proxy::Proxy;
use routes::Routes;

/// What the daemon serves for one gateway.
pub(crate) struct Service {
    /// Answers requests.
    pub(crate) router: Router,
    /// Ends when every request that was begun has been carried out and recorded.
    pub(crate) drain: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Builds one gateway. `keys` answers `Unavailable` while its store is away.
///
/// # Errors
/// What is wrong with the configuration, in words.
pub(crate) fn service(config: &GatewayConfig, keys: Arc<dyn KeyStore>) -> Result<Service, String> {
    let layer = layer(config, keys).map_err(|limit| limit.to_string())?;
    let proxy = Proxy::new(config.proxy.clone());
    let gateway = Gateway {
        routes: Arc::new(config.routes.clone()),
        keyed: layer.layer(proxy.clone()),
        plain: proxy,
    };
    Ok(Service {
        router: Router::new().fallback_service(gateway),
        drain: Box::pin(async move { layer.drain().await }),
    })
}

fn layer(
    config: &GatewayConfig,
    keys: Arc<dyn KeyStore>,
) -> Result<IdempotencyLayer, semel_core::limits::LimitExceeded> {
    let builder = IdempotencyLayer::builder(keys).config(config.layer.clone());
    match &config.principal {
        Principal::Anonymous => builder.anonymous_scope(&format!("gateway/{}", config.name)),
        Principal::Header(header) => {
            let (name, header) = (config.name.clone(), header.clone());
            builder.scope(move |request: &http::request::Parts| {
                let mut values = request.headers.get_all(&header).iter();
                match (values.next(), values.next()) {
                    (Some(id), None) if !id.is_empty() => {
                        Ok(Scope::of_parts(&[b"gateway", name.as_bytes(), id.as_bytes()]))
                    }
                    _ => Err(ScopeError::NoPrincipal),
                }
            })
        }
    }
    .build()
}

/// Sends each request one of the two ways.
#[derive(Clone)]
struct Gateway {
    routes: Arc<Routes>,
    keyed: Idempotency<Proxy>,
    plain: Proxy,
}

impl tower::Service<Request<axum::body::Body>> for Gateway {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Both are always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<axum::body::Body>) -> Self::Future {
        if self.routes.keyed(request.method(), request.uri().path()) {
            self.keyed.call(request)
        } else {
            self.plain.call(request.map(Body::new))
        }
    }
}
