//! A call from its claim to its outcome.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use semel_core::claim::{Record, Settlement, State};
use semel_core::error::chain;
use semel_core::{
    Claim, ClaimReply, Clock as _, Completion, Fingerprint, Key, KeyStore, KeyStoreExt as _, LeaseReply,
    Nonce, Release, StoreError, StoredOutcome, SystemClock, Timestamp, Token, crash_point,
};

use super::Shared;
use super::config::{OnOwnerLost, Outage};
use super::guard::{At, Stage};
use super::outcome::{BoxError, Failed, Failure, NotRun, Outcome, Ran, Run};
use super::renew::{Held, Renewal, renew_while};
use super::wait::WaitEnd;

/// Times that one call asks its hook and claims again.
const RECONCILES_MAX: u32 = 3;

/// Claims the key, waits where somebody else runs it, and runs the function if it is granted.
pub(super) async fn call<S, F, Fut, T>(
    shared: Arc<Shared<S>>,
    stage: Stage,
    key: Key,
    fingerprint: Fingerprint,
    function: F,
) -> Result<Ran, NotRun>
where
    S: KeyStore,
    F: FnOnce(Run) -> Fut + Send + 'static,
    Fut: Future<Output = Result<T, Failed>> + Send + 'static,
    T: Into<Bytes> + Send + 'static,
{
    let config = &shared.config;
    // An outcome that may never be stored is no reason to begin.
    config.check().map_err(|limit| NotRun::Store(limit.into()))?;
    let deadline = SystemClock.monotonic() + Duration::from_millis(config.wait_ms_max);
    let mut reconciled = 0;
    loop {
        let asked_at = SystemClock.monotonic();
        let claim = Claim {
            key: key.clone(),
            fingerprint,
            nonce: Nonce::random(),
            owner_lost: config.owner_lost.stored(),
            lease_ms: config.lease_ms,
        };
        stage.set(At::Asked(Release {
            key: key.clone(),
            nonce: claim.nonce,
            token: None,
        }));
        let reply = shared.claim(&claim).await;
        stage.set(At::Nothing);
        match reply {
            Ok(ClaimReply::Granted { lease, attempt, .. }) => {
                crash_point("run.claimed");
                let held = Held { key, lease, asked_at };
                stage.set(At::Runs(held.clone()));
                return Ok(run(&shared, held, fingerprint, attempt, function).await);
            }
            Ok(ClaimReply::Busy { lease_left_ms }) => {
                let left = Duration::from_millis(u64::try_from(lease_left_ms).unwrap_or(1));
                let running = NotRun::Running { lease_left_ms };
                let Some(waiter) = shared.waiters.enter(&key, config.waiters_max) else {
                    return Err(running);
                };
                if waiter.wait(&shared.store, left, deadline).await == WaitEnd::TimedOut {
                    return Err(running);
                }
            }
            Ok(ClaimReply::Unknown { token }) => {
                reconciled += 1;
                if reconciled > RECONCILES_MAX || !reconcile(&shared, &key, token).await {
                    return Ok(Ran::before(Outcome::Unknown, None));
                }
            }
            Ok(ClaimReply::Done {
                outcome,
                retain_until,
            }) => return Ok(replay(outcome, retain_until)),
            Ok(ClaimReply::Gone { .. }) => return Ok(Ran::before(Outcome::NotKept, None)),
            Ok(ClaimReply::Mismatch) => return Err(NotRun::Mismatch),
            // Only a withdrawal of this very nonce: a new one is drawn.
            Ok(ClaimReply::Withdrawn) => {}
            Err(error) => match config.outage {
                Outage::Open if error.is_outage() => {
                    stage.set(At::Unguarded);
                    return Ok(unguarded(&shared, key, error, function).await);
                }
                Outage::Open | Outage::Closed => return Err(NotRun::Store(error)),
            },
        }
    }
}

fn replay(outcome: StoredOutcome, until: Timestamp) -> Ran {
    let outcome = match outcome {
        StoredOutcome::Succeeded(output) => Outcome::Succeeded(output),
        StoredOutcome::Refused(reason) => Outcome::Refused(reason),
        StoredOutcome::Forgotten => Outcome::NotKept,
    };
    Ran::before(outcome, Some(until))
}

