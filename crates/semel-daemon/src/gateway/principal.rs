//! Who asks: by a header, by another service, or nobody in particular.

use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use semel_client::{HttpClient, Limits};
use semel_core::Scope;
use semel_http::{Body, ScopeError};

use super::body::Reply;
use super::config::Principal;
use super::failure::Refusal;
use super::forward;

/// Bytes of an answer of the other service at most.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The scope of a request whose principal stands in its header: put there by a proxy in front, or by [`Asker`].
pub(super) fn scope(gateway: &str, header: &HeaderName, parts: &Parts) -> Result<Scope, ScopeError> {
    let mut values = parts.headers.get_all(header).iter();
    match (values.next(), values.next()) {
        (Some(id), None) if !id.is_empty() => {
            Ok(Scope::of_parts(&[b"gateway", gateway.as_bytes(), id.as_bytes()]))
        }
        _ => Err(ScopeError::NoPrincipal),
    }
}

/// Asks another service who calls.
pub(super) struct Asker {
    url: Uri,
    header: HeaderName,
    timeout: Duration,
    client: HttpClient,
}

impl Asker {
    /// For routes whose principal comes from another service.
    pub(super) fn new(principal: &Principal) -> Option<Self> {
        let Principal::Auth { url, header, timeout } = principal else {
            return None;
        };
        Some(Self {
            url: url.clone(),
            header: header.clone(),
            timeout: *timeout,
            client: HttpClient::new(Limits {
                response_bytes_max: ANSWER_BYTES_MAX,
                ..Limits::default()
            }),
        })
    }

    /// Puts the principal into the request's header, in place of what the client may have written there.
    ///
    /// # Errors
    /// The answer for the client: what the other service said, or that it cannot be asked.
    pub(super) async fn name(&self, parts: &mut Parts) -> Result<(), Box<Response<Reply>>> {
        let away = |detail: String| Box::new(Refusal::AuthAway.answer(&detail, false));
        let mut request = Request::new(Bytes::new());
        *request.method_mut() = Method::GET;
        *request.uri_mut() = self.url.clone();
        *request.headers_mut() = asked(parts);
        let answer = match self.client.send(request, self.timeout).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::warn!(error = %error, "auth_url cannot be asked");
                let detail =
                    "auth_url gave no answer, so nothing was done; send the same request again later";
                return Err(away(detail.to_owned()));
            }
        };
        parts.headers.remove(&self.header);
        match answer.status() {
            status if status.is_success() => {
                let mut ids = answer.headers().get_all(&self.header).iter();
                match (ids.next(), ids.next()) {
                    (Some(id), None) if !id.is_empty() => {
                        parts.headers.insert(self.header.clone(), id.clone());
                        Ok(())
                    }
                    _ => Err(away(format!(
                        "auth_url let the caller in and did not name it once in {}; nothing was done",
                        self.header
                    ))),
                }
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(Box::new(refused(answer))),
            status => {
                tracing::warn!(%status, "auth_url answers neither 2xx nor 401 nor 403");
                let detail = format!(
                    "auth_url answered {status}; nothing was done, send the same request again later"
                );
                Err(away(detail))
            }
        }
    }
}

/// What the other service is asked with: the caller's credentials and what it wants, not what it sends.
fn asked(parts: &Parts) -> HeaderMap {
    let mut headers = parts.headers.clone();
    forward::strip_hop_by_hop(&mut headers, &[]);
    for name in [
        header::HOST,
        header::EXPECT,
        header::CONTENT_LENGTH,
        header::CONTENT_TYPE,
        header::CONTENT_ENCODING,
    ] {
        headers.remove(name);
    }
    if let Ok(method) = HeaderValue::from_str(parts.method.as_str()) {
        headers.insert("x-original-method", method);
    }
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    if let Ok(target) = HeaderValue::from_str(target) {
        headers.insert("x-original-uri", target);
    }
    headers
}

/// The other service's refusal, as the client sees it.
fn refused(answer: Response<Bytes>) -> Response<Reply> {
    let (mut parts, body) = answer.into_parts();
    forward::strip_hop_by_hop(&mut parts.headers, &[]);
    parts.headers.remove(header::TRAILER);
    parts.headers.insert(
        semel_http::headers::SEMEL_OUTCOME,
        HeaderValue::from_static("refused"),
    );
    Response::from_parts(parts, Reply::Own(Body::whole(body)))
}
