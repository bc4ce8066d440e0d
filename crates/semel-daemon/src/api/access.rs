//! Who may ask what: bearer tokens, each for some scopes and some operations.

use semel_core::key::derive;

/// What can be asked. Each is a word in `allow` of `[[api.token]]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    /// Have an id made by the server.
    Issue,
    /// Ask for the right to run keys.
    Claim,
    /// Keep a claim longer.
    Extend,
    /// Store outcomes.
    Complete,
    /// Give a claim back, or withdraw one.
    Release,
    /// End a run of which nobody knows what came.
    Abandon,
    /// Look at one key.
    Read,
    /// Wait for the end of a key's run.
    Wait,
    /// Look at many keys.
    List,
    /// Say what came of an unknown key.
    Settle,
    /// Leave only tombstones of a scope.
    Close,
}

impl Operation {
    /// All of them.
    pub(crate) const ALL: [Self; 11] = [
        Self::Issue,
        Self::Claim,
        Self::Extend,
        Self::Complete,
        Self::Release,
        Self::Abandon,
        Self::Read,
        Self::Wait,
        Self::List,
        Self::Settle,
        Self::Close,
    ];

    /// What a token may do that does not say: all but [`Operation::Settle`] and
    /// [`Operation::Close`], which are a person's work.
    pub(crate) const DEFAULT: [Self; 9] = [
        Self::Issue,
        Self::Claim,
        Self::Extend,
        Self::Complete,
        Self::Release,
        Self::Abandon,
        Self::Read,
        Self::Wait,
        Self::List,
    ];

    /// The word in the configuration, in metrics and in messages.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Issue => "issue",
            Self::Claim => "claim",
            Self::Extend => "extend",
            Self::Complete => "complete",
            Self::Release => "release",
            Self::Abandon => "abandon",
            Self::Read => "read",
            Self::Wait => "wait",
            Self::List => "list",
            Self::Settle => "settle",
            Self::Close => "close",
        }
    }
}

/// Some scopes: one by its name, or all that begin so (`orders/*`; `*` alone is every scope).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scopes {
    /// This one.
    Named(Vec<u8>),
    /// All that begin so.
    Below(Vec<u8>),
}

impl Scopes {
    /// Reads it as the configuration says it.
    pub(crate) fn parse(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(prefix) => Self::Below(prefix.into()),
            None => Self::Named(text.into()),
        }
    }

    fn has(&self, scope: &[u8]) -> bool {
        match self {
            Self::Named(name) => name == scope,
            Self::Below(prefix) => scope.starts_with(prefix),
        }
    }

    const fn is_all(&self) -> bool {
        matches!(self, Self::Below(prefix) if prefix.is_empty())
    }
}

/// What the holder of a token may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    /// The token's name, for the log.
    pub(crate) name: String,
    /// On which scopes.
    pub(crate) scopes: Vec<Scopes>,
    /// Which operations.
    pub(crate) operations: Vec<Operation>,
}

impl Grant {
    /// Everything: what everybody on this machine may do where there is no token.
    pub(crate) fn everything() -> Self {
        Self {
            name: "local".to_owned(),
            scopes: vec![Scopes::parse("*")],
            operations: Operation::ALL.to_vec(),
        }
    }

    /// Whether it covers an operation.
    pub(crate) fn allows(&self, operation: Operation) -> bool {
        self.operations.contains(&operation)
    }

    /// Whether it covers a scope; `None` asks for all of them.
    pub(crate) fn covers(&self, scope: Option<&[u8]>) -> bool {
        self.scopes
            .iter()
            .any(|scopes| scope.map_or_else(|| scopes.is_all(), |scope| scopes.has(scope)))
    }
}

/// A token's SHA-256; the token itself is not kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenDigest([u8; 32]);

impl TokenDigest {
    /// The digest of a token.
    pub(crate) fn of(token: &[u8]) -> Self {
        Self(derive(&[b"semel api token", token]))
    }

    /// Compares every byte, so that the time it takes says nothing.
    fn is(&self, other: &Self) -> bool {
        let differing = self.0.iter().zip(&other.0).fold(0, |seen, (a, b)| seen | (a ^ b));
        differing == 0
    }
}

