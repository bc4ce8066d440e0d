//! Calls to the store, each within its time, and what follows when no answer comes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::error::chain;
use semel_core::host::dice;
use semel_core::{
    Claim, ClaimReply, Clock as _, Completion, ErrorKind, KeyStore, KeyStoreExt as _, LeaseReply, Release,
    Retry, RetryPolicy, StoreError, StoredOutcome, SystemClock,
};

use super::Shared;
use super::behind::Waits;
use super::renew::Held;

/// Times that a claim is sent at most.
const CLAIMS_MAX: u32 = 3;
/// Pause before it is sent again.
const CLAIM_PAUSE: Duration = Duration::from_millis(20);

impl<S: KeyStore> Shared<S> {
    fn timeout(&self) -> Duration {
        Duration::from_millis(self.config.store_ms_max)
    }

    /// One call within its time.
    pub(super) async fn within<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        tokio::time::timeout(self.timeout(), call)
            .await
            .unwrap_or_else(|_| {
                let text = format!("no answer within store_ms_max = {} ms", self.config.store_ms_max);
                Err(StoreError::new(ErrorKind::ReplyLost, operation, text))
            })
    }

    /// The store's reply to a claim. Sending it again is safe: the same nonce gets the same token (rule K3). When no
    /// answer comes, the claim is withdrawn should it still arrive (rule K4).
    pub(super) async fn claim(self: &Arc<Self>, claim: &Claim) -> Result<ClaimReply, StoreError> {
        let behind_max = self.config.behind_max;
        if self.behind.count() >= behind_max {
            if let Some(more) = self.behind.quiet.may_speak(SystemClock.monotonic()) {
                tracing::error!(
                    behind_max,
                    more,
                    "so many withdrawals and outcomes wait for the store of keys that no more claims are sent to it"
                );
            }
            let text = format!(
                "behind_max = {behind_max} withdrawals and outcomes wait for the store already; no claim was sent"
            );
            return Err(StoreError::new(ErrorKind::Unavailable, "claim", text));
        }
        let mut may_have_arrived = false;
        let mut sent = 0;
        let asked = self.within("claim", async {
            loop {
                sent += 1;
                // Until it is answered it may be there: the time may be up in the middle of it.
                let before = std::mem::replace(&mut may_have_arrived, true);
                let error = match self.store.claim(claim).await {
                    Ok(reply) => return Ok(reply),
                    Err(error) => error,
                };
                may_have_arrived = before || error.retry() == Retry::OutcomeUnknown;
                let again = match error.retry() {
                    Retry::Never => false,
                    // Neither comes back in a few milliseconds.
                    Retry::Later => error.kind() != ErrorKind::Unavailable && !error.is_full(),
                    Retry::OutcomeUnknown => true,
                };
                if !again || sent >= CLAIMS_MAX {
                    tracing::warn!(key = %claim.key, sent, error = chain(&error), "a claim failed");
                    return Err(error);
                }
                tracing::debug!(key = %claim.key, sent, error = chain(&error), "a claim failed");
                tokio::time::sleep(CLAIM_PAUSE).await;
            }
        });
        let reply = asked.await;
        if reply.is_err() && may_have_arrived {
            let withdrawal = Release {
                key: claim.key.clone(),
                nonce: claim.nonce,
                token: None,
            };
            self.release_in_background(withdrawal, 0);
        }
        reply
    }

    /// Stores an outcome. A store with a smaller limit than ours still learns that it was done, or refused.
    pub(super) async fn complete(&self, done: &mut Completion) -> Result<LeaseReply, StoreError> {
        let reply = self.within("complete", self.store.complete(done)).await;
        match reply {
            Err(error) if error.kind() == ErrorKind::LimitExceeded && !done.outcome.bytes().is_empty() => {
                tracing::warn!(key = %done.key, error = chain(&error), "an outcome is too large to be kept");
                done.outcome = without_bytes(&done.outcome);
                self.within("complete", self.store.complete(done)).await
            }
            reply => reply,
        }
    }

    /// The effect exists: storing its outcome is tried until the policy ends; then the key ends as its own policy says.
    /// Asking again is safe: the same outcome is recognised (rule K2), and time alone refuses nothing (rule K1).
    pub(super) fn complete_in_background(self: &Arc<Self>, mut done: Completion) {
        let bytes = done.outcome.bytes().len();
        if bytes > 0 && self.behind.bytes().saturating_add(bytes) > self.config.behind_bytes_max {
            tracing::error!(
                key = %done.key,
                behind_bytes_max = self.config.behind_bytes_max,
                "outcomes of so many bytes wait for the store that of this one it is only kept what came of it"
            );
            done.outcome = without_bytes(&done.outcome);
        }
        let waits = Waits::new(&self.behind, done.outcome.bytes().len());
        let shared = Arc::clone(self);
        drop(self.tasks.spawn(async move {
            let _waits = waits;
            let key = done.key.clone();
            match shared.again(Late::Complete(done), 1).await {
                Some(LeaseReply::Ok(_)) => {}
                Some(reply) => {
                    tracing::error!(%key, ?reply, "the key was settled by somebody else before its outcome could be stored");
                }
                None => tracing::error!(%key, "an outcome could not be stored; the key ends as its policy says"),
            }
            shared.waiters.wake(&key);
        }));
    }

    /// Gives a claim back; in the background, with no reply yet, when the store gives no answer.
    pub(super) async fn release(self: &Arc<Self>, release: Release) -> Option<LeaseReply> {
        match self.within("release", self.store.release(&release)).await {
            Ok(reply) => Some(reply),
            Err(error) => {
                tracing::warn!(key = %release.key, error = chain(&error), "cannot give a key back; trying again");
                self.release_in_background(release, 1);
                None
            }
        }
    }

    fn release_in_background(self: &Arc<Self>, release: Release, tried: u32) {
        let waits = Waits::new(&self.behind, 0);
        let shared = Arc::clone(self);
        drop(self.tasks.spawn(async move {
            let _waits = waits;
            let key = release.key.clone();
            if shared.again(Late::Release(release), tried).await.is_none() {
                tracing::error!(%key, "a key could not be given back; its lease will end");
            }
            shared.waiters.wake(&key);
        }));
    }

    /// Nobody knows what came of it: the key says so at once, not when its lease ends. No reply when the store gives none.
    pub(super) async fn abandon(self: &Arc<Self>, held: &Held) -> Option<LeaseReply> {
        let abandonment = semel_core::claim::Abandonment {
            key: held.key.clone(),
            lease: held.lease,
        };
        match self.within("abandon", self.store.abandon(&abandonment)).await {
            Ok(reply) => Some(reply),
            Err(error) => {
                // Time does the same.
                tracing::warn!(key = %held.key, error = chain(&error), "cannot give a run up; its lease will end");
                None
            }
        }
    }

    /// Calls until there is an answer or the policy ends, which knows of so many tries. What was not tried yet is tried
    /// before the policy is asked.
    async fn again(&self, mut late: Late, tried: u32) -> Option<LeaseReply> {
        let policy: RetryPolicy = self.config.completion_retry;
        let began = SystemClock.monotonic();
        for attempt in tried.. {
            if attempt > 0 {
                let elapsed = SystemClock.monotonic().saturating_sub(began).as_millis();
                let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX);
                let pause = policy.delay_ms(attempt, elapsed, dice())?;
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            let reply = match &mut late {
                Late::Complete(done) => self.complete(done).await,
                Late::Release(release) => self.within("release", self.store.release(release)).await,
            };
            match reply {
                Ok(reply) => return Some(reply),
                Err(error) if error.retry() == Retry::Never => return None,
                Err(_) => {}
            }
        }
        None
    }
}

/// What came of a run, without its output.
const fn without_bytes(outcome: &StoredOutcome) -> StoredOutcome {
    match outcome {
        StoredOutcome::Refused(_) => StoredOutcome::Refused(Bytes::new()),
        StoredOutcome::Succeeded(_) | StoredOutcome::Forgotten => StoredOutcome::Forgotten,
    }
}

/// What is still to be told to a store that gave no answer.
enum Late {
    Complete(Completion),
    Release(Release),
}
