//! The three outcomes of a call.

use std::fmt;

use crate::error::BoxError;
use crate::key::RequestKey;
use crate::verdict::Why;

/// How a call ended. Closed on purpose: match it without a `_` arm.
#[derive(Debug)]
#[must_use = "a call that may or may not have happened is one of the three"]
pub enum Outcome<R> {
    /// The operation ran to its end, and this is its answer. The answer's status says what it came to: a card that was
    /// declined for good is a 402 here.
    Succeeded(R),
    /// It is certain that nothing happened.
    Refused(Refusal<R>),
    /// It may have happened.
    Unknown(Box<Unknown<R>>),
}

/// Why it is certain that nothing happened.
#[derive(Debug)]
pub enum Refusal<R> {
    /// The receiver's answer says so.
    Answer(R),
    /// No connection could be made, in any attempt.
    NotSent(BoxError),
}

/// What can be done about an unknown end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CanDo {
    /// Send the same request with the same key again, with [`RequestKey::first_sent`]: the receiver deduplicates for so
    /// many milliseconds more.
    Repeat {
        /// Milliseconds.
        within_ms: u64,
    },
    /// Look at the receiver's side what became of it (by its own look-up, by the link in its answer, by asking). A new
    /// request may do it a second time.
    Look,
}

/// An end that is not known. Code SEM0462.
#[derive(Debug)]
pub struct Unknown<R> {
    /// Why.
    pub why: Why,
    /// The key that every attempt carried; none on a safe method.
    pub key: Option<RequestKey>,
    /// Attempts made.
    pub attempts: u32,
    /// What can be done.
    pub can_do: CanDo,
    /// The last answer, where the last attempt brought one.
    pub answer: Option<R>,
    /// The last error, where the last attempt brought one.
    pub source: Option<BoxError>,
}

impl<R> Unknown<R> {
    /// The code; its page says what to do.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        "SEM0462"
    }
}

#[cfg(feature = "reqwest")]
impl<R> Unknown<R> {
    /// Itself without its answer, and the answer.
    pub(crate) fn split(self) -> (Unknown<std::convert::Infallible>, Option<R>) {
        let answer = self.answer;
        let unknown = Unknown {
            why: self.why,
            key: self.key,
            attempts: self.attempts,
            can_do: self.can_do,
            answer: None,
            source: self.source,
        };
        (unknown, answer)
    }
}

#[cfg(feature = "reqwest")]
impl Unknown<std::convert::Infallible> {
    /// Itself with an answer.
    pub(crate) fn joined<R>(self, answer: Option<R>) -> Unknown<R> {
        Unknown {
            why: self.why,
            key: self.key,
            attempts: self.attempts,
            can_do: self.can_do,
            answer,
            source: self.source,
        }
    }
}

impl<R> fmt::Display for Unknown<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attempts = self.attempts;
        write!(
            f,
            "{}: it is not known whether this happened ({attempts} attempts, the last: ",
            self.code()
        )?;
        match self.why {
            Why::ReceiverSaysSo => f.write_str("the receiver does not know either")?,
            Why::StillRunning => f.write_str("still running")?,
            Why::Answered(status) => write!(f, "answered {}", status.as_u16())?,
            Why::Broken => f.write_str("the connection broke")?,
            Why::TimedOut => f.write_str("no answer in time")?,
            Why::EarlierCall => f.write_str("in an earlier call")?,
            Why::WindowOver => f.write_str("older than the receiver remembers keys")?,
        }
        f.write_str("); ")?;
        match self.can_do {
            CanDo::Repeat { within_ms } => {
                write!(
                    f,
                    "send the same request with the same key again within {within_ms} ms"
                )
            }
            CanDo::Look => f.write_str("look at the receiver's side; a new request may do it a second time"),
        }
    }
}

impl<R: fmt::Debug> std::error::Error for Unknown<R> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source
            .as_ref()
            .map(|source| &**source as &(dyn std::error::Error + 'static))
    }
}

/// How an answer came about; in the extensions of every answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The key that every attempt carried; none on a safe method.
    pub key: Option<RequestKey>,
    /// Attempts made.
    pub attempts: u32,
    /// The answer was stored earlier (`Idempotent-Replayed: true`): an attempt before the last one, or somebody else with
    /// this key, did the work.
    pub replayed: bool,
}
