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
//!   `reconcile_url` says what became of it; it is asked at once, and by each retry that meets the unknown key. With `trust_unavailable` the upstream's 501, and 503 with `Retry-After`,
//!   give the key back.
//! - Crash of the gateway after a request was sent: its key reads as unknown when its lease ends.
//! - An inner Semel's `running` and `unknown` are passed on and never stored: the retry asks it again (rule K12). That they are
//!   its word on this key, and not that of one behind the upstream, it proves by sending back what only it was sent (`Semel-Hop`);
//!   without that they are unknown, for the upstream may have done something itself.
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
mod cors;
mod direct;
mod failure;
mod forward;
mod path;
mod peer;
mod principal;
mod proxy;
mod reconcile;
mod routes;
mod stats;
#[cfg(test)]
mod tests;
mod timer;
mod tunnel;
mod x509;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderName, Request, Response, Version};
use semel_core::{Key, KeyStore, limits};
use semel_http::{Event, Idempotency, IdempotencyLayer, Mode, StatusPolicy};
use tokio_util::sync::CancellationToken;
use tower::{Layer as _, Service as _};

pub(crate) use body::{Outgoing, Reply};
pub(crate) use config::{
    FrontConfig, GATEWAY, GatewayConfig, KeyRule, ROUTE, RouteConfig, TLS, UPSTREAM_TLS, read,
};
pub(crate) use failure::{Refusal, host_trouble, unknown_coding};
pub(crate) use forward::coded;
pub(crate) use peer::Peer;
pub(crate) use principal::scope_of;
pub(crate) use stats::Stats;
pub(crate) use timer::Timer;
pub(crate) use tunnel::Place as TunnelPlace;

use client::Client;
use config::{HostRule, Principal};
use failure::head_limits;
use principal::Asker;
use proxy::Proxy;
use reconcile::{Hook, Reconciler};

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
    let counts = Arc::clone(&stats);
    let builder = IdempotencyLayer::builder(keys)
        .config(settings)
        .observer(move |event: Event, _: Option<&Key>| counts.key(event));
    let builder = match &route.sending.reconcile {
        Some(who) => builder.reconcile(Arc::new(Hook::new(
            Reconciler::new(who, &config.proxy.kept),
            stats,
        ))),
        None => builder,
    };
    let builder = match route.sending.status_url.clone() {
        Some(url) => builder.status_url(move |key| url.of(key)),
        None => builder,
    };
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
    /// Where what has no key goes at once.
    proxy: Proxy,
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
        let proxy = |sending: &config::Sending, policy: &StatusPolicy| {
            Proxy::new(
                client.clone(),
                Arc::clone(&settings),
                (sending.clone(), policy.clone()),
                config.front.unkeyed_bytes_max,
                Arc::clone(stats),
                stop.clone(),
            )
        };
        let served = config
            .routes
            .iter()
            .zip(layers)
            .map(|(route, layer)| {
                let proxy = proxy(&route.sending, &route.layer.status);
                Served {
                    keyed: layer.layer(proxy.clone()),
                    asker: Asker::new(&route.principal, &settings, stats),
                    proxy,
                }
            })
            .collect();
        Self(Arc::new(Inner {
            routes: config.routes.clone().into(),
            served,
            pass: proxy(&settings.sending, &StatusPolicy::default()),
            front: config.front.clone(),
            named: named(&config.routes),
        }))
    }

    /// A client's body, with its limit of time and the limit of requests without a key. Over HTTP/1.1 whoever reads the
    /// connection keeps the time.
    pub(crate) fn take(&self, body: hyper::body::Incoming, version: Version) -> Outgoing {
        let front = &self.0.front;
        let idle = (version == Version::HTTP_2).then_some(front.body_idle);
        Outgoing::client(body, front.unkeyed_bytes_max, idle)
    }

    /// The answer to one request; `peer` is who connected.
    pub(crate) fn call(&self, request: Request<Outgoing>, peer: Option<&Peer>) -> Answering {
        let Some(origins) = &self.0.front.cors_origins else {
            return self.answer(request, peer);
        };
        if let Some(answer) = origins.preflight(&request) {
            return answer.into();
        }
        let page = origins.page(request.headers());
        let answer = self.answer(request, peer);
        Answering::later(async move {
            let mut answer = match answer.await {
                Ok(answer) => answer,
                Err(never) => match never {},
            };
            page.mark(answer.headers_mut());
            answer
        })
    }

    fn answer(&self, mut request: Request<Outgoing>, peer: Option<&Peer>) -> Answering {
        let inner = &self.0;
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
            return Refusal::HeadTooLarge.answer(&detail, true).into();
        }
        let found = routes::find(&inner.routes, request.method(), request.uri().path());
        let route = found.and_then(|at| Some((at, inner.routes.get(at)?, inner.served.get(at)?)));
        match route {
            Some((at, route, served))
                if route.key != KeyRule::Off && may_be_keyed(route, request.headers()) =>
            {
                served.keyed(Arc::clone(inner), at, request, peer)
            }
            // A route's times are its own, with keys or without.
            Some((_, _, served)) => served.proxy.plain(request, peer),
            None => inner.pass.plain(request, peer),
        }
    }
}

