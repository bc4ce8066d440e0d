//! The saga API's routes.

use std::time::Duration;

use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use http::{HeaderValue, StatusCode, header};
use semel_core::saga::{SagaId, Status};
use semel_core::store::{SagaLookup, SagaRecord, SagaRequest};
use semel_core::wire;
use semel_saga::Submitted;
use serde::Deserialize;
use serde_json::json;

use super::request::{self, Person};
use super::{Api, view};
use crate::run::problem::Problem;

/// Sagas of one page of a list.
const PAGE_DEFAULT: u32 = 100;
const PAGE_MAX: u32 = 1_000;
/// Lines of a log that are shown.
const LOG_MAX: u32 = 1_000;

/// All of it.
pub(super) fn router(api: Api) -> Router {
    Router::new()
        .route("/sagas", post(submit).get(list))
        .route("/sagas/{id}", get(show))
        .route("/sagas/{id}/log", get(log))
        .route("/sagas/{id}/cancel", post(cancel))
        .route("/sagas/{id}/retry", post(retry))
        .route("/sagas/{id}/abandon", post(abandon))
        .layer(middleware::from_fn_with_state(api.clone(), request::guard))
        .with_state(api)
}

/// 201 only when it is durable; 200 with how it stands when it was submitted before.
async fn submit(State(api): State<Api>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    request::must_be_json(&parts.headers)?;
    let bytes = request::body(body, api.body_bytes_max).await?;
    let wanted = request::submission(&bytes, &api.participants)?;
    let submitted = api
        .sagas()?
        .submit(&wanted.definition, wanted.id.clone(), wanted.input)
        .await
        .map_err(|error| Problem::saga(&wanted.id, error))?;
    let status = match submitted {
        Submitted::New => StatusCode::CREATED,
        Submitted::Existing(_) => StatusCode::OK,
    };
    let record = find(&api, &wanted.id).await?;
    let mut response = answer(&api, status, &record).await?;
    if let Ok(location) = HeaderValue::from_str(&format!("/sagas/{}", encode(wanted.id.as_str()))) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wait {
    #[serde(default)]
    wait_ms: u64,
}

/// One saga; with `wait_ms` as soon as it has ended or needs a person, and at the latest after that time.
async fn show(
    State(api): State<Api>,
    Path(id): Path<String>,
    Query(wait): Query<Wait>,
) -> Result<Response, Problem> {
    let id = saga_id(id)?;
    let wait = Duration::from_millis(wait.wait_ms).min(api.wait_max);
    if !wait.is_zero() {
        let waiting = api.sagas()?;
        tokio::select! {
            waited = waiting.wait(&id, wait) => {
                waited.map_err(|error| Problem::saga(&id, error))?;
            }
            () = api.stop.cancelled() => {}
        }
    }
    let record = find(&api, &id).await?;
    answer(&api, StatusCode::OK, &record).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Filter {
    state: Option<String>,
    after: Option<String>,
    limit: Option<u32>,
}

/// Sagas in the order of their ids.
async fn list(State(api): State<Api>, Query(filter): Query<Filter>) -> Result<Response, Problem> {
    let status = match filter.state.as_deref() {
        None => None,
        Some(word) => Some(Status::parse(word).ok_or_else(|| {
            let words: Vec<&str> = Status::ALL.iter().map(|status| status.as_str()).collect();
            Problem::bad_request(format!("state is none of {}", words.join(", ")))
        })?),
    };
    let after = filter.after.map(saga_id).transpose()?;
    let limit = filter.limit.unwrap_or(PAGE_DEFAULT);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Problem::bad_request(format!("limit is outside 1 to {PAGE_MAX}")));
    }
    let found = api.store()?.list_sagas(status, after.as_ref(), limit).await?;
    let full = found.len() == usize::try_from(limit).unwrap_or(usize::MAX);
    let next = found.last().filter(|_| full).map(|last| last.id.to_string());
    let sagas: Vec<view::SummaryView> = found.into_iter().map(Into::into).collect();
    Ok(Json(json!({ "sagas": sagas, "next": next })).into_response())
}

