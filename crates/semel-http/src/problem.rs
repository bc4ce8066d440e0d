//! What the layer itself answers: problem details (RFC 9457) with stable types and codes.

use http::header::{CONTENT_TYPE, HeaderValue, LINK, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Response, StatusCode};

use crate::body::Body;
use crate::grpc::GrpcStatus;
use crate::headers::SEMEL_OUTCOME;
use crate::policy::OutcomeWord;

/// How a caller that is not known may say who it is, unless the settings say another way.
pub(crate) const CHALLENGE: &str = "Bearer";

/// The kinds of problems, each with a page `docs/errors/SEM04xx.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProblemKind {
    /// The route requires a key.
    KeyMissing,
    /// Not exactly one valid key.
    KeyMalformed,
    /// The key is not one that the server gave out to this caller.
    KeyNotIssued,
    /// The key was given out, its time is over, and no record of it is here.
    IssuedKeyExpired,
    /// The request's body is over the limit.
    RequestTooLarge,
    /// The request's body broke off.
    RequestBroken,
    /// The key names another request.
    Mismatch,
    /// The first request is still being worked on.
    Running,
    /// It may have happened; a person or a hook decides.
    Unknown,
    /// It was done; the answer is not kept.
    AnswerNotKept,
    /// It was done long ago; only that is remembered.
    Gone,
    /// No verified principal.
    NoPrincipal,
    /// Anonymous scope, yet credentials.
    AnonymousScope,
    /// The store gives no answer; nothing was run.
    StoreUnavailable,
    /// The store has no room; nothing was run.
    StoreFull,
    /// The caller's scope holds as much as its quota allows; nothing was run.
    ScopeFull,
    /// Too much at once.
    Busy,
    /// The handler panicked or its answer broke off.
    HandlerFailed,
    /// The upstream could not be reached; nothing was sent.
    UpstreamUnreachable,
    /// The upstream gave no whole answer.
    UpstreamBroken,
    /// The upstream gave no answer in time.
    UpstreamTimeout,
    /// Something this build does not do.
    NotSupported,
}

impl ProblemKind {
    /// Code, slug of the type, status, title, outcome: one line per kind.
    const fn row(self) -> (&'static str, &'static str, u16, &'static str, OutcomeWord) {
        use OutcomeWord::{Mismatch, Refused, Running, Succeeded, Unknown};
        match self {
            Self::KeyMissing => (
                "SEM0401",
                "key-missing",
                400,
                "An idempotency key is required",
                Refused,
            ),
            Self::KeyMalformed => (
                "SEM0402",
                "key-malformed",
                400,
                "The idempotency key is not valid",
                Refused,
            ),
            Self::KeyNotIssued => (
                "SEM0432",
                "key-not-issued",
                422,
                "The key was not given out to this caller",
                Refused,
            ),
            Self::IssuedKeyExpired => (
                "SEM0433",
                "issued-key-expired",
                422,
                "The key's time is over and no record of it is here",
                Unknown,
            ),
            Self::RequestTooLarge => (
                "SEM0403",
                "request-too-large",
                413,
                "The request is too large",
                Refused,
            ),
            Self::Mismatch => (
                "SEM0404",
                "key-reused",
                422,
                "The idempotency key was used for another request",
                Mismatch,
            ),
            Self::Running => (
                "SEM0405",
                "running",
                409,
                "The first request is still running",
                Running,
            ),
            Self::Unknown => (
                "SEM0406",
                "outcome-unknown",
                409,
                "It is not known whether this happened",
                Unknown,
            ),
            Self::AnswerNotKept => (
                "SEM0407",
                "answer-not-kept",
                410,
                "It was done; the answer is not kept",
                Succeeded,
            ),
            Self::Gone => (
                "SEM0408",
                "expired",
                410,
                "It was settled; what came of it has expired",
                Unknown,
            ),
            Self::NoPrincipal => ("SEM0409", "no-principal", 401, "The caller is not known", Refused),
            Self::AnonymousScope => (
                "SEM0410",
                "anonymous-scope",
                500,
                "The service's key scope is not set up",
                Refused,
            ),
            Self::StoreUnavailable => (
                "SEM0411",
                "store-unavailable",
                503,
                "Keys cannot be looked up now",
                Refused,
            ),
            Self::StoreFull => ("SEM0430", "store-full", 503, "No room for another key", Refused),
            Self::ScopeFull => (
                "SEM0431",
                "scope-full",
                429,
                "The caller holds as many keys as it may",
                Refused,
            ),
            Self::Busy => (
                "SEM0412",
                "too-busy",
                503,
                "Too many requests are running",
                Refused,
            ),
            Self::HandlerFailed => (
                "SEM0413",
                "handler-failed",
                500,
                "The request may or may not have been done",
                Unknown,
            ),
            Self::RequestBroken => (
                "SEM0414",
                "request-broken",
                400,
                "The request's body broke off",
                Refused,
            ),
            Self::UpstreamUnreachable => (
                "SEM0421",
                "upstream-unreachable",
                502,
                "The service behind the gateway cannot be reached",
                Refused,
            ),
            Self::UpstreamBroken => (
                "SEM0422",
                "upstream-broken",
                502,
                "The service behind the gateway gave no whole answer",
                Unknown,
            ),
            Self::UpstreamTimeout => (
                "SEM0423",
                "upstream-timeout",
                504,
                "The service behind the gateway gave no answer in time",
                Unknown,
            ),
            Self::NotSupported => (
                "SEM0424",
                "not-supported",
                501,
                "This is not supported here",
                Refused,
            ),
        }
    }

