//! Asking the operator's hook about a key that is unknown.

use std::time::Duration;

use semel_core::claim::{Settlement, Token};
use semel_core::error::chain;
use semel_core::{Key, KeyStoreExt, LeaseReply};

use crate::shared::Shared;

/// Whether the key was settled, so that a claim may be tried again. Two requests may ask at once: the verdict that comes
/// second changes nothing.
pub(super) async fn settle(shared: &Shared, key: &Key, token: Token) -> bool {
    let Some(hook) = &shared.reconcile else {
        return false;
    };
    let time = Duration::from_millis(shared.config.reconcile_ms_max);
    let verdict = match tokio::time::timeout(time, hook.reconcile(key, token)).await {
        Ok(Ok(Some(verdict))) => verdict,
        Ok(Ok(None)) => return false,
        Ok(Err(error)) => {
            tracing::warn!(%key, %error, "the reconcile hook cannot tell");
            return false;
        }
        Err(_) => {
            tracing::warn!(%key, reconcile_ms_max = shared.config.reconcile_ms_max, "the reconcile hook gave no answer in time");
            return false;
        }
    };
    let settlement = Settlement {
        key: key.clone(),
        token,
        verdict,
        keep: shared.config.keep,
    };
    match tokio::time::timeout(shared.store_timeout(), shared.store.settle(&settlement)).await {
        // Lost or in conflict: somebody else settled it, and the next claim says how.
        Ok(Ok(LeaseReply::Ok(_) | LeaseReply::LeaseLost | LeaseReply::Conflict)) => {
            shared.waiters.wake(key);
            true
        }
        Ok(Err(error)) => {
            tracing::warn!(%key, error = chain(&error), "cannot settle a key");
            false
        }
        Err(_) => false,
    }
}