/// What happened to one saga, oldest first.
async fn log(State(api): State<Api>, Path(id): Path<String>) -> Result<Response, Problem> {
    let id = saga_id(id)?;
    find(&api, &id).await?;
    let rows = api.store()?.saga_log(&id, LOG_MAX).await?;
    let lines: Vec<_> = rows
        .into_iter()
        .map(|row| {
            json!({
                "version": row.version,
                "at": row.at.rfc3339(),
                "step": row.entry.step,
                "op": row.entry.op,
                "event": row.entry.event,
                "text": row.entry.text,
            })
        })
        .collect();
    Ok(Json(json!({ "id": id, "log": lines })).into_response())
}

async fn cancel(state: State<Api>, path: Path<String>, request: Request) -> Result<Response, Problem> {
    ask(state, path, request, |by, why| SagaRequest::Cancel { by, why }).await
}

async fn abandon(state: State<Api>, path: Path<String>, request: Request) -> Result<Response, Problem> {
    ask(state, path, request, |by, why| SagaRequest::Abandon { by, why }).await
}

async fn retry(
    State(api): State<Api>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let record = find(&api, &saga_id(id.clone())?).await?;
    if record.status != Status::Stuck {
        return Err(Problem::not_stuck(record.status));
    }
    ask(State(api), Path(id), request, |by, _| SagaRequest::Retry { by }).await
}

/// Stores a request for the saga's owner: 202 when it is durable.
async fn ask(
    State(api): State<Api>,
    Path(id): Path<String>,
    request: Request,
    make: impl FnOnce(String, String) -> SagaRequest,
) -> Result<Response, Problem> {
    let id = saga_id(id)?;
    let (parts, body) = request.into_parts();
    let bytes = request::body(body, api.body_bytes_max).await?;
    let person: Person = request::optional(&parts.headers, &bytes)?;
    let wanted = make(
        person.by.unwrap_or_else(|| "api".to_owned()),
        person.why.unwrap_or_default(),
    );
    wanted
        .check()
        .map_err(|limit| Problem::bad_request(limit.to_string()))?;
    let sagas = api.sagas()?;
    let noted = match &wanted {
        SagaRequest::Cancel { by, why } => sagas.cancel(&id, by, why).await,
        SagaRequest::Retry { by } => sagas.retry(&id, by).await,
        SagaRequest::Abandon { by, why } => sagas.abandon(&id, by, why).await,
    };
    noted.map_err(|error| Problem::saga(&id, error))?;
    let record = find(&api, &id).await?;
    answer(&api, StatusCode::ACCEPTED, &record).await
}

fn saga_id(id: String) -> Result<SagaId, Problem> {
    SagaId::new(id).map_err(|limit| Problem::bad_request(limit.to_string()))
}

fn absent(id: &SagaId) -> Problem {
    Problem::not_found(format!("there is no saga {id}"))
}

async fn find(api: &Api, id: &SagaId) -> Result<SagaRecord, Problem> {
    let found = api.store()?.load_sagas(std::slice::from_ref(id)).await?;
    match found.into_iter().next() {
        Some(SagaLookup::Found(record)) => Ok(*record),
        Some(SagaLookup::Ended(status)) => Err(Problem::ended(id, status)),
        Some(SagaLookup::Absent) | None => Err(absent(id)),
    }
}

async fn answer(api: &Api, status: StatusCode, record: &SagaRecord) -> Result<Response, Problem> {
    let definition = api.definition(&record.definition).await?;
    let body = Json(view::saga(record, definition.as_ref()));
    let outcome = [(wire::OUTCOME, view::outcome(record.status))];
    Ok((status, outcome, body).into_response())
}

/// Percent-encodes an id for a path.
fn encode(id: &str) -> String {
    id.bytes().fold(String::with_capacity(id.len()), |mut out, byte| {
        use std::fmt::Write as _;
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}
