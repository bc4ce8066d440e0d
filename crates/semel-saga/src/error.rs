//! What a caller of the coordinator may hear.

use semel_core::limits::LimitExceeded;
use semel_core::saga::Status;
use semel_core::{Retry, StoreError};

/// A saga was not accepted, or a request not noted.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SagaError {
    /// A saga of this id has another input; it is unharmed.
    #[error("SEM0502: a saga of this id exists with another input; it is unharmed")]
    OtherInput,
    /// A saga of this id has another definition; it is unharmed.
    #[error("SEM0502: a saga of this id exists with another definition; it is unharmed")]
    OtherDefinition,
    /// A saga of this id ended and was pruned.
    #[error("SEM0503: a saga of this id ended as {} and was pruned; nothing was run again", .0.as_str())]
    Ended(Status),
    /// No saga of this id is known.
    #[error("SEM0301: no saga of this id is known; submit it first")]
    Absent,
    /// More than [`SAGA_REQUESTS_MAX`](semel_core::limits::SAGA_REQUESTS_MAX) requests wait for the saga's owner.
    #[error("SEM0107: too many requests wait for this saga; is a coordinator running?")]
    TooManyRequests,
    /// The coordinator is stopping, or its queue is full. Nothing was stored.
    #[error("SEM0508: the coordinator is stopping or its queue is full; nothing was stored, send it again")]
    Busy,
    /// A limit was exceeded. Nothing was stored.
    #[error("SEM0107: {0}")]
    Limit(#[from] LimitExceeded),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SagaError {
    /// What a caller may do next. A submission may always be repeated under its id.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        match self {
            Self::OtherInput | Self::OtherDefinition | Self::Ended(_) | Self::Absent | Self::Limit(_) => {
                Retry::Never
            }
            Self::TooManyRequests | Self::Busy => Retry::Later,
            Self::Store(error) => error.retry(),
        }
    }
}
