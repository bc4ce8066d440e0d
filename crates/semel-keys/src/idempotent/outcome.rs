//! What came of a run, in three outcomes.

use std::error::Error;
use std::fmt;

use bytes::Bytes;
use semel_core::{Key, StoreError, Timestamp, Token};

/// Any error.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// What the function says when it has no output.
///
/// Any error turns into [`Failed::unknown`], so that `?` claims no more than is known. Say [`Failed::refused`] or
/// [`Failed::released`] only where it is certain that nothing happened.
///
/// ```
/// use semel_keys::Failed;
/// async fn charge(cents: u32) -> Result<String, Failed> {
///     if cents == 0 {
///         return Err(Failed::refused("nothing to charge"));
///     }
///     let receipt = call_the_bank(cents).await?; // an error here: nobody knows
///     Ok(receipt)
/// }
/// # async fn call_the_bank(_: u32) -> Result<String, std::io::Error> { Ok(String::new()) }
/// ```
#[derive(Debug)]
pub struct Failed(pub(super) Failure);

#[derive(Debug)]
pub(super) enum Failure {
    Refused(Bytes),
    Released(BoxError),
    Unknown(BoxError),
}

impl Failed {
    /// It is certain that nothing happened, and it stays so: the reason is stored, duplicates get it.
    #[must_use]
    pub fn refused(reason: impl Into<Bytes>) -> Self {
        Self(Failure::Refused(reason.into()))
    }

    /// It is certain that nothing happened, and it may be tried again: the key is free at once.
    #[must_use]
    pub fn released(error: impl Into<BoxError>) -> Self {
        Self(Failure::Released(error.into()))
    }

    /// Nobody knows whether it happened: what the key's policy says is done, never a silent repeat under `hold`.
    #[must_use]
    pub fn unknown(error: impl Into<BoxError>) -> Self {
        Self(Failure::Unknown(error.into()))
    }
}

impl<E: Into<BoxError>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self::unknown(error)
    }
}

/// The three outcomes, and the one whose output is not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It happened; the output.
    Succeeded(Bytes),
    /// It is certain that nothing happened; the reason, to duplicates an empty one where it was too large to be kept.
    Refused(Bytes),
    /// It is settled, but what came of it is not kept: the output was too large, or its retention is over. Not run again.
    NotKept,
    /// It may have happened. A person or a [`Reconcile`](semel_core::claim::Reconcile) hook settles the key; it is not
    /// run again in silence.
    Unknown,
}

/// What a call of [`Idempotent::run`](super::Idempotent::run) came to.
#[derive(Debug)]
pub struct Ran {
    /// The outcome.
    pub outcome: Outcome,
    /// It is that of an earlier call.
    pub replayed: bool,
    /// Until when duplicates get it; `None` while it is not stored: a released key, an outcome that is unknown, or one
    /// that is still being stored in the background.
    pub retained_until: Option<Timestamp>,
    /// The store was away and the policy is [`Outage::Open`](super::Outage::Open): it ran without its key being known to
    /// anyone, so a duplicate runs again.
    pub unguarded: bool,
    /// What the function failed with, or what kept its outcome from being known.
    pub source: Option<BoxError>,
}

impl Ran {
    pub(super) const fn now(outcome: Outcome, retained_until: Option<Timestamp>) -> Self {
        Self {
            outcome,
            replayed: false,
            retained_until,
            unguarded: false,
            source: None,
        }
    }

    pub(super) fn before(outcome: Outcome, retained_until: Option<Timestamp>) -> Self {
        Self {
            replayed: true,
            ..Self::now(outcome, retained_until)
        }
    }

    pub(super) fn because(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }
}

/// The function was not run by this call, and nothing is known of what an earlier one came to.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum NotRun {
    /// The key was used for another input.
    Mismatch,
    /// An earlier call has not ended within `wait_ms_max`, or too many wait already.
    Running {
        /// Milliseconds until its lease ends, unless it is renewed.
        lease_left_ms: i64,
    },
    /// The store gave no answer, or refused.
    Store(StoreError),
}

impl NotRun {
    /// The page under `docs/errors/` that explains it.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Mismatch => "SEM0112",
            Self::Running { .. } => "SEM0113",
            Self::Store(error) => error.code(),
        }
    }
}

impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mismatch => write!(
                f,
                "{}: the key was used for another input; send the same input again, or a new key for a new one",
                self.code()
            ),
            Self::Running { lease_left_ms } => write!(
                f,
                "{}: an earlier call with this key still runs (its lease has {lease_left_ms} ms left); come back later",
                self.code()
            ),
            Self::Store(error) => write!(f, "nothing was run: {error}"),
        }
    }
}

impl Error for NotRun {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Store(error) => error.source(),
            Self::Mismatch | Self::Running { .. } => None,
        }
    }
}

/// One run of a function, as the function sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The key.
    pub key: Key,
    /// The fencing token: pass it to whatever is written, so that an owner overtaken by another one is refused. `None`
    /// when the store was away and the policy is `Open`.
    pub token: Option<Token>,
    /// 1 for the first owner of the key, more after each that was lost.
    pub attempt: u32,
}

impl Run {
    /// A key for a call made on behalf of this run: the same in every attempt.
    #[must_use]
    pub fn child(&self, name: &str) -> Key {
        self.key.child(name)
    }

    /// The key of the n-th item of a batch request: the same in every attempt.
    #[must_use]
    pub fn item(&self, n: u64) -> Key {
        self.key.item(n)
    }
}
