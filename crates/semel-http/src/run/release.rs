//! Giving a claim back: when it is certain that nothing happened, and when its own reply never came. And giving it up:
//! when nobody knows what happened.

use std::sync::Arc;
use std::time::Duration;

use semel_core::claim::Abandonment;
use semel_core::error::chain;
use semel_core::host::dice;
use semel_core::{Clock, KeyStoreExt, LeaseReply, Release, Retry, SystemClock};

use super::Owned;
use crate::behind::Waits;
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
        Ok(reply) => matches!(reply, LeaseReply::Ok(_)),
        Err(_) => {
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

/// The store's reply, or what can be done where there is none.
async fn once(shared: &Shared, release: &Release) -> Result<LeaseReply, Retry> {
    match tokio::time::timeout(shared.store_timeout(), shared.store.release(release)).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(error)) => {
            if let Some(more) = shared.quiet.may_speak(SystemClock.monotonic()) {
                tracing::warn!(key = %release.key, error = chain(&error), more, "cannot release a claim");
            }
            Err(error.retry())
        }
        Err(_) => Err(Retry::OutcomeUnknown),
    }
}

/// Gives a claim back, or withdraws one whose reply never came, as soon as the store answers.
pub(super) fn in_background(shared: &Arc<Shared>, release: Release) {
    let waits = Waits::new(shared, 0);
    let shared = Arc::clone(shared);
    let tasks = shared.tasks.clone();
    drop(tasks.spawn(async move {
        let _waits = waits;
        let began = SystemClock.monotonic();
        for attempt in 1.. {
            let pause = match once(&shared, &release).await {
                Ok(_) => break,
                Err(Retry::Never) => None,
                Err(Retry::Later | Retry::OutcomeUnknown) => {
                    let elapsed = SystemClock.monotonic().saturating_sub(began).as_millis();
                    let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX);
                    shared.config.completion_retry.delay_ms(attempt, elapsed, dice())
                }
            };
            let Some(pause) = pause else {
                tracing::error!(key = %release.key, "a claim could not be given back; its lease decides");
                break;
            };
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        shared.waiters.wake(&release.key);
    }));
}
