//! The gateway: Idempotency-Key in front of an upstream that knows nothing of it.
//!
//! A request of the configured methods and paths that carries a key goes through the layer of `semel-http`; every
//! other passes through, its bodies streamed both ways. `config` says what may be set, [`routes`] which policy a request
//! meets, [`proxy`] what becomes of it, [`client`] holds connections to the upstream, [`forward`] says what happens to
//! headers. Listening, limits of clients and reading the configuration again are in `run/front`.
//!
//! # Guarantees
//! - A keyed request is sent at most once, and every retry gets the first answer. Nothing is sent again after a byte of
//!   it may have left; only a connection that could not be had, or was found closed before it took the request, counts
//!   as nothing sent: the key is given back. An upstream that is declared to deduplicate may get the same key again
//!   while `total_timeout_ms` lasts (rule K12); then what is not known is held like any other (rule K14).
//! - A broken connection, a time-out, 408 and every 5xx are unknown: the retry is told so and is not sent, unless
//!   `reconcile_url` says what became of it. With `trust_unavailable` the upstream's 501, and 503 with `Retry-After`,
//!   give the key back.
//! - Crash of the gateway after a request was sent: its key reads as unknown when its lease ends.
//! - An inner Semel's `running` and `unknown` are passed on and never stored: the retry asks it again (rule K12).
//! - A path that two servers may read differently meets the route that requires a key, and is forwarded as it was sent.
//!
//! # What the upstream sees and may say
//! `Idempotency-Key` as the client sent it, `Semel-Token`, `Semel-Attempt` and `Semel-Deadline-Ms`; the same names
//! from a client are taken out. It may answer with `Semel-Outcome: refused` (nothing happened, keep this),
//! `Semel-No-Store`, `Semel-Persist-For` and `Semel-Not-Executed`. It is told who asked by `X-Forwarded-For`, `-Host`,
//! `-Proto` and `Forwarded`.
//!
//! # Not guaranteed
//! That the principal of a header is true: nothing but the proxy that verifies it may reach this port. With `auth_url`
//! it is asked for at each request, replays too.
//!
//! # Not carried
//! Extended CONNECT and CONNECT, informational answers of the upstream (`103`), trailers of keyed requests.

mod body;
mod client;
mod config;
mod failure;
mod forward;
mod path;
mod principal;
mod proxy;
mod reconcile;
mod routes;
mod stats;
#[cfg(test)]
mod tests;
mod tunnel;
mod x509;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Request, Response};
use semel_core::{Key, KeyStore, limits};
use semel_http::{Event, Idempotency, IdempotencyLayer, Mode};
use tokio_util::sync::CancellationToken;
use tower::{Layer as _, Service as _};

pub(crate) use body::{Outgoing, Reply};
pub(crate) use config::{
    FrontConfig, GATEWAY, GatewayConfig, KeyRule, ROUTE, RouteConfig, TLS, UPSTREAM_TLS, read,
};
pub(crate) use failure::{Refusal, host_trouble};
pub(crate) use stats::{Counted, Stats};

use client::Client;
use config::{HostRule, Principal};
use failure::head_limits;
use principal::Asker;
use proxy::{Peer, Proxy};

/// How long a request is held up by `auth_url` while keys are only tried out.
const SHADOW_WAIT: Duration = Duration::from_millis(50);

/// One configuration of a gateway in force: a [`Gateway`] for each thread, and what ends when it is no longer.
pub(crate) struct Live {
    /// One per thread, each with connections of its own.
    threads: Vec<Gateway>,
    layers: Vec<IdempotencyLayer>,
    /// Ends tunnels.
    stop: CancellationToken,
}

impl Live {
    /// Builds one gateway for so many threads. `keys` answers `Unavailable` while its store is away.
    ///
    /// # Errors
    /// What is wrong with the configuration, in words.
    pub(crate) fn new(
        config: &GatewayConfig,
        keys: &Arc<dyn KeyStore>,
        stats: &Arc<Stats>,
        threads: usize,
        stop: CancellationToken,
    ) -> Result<Self, String> {
        let layers = config
            .routes
            .iter()
            .map(|route| layer(config, route, Arc::clone(keys), Arc::clone(stats)))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|limit| limit.to_string())?;
        let threads = (0..threads.max(1))
            .map(|_| Gateway::new(config, &layers, stats, &stop))
            .collect();
        Ok(Self {
            threads,
            layers,
            stop,
        })
    }

    /// What serves on this thread.
    pub(crate) fn on(&self, thread: usize) -> Option<&Gateway> {
        self.threads.get(thread).or_else(|| self.threads.first())
    }

    /// Whether something is being carried out or still to be recorded.
    pub(crate) fn busy(&self) -> bool {
        self.layers.iter().any(|layer| layer.in_flight() > 0)
    }

    /// Ends when every request that was begun has been carried out and recorded.
    pub(crate) async fn drain(&self) {
        self.stop.cancel();
        for layer in &self.layers {
            layer.drain().await;
        }
    }
}

