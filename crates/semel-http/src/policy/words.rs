//! The words of `Semel-Outcome` and `Semel-Guarantee`.

use http::HeaderValue;

/// What an answer says about the operation. Every keyed answer carries one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutcomeWord {
    /// It ran to its end and this is its answer, whatever the status. `refused` is said only where it is certain.
    Succeeded,
    /// It is certain that this request did nothing.
    Refused,
    /// The first request with this key is still being worked on.
    Running,
    /// It may have happened.
    Unknown,
    /// The key names another request.
    Mismatch,
}

impl OutcomeWord {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Refused => "refused",
            Self::Running => "running",
            Self::Unknown => "unknown",
            Self::Mismatch => "mismatch",
        }
    }

    /// Reads a header value; `None` for a missing or foreign word.
    #[must_use]
    pub fn read(value: Option<&HeaderValue>) -> Option<Self> {
        let word = value?.as_bytes();
        [
            Self::Succeeded,
            Self::Refused,
            Self::Running,
            Self::Unknown,
            Self::Mismatch,
        ]
        .into_iter()
        .find(|it| it.as_str().as_bytes() == word)
    }

    pub(crate) const fn header(self) -> HeaderValue {
        HeaderValue::from_static(self.as_str())
    }
}

/// The strength in force for the handler behind a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Guarantee {
    /// Mark and effect commit together. The layer alone never gives this; a handler may say it of itself with a
    /// `Semel-Guarantee` header of its own, which is kept.
    Atomic,
    /// The handler's effects are deduplicated by the key or token it is given.
    Keyed,
    /// The handler's effects know no keys: after a crash the outcome is unknown. The default.
    #[default]
    Guarded,
}

impl Guarantee {
    /// The word on the wire, with a parameter when a fail-over of the store may forget.
    pub(crate) const fn header(self, survives_failover: bool) -> HeaderValue {
        HeaderValue::from_static(match (self, survives_failover) {
            (Self::Atomic, true) => "atomic",
            (Self::Keyed, true) => "keyed",
            (Self::Guarded, true) => "guarded",
            (Self::Atomic, false) => "atomic;failover=forgets",
            (Self::Keyed, false) => "keyed;failover=forgets",
            (Self::Guarded, false) => "guarded;failover=forgets",
        })
    }
}
