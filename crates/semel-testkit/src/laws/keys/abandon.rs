//! Runs of which their owner does not know what came.

use semel_core::claim::{ClaimReply, LeaseReply, Nonce};

use super::{World, duplicate, is_ok};

/// Duplicates hear at once that nobody knows; the owner's late result still counts (rule K1). Repeating is `Ok`.
pub async fn abandoned_key_is_unknown_at_once_and_its_owner_may_still_complete(w: &World) {
    let claim = w.request();
    let lease = w.granted(&claim).await;
    for _ in 0..2 {
        assert!(is_ok(w.abandon(&claim, lease).await));
    }
    for again in [claim.clone(), duplicate(&claim)] {
        let reply = w.claim(&again).await;
        assert_eq!(reply, ClaimReply::Unknown { token: lease.token });
    }
    assert!(is_ok(w.complete(&claim, lease, "after all").await));
    assert_eq!(w.abandon(&claim, lease).await, LeaseReply::Conflict);
}

/// What may be run again need not wait for the lease; the old token is stale then.
pub async fn abandoned_rerun_key_is_free_for_the_next_claimant(w: &World) {
    let claim = w.rerun_request();
    let lost = w.granted(&claim).await;
    for _ in 0..2 {
        assert!(is_ok(w.abandon(&claim, lost).await));
    }
    let ClaimReply::Granted { lease, attempt, .. } = w.claim(&duplicate(&claim)).await else {
        panic!("not granted after it was given up");
    };
    assert!(lease.token > lost.token);
    assert_eq!(attempt, 2);
    assert_eq!(w.complete(&claim, lost, "late").await, LeaseReply::LeaseLost);
    assert!(is_ok(w.complete(&claim, lease, "done").await));
}

/// A stranger, an older owner, and nobody's key: nothing changes.
pub async fn only_the_owner_abandons(w: &World) {
    let claim = w.request();
    let lease = w.granted(&claim).await;
    let mut forged = lease;
    forged.nonce = Nonce::random();
    assert_eq!(w.abandon(&claim, forged).await, LeaseReply::LeaseLost);
    assert!(matches!(
        w.claim(&duplicate(&claim)).await,
        ClaimReply::Busy { .. }
    ));
    assert!(is_ok(w.release(&claim, lease).await));
    assert_eq!(w.abandon(&claim, lease).await, LeaseReply::LeaseLost);
}
