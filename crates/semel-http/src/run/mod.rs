//! What happens to a keyed request: claim, run, store, answer.
//!
//! # Guarantees
//! - The handler starts only after the claim is durable; its answer leaves only after its outcome is. Two exceptions:
//!   when the store fails at that moment the effect exists, so the answer goes out and storing goes on behind it
//!   (`Stored::Later`); and a stream goes out as it comes, only its end waits for the outcome (`pump.rs`).
//! - Crash before the claim: nothing happened. Crash between claim and outcome: the key reads as unknown when its
//!   lease ends (or is run again, under `Rerun`). Crash after it: every retry gets the stored answer.
//! - A run that ends without anybody knowing what came of it makes the key unknown at once.
//! - A client that goes away changes nothing: what was begun goes on in a task of its own (`detach.rs`).

mod buffer;
mod catch;
mod claim;
mod detach;
mod finish;
mod mismatch;
mod open;
mod outcome;
mod produce;
mod pump;
mod reconcile;
mod release;
mod renew;
mod replay;
mod shadow;

pub(crate) use detach::Detach;
pub(crate) use shadow::shadow;

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use http_body::Body as HttpBody;
use semel_core::{
    Claim, ClaimReply, Clock, Fingerprint, Key, Lease, Nonce, OwnerLost, SystemClock, crash_point,
};
use tower_service::Service;

use crate::body::{Body, BoxError};
use crate::config::Outage;
use crate::fingerprint::Asked;
use crate::info::ClaimInfo;
use crate::observe::Event;
use crate::problem::ProblemKind;
use crate::shared::{Place, Shared};

/// A keyed request, ready to run.
pub(crate) struct Job<S> {
    pub(crate) parts: Box<Parts>,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<Box<HeaderMap>>,
    pub(crate) key: Key,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) inner: S,
}

impl<S> Job<S> {
    /// The request as the handler gets it.
    fn request(self) -> (S, Request<Body>) {
        let body = Body::with_trailers(self.body, self.trailers);
        (self.inner, Request::from_parts(*self.parts, body))
    }
}

/// What was asked, for a fingerprint. `target` is what the operator's function said, where there is one. Not a method of
/// [`Job`]: a reference to that could not be held over an await, for the inner service need not be `Sync`.
pub(crate) fn asked<'a>(
    shared: &'a Shared,
    head: &'a Parts,
    body: &'a Bytes,
    target: Option<&'a [u8]>,
) -> Asked<'a> {
    Asked {
        head,
        target: target.unwrap_or_else(|| crate::fingerprint::target(head)),
        headers: &shared.config.fingerprint_headers,
        body,
    }
}

/// What is left of a run whose answer has begun to leave.
pub(crate) type Rest = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a run comes to for the connection that waits for it.
pub(crate) enum Turn<S, E> {
    /// This is the answer.
    Answer(Result<Response<Body>, E>),
    /// This is its head; the rest writes the body and must be carried to its end.
    Stream(Response<Body>, Rest),
    /// Somebody else runs the key, for at least so long; the job comes back.
    Busy(Box<Job<S>>, Duration),
}

/// What an owner holds.
pub(crate) struct Owned {
    pub(crate) key: Key,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) lease: Lease,
    /// When a run under `Rerun` must stop. Moved by each renewal.
    pub(crate) end: Option<renew::Deadline>,
}

