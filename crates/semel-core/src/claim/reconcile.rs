//! Finding out what came of a run whose owner was lost.

use async_trait::async_trait;

use super::{Token, Verdict};
use crate::key::Key;

/// What a [`Reconcile`] hook reports when it cannot find out now. The key stays unknown.
pub type ReconcileError = Box<dyn std::error::Error + Send + Sync>;

/// Asks the place where the effect would be whether it happened: the policy `reconcile` of an operation. The store knows
/// only `Hold`; whoever meets an unknown key calls the hook and settles the key with its verdict.
///
/// It must look, never act, and look where a run under `token` or a smaller one can no longer write unseen: the lost
/// owner may be only slow. A receiver that refuses tokens older than the largest it has seen closes that door; so does
/// asking for the payment by its key at a provider that deduplicates.
///
/// ```
/// use semel_core::claim::{Reconcile, ReconcileError, Token, Verdict, succeeded};
/// use semel_core::Key;
///
/// struct AtTheBank;
///
/// #[async_trait::async_trait]
/// impl Reconcile for AtTheBank {
///     async fn reconcile(&self, key: &Key, _token: Token) -> Result<Option<Verdict>, ReconcileError> {
///         // let payment = bank.find(key.child("charge")).await?;
///         let payment: Option<&str> = Some("payment 7");
///         Ok(payment.map(|payment| Verdict::Happened(succeeded(payment))))
///     }
/// }
/// ```
#[async_trait]
pub trait Reconcile: Send + Sync + 'static {
    /// What became of the key's run under `token`; `None` when that cannot be told yet.
    ///
    /// # Errors
    /// Whatever kept it from finding out; logged, and the key stays unknown.
    async fn reconcile(&self, key: &Key, token: Token) -> Result<Option<Verdict>, ReconcileError>;
}
