//! The three outcomes of every attempt: it happened, it is certain that nothing happened, or neither is known.
//!
//! A time-out, a lost reply or a crash is *unknown*: never run again in silence. Each place says the three in its own
//! type, because each knows more than the three:
//!
//! | where | succeeded | refused | unknown | no outcome yet |
//! | --- | --- | --- | --- | --- |
//! | [`StoredOutcome`], what a record keeps | `Succeeded`, `Forgotten` | `Refused` | not stored: a record whose lease ended without an outcome reads as [`State::Unknown`] | |
//! | [`saga::Answer`], what a coordinator heard | `Succeeded`, `TooLarge` | `Refused`; `NotSent`, `Held`, `Unservable` (nothing was asked) | `Unknown` | `Running` |
//! | [`wire::OUTCOME`], what a caller is told over HTTP (`OutcomeWord` of `semel-http`) | `succeeded` | `refused`, `mismatch` | `unknown` | `running` |
//! | [`Retry`], what an error means | | `Never`, `Later` | `OutcomeUnknown` | |
//!
//! `StaleEpoch` and `BarrierLost` of [`saga::Answer`] are no outcomes of the call: they say something about the caller.
//!
//! [`State::Unknown`]: crate::claim::State::Unknown
//! [`saga::Answer`]: crate::saga::Answer
//! [`wire::OUTCOME`]: crate::wire::OUTCOME
//! [`Retry`]: crate::Retry

use bytes::Bytes;

use crate::key::derive;

/// An outcome that is certain and can be stored: succeeded or refused, with its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredOutcome {
    /// It happened; the output's bytes.
    Succeeded(Bytes),
    /// It is certain that nothing happened; the reason's bytes.
    Refused(Bytes),
    /// It happened, and the answer was too large or not to be kept. A refusal that is too large stays [`Refused`](Self::Refused),
    /// without its text.
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