/// Asks the hook what became of an unknown key; whether it is settled now.
async fn reconcile<S: KeyStore>(shared: &Shared<S>, key: &Key, token: Token) -> bool {
    let OnOwnerLost::Reconcile(hook) = &shared.config.owner_lost else {
        return false;
    };
    let time = Duration::from_millis(shared.config.reconcile_ms_max);
    let verdict = match tokio::time::timeout(time, hook.reconcile(key, token)).await {
        Ok(Ok(Some(verdict))) => verdict,
        Ok(Ok(None)) => return false,
        Err(_) => {
            tracing::warn!(%key, reconcile_ms_max = shared.config.reconcile_ms_max, "the reconcile hook gave no answer in time");
            return false;
        }
        Ok(Err(error)) => {
            tracing::warn!(%key, %error, "the reconcile hook could not find out");
            return false;
        }
    };
    let settlement = Settlement {
        key: key.clone(),
        token,
        verdict,
        keep: shared.config.keep,
    };
    match shared.within("settle", shared.store.settle(&settlement)).await {
        // Whoever settled it: what the record says now is claimed again.
        Ok(LeaseReply::Ok(_) | LeaseReply::Conflict | LeaseReply::LeaseLost) => {
            shared.waiters.wake(key);
            true
        }
        Err(error) => {
            tracing::warn!(%key, error = chain(&error), "cannot settle a key");
            false
        }
    }
}

/// What a function's future came to. All code of the user runs in here: a panic of any of it may come after the effect.
async fn outcome_of<Fut, T>(work: Fut) -> Result<Bytes, Failed>
where
    Fut: Future<Output = Result<T, Failed>>,
    T: Into<Bytes>,
{
    let work = async { work.await.map(Into::into) };
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(result) => result,
        Err(panic) => Err(Failed::unknown(panicked(&*panic))),
    }
}

/// The text of a user's error, whose own code may panic.
fn text_of(error: &BoxError) -> String {
    std::panic::catch_unwind(AssertUnwindSafe(|| error.to_string()))
        .unwrap_or_else(|_| "an error whose text panics".to_owned())
}

pub(super) fn panicked(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned());
    let text = text.unwrap_or_else(|| "without a message".to_owned());
    format!("the function panicked: {text}")
}

async fn run<S, F, Fut, T>(
    shared: &Arc<Shared<S>>,
    held: Held,
    fingerprint: Fingerprint,
    attempt: u32,
    function: F,
) -> Ran
where
    S: KeyStore,
    F: FnOnce(Run) -> Fut,
    Fut: Future<Output = Result<T, Failed>>,
    T: Into<Bytes>,
{
    let config = &shared.config;
    let context = Run {
        key: held.key.clone(),
        token: Some(held.lease.token),
        attempt,
    };
    let renewal = Renewal {
        owner_lost: config.owner_lost.stored(),
        lease_ms: config.lease_ms,
        run_ms_max: config.run_ms_max,
        store_ms_max: config.store_ms_max,
    };
    // The call itself may panic, too, before there is a future.
    let work = outcome_of(async { function(context).await });
    let worked = renew_while(&shared.store, &held, renewal, work).await;
    let ran = match worked {
        Ok(Ok(output)) => store(shared, &held, fingerprint, StoredOutcome::Succeeded(output)).await,
        Ok(Err(Failed(Failure::Refused(reason)))) => {
            store(shared, &held, fingerprint, StoredOutcome::Refused(reason)).await
        }
        Ok(Err(Failed(Failure::Released(error)))) => {
            let release = Release {
                key: held.key.clone(),
                nonce: held.lease.nonce,
                token: Some(held.lease.token),
            };
            let ran = if lost(shared.release(release).await) {
                what_the_record_says(shared, &held, fingerprint).await
            } else {
                Ran::now(Outcome::Refused(text_of(&error).into()), None)
            };
            if ran.replayed { ran } else { ran.because(error) }
        }
        Ok(Err(Failed(Failure::Unknown(error)))) => {
            tracing::error!(key = %held.key, error = text_of(&error), "a run ended and nobody knows what came of it");
            let ran = if lost(shared.abandon(&held).await) {
                what_the_record_says(shared, &held, fingerprint).await
            } else {
                Ran::now(Outcome::Unknown, None)
            };
            if ran.replayed { ran } else { ran.because(error) }
        }
        Err(stopped) => {
            let ran = what_the_record_says(shared, &held, fingerprint).await;
            if ran.replayed { ran } else { ran.because(stopped) }
        }
    };
    shared.waiters.wake(&held.key);
    ran
}

