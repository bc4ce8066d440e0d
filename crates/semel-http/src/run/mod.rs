//! What happens to a keyed request, in a task of its own: claim, run, store, answer.
//!
//! # Guarantees
//! - The handler starts only after the claim is durable; its answer leaves only after its outcome is. Two exceptions:
//!   when the store fails at that moment the effect exists, so the answer goes out and storing goes on behind it
//!   (`Stored::Later`); and a stream goes out as it comes, only its end waits for the outcome (`pump.rs`).
//! - Crash before the claim: nothing happened. Crash between claim and outcome: the key reads as unknown when its
//!   lease ends (or is run again, under `Rerun`). Crash after it: every retry gets the stored answer.
//! - A client that goes away changes nothing: the task ends what it began.

mod buffer;
mod catch;
mod claim;
mod finish;
mod outcome;
mod produce;
mod pump;
mod release;
mod renew;
mod replay;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body as HttpBody;
use semel_core::{Claim, ClaimReply, Clock, Fingerprint, Key, Lease, Nonce, SystemClock, crash_point};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tower_service::Service;

use crate::body::{Body, BoxError};
use crate::info::ClaimInfo;
use crate::problem::ProblemKind;
use crate::shared::Shared;

/// A keyed request, ready to run.
pub(crate) struct Job<S> {
    pub(crate) parts: Parts,
    pub(crate) body: Bytes,
    pub(crate) key: Key,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) inner: S,
}

/// What the task of a run tells the connection that waits for it.
pub(crate) enum Turn<S, E> {
    /// This is the answer.
    Answer(Result<Response<Body>, E>),
    /// Somebody else runs the key, for at least so long; the job comes back.
    Busy(Box<Job<S>>, Duration),
}

/// The task's end of the line (`tell`; the connection holds `told`); nobody may be listening any more.
pub(crate) type TurnSender<S, E> = oneshot::Sender<Turn<S, E>>;

/// What an owner holds.
#[derive(Clone)]
pub(crate) struct Owned {
    pub(crate) key: Key,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) lease: Lease,
    /// On the monotonic clock, taken before the claim was sent (rule K1).
    pub(crate) asked_at: Duration,
}

/// Claims the key; runs the job if the claim is granted, and else tells what the record says.
pub(crate) async fn claim_and_run<S, ResBody>(
    shared: Arc<Shared>,
    job: Job<S>,
    tell: TurnSender<S, S::Error>,
    _permit: OwnedSemaphorePermit,
) where
    S: Service<Request<Body>, Response = Response<ResBody>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    ResBody: HttpBody<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    let asked_at = SystemClock.monotonic();
    let claim = Claim {
        key: job.key.clone(),
        fingerprint: job.fingerprint,
        nonce: Nonce::random(),
        owner_lost: shared.config.owner_lost,
        lease_ms: shared.config.lease_ms,
    };
    let answer = match claim::claim(&shared, &claim).await {
        None => shared.no_store(),
        Some(ClaimReply::Granted { lease, attempt, .. }) => {
            crash_point("http.claimed");
            let owned = Owned {
                key: job.key.clone(),
                fingerprint: job.fingerprint,
                lease,
                asked_at,
            };
            return run(&shared, owned, attempt, job, tell).await;
        }
        Some(ClaimReply::Busy { lease_left_ms }) => {
            let left = Duration::from_millis(u64::try_from(lease_left_ms).unwrap_or(1));
            let _ = tell.send(Turn::Busy(Box::new(job), left));
            return;
        }
        Some(ClaimReply::Done {
            outcome,
            retain_until,
        }) => replay::done(&shared, &outcome, retain_until),
        Some(ClaimReply::Unknown { .. }) => shared.unknown(&job.key),
        Some(ClaimReply::Mismatch) => replay::mismatch(&shared),
        Some(ClaimReply::Gone { until }) => replay::gone(&shared, until),
        // Only a withdrawal of this very nonce, which this task did not send.
        Some(ClaimReply::Withdrawn) => {
            shared.problem(ProblemKind::StoreUnavailable, "the claim was withdrawn")
        }
    };
    let _ = tell.send(Turn::Answer(Ok(answer)));
}

async fn run<S, ResBody>(
    shared: &Arc<Shared>,
    owned: Owned,
    attempt: u32,
    job: Job<S>,
    tell: TurnSender<S, S::Error>,
) where
    S: Service<Request<Body>, Response = Response<ResBody>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    ResBody: HttpBody<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    let Job {
        mut parts,
        body,
        mut inner,
        ..
    } = job;
    parts.extensions.insert(ClaimInfo {
        key: owned.key.clone(),
        token: owned.lease.token,
        attempt,
    });
    let began = SystemClock.monotonic();
    // Gone after `produce` when the answer was a stream: its head was told then, and `finish` has only its end to say.
    let mut tell = Some(tell);
    let produced = {
        let call = async { inner.call(Request::from_parts(parts, Body::whole(body))).await };
        let produce = produce::produce(shared, began, call, &mut tell);
        renew::renew_while(shared, &owned, began, produce).await
    };
    shared
        .latency
        .record(SystemClock.monotonic().saturating_sub(began));
    finish::finish(shared, &owned, produced, tell).await;
    shared.waiters.wake(&owned.key);
}
