//! The three outcomes of every attempt.

use bytes::Bytes;

use crate::key::derive;

/// How an attempt ended. Closed on purpose: match it without a `_` arm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<T = Bytes, R = Bytes> {
    /// It happened, with this output.
    Succeeded(T),
    /// It is certain that nothing happened, for this reason.
    Refused(R),
    /// A time-out, a 5xx, a lost reply, a crash: it may have happened. Never run again in silence.
    Unknown,
}

/// An outcome that is certain and can be stored: succeeded or refused, with its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredOutcome {
    /// It happened; the output's bytes.
    Succeeded(Bytes),
    /// It is certain that nothing happened; the reason's bytes.
    Refused(Bytes),
    /// It happened (or was refused), and the answer was too large to keep or is already forgotten.
    Forgotten,
}

impl StoredOutcome {
    /// One byte for the wire and for SQL: `s`, `r` or `f`.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Succeeded(_) => "s",
            Self::Refused(_) => "r",
            Self::Forgotten => "f",
        }
    }

    /// The stored bytes; empty for [`StoredOutcome::Forgotten`].
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Succeeded(bytes) | Self::Refused(bytes) => bytes,
            Self::Forgotten => &[],
        }
    }

    /// Reads [`StoredOutcome::code`] and [`StoredOutcome::bytes`] back; `None` for an unknown code.
    #[must_use]
    pub fn from_parts(code: &str, bytes: Bytes) -> Option<Self> {
        match code {
            "s" => Some(Self::Succeeded(bytes)),
            "r" => Some(Self::Refused(bytes)),
            "f" => Some(Self::Forgotten),
            _ => None,
        }
    }

    /// A digest by which a repeated `complete` is recognised (rule K2).
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        derive(&[self.code().as_bytes(), self.bytes()])
    }
}