/// Claims the key; runs the job if the claim is granted, and else tells what the record says.
pub(crate) async fn claim_and_run<S, ResBody>(
    shared: Arc<Shared>,
    mut job: Job<S>,
    place: Place,
) -> Turn<S, S::Error>
where
    S: Service<Request<Body>, Response = Response<ResBody>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    ResBody: HttpBody<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    let mut settled = false;
    let mut recomputed = false;
    let answer = loop {
        let asked_at = SystemClock.monotonic();
        let claim = Claim {
            key: job.key.clone(),
            fingerprint: job.fingerprint,
            nonce: Nonce::random(),
            owner_lost: shared.config.owner_lost,
            lease_ms: shared.config.lease_ms,
        };
        match claim::claim(&shared, &claim).await {
            Err(claim::NoReply::Full) => break shared.store_full(&job.key),
            Err(claim::NoReply::ScopeFull) => break shared.scope_full(&job.key),
            Err(claim::NoReply::Away) if shared.config.outage == Outage::Open => {
                return Turn::Answer(Box::pin(open::pass(&shared, job)).await);
            }
            Err(claim::NoReply::Away) => break shared.no_store(&job.key),
            Err(claim::NoReply::TurnedAway(code)) => break shared.turned_away(&job.key, code),
            Ok(ClaimReply::Granted { lease, attempt, .. }) => {
                crash_point("http.claimed");
                shared.saw(Event::New, Some(&job.key));
                let owned = Owned {
                    key: claim.key,
                    fingerprint: job.fingerprint,
                    lease,
                    // Under `Hold` nobody asks for it.
                    end: (claim.owner_lost == OwnerLost::Rerun)
                        .then(|| renew::Deadline::new(asked_at, shared.config.lease_ms)),
                };
                return run(shared, owned, attempt, job, place).await;
            }
            Ok(ClaimReply::Busy { lease_left_ms }) => {
                let left = Duration::from_millis(u64::try_from(lease_left_ms).unwrap_or(1));
                return Turn::Busy(Box::new(job), left);
            }
            Ok(ClaimReply::Done {
                outcome,
                retain_until,
            }) => break replay::done(&shared, &job.key, &outcome, retain_until),
            Ok(ClaimReply::Unknown { token }) => {
                // Once: what the hook has settled and is unknown again is another run's.
                if settled || !Box::pin(reconcile::settle(&shared, &job.key, token)).await {
                    break shared.unknown(&job.key);
                }
                settled = true;
            }
            Ok(ClaimReply::Mismatch) => {
                match Box::pin(mismatch::judge(
                    &shared,
                    &job.key,
                    job.fingerprint,
                    &job.parts,
                    &job.body,
                ))
                .await
                {
                    mismatch::Judged::Same(fingerprint) if !recomputed => {
                        job.fingerprint = fingerprint;
                        recomputed = true;
                    }
                    mismatch::Judged::Gone if !recomputed => recomputed = true,
                    // The store has told that the key is known: not even an open route runs it.
                    mismatch::Judged::Away | mismatch::Judged::Gone => break shared.no_store(&job.key),
                    mismatch::Judged::Same(_) => break mismatch::answer(&shared, &job.key, "a part of it"),
                    mismatch::Judged::Differs(what) => break mismatch::answer(&shared, &job.key, &what),
                }
            }
            Ok(ClaimReply::Gone { until }) => break replay::gone(&shared, &job.key, until),
            // Only a withdrawal of this very nonce, which this run did not send.
            Ok(ClaimReply::Withdrawn) => {
                break shared.problem(ProblemKind::StoreUnavailable, "the claim was withdrawn");
            }
        }
    };
    Turn::Answer(Ok(answer))
}

async fn run<S, ResBody>(
    shared: Arc<Shared>,
    owned: Owned,
    attempt: u32,
    mut job: Job<S>,
    place: Place,
) -> Turn<S, S::Error>
where
    S: Service<Request<Body>, Response = Response<ResBody>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    ResBody: HttpBody<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    job.parts.extensions.insert(ClaimInfo {
        key: owned.key.clone(),
        token: owned.lease.token,
        attempt,
    });
    let (mut inner, request) = job.request();
    let began = SystemClock.monotonic();
    let produced = {
        // The call itself is the handler's code, too: it may panic before there is a future. It is pinned here and handed
        // on by reference: each function that took it by value would have room for it once more.
        let call = pin!(async { inner.call(request).await });
        let work = pin!(produce::produce(&shared, call));
        renew::renew_while(&shared, &owned, began, work).await
    };
    match produced {
        Ok(produce::Produced::Stream(head)) => {
            let (response, mut pump) = pump::open(&shared, &head.parts, head.read, head.ending);
            let (body, parts, ending) = (head.body, head.parts, head.ending);
            let rest = async move {
                let mut body = body;
                let ended = {
                    let passed = pin!(pump.pass_on(&mut body, began, shared.config.run_ms_max));
                    renew::renew_while(&shared, &owned, began, passed).await
                };
                ends(&shared, began);
                finish::stream(&shared, &owned, ended, &mut pump, (&parts, ending)).await;
                shared.waiters.wake(&owned.key);
                drop(place);
            };
            Turn::Stream(response, Box::pin(rest))
        }
        produced => {
            ends(&shared, began);
            let answer = finish::finish(&shared, &owned, produced).await;
            shared.waiters.wake(&owned.key);
            drop(place);
            Turn::Answer(answer)
        }
    }
}

fn ends(shared: &Shared, began: Duration) {
    let ran = SystemClock.monotonic().saturating_sub(began);
    shared.latency.record(ran);
}
