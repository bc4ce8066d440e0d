//! Deliveries in axum services.

use ::axum::body::{Body, to_bytes};
use ::axum::extract::{FromRequest, Request};
use ::axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use http_body_util::LengthLimitError;
use semel_core::limits::EVENT_DATA_BYTES_MAX;
use semel_core::wire;

use crate::answer::receive_error_answer;
use crate::delivery::{Delivery, DeliveryError};
use crate::receive::{ReceiveError, Received};
use crate::verify::Verifier;

/// Limits of the extractor; set others with `axum::Extension(DeliveryLimits { … })` as a layer.
#[derive(Debug, Clone, Copy)]
pub struct DeliveryLimits {
    /// Bytes of a body at most. Default [`EVENT_DATA_BYTES_MAX`].
    pub body_bytes_max: usize,
}

impl Default for DeliveryLimits {
    fn default() -> Self {
        Self {
            body_bytes_max: EVENT_DATA_BYTES_MAX,
        }
    }
}

/// Reads the whole body, then the headers. A request that is no delivery is answered with 400, 413 or 415 before the
/// handler runs; with `axum::Extension(verifier)` of a [`Verifier`] as a layer, one that is not signed with 401.
impl<S: Send + Sync> FromRequest<S> for Delivery {
    type Rejection = DeliveryError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Self::Rejection> {
        let limits = request
            .extensions()
            .get::<DeliveryLimits>()
            .copied()
            .unwrap_or_default();
        let max = limits.body_bytes_max;
        let (parts, body) = request.into_parts();
        let data = to_bytes(body, max).await.map_err(|error| {
            let too_large =
                std::error::Error::source(&error).is_some_and(|source| source.is::<LengthLimitError>());
            if too_large {
                DeliveryError::TooLarge { max }
            } else {
                DeliveryError::Broken
            }
        })?;
        match parts.extensions.get::<Verifier>() {
            Some(verifier) => Self::from_signed_parts(parts.headers, data, verifier),
            None => Self::from_parts(parts.headers, data),
        }
    }
}

fn whole(response: http::Response<Bytes>) -> Response {
    response.map(Body::from)
}

impl IntoResponse for DeliveryError {
    fn into_response(self) -> Response {
        whole(self.answer())
    }
}

impl IntoResponse for ReceiveError {
    fn into_response(self) -> Response {
        let answer = receive_error_answer(&self);
        if answer.status().is_server_error() {
            tracing::warn!(
                error = semel_core::error::chain(&self),
                "a delivery was not taken"
            );
        } else {
            tracing::info!(error = semel_core::error::chain(&self), "a delivery was refused");
        }
        whole(answer)
    }
}

/// `New` is the handler's own answer; a duplicate is 200 without a body, marked `Idempotent-Replayed: true`. Both carry
/// `Semel-Outcome: succeeded` and `Semel-Guarantee: atomic`.
impl<T: IntoResponse> IntoResponse for Received<T> {
    fn into_response(self) -> Response {
        let mut response = match self {
            Self::New(value) => value.into_response(),
            Self::Duplicate => {
                let mut response = StatusCode::OK.into_response();
                response
                    .headers_mut()
                    .insert(wire::IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
                response
            }
        };
        let headers = response.headers_mut();
        headers.insert(wire::OUTCOME, HeaderValue::from_static("succeeded"));
        headers.insert(wire::GUARANTEE, HeaderValue::from_static("atomic"));
        response
    }
}
