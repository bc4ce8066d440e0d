//! One request: which way it goes, before and after its claim.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Body as HttpBody;
use semel_core::wire::Memory;
use semel_core::{Clock, Key, SystemClock};
use tower_service::Service;
use tracing::Instrument as _;

use crate::body::{Body, BoxError};
use crate::collect::{Collected, collect};
use crate::config::Mode;
use crate::headers::{SEMEL_GUARANTEE, SEMEL_HOP, SEMEL_OUTCOME};
use crate::key::{Found, KeyError};
use crate::observe::Event;
use crate::policy::OutcomeWord;
use crate::problem::ProblemKind;
use crate::route::Routes;
use crate::run::{self, Detach, Job, Turn};
use crate::scope::ScopeError;
use crate::shared::Shared;
use crate::wait::{NoWait, WaitEnd};
use crate::{fingerprint, grpc, issued, key};

/// A service behind an [`IdempotencyLayer`](crate::IdempotencyLayer).
#[derive(Clone)]
pub struct Idempotency<S> {
    inner: S,
    routes: Arc<Routes>,
}

impl<S> Idempotency<S> {
    pub(crate) const fn new(inner: S, routes: Arc<Routes>) -> Self {
        Self { inner, routes }
    }
}

impl<S> std::fmt::Debug for Idempotency<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Idempotency").finish_non_exhaustive()
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for Idempotency<S>
where
    S: Service<Request<Body>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    ReqBody: HttpBody<Data = Bytes> + Send + 'static,
    ReqBody::Error: Into<BoxError>,
    ResBody: HttpBody<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Answering<S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let asked = grpc::asked(request.headers());
        let answer = self.answer(request);
        match asked {
            None => answer,
            Some(asked) => Box::pin(async move { Ok(grpc::answer(answer.await?, asked, Body::empty)) }),
        }
    }
}

/// An answer on its way.
type Answering<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

impl<S> Idempotency<S> {
    /// The answer, its problems in the form of HTTP.
    fn answer<ReqBody, ResBody>(&mut self, request: Request<ReqBody>) -> Answering<S::Error>
    where
        S: Service<Request<Body>, Response = Response<ResBody>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Send + 'static,
        ReqBody: HttpBody<Data = Bytes> + Send + 'static,
        ReqBody::Error: Into<BoxError>,
        ResBody: HttpBody<Data = Bytes> + Send + 'static,
        ResBody::Error: Into<BoxError>,
    {
        // The clone that was polled ready serves this request; the fresh one stays behind.
        let fresh = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, fresh);
        let (parts, body) = request.into_parts();
        // Boxed once: it is handed on several times.
        let parts = Box::new(parts);
        let way = self
            .routes
            .of(&parts)
            .map(|shared| (shared, admit(shared, &parts)));
        match way {
            None | Some((_, Admission::Pass)) => {
                Box::pin(pass(inner.call(Request::from_parts(*parts, Body::new(body)))))
            }
            Some((shared, Admission::Refused(refusal))) if shared.config.mode == Mode::Shadow => {
                shared.saw(Event::ShadowRefused, None);
                drop(refusal);
                Box::pin(pass(inner.call(Request::from_parts(*parts, Body::new(body)))))
            }
            Some((shared, Admission::Refused(Refusal(kind, detail)))) => {
                let response = shared.refused(kind, detail);
                Box::pin(async move { Ok(response) })
            }
            Some((shared, Admission::Keyed(found))) => {
                Box::pin(keyed(Arc::clone(shared), inner, parts, body, found))
            }
        }
    }
}

/// The inner service's answer, untouched.
async fn pass<ResBody, E>(
    answer: impl Future<Output = Result<Response<ResBody>, E>>,
) -> Result<Response<Body>, E>
where
    ResBody: HttpBody<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    Ok(answer.await?.map(Body::new))
}

/// Why a request gets no further, before the store was touched.
struct Refusal(ProblemKind, String);

impl From<KeyError> for Refusal {
    fn from(error: KeyError) -> Self {
        Self(ProblemKind::KeyMalformed, error.to_string())
    }
}

enum Admission {
    Pass,
    /// It has a key, or may have one in its body.
    Keyed(Option<Found>),
    Refused(Refusal),
}

/// Reads the key of the headers.
fn admit(shared: &Shared, parts: &Parts) -> Admission {
    let config = &shared.config;
    if parts.method.is_safe() || config.ignored_for.contains(&parts.method) {
        return Admission::Pass;
    }
    match key::from_headers(&parts.headers, config) {
        Ok(None) if config.body_keys.is_empty() => {
            missing(shared, parts).map_or(Admission::Pass, Admission::Refused)
        }
        Ok(found) => Admission::Keyed(found),
        Err(error) => Admission::Refused(error.into()),
    }
}

