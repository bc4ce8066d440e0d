//! Whose keys these are.
//!
//! Ids are unique inside a scope. A scope that leaves the caller out lets one user read another's stored answer:
//! the commonest finding in layers of this kind. So there is no default, and the two choices are loud.

use http::request::Parts;
use semel_core::Scope;

/// Names the scope of a request from its *verified* principal.
///
/// Use an id that the issuer never gives out again, qualified by the issuer (rule K13); never a token's or cookie's
/// bytes, which change while the caller stays the same. Method and target belong to the fingerprint, not here.
///
/// ```
/// use semel_core::Scope;
/// use semel_http::ScopeError;
///
/// #[derive(Clone)]
/// struct User { issuer: String, id: String } // put into the extensions by your authentication layer
///
/// let resolver = |request: &http::request::Parts| {
///     let user = request.extensions.get::<User>().ok_or(ScopeError::NoPrincipal)?;
///     Ok(Scope::of_parts(&[b"orders", user.issuer.as_bytes(), user.id.as_bytes()]))
/// };
/// # fn takes(_: impl semel_http::ScopeResolver) {}
/// # takes(resolver);
/// ```
pub trait ScopeResolver: Send + Sync + 'static {
    /// The scope.
    ///
    /// # Errors
    /// [`ScopeError`]; the handler does not run.
    fn scope(&self, request: &Parts) -> Result<Scope, ScopeError>;
}

impl<F> ScopeResolver for F
where
    F: Fn(&Parts) -> Result<Scope, ScopeError> + Send + Sync + 'static,
{
    fn scope(&self, request: &Parts) -> Result<Scope, ScopeError> {
        self(request)
    }
}

/// Why a request has no scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// Nobody verified who is calling: 401. Page: SEM0409.
    #[error("the request carries a key but no verified principal; sign in, then send it again")]
    NoPrincipal,
    /// The scope is anonymous, yet the request carries credentials: two users' keys would meet. 500. Page: SEM0410.
    #[error(
        "the request carries credentials, but this service was set up with an anonymous scope; \
         its operator must name the principal with a scope resolver"
    )]
    CredentialsWithoutResolver,
}

/// One scope for all callers, as chosen by [`anonymous_scope`](crate::Builder::anonymous_scope).
pub(crate) struct Anonymous(pub(crate) Scope);

impl ScopeResolver for Anonymous {
    fn scope(&self, request: &Parts) -> Result<Scope, ScopeError> {
        if request.headers.contains_key(http::header::AUTHORIZATION) {
            return Err(ScopeError::CredentialsWithoutResolver);
        }
        Ok(self.0.clone())
    }
}