/// An answer on its way. Boxed, because what holds it moves it about.
pub(crate) struct Answering(Way);

enum Way {
    Now(Option<Box<Response<Reply>>>),
    Later(Pin<Box<dyn Future<Output = Response<Reply>> + Send>>),
}

impl Answering {
    /// What this comes to.
    fn later(answer: impl Future<Output = Response<Reply>> + Send + 'static) -> Self {
        Self(Way::Later(Box::pin(answer)))
    }
}

impl From<Response<Reply>> for Answering {
    fn from(response: Response<Reply>) -> Self {
        Self(Way::Now(Some(Box::new(response))))
    }
}

impl Future for Answering {
    type Output = Result<Response<Reply>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Way::Now(response) => match response.take() {
                Some(response) => Poll::Ready(Ok(*response)),
                // Polled again after its end, which nobody does.
                None => Poll::Pending,
            },
            Way::Later(answer) => answer.as_mut().poll(cx).map(Ok),
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
    /// A request that may have a key: through the layer, once it is known who calls. `inner` holds this as its route
    /// `at`.
    fn keyed(
        &self,
        inner: Arc<Inner>,
        at: usize,
        request: Request<Outgoing>,
        peer: Option<&Peer>,
    ) -> Answering {
        let (mut parts, body) = request.into_parts();
        if let Some(peer) = peer {
            parts.extensions.insert(peer.clone());
        }
        let request = Request::from_parts(parts, body.unlimited());
        let (layer, proxy) = (self.keyed.clone(), self.proxy.clone());
        if self.asker.is_none() {
            return Answering::later(through(layer, &proxy, request));
        }
        Answering::later(async move {
            let (mut parts, body) = request.into_parts();
            let route = inner.routes.get(at);
            let asker = inner.served.get(at).and_then(|served| served.asker.as_ref());
            if let (Some(route), Some(asker)) = (route, asker) {
                let naming = asker.name(&mut parts);
                if route.layer.mode == Mode::Shadow {
                    // It only counts: without a principal the layer counts a refusal, and the request goes on.
                    let _ = tokio::time::timeout(SHADOW_WAIT, naming).await;
                } else if let Err(refused) = naming.await {
                    return *refused;
                }
            }
            through(layer, &proxy, Request::from_parts(parts, body)).await
        })
    }
}

/// What the layer makes of it. The layer is always ready, and never an error.
fn through(
    mut layer: Idempotency<Proxy>,
    proxy: &Proxy,
    request: Request<Outgoing>,
) -> impl Future<Output = Response<Reply>> + Send + use<> {
    let caller = proxy
        .reconciler()
        .map(|reconciler| reconciler.caller(request.headers()));
    let answer = layer.call(request);
    async move {
        let answer = match caller {
            Some(caller) => reconcile::on_behalf(caller, answer).await,
            None => answer.await,
        };
        match answer {
            Ok(answer) => answer.map(Reply::Own),
            Err(never) => match never {},
        }
    }
}