impl std::fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// Every token and what it grants.
#[derive(Debug, Clone, Default)]
pub(crate) struct Access(Vec<(TokenDigest, Grant)>);

/// Why nobody is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stranger {
    /// There is no token, or not one in the form `Bearer TOKEN`.
    NoToken,
    /// The token is none of those configured.
    WrongToken,
}

impl Access {
    /// These tokens; without any, everybody may do everything.
    pub(crate) const fn new(tokens: Vec<(TokenDigest, Grant)>) -> Self {
        Self(tokens)
    }

    /// Whether a token is asked for.
    pub(crate) const fn asks(&self) -> bool {
        !self.0.is_empty()
    }

    /// What the bearer of this `Authorization` may do.
    ///
    /// # Errors
    /// A token is asked for and it is missing or wrong.
    pub(crate) fn grant(&self, authorization: Option<&[u8]>) -> Result<Grant, Stranger> {
        if !self.asks() {
            return Ok(Grant::everything());
        }
        let token = authorization.and_then(bearer).ok_or(Stranger::NoToken)?;
        let given = TokenDigest::of(token);
        // All are compared, whichever fits.
        let mut found = None;
        for (digest, grant) in &self.0 {
            if digest.is(&given) {
                found = Some(grant);
            }
        }
        found.cloned().ok_or(Stranger::WrongToken)
    }
}

/// The token of `Bearer TOKEN`; the scheme's case does not matter (RFC 9110).
fn bearer(authorization: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = authorization.split_at_checked(7)?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> Access {
        let grant = |name: &str, scopes: &[&str], operations: &[Operation]| Grant {
            name: name.to_owned(),
            scopes: scopes.iter().map(|text| Scopes::parse(text)).collect(),
            operations: operations.to_vec(),
        };
        let shop = grant("shop", &["orders/*", "carts"], &Operation::DEFAULT);
        Access::new(vec![
            (TokenDigest::of(b"old-token-of-shop"), shop.clone()),
            (TokenDigest::of(b"new-token-of-shop"), shop),
            (
                TokenDigest::of(b"token-of-operator"),
                grant("ops", &["*"], &Operation::ALL),
            ),
        ])
    }

    #[test]
    fn a_scope_is_named_whole_or_by_what_it_begins_with() {
        let shop = access().grant(Some(b"Bearer old-token-of-shop")).unwrap();
        for scope in ["orders/", "orders/t-4", "carts"] {
            assert!(shop.covers(Some(scope.as_bytes())), "{scope}");
        }
        for scope in ["orders", "orders2", "carts/x", "cart", ""] {
            assert!(!shop.covers(Some(scope.as_bytes())), "{scope}");
        }
        assert!(!shop.covers(None), "all scopes are more than some");
        let ops = access().grant(Some(b"bearer token-of-operator")).unwrap();
        assert!(ops.covers(None) && ops.covers(Some(b"\xff")));
    }

    #[test]
    fn settling_and_closing_are_only_for_those_who_are_told_so() {
        let shop = access().grant(Some(b"Bearer new-token-of-shop")).unwrap();
        let may: Vec<_> = Operation::ALL
            .into_iter()
            .filter(|op| !shop.allows(*op))
            .collect();
        assert_eq!(may, [Operation::Settle, Operation::Close]);
    }

    #[test]
    fn a_missing_or_wrong_token_is_a_stranger() {
        let access = access();
        for none in [
            None,
            Some(&b""[..]),
            Some(b"Bearer "),
            Some(b"Basic dXNlcjpwdw=="),
        ] {
            assert_eq!(access.grant(none), Err(Stranger::NoToken), "{none:?}");
        }
        for wrong in ["Bearer old-token-of-sho", "Bearer old-token-of-shop2", "Bearer x"] {
            assert_eq!(
                access.grant(Some(wrong.as_bytes())),
                Err(Stranger::WrongToken),
                "{wrong}"
            );
        }
        assert!(!format!("{access:?}").contains("token-of"), "{access:?}");
    }

    #[test]
    fn without_tokens_everybody_may_do_everything() {
        let grant = Access::default().grant(None).unwrap();
        assert!(grant.covers(None) && Operation::ALL.into_iter().all(|op| grant.allows(op)));
    }
}
