//! The tower layer.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body as HttpBody;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use semel_core::limits::LimitExceeded;
use semel_core::{Clock, SystemClock};
use tower_layer::Layer;
use tower_service::Service;

use crate::call::{Answer, Attempt, Call, Shared, Then, put_key};
use crate::config::Config;
use crate::error::{BoxError, Error};
use crate::key::RequestKey;
use crate::outcome::{Outcome, Report};
use crate::routes::Route;

/// Makes a [`KeyedClient`] of any client service. Cheap to clone; clones share what they know of routes.
#[derive(Clone, Default)]
pub struct KeyedLayer {
    shared: Arc<Shared>,
}

impl KeyedLayer {
    /// A layer with these settings.
    ///
    /// # Errors
    /// A setting outside its limits, by name.
    pub fn new(config: Config) -> Result<Self, LimitExceeded> {
        Self::with_clock(config, Arc::new(SystemClock))
    }

    /// The same with another clock for windows and budgets, for tests. Waiting is tokio's.
    ///
    /// # Errors
    /// As [`KeyedLayer::new`].
    pub fn with_clock(config: Config, clock: Arc<dyn Clock>) -> Result<Self, LimitExceeded> {
        let shared = Arc::new(Shared::new(config, clock)?);
        Ok(Self { shared })
    }
}

impl std::fmt::Debug for KeyedLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let config = &self.shared.config;
        f.debug_struct("KeyedLayer")
            .field("config", config)
            .finish_non_exhaustive()
    }
}

impl<S> Layer<S> for KeyedLayer {
    type Service = KeyedClient<S>;

    fn layer(&self, inner: S) -> Self::Service {
        KeyedClient {
            inner,
            shared: Arc::clone(&self.shared),
        }
    }
}

/// A client whose requests keep their key over all attempts. See the crate's documentation.
///
/// Its response is the [`Outcome`]; its error says that the request was not sent because it cannot be ([`Error`]).
/// Errors of the client underneath are part of the outcome.
#[derive(Clone)]
pub struct KeyedClient<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S: std::fmt::Debug> std::fmt::Debug for KeyedClient<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyedClient")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<B> Answer for Response<B> {
    fn head(&self) -> (StatusCode, &HeaderMap) {
        (self.status(), self.headers())
    }

    fn report(&mut self, report: Report) {
        self.extensions_mut().insert(report);
    }
}

impl<S, B, A> Service<Request<B>> for KeyedClient<S>
where
    S: Service<Request<Full<Bytes>>, Response = Response<A>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError> + Send,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    A: Send + 'static,
{
    type Response = Outcome<Response<A>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    /// Always ready: each attempt waits for the client underneath in its own time.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        Box::pin(call(self.inner.clone(), Arc::clone(&self.shared), request))
    }
}

async fn call<S, B, A>(
    mut inner: S,
    shared: Arc<Shared>,
    request: Request<B>,
) -> Result<Outcome<Response<A>>, Error>
where
    S: Service<Request<Full<Bytes>>, Response = Response<A>>,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let (mut parts, body) = request.into_parts();
    let given = parts.extensions.remove::<RequestKey>();
    let key = put_key(&shared.config, &parts.method, &mut parts.headers, given)?;
    let body = whole(body, shared.config.body_bytes_max).await?;
    let uri = &parts.uri;
    let authority = uri.authority().map(http::uri::Authority::as_str);
    let route = Route::new(&parts.method, uri.scheme_str(), authority, uri.path());
    let mut call = Call::new(shared, route, key);
    if let Some(end) = call.begin() {
        return Ok(end);
    }
    loop {
        let request = Request::from_parts(parts.clone(), Full::new(body.clone()));
        let attempt = async {
            // A client that is not ready has sent nothing; that it says so by the error of a refused connection is
            // its own matter, and whatever else it says counts as sent.
            poll_fn(|cx| inner.poll_ready(cx)).await.map_err(Into::into)?;
            inner.call(request).await.map_err(Into::into)
        };
        let attempt = match tokio::time::timeout(call.attempt_time(), attempt).await {
            Ok(Ok(answer)) => Attempt::Answer(answer),
            Ok(Err(error)) => Attempt::Failed(error),
            Err(_) => Attempt::TimedOut,
        };
        match call.after(attempt) {
            Then::Wait(wait) => tokio::time::sleep(wait).await,
            Then::End(outcome) => return Ok(outcome),
        }
    }
}

async fn whole<B>(body: B, max: usize) -> Result<Bytes, Error>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    match Limited::new(body, max).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large(max)),
        Err(error) => Err(Error::body("its body cannot be read", Some(error))),
    }
}

pub(crate) fn too_large(max: usize) -> Error {
    Error::body(
        format!(
            "its body has more than body_bytes_max = {max} bytes, which are held for repeats; raise the limit, or send \
             such bodies without this layer"
        ),
        None,
    )
}
