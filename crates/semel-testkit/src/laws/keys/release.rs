//! Giving a claim back, and leaving without an answer.

use semel_core::claim::{ClaimReply, LeaseReply, WITHDRAWN_MS, succeeded};

use super::{World, duplicate, is_ok};

/// It is certain that nothing happened: the next claimant starts afresh. A repeated release is `Ok` (rule K2).
pub async fn released_key_is_free_and_release_can_be_repeated(w: &World) {
    let claim = w.request();
    let first = w.granted(&claim).await;
    for _ in 0..2 {
        assert!(is_ok(w.release(&claim, first).await));
        assert_eq!(w.read(&claim).await, None);
    }
    let late = w.complete(&claim, first, "given back").await;
    assert_eq!(late, LeaseReply::LeaseLost);
    let next = duplicate(&claim);
    let second = w.granted(&next).await;
    assert!(second.token > first.token);
    let stale = w.release(&claim, first).await;
    assert_eq!(stale, LeaseReply::LeaseLost, "somebody else runs it now");
    assert!(is_ok(w.complete(&next, second, "done").await));
}

/// A claim is delayed, its caller gives up and withdraws it, then it lands: nobody runs it, so nobody gets it (rule
/// K4). Later the nonce is forgotten.
pub async fn withdrawn_claim_that_arrives_late_is_not_granted(w: &World) {
    let one = w.request();
    let two = duplicate(&one);
    for claim in [&one, &two, &one] {
        assert!(is_ok(w.withdraw(claim).await));
    }
    for claim in [&one, &two] {
        assert_eq!(w.claim(claim).await, ClaimReply::Withdrawn);
    }
    assert_eq!(w.read(&one).await, None, "as if nobody had asked");
    w.pass_ms(WITHDRAWN_MS).await;
    w.granted(&one).await;
}

/// Others may claim, release and run in between: the late claim is still not granted.
pub async fn withdrawal_is_remembered_beside_other_runs(w: &World) {
    let late = w.request();
    assert!(is_ok(w.withdraw(&late).await));
    let other = duplicate(&late);
    let lease = w.granted(&other).await;
    assert!(matches!(w.claim(&late).await, ClaimReply::Busy { .. }));
    // The copy of a claim that was granted and given back is just as late.
    assert!(is_ok(w.release(&other, lease).await));
    assert_eq!(w.claim(&late).await, ClaimReply::Withdrawn);
    assert_eq!(w.claim(&other).await, ClaimReply::Withdrawn);

    // Withdrawn while somebody else runs it.
    let (runs, late) = (duplicate(&late), duplicate(&late));
    let lease = w.granted(&runs).await;
    assert!(is_ok(w.withdraw(&late).await));
    assert!(is_ok(w.extend(&runs, lease).await), "that run is not disturbed");
    assert!(is_ok(w.release(&runs, lease).await));
    assert_eq!(w.claim(&late).await, ClaimReply::Withdrawn);
}

/// Whoever leaves without an answer frees what the claim may have got, whatever became of it by then (rule K4).
pub async fn withdrawal_frees_a_claimed_and_an_unknown_key(w: &World) {
    for expired in [false, true] {
        let claim = w.request();
        w.granted(&claim).await;
        if expired {
            w.lease_ends().await;
            w.sweep().await;
        }
        assert!(is_ok(w.withdraw(&claim).await));
        assert_eq!(w.read(&claim).await, None);
        assert_eq!(w.claim(&claim).await, ClaimReply::Withdrawn);
        w.granted(&duplicate(&claim)).await;
    }
}

/// What is done is not given back, with the token or without; a stranger's withdrawal does not disturb it.
pub async fn done_key_cannot_be_released(w: &World) {
    let claim = w.request();
    let lease = w.granted(&claim).await;
    w.complete(&claim, lease, "done").await;
    assert_eq!(w.release(&claim, lease).await, LeaseReply::Conflict);
    assert_eq!(w.withdraw(&claim).await, LeaseReply::Conflict);
    assert!(is_ok(w.withdraw(&duplicate(&claim)).await));
    assert_eq!(w.outcome(&claim).await, Some(succeeded("done")));
}