fn layer(
    config: &GatewayConfig,
    route: &RouteConfig,
    keys: Arc<dyn KeyStore>,
    stats: Arc<Stats>,
) -> Result<IdempotencyLayer, limits::LimitExceeded> {
    let gateway = config.name.clone();
    let by_host = config.proxy.host == HostRule::Preserve;
    let mut settings = route.layer.clone();
    // One time for all bodies of a client, whoever reads them.
    settings.body_idle_ms = u64::try_from(config.front.body_idle.as_millis()).unwrap_or(u64::MAX);
    let builder = IdempotencyLayer::builder(keys)
        .config(settings)
        .observer(move |event: Event, _: Option<&Key>| stats.key(event));
    match &route.principal {
        Principal::Anonymous if !by_host => builder.anonymous_scope(&format!("gateway/{gateway}")),
        Principal::Anonymous => {
            builder.scope(move |request: &http::request::Parts| principal::anonymous(&gateway, request))
        }
        Principal::Header(header) | Principal::Auth { header, .. } => {
            let header = header.clone();
            builder.scope(move |request: &http::request::Parts| {
                principal::scope(&gateway, &header, by_host, request)
            })
        }
    }
    .build()
}

/// Answers the requests of one thread. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Gateway(Arc<Inner>);

struct Inner {
    routes: Arc<[RouteConfig]>,
    served: Vec<Served>,
    pass: Proxy,
    front: FrontConfig,
    /// Fields in which `auth_url` names the caller: never a client's own word, with a key or without.
    named: Box<[HeaderName]>,
}

/// One route on one thread.
struct Served {
    keyed: Idempotency<Proxy>,
    asker: Option<Asker>,
}

impl Gateway {
    fn new(
        config: &GatewayConfig,
        layers: &[IdempotencyLayer],
        stats: &Arc<Stats>,
        stop: &CancellationToken,
    ) -> Self {
        let settings = Arc::new(config.proxy.clone());
        let client = Client::new(Arc::clone(&settings));
        let proxy = |sending: &config::Sending| {
            Proxy::new(
                client.clone(),
                Arc::clone(&settings),
                sending.clone(),
                config.front.unkeyed_bytes_max,
                Arc::clone(stats),
                stop.clone(),
            )
        };
        let served = config
            .routes
            .iter()
            .zip(layers)
            .map(|(route, layer)| Served {
                keyed: layer.layer(proxy(&route.sending)),
                asker: Asker::new(&route.principal, &settings),
            })
            .collect();
        Self(Arc::new(Inner {
            routes: config.routes.clone().into(),
            served,
            pass: proxy(&settings.sending),
            front: config.front.clone(),
            named: named(&config.routes),
        }))
    }

    /// A client's body, with its limit of time and the limit of requests without a key.
    pub(crate) fn take(&self, body: hyper::body::Incoming) -> Outgoing {
        let front = &self.0.front;
        Outgoing::client(body, front.unkeyed_bytes_max, front.body_idle)
    }

    /// The answer to one request; `peer` is who connected.
    pub(crate) async fn call(&self, mut request: Request<Outgoing>, peer: Option<IpAddr>) -> Response<Reply> {
        let inner = &*self.0;
        for name in &inner.named {
            request.headers_mut().remove(name);
        }
        let front = &inner.front;
        let target = request
            .uri()
            .path_and_query()
            .map_or(0, |target| target.as_str().len());
        if let Some(detail) = head_limits(
            request.headers(),
            front.headers_max,
            front.header_bytes_max,
            target,
        ) {
            return Refusal::HeadTooLarge.answer(&detail, true);
        }
        let found = routes::find(&inner.routes, request.method(), request.uri().path());
        let route = found.and_then(|at| Some((inner.routes.get(at)?, inner.served.get(at)?)));
        match route {
            Some((route, served)) if route.key != KeyRule::Off => served.call(route, request, peer).await,
            _ => inner.pass.plain(request, peer).await,
        }
    }
}

/// The fields that only `auth_url` fills. One that is a proxy's word on another route stays.
fn named(routes: &[RouteConfig]) -> Box<[HeaderName]> {
    let told = |name: &HeaderName| {
        routes
            .iter()
            .any(|route| matches!(&route.principal, Principal::Header(header) if header == name))
    };
    let mut named: Vec<HeaderName> = routes
        .iter()
        .filter_map(|route| match &route.principal {
            Principal::Auth { header, .. } if !told(header) => Some(header.clone()),
            _ => None,
        })
        .collect();
    named.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
    named.dedup();
    named.into()
}

/// Whether a request of this route may have a key, so that its caller must be known.
fn may_be_keyed(route: &RouteConfig, headers: &http::HeaderMap) -> bool {
    let layer = &route.layer;
    route.key == KeyRule::Required
        || !layer.body_keys.is_empty()
        || headers.contains_key(&layer.header)
        || layer.aliases.iter().any(|alias| headers.contains_key(alias))
}

impl Served {
    async fn call(
        &self,
        route: &RouteConfig,
        request: Request<Outgoing>,
        peer: Option<IpAddr>,
    ) -> Response<Reply> {
        let (mut parts, body) = request.into_parts();
        if let Some(asker) = &self.asker {
            let keyed = may_be_keyed(route, &parts.headers);
            if keyed && route.layer.mode == Mode::Shadow {
                // It only counts: without a principal the layer counts a refusal, and the request goes on.
                let _ = tokio::time::timeout(SHADOW_WAIT, asker.name(&mut parts, peer)).await;
            } else if keyed && let Err(refused) = asker.name(&mut parts, peer).await {
                return *refused;
            }
        }
        if let Some(peer) = peer {
            parts.extensions.insert(Peer(peer));
        }
        let request = Request::from_parts(parts, body.unlimited());
        // Always ready, and never an error.
        match self.keyed.clone().call(request).await {
            Ok(answer) => answer.map(Reply::Own),
            Err(never) => match never {},
        }
    }
}
