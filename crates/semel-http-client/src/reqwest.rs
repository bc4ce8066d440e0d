//! The middleware for reqwest.

use std::sync::Arc;

use async_trait::async_trait;
use http::{Extensions, HeaderMap, StatusCode};
use reqwest::{Request, Response};
use reqwest_middleware::{Error as MiddlewareError, Middleware, Next};
use semel_core::SystemClock;
use semel_core::limits::LimitExceeded;

use crate::call::{Answer, Attempt, Call, Shared, Then, put_key};
use crate::config::Config;
use crate::error::Error;
use crate::key::RequestKey;
use crate::layer::too_large;
use crate::outcome::{CanDo, Outcome, Refusal, Report, Unknown};
use crate::routes::Route;
use crate::verdict::Why;

/// The same as [`KeyedLayer`](crate::KeyedLayer) for `reqwest-middleware`. Give the result of a call to [`outcome`].
///
/// A key goes in by the header, or by `with_extension(RequestKey)`. Streaming bodies cannot be repeated and are refused. Build
/// the client with `redirect::Policy::none()`: a client that follows a redirect sends the request to another place behind
/// this layer's back.
///
/// ```no_run
/// use semel_http_client::{KeyedMiddleware, Outcome, RequestKey, outcome};
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// let plain = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build()?;
/// let client = reqwest_middleware::ClientBuilder::new(plain).with(KeyedMiddleware::default()).build();
/// let request = client.post("http://127.0.0.1:8080/charges").with_extension(RequestKey::new("order-7")?).body("{}");
/// match outcome(request.send().await)? {
///     Outcome::Succeeded(answer) => println!("{}", answer.status()),
///     Outcome::Refused(_) => println!("nothing happened"),
///     Outcome::Unknown(unknown) => println!("{unknown}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct KeyedMiddleware {
    shared: Arc<Shared>,
}

impl KeyedMiddleware {
    /// A middleware with these settings.
    ///
    /// # Errors
    /// A setting outside its limits, by name.
    pub fn new(config: Config) -> Result<Self, LimitExceeded> {
        let shared = Arc::new(Shared::new(config, Arc::new(SystemClock))?);
        Ok(Self { shared })
    }
}

impl std::fmt::Debug for KeyedMiddleware {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let config = &self.shared.config;
        f.debug_struct("KeyedMiddleware")
            .field("config", config)
            .finish_non_exhaustive()
    }
}

impl Answer for Response {
    fn head(&self) -> (StatusCode, &HeaderMap) {
        (self.status(), self.headers())
    }

    fn report(&mut self, report: Report) {
        self.extensions_mut().insert(report);
    }
}

/// An end that the middleware can only hand on beside the answer.
#[derive(Clone)]
enum Mark {
    Refused,
    Unknown {
        why: Why,
        key: Option<RequestKey>,
        attempts: u32,
        can_do: CanDo,
    },
}

/// No connection could be made.
#[derive(Debug, thiserror::Error)]
#[error("certain that nothing happened: no connection could be made")]
struct NotSent(#[source] crate::BoxError);

#[async_trait]
impl Middleware for KeyedMiddleware {
    async fn handle(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        let config = &self.shared.config;
        let given = extensions.get::<RequestKey>().cloned();
        let method = request.method().clone();
        let key =
            put_key(config, &method, request.headers_mut(), given).map_err(MiddlewareError::middleware)?;
        if let Some(body) = request.body() {
            let max = config.body_bytes_max;
            let error = match body.as_bytes() {
                Some(bytes) if bytes.len() <= max => None,
                Some(_) => Some(too_large(max)),
                None => Some(Error::body(
                    "its body is a stream, which cannot be sent again",
                    None,
                )),
            };
            if let Some(error) = error {
                return Err(MiddlewareError::middleware(error));
            }
        }
        let url = request.url();
        let route = Route::new(&method, Some(url.scheme()), Some(url.authority()), url.path());
        let mut call = Call::new(Arc::clone(&self.shared), route, key);
        if let Some(end) = call.begin() {
            return told(end);
        }
        loop {
            let Some(copy) = request.try_clone() else {
                let error = Error::body("its body cannot be copied", None);
                return Err(MiddlewareError::middleware(error));
            };
            let attempt = next.clone().run(copy, extensions);
            let attempt = match tokio::time::timeout(call.attempt_time(), attempt).await {
                Ok(Ok(answer)) => Attempt::Answer(answer),
                Ok(Err(error)) => Attempt::Failed(error.into()),
                Err(_) => Attempt::TimedOut,
            };
            match call.after(attempt) {
                Then::Wait(wait) => tokio::time::sleep(wait).await,
                Then::End(end) => return told(end),
            }
        }
    }
}

/// As a result, which is all that a middleware may give back; [`outcome`] reads it.
fn told(outcome: Outcome<Response>) -> reqwest_middleware::Result<Response> {
    match outcome {
        Outcome::Succeeded(answer) => Ok(answer),
        Outcome::Refused(Refusal::Answer(mut answer)) => {
            answer.extensions_mut().insert(Mark::Refused);
            Ok(answer)
        }
        Outcome::Refused(Refusal::NotSent(error)) => Err(MiddlewareError::middleware(NotSent(error))),
        Outcome::Unknown(unknown) => match unknown.split() {
            (unknown, None) => Err(MiddlewareError::middleware(unknown)),
            (unknown, Some(mut answer)) => {
                answer.extensions_mut().insert(Mark::Unknown {
                    why: unknown.why,
                    key: unknown.key,
                    attempts: unknown.attempts,
                    can_do: unknown.can_do,
                });
                Ok(answer)
            }
        },
    }
}

/// The three outcomes of a call through [`KeyedMiddleware`].
///
/// # Errors
/// The request was not sent because it cannot be ([`Error`]), or an error of another middleware.
pub fn outcome(
    result: reqwest_middleware::Result<Response>,
) -> reqwest_middleware::Result<Outcome<Response>> {
    let error = match result {
        Ok(mut answer) => {
            return Ok(match answer.extensions_mut().remove::<Mark>() {
                None => Outcome::Succeeded(answer),
                Some(Mark::Refused) => Outcome::Refused(Refusal::Answer(answer)),
                Some(Mark::Unknown {
                    why,
                    key,
                    attempts,
                    can_do,
                }) => Outcome::Unknown(Box::new(Unknown {
                    why,
                    key,
                    attempts,
                    can_do,
                    answer: Some(answer),
                    source: None,
                })),
            });
        }
        Err(error) => error,
    };
    let error = match error {
        MiddlewareError::Middleware(error) => error,
        error @ MiddlewareError::Reqwest(_) => return Err(error),
    };
    let error = match error.downcast::<Unknown<std::convert::Infallible>>() {
        Ok(unknown) => return Ok(Outcome::Unknown(Box::new(unknown.joined(None)))),
        Err(error) => error,
    };
    match error.downcast::<NotSent>() {
        Ok(NotSent(error)) => Ok(Outcome::Refused(Refusal::NotSent(error))),
        Err(error) => Err(MiddlewareError::Middleware(error)),
    }
}
