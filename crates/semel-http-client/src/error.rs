//! What ends a call before anything is sent.

/// Any error of the client underneath.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What was wrong with the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The key cannot be sent. Code SEM0460.
    Key,
    /// The body cannot be held for repeats. Code SEM0461.
    Body,
}

/// The request was not sent, and sending it again as it is does not help (`Retry::Never`).
#[derive(Debug, thiserror::Error)]
#[error("{code}: the request was not sent: {detail}", code = self.code())]
pub struct Error {
    kind: ErrorKind,
    detail: String,
    source: Option<BoxError>,
}

impl Error {
    pub(crate) fn key(detail: impl Into<String>) -> Self {
        Self {
            kind: ErrorKind::Key,
            detail: detail.into(),
            source: None,
        }
    }

    pub(crate) fn body(detail: impl Into<String>, source: Option<BoxError>) -> Self {
        Self {
            kind: ErrorKind::Body,
            detail: detail.into(),
            source,
        }
    }

    /// What was wrong.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The code; its page says what to do.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self.kind {
            ErrorKind::Key => "SEM0460",
            ErrorKind::Body => "SEM0461",
        }
    }

    /// Always `Never`: nothing was sent, and the same request will not be either.
    #[must_use]
    pub const fn retry(&self) -> semel_core::Retry {
        semel_core::Retry::Never
    }
}
