//! Errors on the wire: problem details (RFC 9457).

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use semel_core::error::chain;
use semel_core::saga::{SagaId, Status};
use semel_core::{ErrorKind, Retry, StoreError, wire};
use semel_saga::SagaError;
use serde::Serialize;

/// One problem.
#[derive(Debug, Serialize)]
pub(crate) struct Problem {
    /// A stable URI of the kind of problem.
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    /// What happened this time, and what to do.
    detail: Box<str>,
    /// Single mistakes, where there are several.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    errors: Box<[String]>,
    /// The page under `docs/errors/` that explains it.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    /// What is known of the operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
    #[serde(skip)]
    retry_after_s: Option<u32>,
}

/// What every type URI begins with.
macro_rules! kind {
    ($name:literal) => {
        concat!("urn:semel:problem:", $name)
    };
}

impl Problem {
    fn new(status: StatusCode, kind: &'static str, title: &'static str, detail: impl Into<Box<str>>) -> Self {
        Self {
            kind,
            title,
            status: status.as_u16(),
            detail: detail.into(),
            errors: Box::default(),
            code: None,
            outcome: None,
            retry_after_s: None,
        }
    }

    /// The request cannot be read.
    pub(crate) fn bad_request(detail: impl Into<Box<str>>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            kind!("bad-request"),
            "The request cannot be read",
            detail,
        )
    }

    /// There is no such thing.
    pub(crate) fn not_found(detail: impl Into<Box<str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, kind!("not-found"), "Not found", detail)
    }

    /// The token is missing or wrong.
    pub(crate) fn unauthorized() -> Self {
        let detail = "send `Authorization: Bearer TOKEN` with the token of [server]";
        Self::new(
            StatusCode::UNAUTHORIZED,
            kind!("unauthorized"),
            "A token is needed",
            detail,
        )
    }

    /// The request comes from where it must not.
    pub(crate) fn forbidden(detail: impl Into<Box<str>>) -> Self {
        Self::new(StatusCode::FORBIDDEN, kind!("forbidden"), "Not from here", detail)
    }

    /// The body is larger than allowed.
    pub(crate) fn too_large(detail: impl Into<Box<str>>) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            kind!("request-too-large"),
            "The request is too large",
            detail,
        )
    }

    /// A saga's definition does not hold.
    pub(crate) fn definition(errors: Vec<String>) -> Self {
        let detail = format!(
            "the definition is refused for {} reason(s); nothing was started",
            errors.len()
        );
        Self {
            errors: errors.into(),
            ..Self::new(
                StatusCode::BAD_REQUEST,
                kind!("saga-definition"),
                "The saga's definition is refused",
                detail,
            )
        }
    }

    /// The id names another saga.
    pub(crate) fn mismatch(id: &SagaId, what: &str) -> Self {
        let detail =
            format!("the saga {id} was submitted before with another {what}; it is unharmed, use another id");
        Self {
            outcome: Some("mismatch"),
            ..Self::new(
                StatusCode::CONFLICT,
                kind!("saga-mismatch"),
                "The id names another saga",
                detail,
            )
        }
    }

    /// The saga has ended.
    pub(crate) fn ended(id: &SagaId, status: Status) -> Self {
        let detail = format!("the saga {id} has ended: {}", status.as_str());
        Self::new(
            StatusCode::GONE,
            kind!("saga-ended"),
            "The saga has ended",
            detail,
        )
    }

    /// What a coordinator said.
    pub(crate) fn saga(id: &SagaId, error: SagaError) -> Self {
        match error {
            SagaError::OtherInput => Self::mismatch(id, "input"),
            SagaError::OtherDefinition => Self::mismatch(id, "definition"),
            SagaError::Ended(status) => Self::ended(id, status),
            SagaError::Absent => Self::not_found(format!("there is no saga {id}")),
            SagaError::TooManyRequests => Self::too_many_requests(),
            SagaError::Limit(limit) => Self::bad_request(limit.to_string()),
            SagaError::Store(error) => error.into(),
            other => {
                let detail = other.to_string();
                match other.retry() {
                    Retry::Later | Retry::OutcomeUnknown => Self::unavailable(detail),
                    Retry::Never => Self::internal(detail),
                }
            }
        }
    }

    /// There is nothing to retry.
    pub(crate) fn not_stuck(status: Status) -> Self {
        let detail = format!(
            "only a stuck saga can be retried; this one is {}",
            status.as_str()
        );
        Self::new(
            StatusCode::CONFLICT,
            kind!("saga-not-stuck"),
            "The saga is not stuck",
            detail,
        )
    }

    /// Too many requests wait for a saga's owner.
    pub(crate) fn too_many_requests() -> Self {
        let detail = format!(
            "{} requests wait already for the saga's owner; is a coordinator running?",
            semel_core::limits::SAGA_REQUESTS_MAX
        );
        Self {
            retry_after_s: Some(5),
            ..Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                kind!("saga-requests"),
                "Too many requests",
                detail,
            )
        }
    }

    /// A mistake in semel.
    pub(crate) fn internal(detail: impl Into<Box<str>>) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            kind!("internal"),
            "A mistake in semel",
            detail,
        )
    }

    /// It cannot be done now; the same request may work later.
    pub(crate) fn unavailable(detail: impl Into<Box<str>>) -> Self {
        Self {
            retry_after_s: Some(1),
            ..Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                kind!("unavailable"),
                "Not available now",
                detail,
            )
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let detail = match error.retry() {
            Retry::Later => format!("{}; nothing was done", chain(&error)),
            Retry::OutcomeUnknown => format!(
                "{}; send the same request again, its id makes that safe",
                chain(&error)
            ),
            Retry::Never => chain(&error),
        };
        let problem = match (error.kind(), error.retry()) {
            (ErrorKind::LimitExceeded, _) => Self::too_large(detail),
            (_, Retry::Later | Retry::OutcomeUnknown) => Self::unavailable(detail),
            (_, Retry::Never) => Self::internal(detail),
        };
        Self {
            code: Some(error.kind().code()),
            outcome: (error.retry() == Retry::OutcomeUnknown).then_some("unknown"),
            ..problem
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(outcome) = self.outcome {
            headers.insert(wire::OUTCOME, HeaderValue::from_static(outcome));
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
