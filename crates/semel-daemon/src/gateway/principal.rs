//! Who asks: by a header, by another service, or nobody in particular.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use semel_client::{HttpClient, Limits};
use semel_core::Scope;
use semel_http::{Body, ScopeError};

use super::body::Reply;
use super::config::{Principal, ProxyConfig};
use super::failure::Refusal;
use super::forward;
use super::peer::Peer;
use super::stats::Stats;

/// Bytes of an answer of the other service at most.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The scope of a request whose principal stands in its header: put there by a proxy in front, or by [`Asker`].
/// `by_host`: the upstream sees which host was asked for, so that one host's answer is not another's.
pub(super) fn scope(
    gateway: &str,
    header: &HeaderName,
    by_host: bool,
    parts: &Parts,
) -> Result<Scope, ScopeError> {
    let mut values = parts.headers.get_all(header).iter();
    match (values.next(), values.next()) {
        (Some(id), None) if !id.is_empty() => {
            let host = by_host.then(|| host(parts));
            Ok(scope_of(gateway.as_bytes(), id.as_bytes(), host.as_deref()))
        }
        _ => Err(ScopeError::NoPrincipal),
    }
}

/// The scope of this caller of this gateway, at one host where hosts are told apart.
pub(crate) fn scope_of(gateway: &[u8], id: &[u8], host: Option<&[u8]>) -> Scope {
    match host {
        Some(host) => Scope::of_parts(&[b"gateway", gateway, id, host]),
        None => Scope::of_parts(&[b"gateway", gateway, id]),
    }
}

/// The scope of all who ask one host, where nobody is named: no principal is empty, so it is nobody's own.
///
/// # Errors
/// Credentials show that there are callers to tell apart.
pub(super) fn anonymous(gateway: &str, parts: &Parts) -> Result<Scope, ScopeError> {
    if parts.headers.contains_key(header::AUTHORIZATION) {
        return Err(ScopeError::CredentialsWithoutResolver);
    }
    Ok(Scope::of_parts(&[
        b"gateway",
        gateway.as_bytes(),
        b"",
        &host(parts),
    ]))
}

/// Whom the client asked for, in small letters.
fn host(parts: &Parts) -> Vec<u8> {
    let authority = parts
        .uri
        .authority()
        .map(|authority| authority.as_str().as_bytes());
    let host = || parts.headers.get(header::HOST).map(HeaderValue::as_bytes);
    authority.or_else(host).unwrap_or_default().to_ascii_lowercase()
}

/// Asks another service who calls.
pub(super) struct Asker {
    url: Uri,
    header: HeaderName,
    timeout: Duration,
    client: HttpClient,
    config: Arc<ProxyConfig>,
    stats: Arc<Stats>,
}

impl Asker {
    /// For routes whose principal comes from another service.
    pub(super) fn new(principal: &Principal, config: &Arc<ProxyConfig>, stats: &Arc<Stats>) -> Option<Self> {
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
            config: Arc::clone(config),
            stats: Arc::clone(stats),
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
        *request.headers_mut() = self.asked(parts);
        parts.headers.remove(&self.header);
        let answer = match self.client.send(request, self.timeout).await {
            Ok(answer) => answer,
            Err(error) => {
                if let Some(more) = self.stats.quiet_auth.may_speak() {
                    tracing::warn!(error = %error, more, "auth_url cannot be asked");
                }
                let detail =
                    "auth_url gave no answer, so nothing was done; send the same request again later";
                return Err(away(detail.to_owned()));
            }
        };
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
                if let Some(more) = self.stats.quiet_auth.may_speak() {
                    tracing::warn!(%status, more, "auth_url answers neither 2xx nor 401 nor 403");
                }
                let detail = format!(
                    "auth_url answered {status}; nothing was done, send the same request again later"
                );
                Err(away(detail))
            }
        }
    }

    /// What the other service is asked with: the caller's credentials and what it wants, not what it sends, and who
    /// it is as this gateway knows it.
    fn asked(&self, parts: &Parts) -> HeaderMap {
        let mut headers = parts.headers.clone();
        forward::strip_hop_by_hop(&mut headers, &[]);
        forward::one_cookie(&mut headers);
        headers.remove(&self.header);
        if !self.config.trust_forwarded {
            let claimed: Vec<HeaderName> = headers
                .keys()
                .filter(|name| name.as_str().starts_with("x-forwarded-"))
                .cloned()
                .collect();
            for name in &claimed {
                headers.remove(name);
            }
        }
        let authority = parts.uri.authority().map(Authority::as_str);
        let authority = authority.and_then(|authority| HeaderValue::from_str(authority).ok());
        let peer = parts.extensions.get::<Peer>();
        forward::who(&mut headers, &self.config, peer, authority.as_ref());
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
