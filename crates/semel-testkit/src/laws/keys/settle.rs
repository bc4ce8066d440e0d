//! What a person or a hook decides about an unknown key.

use semel_core::KeyStoreExt;
use semel_core::claim::{Claim, ClaimReply, LeaseReply, Settlement, Token, Verdict, succeeded};

use super::{KEEP, World, duplicate, is_ok};

async fn settle(w: &World, claim: &Claim, token: Token, verdict: Verdict) -> LeaseReply {
    let settlement = Settlement {
        key: claim.key.clone(),
        token,
        verdict,
        keep: KEEP,
    };
    w.store.settle(&settlement).await.unwrap()
}

fn happened(output: &'static str) -> Verdict {
    Verdict::Happened(succeeded(output))
}

/// It happened: duplicates get the outcome found, the lost owner a conflict if it disagrees. Repeating is `Ok`.
pub async fn settled_outcome_is_given_to_duplicates(w: &World) {
    let claim = w.request();
    let lease = w.granted(&claim).await;
    let early = settle(w, &claim, lease.token, happened("found")).await;
    assert_eq!(early, LeaseReply::LeaseLost, "only an unknown key is settled");
    w.lease_ends().await;
    for _ in 0..2 {
        assert!(is_ok(settle(w, &claim, lease.token, happened("found")).await));
    }
    assert_eq!(w.outcome(&claim).await, Some(succeeded("found")));
    assert!(is_ok(w.complete(&claim, lease, "found").await));
    let other = w.complete(&claim, lease, "other").await;
    assert_eq!(other, LeaseReply::Conflict);
    assert_eq!(w.extend(&claim, lease).await, LeaseReply::LeaseLost);
    for verdict in [Verdict::DidNotHappen, happened("other")] {
        let other = settle(w, &claim, lease.token, verdict).await;
        assert_eq!(other, LeaseReply::Conflict);
    }
}

/// Nothing happened: the key may be claimed again, the lost owner may not complete. Repeating is `Ok`.
pub async fn settled_as_not_happened_the_key_is_free(w: &World) {
    let claim = w.request();
    let lost = w.granted(&claim).await;
    w.lease_ends().await;
    w.sweep().await;
    for _ in 0..2 {
        assert!(is_ok(settle(w, &claim, lost.token, Verdict::DidNotHappen).await));
    }
    let late = w.complete(&claim, lost, "too late").await;
    assert_eq!(late, LeaseReply::LeaseLost);
    let late = settle(w, &claim, lost.token, happened("too late")).await;
    assert_eq!(late, LeaseReply::LeaseLost);
    let next = w.granted(&duplicate(&claim)).await;
    assert!(next.token > lost.token);
}

/// A verdict names the run it judges; a later run that is unknown, too, waits for its own.
pub async fn settlement_of_an_older_run_touches_no_later_one(w: &World) {
    let claim = w.request();
    let first = w.granted(&claim).await;
    w.lease_ends().await;
    assert!(is_ok(settle(w, &claim, first.token, Verdict::DidNotHappen).await));
    let second = w.granted(&duplicate(&claim)).await;
    w.lease_ends().await;
    for verdict in [happened("old"), Verdict::DidNotHappen] {
        let reply = settle(w, &claim, first.token, verdict).await;
        assert_eq!(reply, LeaseReply::LeaseLost);
    }
    let reply = w.claim(&duplicate(&claim)).await;
    assert_eq!(reply, ClaimReply::Unknown { token: second.token });
}
