//! Shadow mode: what would have been a duplicate, without ever being in the way.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as HttpBody;
use semel_core::claim::Abandonment;
use semel_core::{
    Claim, ClaimReply, Completion, Fingerprint, Key, KeyStoreExt, Lease, Nonce, OwnerLost, Release, Scope,
    StoredOutcome,
};
use tower_service::Service;

use super::produce::judge;
use super::{Job, claim};
use crate::body::{Body, BoxError};
use crate::observe::Event;
use crate::policy::Ending;
use crate::shared::Shared;

/// Runs the handler whatever the store says, and counts what would have been said.
pub(crate) async fn shadow<S, ResBody>(shared: &Arc<Shared>, job: Job<S>) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<ResBody>>,
    ResBody: HttpBody<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    // A scope of its own: once keys are enforced, what stands here must not count.
    let scope = Scope::of_parts(&[b"shadow", job.key.scope().as_bytes()]);
    let lease = match Key::new(scope, job.key.id()) {
        Ok(key) => look(shared, job.fingerprint, &job.key, key).await,
        Err(_) => None,
    };
    let (mut inner, request) = job.request();
    let response = inner.call(request).await?.map(Body::new);
    if let Some((key, lease)) = lease {
        let ending = judge(shared, &response);
        let note = remember(Arc::clone(shared), key, lease, ending);
        let noted = shared.tasks.spawn(note);
        // What takes longer goes on behind the answer.
        let _ = tokio::time::timeout(in_the_way(shared), noted).await;
    }
    Ok(response)
}

fn in_the_way(shared: &Shared) -> Duration {
    Duration::from_millis(shared.config.shadow_ms_max)
}

/// What the store would say; the right to note the end when it is a first request.
async fn look(shared: &Arc<Shared>, fingerprint: Fingerprint, asked: &Key, key: Key) -> Option<(Key, Lease)> {
    let claim = Claim {
        key,
        fingerprint,
        nonce: Nonce::random(),
        owner_lost: OwnerLost::Hold,
        lease_ms: shared.config.lease_ms,
    };
    // One without an answer is not withdrawn: a retry is a duplicate whether it arrived or not.
    let reply = tokio::time::timeout(in_the_way(shared), claim::claim(shared, &claim));
    let event = match reply.await.unwrap_or(Err(claim::NoReply::Away)) {
        Err(claim::NoReply::ScopeFull) => Event::ShadowRefused,
        Err(_) => Event::StoreDown,
        Ok(ClaimReply::Granted { lease, .. }) => {
            shared.saw(Event::ShadowNew, Some(asked));
            return Some((claim.key, lease));
        }
        Ok(ClaimReply::Mismatch) => Event::ShadowMismatch,
        Ok(
            ClaimReply::Done { .. }
            | ClaimReply::Busy { .. }
            | ClaimReply::Unknown { .. }
            | ClaimReply::Gone { .. }
            | ClaimReply::Withdrawn,
        ) => Event::ShadowDuplicate,
    };
    shared.saw(event, Some(asked));
    None
}

/// Notes the end: a retry of what gave its key back is no duplicate.
async fn remember(shared: Arc<Shared>, key: Key, lease: Lease, ending: Ending) {
    let noted = async {
        match ending {
            Ending::Store | Ending::Refuse | Ending::Forget => {
                let done = Completion {
                    key,
                    lease,
                    outcome: StoredOutcome::Forgotten,
                    keep: shared.config.keep,
                };
                shared.store.complete(&done).await
            }
            Ending::Release | Ending::Defer => {
                let release = Release {
                    key,
                    nonce: lease.nonce,
                    token: Some(lease.token),
                };
                shared.store.release(&release).await
            }
            Ending::Unknown => shared.store.abandon(&Abandonment { key, lease }).await,
        }
    };
    if !matches!(
        tokio::time::timeout(shared.store_timeout(), noted).await,
        Ok(Ok(_))
    ) {
        tracing::debug!("a shadow record was not written");
    }
}
