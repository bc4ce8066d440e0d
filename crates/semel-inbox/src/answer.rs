//! What the sender hears, as HTTP.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use semel_core::{ErrorKind, wire};

use crate::delivery::DeliveryError;
use crate::receive::{HandlerError, ReceiveError};

/// An answer as `application/problem+json` (RFC 9457), with the page's code as its type.
#[must_use]
pub fn problem(
    status: StatusCode,
    outcome: &'static str,
    code: &str,
    title: &str,
    detail: &str,
) -> Response<Bytes> {
    let body = serde_json::json!({
        "type": format!("urn:semel:error:{code}"),
        "title": title,
        "status": status.as_u16(),
        "detail": detail,
    });
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(wire::OUTCOME, HeaderValue::from_static(outcome));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

impl DeliveryError {
    /// The status it is answered with.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::NoId | Self::Header { .. } | Self::Document { .. } | Self::Broken => {
                StatusCode::BAD_REQUEST
            }
            Self::Signature { .. } => StatusCode::UNAUTHORIZED,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Mode { .. } => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        }
    }

    /// Its page under `docs/errors/`.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NoId => "SEM0601",
            Self::Header { .. } | Self::Document { .. } => "SEM0602",
            Self::TooLarge { .. } => "SEM0603",
            Self::Mode { .. } => "SEM0604",
            Self::Broken => "SEM0605",
            Self::Signature { .. } => "SEM0609",
        }
    }

    /// The answer. Nothing was done, so the outcome is `refused`.
    #[must_use]
    pub fn answer(&self) -> Response<Bytes> {
        problem(
            self.status(),
            "refused",
            self.code(),
            "The request is no delivery",
            &self.to_string(),
        )
    }
}

/// The answer to a delivery that was not taken.
///
/// A message that can never be handled gets 422 and `refused`. All else is 5xx and `unknown`, after which a sender
/// delivers again with the same id: also where it is certain that nothing happened, since that is safe and sufficient.
/// The handler's own words go to the sender for a refusal only; database errors stay in the log.
#[must_use]
pub fn receive_error_answer(error: &ReceiveError) -> Response<Bytes> {
    let (status, outcome, code, title, detail) = match error {
        ReceiveError::Handler(HandlerError::Refused(reason)) => (
            StatusCode::UNPROCESSABLE_ENTITY,
            "refused",
            "SEM0606",
            "The delivery was refused",
            reason.as_str(),
        ),
        ReceiveError::Handler(cause @ HandlerError::Store(store)) if cause.blames_message() => (
            StatusCode::UNPROCESSABLE_ENTITY,
            "refused",
            store.kind().code(),
            "The delivery was refused",
            "what it says cannot be stored",
        ),
        ReceiveError::Handler(HandlerError::Later(reason)) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "unknown",
            "SEM0607",
            "Deliver again later",
            reason.as_str(),
        ),
        ReceiveError::Handler(HandlerError::Store(store)) | ReceiveError::Store(store) => {
            let (status, detail) = match store.kind() {
                ErrorKind::ReplyLost => (
                    StatusCode::SERVICE_UNAVAILABLE,
                    "the commit's answer was lost; deliver again with the same id",
                ),
                ErrorKind::NotApplied | ErrorKind::Unavailable => (
                    StatusCode::SERVICE_UNAVAILABLE,
                    "the database is not available; deliver again with the same id",
                ),
                _ => (
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "the receiver is not set up right; its log says more",
                ),
            };
            let title = "The delivery was not taken for certain";
            (status, "unknown", store.kind().code(), title, detail)
        }
    };
    problem(status, outcome, code, title, detail)
}
