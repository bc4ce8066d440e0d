//! What a handler can know about the claim it runs under.

use http::{HeaderMap, HeaderValue};
use semel_core::{Key, Token};

use crate::headers::{SEMEL_ATTEMPT, SEMEL_TOKEN};

/// Put into the request's extensions for every keyed run.
///
/// Pass the token to whatever the handler writes to (`WHERE fence < $1`), and derive keys of further calls with
/// [`Key::child`]: they stay the same over every retry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimInfo {
    /// The key.
    pub key: Key,
    /// The fencing token: per key it only grows.
    pub token: Token,
    /// 1 for the first run, more after each take-over.
    pub attempt: u32,
}

impl ClaimInfo {
    /// Sets `Semel-Token` and `Semel-Attempt` on a request to an upstream.
    pub fn set_headers(&self, headers: &mut HeaderMap) {
        headers.insert(SEMEL_TOKEN, HeaderValue::from(self.token.0));
        headers.insert(SEMEL_ATTEMPT, HeaderValue::from(self.attempt));
    }
}
