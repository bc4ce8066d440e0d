//! One request: which way it goes, before and after its claim.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body as HttpBody;
use http_body_util::{BodyExt, Limited};
use semel_core::{Clock, Key, SystemClock};
use tokio::sync::oneshot;
use tower_service::Service;
use tracing::Instrument;

use crate::body::{Body, BoxError};
use crate::problem::ProblemKind;
use crate::run::{self, Job, Turn};
use crate::scope::ScopeError;
use crate::shared::Shared;
use crate::wait::WaitEnd;
use crate::{fingerprint, key};

/// A service behind an [`IdempotencyLayer`](crate::IdempotencyLayer).
#[derive(Clone)]
pub struct Idempotency<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S> Idempotency<S> {
    pub(crate) const fn new(inner: S, shared: Arc<Shared>) -> Self {
        Self { inner, shared }
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
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        // The clone that was polled ready serves this request; the fresh one stays behind.
        let fresh = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, fresh);
        let shared = Arc::clone(&self.shared);
        match admit(&shared, request.headers(), request.method()) {
            Admission::Pass => {
                let answer = inner.call(request.map(Body::new));
                Box::pin(async move { Ok(answer.await?.map(Body::new)) })
            }
            Admission::Refused(response) => Box::pin(async move { Ok(response) }),
            Admission::Keyed(id) => Box::pin(keyed(shared, inner, request, id)),
        }
    }
}

enum Admission {
    Pass,
    Keyed(Box<[u8]>),
    Refused(Response<Body>),
}

/// Reads the key. Nothing here touches the store.
fn admit(shared: &Shared, headers: &http::HeaderMap, method: &http::Method) -> Admission {
    let config = &shared.config;
    if method.is_safe() {
        return Admission::Pass;
    }
    match key::read(headers, &config.header, config.key_form, config.key_bytes_max) {
        Ok(Some(id)) => Admission::Keyed(id),
        Ok(None) if config.required_for.contains(method) => Admission::Refused(shared.problem(
            ProblemKind::KeyMissing,
            format!(
                "send a {} header: one new value per operation, the same on each retry",
                config.header
            ),
        )),
        Ok(None) => Admission::Pass,
        Err(error) => Admission::Refused(shared.problem(ProblemKind::KeyMalformed, error.to_string())),
    }
}

async fn keyed<S, ReqBody, ResBody>(
    shared: Arc<Shared>,
    inner: S,
    request: Request<ReqBody>,
    id: Box<[u8]>,
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
    let (parts, body) = request.into_parts();
    let (key, body) = match prepare(&shared, &parts, body, id).await {
        Ok(prepared) => prepared,
        Err(response) => return Ok(*response),
    };
    let target = (shared.target)(&parts);
    let fingerprint = fingerprint::raw(&parts, &target, &shared.config.fingerprint_headers, &body);
    let mut job = Job {
        parts,
        body,
        key,
        fingerprint,
        inner,
    };
    let deadline = SystemClock.monotonic() + Duration::from_millis(shared.config.wait_ms_max);
    loop {
        let Ok(permit) = Arc::clone(&shared.running).try_acquire_owned() else {
            return Ok(shared.too_busy());
        };
        // The claim and the run belong to a task of their own: this future dies with its client, the very case
        // that keys exist for (rule K4, and the row "client gives up" of the tests).
        let key = job.key.clone();
        let (tell, told) = oneshot::channel();
        let run = run::claim_and_run(Arc::clone(&shared), job, tell, permit);
        drop(shared.tasks.spawn(run.instrument(tracing::Span::current())));
        match told.await {
            Ok(Turn::Answer(response)) => return response,
            Ok(Turn::Busy(same, lease_left)) => {
                let (per_key, all) = (shared.config.waiters_per_key_max, shared.config.waiters_max);
                let Some(waiter) = shared.waiters.subscribe(&key, per_key, all) else {
                    return Ok(shared.still_running());
                };
                match waiter.wait(&*shared.store, lease_left, deadline).await {
                    WaitEnd::Changed => job = *same,
                    WaitEnd::TimedOut => return Ok(shared.still_running()),
                }
            }
            // Only a bug of ours in the task, or a runtime that is shutting down.
            Err(_) => {
                tracing::error!(%key, "the task of a keyed run ended without an answer");
                return Ok(shared.problem(
                    ProblemKind::HandlerFailed,
                    "the request was cut off inside the service",
                ));
            }
        }
    }
}

/// Scope, key and whole body, or the answer that refuses the request. Still nothing touches the store.
async fn prepare<B>(
    shared: &Shared,
    parts: &Parts,
    body: B,
    id: Box<[u8]>,
) -> Result<(Key, Bytes), Box<Response<Body>>>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let scope = shared.scope.scope(parts).map_err(|error| {
        let kind = match error {
            ScopeError::NoPrincipal => ProblemKind::NoPrincipal,
            ScopeError::CredentialsWithoutResolver => {
                tracing::error!("{error}");
                ProblemKind::AnonymousScope
            }
        };
        Box::new(shared.problem(kind, error.to_string()))
    })?;
    let key = Key::new(scope, id)
        .map_err(|limit| Box::new(shared.problem(ProblemKind::KeyMalformed, limit.to_string())))?;
    let max = shared.config.request_bytes_max;
    let too_large = || {
        let detail = format!("the body is larger than request_bytes_max = {max} bytes");
        Box::new(shared.problem(ProblemKind::RequestTooLarge, detail))
    };
    if body.size_hint().lower() > max as u64 {
        return Err(too_large());
    }
    match Limited::new(body, max).collect().await {
        Ok(whole) => Ok((key, whole.to_bytes())),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(too_large()),
        Err(error) => {
            let detail = format!("the body ended early, so nothing was run: {error}");
            Err(Box::new(shared.problem(ProblemKind::RequestBroken, detail)))
        }
    }
}