    /// The code, such as `SEM0404`: its page says what happened and what to do.
    #[must_use]
    pub const fn code(self) -> &'static str {
        self.row().0
    }

    /// The status it is answered with.
    #[must_use]
    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.row().2).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// What it says about the operation.
    #[must_use]
    pub const fn outcome(self) -> OutcomeWord {
        self.row().4
    }

    /// The problem type: a stable name, not an address.
    #[must_use]
    pub fn type_uri(self) -> String {
        format!("urn:semel:problem:{}", self.row().1)
    }
}

/// One problem, on its way to becoming a response.
///
/// It is an error too: a handler's body that fails with one is answered with it, where nothing was sent yet.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{code}: {detail}", code = .kind.code())]
pub struct Problem {
    kind: ProblemKind,
    detail: String,
    retry_after_s: Option<u64>,
    status_url: Option<String>,
}

impl Problem {
    /// A problem with what to do about it.
    #[must_use]
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            retry_after_s: None,
            status_url: None,
        }
    }

    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> ProblemKind {
        self.kind
    }

    /// The same with `Retry-After`, in seconds.
    #[must_use]
    pub const fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// The same with a link where the key's state can be seen.
    #[must_use]
    pub fn status_url(mut self, url: Option<String>) -> Self {
        self.status_url = url;
        self
    }

    /// `application/problem+json`, with `Semel-Outcome`; [`grpc::answer`](crate::grpc::answer) makes of it what a client
    /// of gRPC is told.
    #[must_use]
    pub fn response(&self) -> Response<Body> {
        let mut json = serde_json::json!({
            "type": self.kind.type_uri(),
            "title": self.kind.row().3,
            "status": self.kind.row().2,
            "detail": self.detail,
            "code": self.kind.code(),
            "outcome": self.kind.outcome().as_str(),
        });
        if let (Some(url), Some(members)) = (&self.status_url, json.as_object_mut()) {
            members.insert("status_url".into(), url.as_str().into());
        }
        let mut response = Response::new(Body::whole(json.to_string()));
        *response.status_mut() = self.kind.status();
        let grpc = GrpcStatus::of(self, self.kind.row().3, &self.detail);
        response.extensions_mut().insert(grpc);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(SEMEL_OUTCOME, self.kind.outcome().header());
        if self.kind.status() == StatusCode::UNAUTHORIZED {
            // RFC 9110, 15.5.2. A layer says its own.
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGE));
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if let Some(link) = self
            .status_url
            .as_ref()
            .and_then(|url| format!("<{url}>; rel=\"monitor\"").parse().ok())
        {
            headers.insert(LINK, link);
        }
        response
    }
}
