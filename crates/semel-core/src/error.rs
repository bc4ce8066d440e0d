//! Errors of stores and brokers: what happened, and what a caller may do next.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::limits::LimitExceeded;
use crate::retry::Retry;

/// The code of a `LimitExceeded` that says: the key's scope holds as much as its quota allows.
pub const SCOPE_FULL: &str = "SEM0111";

/// Why a store or broker gave no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A larger token, epoch or version is current; nothing was changed. Page: SEM0103.
    LeaseLost,
    /// A limit was hit; the message names it and what to do. Page: SEM0107.
    LimitExceeded,
    /// The store refused what was written, such as a constraint of the user's own table. Page: SEM0108.
    Constraint,
    /// It is certain that nothing was committed; the same call may work later. Page: SEM0104.
    NotApplied,
    /// The commit left and the reply did not come: it may be durable. Page: SEM0105.
    ReplyLost,
    /// The store cannot be reached, so nothing was done. Page: SEM0104.
    Unavailable,
    /// The schema is missing, older than this build needs, or newer than it knows. Page: SEM0201.
    Schema,
    /// The store is not the one the cursor was made on (restore, fail-over, upgrade). Page: SEM0202.
    IdentityChanged,
    /// What was stored cannot be read by this build. Page: SEM0203.
    Corrupt,
    /// The configuration or the call is wrong; the message says how to mend it. Page: SEM0301.
    Invalid,
}

impl ErrorKind {
    /// What a caller may do next.
    #[must_use]
    pub const fn retry(self) -> Retry {
        match self {
            Self::LeaseLost
            | Self::LimitExceeded
            | Self::Constraint
            | Self::Schema
            | Self::IdentityChanged
            | Self::Corrupt
            | Self::Invalid => Retry::Never,
            Self::NotApplied | Self::Unavailable => Retry::Later,
            Self::ReplyLost => Retry::OutcomeUnknown,
        }
    }

    /// The page under `docs/errors/` that explains it.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::LeaseLost => "SEM0103",
            Self::NotApplied | Self::Unavailable => "SEM0104",
            Self::ReplyLost => "SEM0105",
            Self::LimitExceeded => "SEM0107",
            Self::Constraint => "SEM0108",
            Self::Schema => "SEM0201",
            Self::IdentityChanged => "SEM0202",
            Self::Corrupt => "SEM0203",
            Self::Invalid => "SEM0301",
        }
    }
}

/// What an error says of the store, apart from what became of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// What its kind says.
    AsItsKind,
    /// The connection to it broke.
    Away,
    /// It is there and has no room.
    Full,
    /// It is there and may only be read.
    ReadOnly,
}

/// An operation on a store or broker failed. The source is kept, never repeated in the message.
///
/// Cheap to clone: when a whole batch fails, each of its items gets the same error.
#[derive(Debug, Clone)]
pub struct StoreError {
    kind: ErrorKind,
    operation: &'static str,
    code: Option<&'static str>,
    standing: Standing,
    message: Cow<'static, str>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// An error of this kind in `operation`, such as `claim`.
    #[must_use]
    pub fn new(kind: ErrorKind, operation: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            operation,
            code: None,
            standing: Standing::AsItsKind,
            message: message.into(),
            source: None,
        }
    }

    /// The same error with its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into().into());
        self
    }

    /// The same error with a page of its own instead of that of its kind.
    #[must_use]
    pub const fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// The same error, met because the connection to the store broke: it is away.
    #[must_use]
    pub const fn away(mut self) -> Self {
        self.standing = Standing::Away;
        self
    }

    /// The same error, because the store has no room for what was to be written. It is there, and reads.
    #[must_use]
    pub const fn full(mut self) -> Self {
        self.standing = Standing::Full;
        self
    }

    /// The same error, because nobody may write to the store. It is there, and reads.
    #[must_use]
    pub const fn read_only(mut self) -> Self {
        self.standing = Standing::ReadOnly;
        self
    }

    /// The page under `docs/errors/` that explains it.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.code.unwrap_or(self.kind.code())
    }

    /// What happened.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What a caller may do next.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        self.kind.retry()
    }

    /// Whether the store is away, so that a policy which passes outages may pass this. A store that answers is not,
    /// whatever keeps it from doing what was asked (no room, a lock, others at the same key), nor is one behind something
    /// that turns calls away: somebody may be running the key there.
    #[must_use]
    pub const fn is_outage(&self) -> bool {
        match self.standing {
            Standing::Away => true,
            Standing::Full | Standing::ReadOnly => false,
            Standing::AsItsKind => matches!(self.kind, ErrorKind::Unavailable | ErrorKind::ReplyLost),
        }
    }

    /// Whether the store has no room for what was to be written: what needs none is still answered.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        matches!(self.standing, Standing::Full)
    }

    /// Whether nobody may write to the store: a replica, or a file, a database or a server that was made read-only.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        matches!(self.standing, Standing::ReadOnly)
    }

    /// Whether the store is there and takes no writes now, for want of room or because it may only be read: what it holds
    /// can be told all the same.
    #[must_use]
    pub const fn reads_only(&self) -> bool {
        self.is_full() || self.is_read_only()
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.code(), self.operation, self.message)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl From<LimitExceeded> for StoreError {
    fn from(limit: LimitExceeded) -> Self {
        Self::new(ErrorKind::LimitExceeded, "check", limit.to_string())
    }
}

/// An error and all its sources on one line, for logs.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}
