//! Giving a claim back: when it is certain that nothing happened, and when its own reply never came. And giving it up:
//! when nobody knows what happened.

use std::sync::Arc;
use std::time::Duration;

use semel_core::claim::Abandonment;
use semel_core::error::chain;
use semel_core::host::dice;
use semel_core::{Clock, KeyStoreExt, LeaseReply, Release, SystemClock};

use super::Owned;
use crate::observe::Event;
use crate::shared::Shared;

/// It is certain that nothing happened: the next request runs. Whether the key was still this owner's; if not, its record
/// has another end (rule K11).
#[must_use = "an owner who has lost its lease tells what the record says"]
pub(super) async fn give_back(shared: &Arc<Shared>, owned: &Owned) -> bool {
    let release = Release {
        key: owned.key.clone(),
        nonce: owned.lease.nonce,
        token: Some(owned.lease.token),
    };
    match once(shared, &release).await {
        Some(reply) => matches!(reply, LeaseReply::Ok(_)),
        None => {
            in_background(shared, release);
            true
        }
    }
}

/// Nobody knows what came of the run: duplicates hear "unknown" from now on, not "running". Tried once: what a store that
/// gives no answer does not hear, the end of the lease says. Returns as [`give_back`] does.
#[must_use = "an owner who has lost its lease tells what the record says"]
pub(super) async fn abandon(shared: &Shared, owned: &Owned) -> bool {
    let given_up = Abandonment {
        key: owned.key.clone(),
        lease: owned.lease,
    };
    match tokio::time::timeout(shared.store_timeout(), shared.store.abandon(&given_up)).await {
        Ok(Ok(LeaseReply::LeaseLost | LeaseReply::Conflict)) => return false,
        Ok(Ok(LeaseReply::Ok(_))) => {}
        Ok(Err(error)) => {
            tracing::warn!(key = %owned.key, error = chain(&error), "cannot say that a run ended as unknown");
        }
        Err(_) => {
            tracing::warn!(key = %owned.key, "the store did not hear in time that a run ended as unknown")
        }
    }
    shared.saw(Event::EndedUnknown, Some(&owned.key));
    true
}

/// The store's reply; `None` when there is none.
async fn once(shared: &Shared, release: &Release) -> Option<LeaseReply> {
    match tokio::time::timeout(shared.store_timeout(), shared.store.release(release)).await {
        Ok(Ok(reply)) => Some(reply),
        Ok(Err(error)) => {
            if let Some(more) = shared.quiet.may_speak(SystemClock.monotonic()) {
                tracing::warn!(key = %release.key, error = chain(&error), more, "cannot release a claim");
            }
            None
        }
        Err(_) => None,
    }
}

/// Gives a claim back, or withdraws one whose reply never came, as soon as the store answers.
pub(super) fn in_background(shared: &Arc<Shared>, release: Release) {
    let shared = Arc::clone(shared);
    let tasks = shared.tasks.clone();
    drop(tasks.spawn(async move {
        let began = SystemClock.monotonic();
        for attempt in 1.. {
            if once(&shared, &release).await.is_some() {
                break;
            }
            let elapsed = SystemClock.monotonic().saturating_sub(began).as_millis();
            let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX);
            let Some(pause) = shared.config.completion_retry.delay_ms(attempt, elapsed, dice()) else {
                tracing::error!(key = %release.key, "a claim could not be given back; its lease decides");
                break;
            };
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        shared.waiters.wake(&release.key);
    }));
}