/// Whether the store says that the run is not this owner's any more, or has another end already.
const fn lost(reply: Option<LeaseReply>) -> bool {
    matches!(reply, Some(LeaseReply::LeaseLost | LeaseReply::Conflict))
}

/// Stores an outcome, then tells it.
async fn store<S: KeyStore>(
    shared: &Arc<Shared<S>>,
    held: &Held,
    fingerprint: Fingerprint,
    outcome: StoredOutcome,
) -> Ran {
    let told = match &outcome {
        StoredOutcome::Succeeded(output) => Outcome::Succeeded(output.clone()),
        StoredOutcome::Refused(reason) => Outcome::Refused(reason.clone()),
        StoredOutcome::Forgotten => Outcome::NotKept,
    };
    let mut done = Completion {
        key: held.key.clone(),
        lease: held.lease,
        outcome,
        keep: shared.config.keep,
    };
    crash_point("run.before_complete");
    match shared.complete(&mut done).await {
        Ok(LeaseReply::Ok(until)) => {
            crash_point("run.completed");
            Ran::now(told, Some(until))
        }
        Ok(LeaseReply::LeaseLost | LeaseReply::Conflict) => {
            what_the_record_says(shared, held, fingerprint).await
        }
        Err(error) => {
            // It has happened: the caller is told, and storing goes on behind it.
            tracing::warn!(key = %held.key, error = chain(&error), "cannot store an outcome yet");
            shared.complete_in_background(done);
            Ran::now(told, None).because(error)
        }
    }
}

/// For an owner who has lost its key: never what that owner computed (rule K11).
async fn what_the_record_says<S: KeyStore>(shared: &Shared<S>, held: &Held, fingerprint: Fingerprint) -> Ran {
    tracing::error!(key = %held.key, "a run ended after its claim was lost; the answer is the record's");
    let unknown = Ran::now(Outcome::Unknown, None);
    let record = match shared.within("read", shared.store.read(&held.key)).await {
        Ok(Some(record)) => record,
        Ok(None) => return unknown.because("the key was settled as not happened while its owner still ran"),
        Err(error) => return unknown.because(error),
    };
    let Record {
        fingerprint: stored,
        state,
        ..
    } = record;
    match state {
        State::Done {
            outcome,
            retain_until,
            ..
        } if stored == Some(fingerprint) => replay(outcome, retain_until),
        State::Tombstone { .. } if stored == Some(fingerprint) => Ran::before(Outcome::NotKept, None),
        _ => unknown,
    }
}

/// Without a key: the policy says so, the result says so, and it is counted.
async fn unguarded<S, F, Fut, T>(shared: &Shared<S>, key: Key, error: StoreError, function: F) -> Ran
where
    S: KeyStore,
    F: FnOnce(Run) -> Fut,
    Fut: Future<Output = Result<T, Failed>>,
    T: Into<Bytes>,
{
    let runs = shared.unguarded.fetch_add(1, Ordering::Relaxed) + 1;
    tracing::warn!(%key, runs, error = chain(&error), "the store is away: running without a key, as the policy `open` says");
    let context = Run {
        key,
        token: None,
        attempt: 1,
    };
    let ran = match outcome_of(async { function(context).await }).await {
        Ok(output) => Ran::now(Outcome::Succeeded(output), None).because(error),
        Err(Failed(Failure::Refused(reason))) => Ran::now(Outcome::Refused(reason), None).because(error),
        Err(Failed(Failure::Released(why))) => {
            Ran::now(Outcome::Refused(text_of(&why).into()), None).because(why)
        }
        Err(Failed(Failure::Unknown(why))) => Ran::now(Outcome::Unknown, None).because(why),
    };
    Ran {
        unguarded: true,
        ..ran
    }
}
