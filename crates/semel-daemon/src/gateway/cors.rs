//! Pages of other origins: what a browser lets them send through this gateway, and read of it. Answers are kept without the
//! upstream's own word on that, for it was said to the first caller's page, and problems have none; so whoever stands in front
//! says it, and that is the gateway.

use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use semel_http::Body;

use super::body::Reply;

/// What such a page may read beside the fields that each may: the marks and what a problem says.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "Idempotent-Replayed, Semel-Outcome, Semel-Guarantee, Semel-Retained-Until, Retry-After",
);
/// Seconds for which a browser need not ask again.
const ASKED_FOR_S: u16 = 600;

/// Whose pages may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origins {
    /// Everybody's, without credentials.
    Any,
    /// These, with credentials.
    These(Vec<HeaderValue>),
}

/// What is said to the page that a request comes from.
pub(super) struct Page {
    /// Whether the answer is another one for another page.
    differs: bool,
    allowed: Option<HeaderValue>,
}

impl Origins {
    fn allowed(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        match self {
            Self::Any => Some(HeaderValue::from_static("*")),
            Self::These(origins) => origins.iter().find(|known| *known == origin).cloned(),
        }
    }

    /// The page behind a request.
    pub(super) fn page(&self, headers: &HeaderMap) -> Page {
        Page {
            differs: *self != Self::Any,
            allowed: self.allowed(headers),
        }
    }

    /// The answer to a browser that asks whether a page may send a request; of a page that may not, the upstream answers.
    pub(super) fn preflight<B>(&self, request: &Request<B>) -> Option<Response<Reply>> {
        if request.method() != Method::OPTIONS {
            return None;
        }
        let method = request.headers().get(header::ACCESS_CONTROL_REQUEST_METHOD)?;
        let page = self.page(request.headers());
        page.allowed.as_ref()?;
        let mut response = Response::new(Reply::Own(Body::empty()));
        *response.status_mut() = StatusCode::NO_CONTENT;
        page.mark(response.headers_mut());
        let headers = response.headers_mut();
        headers.remove(header::ACCESS_CONTROL_EXPOSE_HEADERS);
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, method.clone());
        if let Some(fields) = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, fields.clone());
        }
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from(ASKED_FOR_S));
        headers.append(
            header::VARY,
            HeaderValue::from_static("Access-Control-Request-Method, Access-Control-Request-Headers"),
        );
        Some(response)
    }
}

impl Page {
    /// Says on an answer that this page may read it.
    pub(super) fn mark(&self, headers: &mut HeaderMap) {
        if self.differs {
            headers.append(header::VARY, HeaderValue::from_static("Origin"));
        }
        let Some(allowed) = &self.allowed else { return };
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, allowed.clone());
        if self.differs {
            headers.insert(
                header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
                HeaderValue::from_static("true"),
            );
        } else {
            headers.remove(header::ACCESS_CONTROL_ALLOW_CREDENTIALS);
        }
        headers.append(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
}
