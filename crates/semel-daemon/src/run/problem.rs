//! Errors on the wire: problem details (RFC 9457).

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
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
    detail: String,
    /// Single mistakes, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<String>,
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
    fn new(status: StatusCode, kind: &'static str, title: &'static str, detail: impl Into<String>) -> Self {
        Self {
            kind,
            title,
            status: status.as_u16(),
            detail: detail.into(),
            errors: Vec::new(),
            retry_after_s: None,
        }
    }

    /// The request cannot be read.
    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            kind!("bad-request"),
            "The request cannot be read",
            detail,
        )
    }

    /// There is no such thing.
    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
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
    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, kind!("forbidden"), "Not from here", detail)
    }

    /// It cannot be done now; the same request may work later.
    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
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
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