/// What a request without a key is told; `None` where it needs none.
fn missing(shared: &Shared, parts: &Parts) -> Option<Refusal> {
    let config = &shared.config;
    // Methods differ by case (RFC 9110, 9.1), but many services take `post` for `POST`.
    let required = |method: &http::Method| method.as_str().eq_ignore_ascii_case(parts.method.as_str());
    config.required_for.iter().any(required).then(|| {
        let detail = format!(
            "send a {} header: one new value per operation, the same on each retry",
            config.header
        );
        Refusal(ProblemKind::KeyMissing, detail)
    })
}

/// The key with its scope.
fn scoped(shared: &Shared, parts: &Parts, id: &[u8]) -> Result<Key, Refusal> {
    let scope = shared.scope.scope(parts).map_err(|error| {
        let kind = match error {
            ScopeError::NoPrincipal => ProblemKind::NoPrincipal,
            ScopeError::CredentialsWithoutResolver => {
                tracing::error!("{error}");
                ProblemKind::AnonymousScope
            }
        };
        Refusal(kind, error.to_string())
    })?;
    let key = Key::new(scope, id).map_err(|limit| Refusal(ProblemKind::KeyMalformed, limit.to_string()))?;
    issued::check(&shared.config, &key).map_err(|why| Refusal(ProblemKind::KeyNotIssued, why))?;
    Ok(key)
}

/// What becomes of a request on its way to the claim.
enum Way<S> {
    /// It has a key. What it asked is still to be said.
    Run(Unasked<S>),
    /// It has none and needs none, or is to pass whatever it is.
    Pass(S, Box<Request<Body>>),
    Refused(Refusal),
}

/// A [`Job`] before its fingerprint is made.
struct Unasked<S> {
    parts: Box<Parts>,
    body: Bytes,
    trailers: Option<Box<HeaderMap>>,
    key: Key,
    inner: S,
}

/// Scope, key and whole body. Still nothing touches the store.
async fn prepare<S, B>(shared: &Shared, inner: S, parts: Box<Parts>, body: B, found: Option<Found>) -> Way<S>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let shadow = shared.config.mode == Mode::Shadow;
    // Before the body is read: who may not ask is not worth a buffer.
    let early = found.as_ref().map(|found| scoped(shared, &parts, &found.id));
    let early = match early.transpose() {
        Ok(key) => key,
        Err(_) if shadow => {
            shared.saw(Event::ShadowRefused, None);
            return Way::Pass(inner, Box::new(Request::from_parts(*parts, Body::new(body))));
        }
        Err(refusal) => return Way::Refused(refusal),
    };
    let max = shared.config.request_bytes_max;
    let idle = Duration::from_millis(shared.config.body_idle_ms);
    let (refusal, body) = match collect(body, max, idle).await {
        Collected::Whole(body, trailers) => {
            let key = match (early, shared.config.body_keys.is_empty()) {
                (Some(key), true) => Ok(Some(key)),
                (_, _) => in_the_body(shared, &parts, &body, found),
            };
            match key {
                Ok(Some(key)) => {
                    return Way::Run(Unasked {
                        parts,
                        body,
                        trailers,
                        key,
                        inner,
                    });
                }
                Ok(None) => {
                    let body = Body::with_trailers(body, trailers);
                    return Way::Pass(inner, Box::new(Request::from_parts(*parts, body)));
                }
                Err(refusal) => (refusal, Body::with_trailers(body, trailers)),
            }
        }
        Collected::TooLarge(body) => {
            let detail = format!("the body is larger than request_bytes_max = {max} bytes");
            (Refusal(ProblemKind::RequestTooLarge, detail), body)
        }
        Collected::Idle(body) => {
            let detail = format!(
                "no more of the body came for body_idle_ms = {} ms, so nothing was run; send the whole request again",
                shared.config.body_idle_ms
            );
            (Refusal(ProblemKind::RequestBroken, detail), body)
        }
        Collected::Broken(error, body) => {
            let detail = format!("the body ended early, so nothing was run: {error}");
            (Refusal(ProblemKind::RequestBroken, detail), body)
        }
    };
    if shadow {
        shared.saw(Event::ShadowRefused, None);
        return Way::Pass(inner, Box::new(Request::from_parts(*parts, body)));
    }
    Way::Refused(refusal)
}

