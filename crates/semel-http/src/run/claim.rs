//! Asking the store for a claim, and taking it back when no answer comes.

use std::sync::Arc;
use std::time::Duration;

use semel_core::error::{SCOPE_FULL, chain};
use semel_core::store::Replies;
use semel_core::{
    Claim, ClaimReply, Clock as _, ErrorKind, Key, KeyStoreExt as _, Release, Retry, StoreError, SystemClock,
};

use super::release;
use crate::config::Outage;
use crate::shared::Shared;
use crate::within::within;

/// Times that a claim is sent at most.
const CLAIMS_MAX: u32 = 3;
/// Pause before it is sent again.
const CLAIM_PAUSE: Duration = Duration::from_millis(20);

/// How long a store that gave no answer to a claim is asked whether it is there, before an open route runs without it.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Why there is no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoReply {
    /// The store is away.
    Away,
    /// It is there, or what stands in front of it, and does not take the claim, by its error of this code: somebody may
    /// be running the key.
    TurnedAway(&'static str),
    /// It has no room for another record. It never makes room by forgetting one that counts.
    Full,
    /// The key's scope has no room under its quota.
    ScopeFull,
}

/// The store's reply. When there is none the claim is withdrawn should it still arrive (rule K4).
/// Sending it again is safe: the same nonce gets the same token (rule K3).
pub(super) async fn claim(shared: &Arc<Shared>, claim: &Claim) -> Result<ClaimReply, NoReply> {
    if shared.behind.count() >= shared.config.behind_max {
        if let Some(more) = shared.behind.quiet.may_speak(SystemClock.monotonic()) {
            tracing::error!(
                behind_max = shared.config.behind_max,
                more,
                "so many withdrawals and outcomes wait for the store of keys that no more claims are sent to it"
            );
        }
        return Err(NoReply::Away);
    }
    let mut may_have_arrived = false;
    let mut why = NoReply::Away;
    let asked = within(shared.store_timeout(), async {
        for n in 1..=CLAIMS_MAX {
            match one(shared.store.claim_many(std::slice::from_ref(claim)).await) {
                Ok(reply) => return Some(reply),
                Err(error) => {
                    why = match error.kind() {
                        ErrorKind::LimitExceeded if error.code() == SCOPE_FULL => NoReply::ScopeFull,
                        ErrorKind::LimitExceeded => NoReply::Full,
                        _ if error.is_full() => NoReply::Full,
                        _ if error.is_outage() => NoReply::Away,
                        _ => NoReply::TurnedAway(error.code()),
                    };
                    let again = match error.retry() {
                        Retry::Never => false,
                        // Neither comes back in a few milliseconds.
                        Retry::Later => error.kind() != ErrorKind::Unavailable && !error.is_full(),
                        Retry::OutcomeUnknown => {
                            may_have_arrived = true;
                            true
                        }
                    };
                    let last = !again || n == CLAIMS_MAX;
                    if last && let Some(more) = shared.quiet.may_speak(SystemClock.monotonic()) {
                        tracing::warn!(key = %claim.key, tries = n, error = chain(&error), more, "claim failed");
                    } else {
                        tracing::debug!(key = %claim.key, tries = n, error = chain(&error), "claim failed");
                    }
                    if last {
                        return None;
                    }
                }
            }
            Box::pin(tokio::time::sleep(CLAIM_PAUSE)).await;
        }
        None
    })
    .await;
    match asked {
        Ok(Some(reply)) => return Ok(reply),
        Ok(None) => {}
        Err(_) => {
            if let Some(more) = shared.quiet.may_speak(SystemClock.monotonic()) {
                tracing::warn!(key = %claim.key, store_ms_max = shared.config.store_ms_max, more, "the store gave no answer to a claim in time");
            }
            // One that said so before is there: what it said stands.
            may_have_arrived = true;
            if why == NoReply::Away
                && shared.config.outage == Outage::Open
                && answers(shared, &claim.key).await
            {
                why = NoReply::TurnedAway(ErrorKind::NotApplied.code());
            }
        }
    }
    if may_have_arrived {
        let withdrawal = Release {
            key: claim.key.clone(),
            nonce: claim.nonce,
            token: None,
        };
        release::in_background(shared, withdrawal);
    }
    Err(why)
}

/// Whether the store tells what it has of the key, although it does not take the claim: a file or a row that somebody holds is
/// not away, and whoever holds it may be running the key.
async fn answers(shared: &Shared, key: &Key) -> bool {
    let time = shared.store_timeout().min(LOOK_MAX);
    match Box::pin(tokio::time::timeout(time, shared.store.read(key))).await {
        Ok(Ok(_)) => true,
        Ok(Err(error)) => !error.is_outage(),
        Err(_) => false,
    }
}

fn one(mut replies: Replies<ClaimReply>) -> Result<ClaimReply, StoreError> {
    replies.pop().unwrap_or_else(|| {
        let text = "the store gave no answer for the claim: a bug in the store";
        Err(StoreError::new(ErrorKind::Corrupt, "claim", text))
    })
}
