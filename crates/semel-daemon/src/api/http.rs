//! From a request to an answer: who asks, what the body says, and how the answer is written.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use semel_core::wire;

use super::Api;
use super::access::{Grant, Stranger};
use super::openapi;
use super::operations::Asked;
use super::problem::{Kind, Problem};
use super::reply::Reply;
use super::routes::{self, OPENAPI, Route};
use crate::run::browser::from_a_browser;

/// All of it.
pub(crate) fn router(api: Arc<Api>) -> Router {
    Router::new().fallback(answer).with_state(api)
}

async fn answer(State(api): State<Arc<Api>>, request: Request) -> Response {
    let path = request.uri().path();
    if path == OPENAPI {
        return document(&api, request.method());
    }
    let Some(route) = routes::find(path) else {
        api.metrics.answered("none", 404);
        let detail = format!("see {OPENAPI} for the operations there are");
        return written(Problem::new(Kind::NoSuchOperation, detail).into());
    };
    if request.method() != Method::POST {
        api.metrics.answered(route.id, 405);
        return wrong_method(
            "POST",
            format!("{} is asked with POST and a JSON body", route.path),
        );
    }
    let reply = match asked(&api, route, request).await {
        Ok(reply) => reply,
        Err(problem) => with_example(problem, route).into(),
    };
    debug_assert!(
        !matches!(&reply, Reply::Problem(problem) if !route.answers_with(problem.kind)),
        "{} does not say that it may answer {reply:?}",
        route.id
    );
    api.metrics.answered(route.id, reply.status());
    written(reply)
}

fn document(api: &Api, method: &Method) -> Response {
    if method != Method::GET {
        api.metrics.answered("openapi", 405);
        return wrong_method("GET", "the document is read with GET".to_owned());
    }
    api.metrics.answered("openapi", 200);
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (kind, openapi::text(api.access.load().asks())).into_response()
}

fn wrong_method(allowed: &'static str, detail: String) -> Response {
    let mut response = written(Problem::new(Kind::WrongMethod, detail).into());
    let allowed = HeaderValue::from_static(allowed);
    response.headers_mut().insert(header::ALLOW, allowed);
    response
}

/// What to send instead, where the body could not be read.
fn with_example(problem: Problem, route: &Route) -> Problem {
    if problem.kind == Kind::Unreadable
        && let Ok(example) = serde_json::from_str::<serde_json::Value>(route.example)
    {
        return problem.with("example", example);
    }
    problem
}

/// Finds out who asks, reads the body, and does it.
async fn asked(api: &Api, route: &Route, request: Request) -> Result<Reply, Problem> {
    let grant = admitted(api, route, request.headers())?;
    let limit = api.limits.request_max;
    let waiting = Arc::clone(&api.working).acquire_owned();
    let Ok(Ok(place)) = tokio::time::timeout(limit, waiting).await else {
        let detail = format!(
            "requests_max = {} of [api] are in work; nothing was done: send the same request again, or raise it",
            api.limits.requests_max
        );
        return Err(Problem::new(Kind::Overloaded, detail));
    };
    must_be_json(request.headers())?;
    let body = match tokio::time::timeout(limit, whole(request.into_body(), api.limits.body_bytes_max)).await
    {
        Ok(body) => body?,
        Err(_) => {
            let ms = limit.as_millis();
            let detail =
                format!("the body did not come within request_ms_max = {ms} of [api]; nothing was done");
            return Err(Problem::new(Kind::TooSlow, detail));
        }
    };
    let Some(store) = api.store.get() else {
        let detail =
            "the store is not open: /readyz says why; nothing was done: send the same request again later";
        return Err(Problem::new(Kind::Away, detail));
    };
    let asked = Asked {
        api,
        grant: &grant,
        store: Arc::clone(store),
        place,
    };
    asked.run(route.name, &body).await
}

/// What whoever asks may do, when that covers the operation.
fn admitted(api: &Api, route: &Route, headers: &HeaderMap) -> Result<Grant, Problem> {
    let access = api.access.load();
    let authorization = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let grant = access.grant(authorization).map_err(|stranger| {
        let detail = match stranger {
            Stranger::NoToken => "send `Authorization: Bearer TOKEN` with a token of [[api.token]]",
            Stranger::WrongToken => "the token is none of those in [[api.token]]",
        };
        Problem::new(Kind::Unauthorized, detail)
    })?;
    // A page that a browser of this machine shows can send requests here, and could name us by a host of its own.
    if !access.asks() && from_a_browser(headers) {
        let detail = "without a token, requests from web pages and under names of other hosts are refused; add an \
                      [[api.token]] to allow them";
        return Err(Problem::new(Kind::Forbidden, detail));
    }
    if !grant.allows(route.operation) {
        let detail = format!(
            "the token `{}` may not {}: see `allow` of its [[api.token]]",
            grant.name,
            route.operation.as_str()
        );
        return Err(Problem::new(Kind::Forbidden, detail));
    }
    Ok(grant)
}

/// Refuses a body that does not call itself JSON: a form of a web page could not be told apart from it.
fn must_be_json(headers: &HeaderMap) -> Result<(), Problem> {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let kind = kind.map_or("", |kind| kind.split(';').next().unwrap_or("").trim());
    if kind.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(Problem::new(
        Kind::NotJson,
        "send the body with content-type: application/json",
    ))
}

async fn whole(body: Body, bytes_max: usize) -> Result<Bytes, Problem> {
    match Limited::new(body, bytes_max).collect().await {
        Ok(whole) => Ok(whole.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let detail = format!(
                "the body is larger than body_bytes_max = {bytes_max} of [api]; nothing was done: send less, keep the \
                 output elsewhere, or raise it"
            );
            Err(Problem::new(Kind::TooLarge, detail))
        }
        Err(_) => Err(Problem::new(
            Kind::Unreadable,
            "the body broke off; nothing was done",
        )),
    }
}

/// Writes an answer.
fn written(reply: Reply) -> Response {
    let status = StatusCode::from_u16(reply.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let (body, kind, outcome, retry_after_s) = match reply {
        Reply::Ok { body, outcome, .. } => (body, "application/json", outcome, None),
        Reply::Problem(problem) => {
            let row = problem.kind.row();
            let after = row.retry_after.then_some(problem.retry_after_s);
            (problem.body(), "application/problem+json", row.outcome, after)
        }
    };
    let mut response = (status, body.to_string()).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(outcome) = outcome {
        headers.insert(wire::OUTCOME, HeaderValue::from_static(outcome));
    }
    if let Some(seconds) = retry_after_s {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}
