//! What a person or a hook decides about an unknown key.

use semel_core::claim::{Claim, ClaimReply, LeaseReply, Settlement, StateName, Token, Verdict, succeeded};
use semel_core::{Fingerprint, KeyStoreExt};

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

/// Rule K13: of a key that is done, running or unknown nothing can be read any more, and nobody runs it again.
pub async fn closed_key_keeps_a_tombstone_and_no_outcome_whatever_it_was(w: &World) {
    let (done, running, unknown) = (w.request(), w.request(), w.request());
    let finished = w.granted(&done).await;
    assert!(is_ok(w.complete(&done, finished, "secret").await));
    let lost = w.granted(&unknown).await;
    w.lease_ends().await;
    let runs = w.granted(&running).await;
    for (claim, lease) in [(&done, finished), (&running, runs), (&unknown, lost)] {
        assert!(is_ok(settle(w, claim, lease.token, Verdict::Closed).await));
        let reply = w.claim(&duplicate(claim)).await;
        assert!(matches!(reply, ClaimReply::Gone { .. }), "{reply:?}");
        let record = w.store.read(&claim.key).await.unwrap().unwrap();
        assert_eq!(record.state.name(), Some(StateName::Tombstone));
        assert_eq!(record.outcome_bytes(), 0);
    }
    // A run that was on its way stores nothing; the answer to a completion that was stored can still be asked for again.
    for (claim, lease) in [(&running, runs), (&unknown, lost)] {
        assert_eq!(w.complete(claim, lease, "late").await, LeaseReply::Conflict);
        assert_eq!(w.extend(claim, lease).await, LeaseReply::LeaseLost);
    }
    assert!(is_ok(w.complete(&done, finished, "secret").await));
    let other = Claim {
        fingerprint: Fingerprint::of(b"another request"),
        ..duplicate(&done)
    };
    assert_eq!(w.claim(&other).await, ClaimReply::Mismatch);
    // And the tombstone has an end: nothing is left then.
    w.pass_ms(KEEP.retention_ms + KEEP.tombstone_ms).await;
    let next = w.granted(&duplicate(&done)).await;
    assert!(next.token > finished.token);
}

/// A later run is not touched; an absent key is closed already, and so is a closed one.
pub async fn closing_names_the_run_that_was_seen_and_can_be_repeated(w: &World) {
    let claim = w.request();
    assert!(is_ok(settle(w, &claim, Token(1), Verdict::Closed).await));
    let lease = w.granted(&claim).await;
    let stale = Token(lease.token.0 - 1);
    assert_eq!(
        settle(w, &claim, stale, Verdict::Closed).await,
        LeaseReply::LeaseLost
    );
    assert!(is_ok(w.complete(&claim, lease, "kept").await));
    assert_eq!(
        settle(w, &claim, stale, Verdict::Closed).await,
        LeaseReply::LeaseLost
    );
    assert_eq!(w.outcome(&claim).await, Some(succeeded("kept")));
    for _ in 0..2 {
        assert!(is_ok(settle(w, &claim, lease.token, Verdict::Closed).await));
    }
    for verdict in [Verdict::DidNotHappen, happened("other")] {
        assert_eq!(
            settle(w, &claim, lease.token, verdict).await,
            LeaseReply::Conflict
        );
    }
}
