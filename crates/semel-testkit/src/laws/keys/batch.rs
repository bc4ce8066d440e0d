//! Many at once.

use semel_core::claim::{Claim, ClaimReply, Completion, Lease, LeaseReply, succeeded};
use semel_core::limits::{BATCH_ITEMS_MAX, LEASE_MS_MAX, OUTCOME_BYTES_MAX};
use semel_core::{ErrorKind, KeyStoreExt, StoredOutcome};

use super::{KEEP, World, duplicate, is_ok, other_request};

fn completion(claim: &Claim, lease: Lease, outcome: StoredOutcome) -> Completion {
    Completion {
        key: claim.key.clone(),
        lease,
        outcome,
        keep: KEEP,
    }
}

/// The same key several times in a batch is decided as if the items had come one by one (rule K2).
pub async fn same_key_twice_in_a_batch_is_decided_in_order(w: &World) {
    let (one, two) = (w.request(), w.request());
    let claims = [
        one.clone(),
        two.clone(),
        duplicate(&one),
        other_request(&one),
        one.clone(),
        two.clone(),
    ];
    let replies = w.store.claim_many(&claims).await;
    let replies: Vec<_> = replies.into_iter().map(Result::unwrap).collect();
    let ClaimReply::Granted { lease, .. } = replies[0] else {
        panic!("{replies:?}")
    };
    assert!(matches!(replies[1], ClaimReply::Granted { .. }), "{replies:?}");
    assert!(matches!(replies[2], ClaimReply::Busy { .. }), "{replies:?}");
    assert_eq!(replies[3], ClaimReply::Mismatch);
    assert_eq!(replies[4], replies[0], "the same nonce again");
    assert_eq!(replies[5], replies[1], "the same nonce again");

    let done = [
        completion(&one, lease, succeeded("first")),
        completion(&one, lease, succeeded("second")),
        completion(&one, lease, succeeded("first")),
    ];
    let replies = w.store.complete_many(&done).await;
    let replies: Vec<_> = replies.into_iter().map(Result::unwrap).collect();
    assert!(is_ok(replies[0]));
    assert_eq!(replies[1], LeaseReply::Conflict);
    assert_eq!(replies[2], replies[0]);
    assert_eq!(w.outcome(&one).await, Some(succeeded("first")));
}

/// An item outside its limits is refused with the limit's name; the others are carried out.
pub async fn refused_item_does_not_fail_its_neighbours(w: &World) {
    let good = w.request();
    let zero = Claim {
        lease_ms: 0,
        ..w.request()
    };
    let long = Claim {
        lease_ms: LEASE_MS_MAX + 1,
        ..w.request()
    };
    let replies = w.store.claim_many(&[zero.clone(), good.clone(), long]).await;
    for (n, part) in [(0, "lease: 0 ms"), (2, "lease: 86400001 ms")] {
        let error = replies[n].as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        assert!(error.to_string().contains(part), "{error}");
    }
    let Ok(ClaimReply::Granted { lease, .. }) = replies[1] else {
        panic!("{replies:?}")
    };
    assert_eq!(w.read(&zero).await, None);

    let large = StoredOutcome::Succeeded(vec![0; OUTCOME_BYTES_MAX + 1].into());
    let done = [
        completion(&good, lease, large),
        completion(&good, lease, succeeded("small")),
    ];
    let replies = w.store.complete_many(&done).await;
    let error = replies[0].as_ref().unwrap_err();
    assert!(error.to_string().contains("outcome: 1048577 bytes"), "{error}");
    assert!(is_ok(*replies[1].as_ref().unwrap()));
}

/// Too many at once: all are refused, nothing is done.
pub async fn batch_over_the_limit_is_refused_and_names_the_limit(w: &World) {
    let claims: Vec<Claim> = (0..=BATCH_ITEMS_MAX).map(|_| w.request()).collect();
    let replies = w.store.claim_many(&claims).await;
    assert_eq!(replies.len(), claims.len());
    for reply in &replies {
        let error = reply.as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        assert!(error.to_string().contains("batch: 1001 items"), "{error}");
    }
    assert_eq!(w.store.read(&claims[0].key).await.unwrap(), None);
    assert!(w.store.claim_many(&[]).await.is_empty());
}

/// The largest batch there is: every item gets its own answer, in the order asked.
pub async fn full_batch_is_answered_in_order(w: &World) {
    let claims: Vec<Claim> = (0..BATCH_ITEMS_MAX).map(|_| w.request()).collect();
    let mut done = Vec::new();
    for (claim, reply) in claims.iter().zip(w.store.claim_many(&claims).await) {
        let Ok(ClaimReply::Granted { lease, .. }) = reply else {
            panic!("{reply:?}")
        };
        assert_eq!(lease.nonce, claim.nonce, "answered in order");
        done.push(completion(claim, lease, succeeded(claim.key.id().to_vec())));
    }
    for reply in w.store.complete_many(&done).await {
        assert!(is_ok(reply.unwrap()));
    }
    for (claim, reply) in claims.iter().zip(w.store.claim_many(&claims).await) {
        let Ok(ClaimReply::Done { outcome, .. }) = reply else {
            panic!("{reply:?}")
        };
        assert_eq!(outcome, succeeded(claim.key.id().to_vec()));
    }
}
