//! Ids that a server gave out, as a layer sees them that knows its callers by their scopes.

use std::fmt;

use crate::host::Timestamp;
use crate::key::Scope;

/// Recognises ids that were given out for one scope, such as the hidden field of a form. `semel_keys::Issuer` is one.
pub trait IssuedIds: fmt::Debug + Send + Sync + 'static {
    /// Whether this has the form of such an id, whoever made it.
    fn has_form(&self, id: &[u8]) -> bool;

    /// Until when the id may be used for the first time, if it was given out for this scope.
    ///
    /// # Errors
    /// Why it was not, in words for the caller.
    fn good_until(&self, id: &[u8], scope: &Scope) -> Result<Timestamp, String>;
}
