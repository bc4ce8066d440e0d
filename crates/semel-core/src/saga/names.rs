//! Names of a saga's parts: its id, the two operations of a step, and the key under which each is called.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::key::{derive, hex};
use crate::limits::{self, LimitExceeded};

/// The caller's name for one saga: 1 to [`limits::SAGA_ID_BYTES_MAX`] visible ASCII characters, because it travels in
/// headers. Unique in one store; prefix it with the tenant where there are several.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct SagaId(String);

impl SagaId {
    /// An id as given; nothing is trimmed or folded.
    ///
    /// # Errors
    /// Empty, too long, or with a byte outside `!` to `~`.
    pub fn new(id: impl Into<String>) -> Result<Self, LimitExceeded> {
        let id = id.into();
        let max = limits::SAGA_ID_BYTES_MAX as u64;
        limits::check("saga id", "bytes", id.len() as u64, 1, max, "use a shorter id")?;
        let bad = id.bytes().filter(|b| !b.is_ascii_graphic()).count() as u64;
        limits::check(
            "saga id",
            "bytes outside ! to ~",
            bad,
            0,
            0,
            "encode the id, it travels in a header",
        )?;
        Ok(Self(id))
    }

    /// The id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SagaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SagaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SagaId({})", self.0)
    }
}

impl std::str::FromStr for SagaId {
    type Err = LimitExceeded;

    fn from_str(text: &str) -> Result<Self, LimitExceeded> {
        Self::new(text)
    }
}

impl<'de> Deserialize<'de> for SagaId {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}

/// What is asked of a participant. Closed on purpose: match it without a `_` arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Do it.
    Action,
    /// Undo what the action may have done.
    Compensation,
}

impl Op {
    /// The word on the wire and in the log: `action` or `compensation`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Action => "action",
            Self::Compensation => "compensation",
        }
    }

    /// Reads [`Op::as_str`] back.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "action" => Some(Self::Action),
            "compensation" => Some(Self::Compensation),
            _ => None,
        }
    }
}

/// The key of one operation of one step: the same for every attempt, owner and version of Semel.
///
/// SHA-256 over saga id, step name and operation, each length-prefixed, as 64 hexadecimal digits. The attempt's number
/// is never part of it.
#[must_use]
pub fn step_key(saga: &SagaId, step: &str, op: Op) -> String {
    hex(&derive(&[
        b"semel.saga.step",
        saga.as_str().as_bytes(),
        step.as_bytes(),
        op.as_str().as_bytes(),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_no_header_can_carry_are_refused() {
        for bad in ["", "a b", "a\nb", "\u{e9}", &"x".repeat(256)] {
            assert!(SagaId::new(bad).is_err(), "{bad:?}");
        }
        assert_eq!(SagaId::new("order-7").unwrap().as_str(), "order-7");
    }

    #[test]
    fn action_and_compensation_of_a_step_have_keys_of_their_own_that_do_not_collide() {
        let id = |text: &str| SagaId::new(text).unwrap();
        let key = step_key(&id("s"), "charge", Op::Action);
        assert_eq!(key, step_key(&id("s"), "charge", Op::Action));
        assert_ne!(key, step_key(&id("s"), "charge", Op::Compensation));
        assert_ne!(
            step_key(&id("ab"), "c", Op::Action),
            step_key(&id("a"), "bc", Op::Action)
        );
    }
}