/// The one key of headers and body.
fn in_the_body(
    shared: &Shared,
    parts: &Parts,
    body: &Bytes,
    found: Option<Found>,
) -> Result<Option<Key>, Refusal> {
    match key::from_body(&parts.headers, body, found, &shared.config)? {
        Some(found) => scoped(shared, parts, &found.id).map(Some),
        None => missing(shared, parts).map_or(Ok(None), Err),
    }
}

async fn keyed<S, ReqBody, ResBody>(
    shared: Arc<Shared>,
    inner: S,
    mut parts: Box<Parts>,
    body: ReqBody,
    found: Option<Found>,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    ReqBody: HttpBody<Data = Bytes> + Send + 'static,
    ReqBody::Error: Into<BoxError>,
    ResBody: HttpBody<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    // Not for the handler: what it calls could send it back.
    let hop = parts.headers.remove(SEMEL_HOP);
    // Nor has one that only counts a word of its own.
    let hop = hop.filter(|_| shared.config.mode == Mode::Enforce);
    let unasked = match prepare(&shared, inner, parts, body, found).await {
        Way::Run(unasked) => unasked,
        Way::Pass(mut inner, request) => return pass(inner.call(*request)).await,
        Way::Refused(Refusal(kind, detail)) => return Ok(shared.refused(kind, detail)),
    };
    let mut response = decided(shared, unasked).await?;
    if let Some(hop) = hop {
        send_back(&mut response, hop);
    }
    Ok(response)
}

/// Says to the gateway before this layer that `running` and `unknown` are this layer's word on the key that it sent. One that
/// ran without a key has none.
fn send_back(response: &mut Response<Body>, hop: HeaderValue) {
    let headers = response.headers_mut();
    let word = OutcomeWord::read(headers.get(SEMEL_OUTCOME));
    let open = matches!(word, Some(OutcomeWord::Running | OutcomeWord::Unknown));
    let keyed = headers
        .get(SEMEL_GUARANTEE)
        .is_some_and(|value| Memory::of(value.as_bytes()) != Memory::None);
    headers.remove(SEMEL_HOP);
    if open && keyed {
        headers.insert(SEMEL_HOP, hop);
    }
}

/// What becomes of a request with a key.
async fn decided<S, ResBody>(shared: Arc<Shared>, unasked: Unasked<S>) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    ResBody: HttpBody<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    let Unasked {
        parts,
        body,
        trailers,
        key,
        inner,
    } = unasked;
    let target = shared.target.as_ref().map(|target| target(&parts));
    let asked = run::asked(&shared, &parts, &body, target.as_deref());
    let fingerprint = fingerprint::of(asked, &shared.config.profile).await;
    let mut job = Job {
        parts,
        body,
        trailers,
        key,
        fingerprint,
        inner,
    };
    if shared.config.mode == Mode::Shadow {
        return Box::pin(run::shadow(&shared, job)).await;
    }
    if let Some(until) = issued::over_since(&shared.config, &job.key, SystemClock.now())
        && let Some(refusal) = Box::pin(issued::unless_used(&shared, &job.key, until)).await
    {
        return Ok(refusal);
    }
    let mut deadline = None;
    loop {
        let Some(place) = shared.place() else {
            return Ok(shared.too_busy(&job.key));
        };
        // This future dies with its client, the very case that keys exist for (rule K4, and the row "client gives up" of
        // the tests): the claim and the run then go on without it.
        let claim = run::claim_and_run(Arc::clone(&shared), job, place);
        match Detach::new(claim).await {
            Turn::Answer(response) => return response,
            Turn::Stream(response, rest) => {
                // Tracked by its place.
                drop(tokio::spawn(rest.instrument(tracing::Span::current())));
                return Ok(response);
            }
            Turn::Busy(same, lease_left) => {
                let wait = Duration::from_millis(shared.config.wait_ms_max);
                let deadline = *deadline.get_or_insert_with(|| SystemClock.monotonic() + wait);
                let (per_key, all) = (shared.config.waiters_per_key_max, shared.config.waiters_max);
                let waiter = match shared.waiters.subscribe(&same.key, per_key, all) {
                    Ok(waiter) => waiter,
                    Err(why) => return Ok(shared.still_running(&same.key, why)),
                };
                match Box::pin(waiter.wait(&*shared.store, lease_left, deadline)).await {
                    WaitEnd::Changed => job = *same,
                    WaitEnd::TimedOut => return Ok(shared.still_running(&same.key, NoWait::TooLong)),
                }
            }
        }
    }
}
