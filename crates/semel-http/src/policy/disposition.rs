//! The handler's own word on its answer, as a response extension.

use std::time::Duration;

use super::Ending;

/// What a handler says about its own answer. Put it into the response's extensions; it goes before the status table.
///
/// ```
/// use semel_http::Disposition;
/// let mut response = http::Response::builder().status(409).body("out of stock").unwrap();
/// response.extensions_mut().insert(Disposition::Refused);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// It ran to its end: store this answer whatever its status.
    Settled,
    /// It is certain that nothing happened, and it stays so: store the refusal.
    Refused,
    /// It is certain that nothing happened, and a retry may run: give the key back.
    NotExecuted,
    /// It was done; keep that, but not the answer.
    NoStore,
    /// It may have happened.
    Unknown,
}

impl Disposition {
    pub(super) const fn ending(self) -> Ending {
        match self {
            Self::Settled => Ending::Store,
            Self::Refused => Ending::Refuse,
            Self::NotExecuted => Ending::Release,
            Self::NoStore => Ending::Forget,
            Self::Unknown => Ending::Unknown,
        }
    }
}

/// The same request may have been carried out before, by an earlier sending of it to a remote service: an answer that would
/// give the key back says nothing of that one, so that it makes the key unknown. A response extension; the handler's own
/// word goes before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentBefore;

/// How long this one answer is kept, as a response extension; cut to the store's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepFor(pub Duration);
