//! What can go wrong in the demo itself (not in the shops).

use std::error::Error;

/// A sentence for the person who started the demo.
#[derive(Debug, thiserror::Error)]
#[error("could not {doing}: {why}")]
pub(crate) struct Trouble {
    doing: String,
    why: String,
}

impl Trouble {
    pub(crate) fn new(doing: impl Into<String>, why: impl ToString) -> Self {
        Self {
            doing: doing.into(),
            why: why.to_string(),
        }
    }
}

/// Says what was being done when something failed.
pub(crate) trait Doing<T> {
    /// `doing` goes on after "could not".
    fn doing(self, doing: impl Into<String>) -> Result<T, Trouble>;
}

impl<T, E: Error> Doing<T> for Result<T, E> {
    fn doing(self, doing: impl Into<String>) -> Result<T, Trouble> {
        self.map_err(|error| {
            let mut why = error.to_string();
            let mut source = error.source();
            while let Some(inner) = source {
                why = format!("{why}: {inner}");
                source = inner.source();
            }
            Trouble::new(doing, why)
        })
    }
}
