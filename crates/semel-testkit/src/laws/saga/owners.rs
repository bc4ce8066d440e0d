//! Owning sagas: claims, leases, take-overs.

use std::collections::HashSet;

use semel_core::saga::{Definition, Step};
use semel_core::store::{ClaimDue, RenewReply, SaveReply, Submission};
use semel_core::{Nonce, saga::SagaId};

use super::world::{LEASE_MS, World, first_save, id, last_save, submission};

fn ids(held: &[super::world::Held]) -> Vec<String> {
    held.iter().map(|held| held.owned.id.to_string()).collect()
}

/// What waits longest goes first.
pub async fn due_sagas_are_claimed_oldest_first_up_to_the_limit(w: &World) {
    for name in ["c", "a", "b"] {
        w.submit(name).await;
        w.pass(1_000).await;
    }
    assert_eq!(ids(&w.claim(2).await), ["c", "a"]);
    assert_eq!(ids(&w.claim(2).await), ["b"]);
    assert!(w.claim(2).await.is_empty());
}

/// A lease keeps others away, and only a lease.
pub async fn an_owned_saga_is_left_alone_until_its_lease_ends(w: &World) {
    let held = w.held("order-1").await;
    w.pass(LEASE_MS - 60_000).await;
    assert!(w.claim(10).await.is_empty());
    // A lease that has ended and that nobody took is still its owner's.
    w.pass(120_000).await;
    assert_eq!(w.save(&first_save(&held)).await, SaveReply::Saved);
    let taken = w.claim(10).await;
    assert_eq!(taken.len(), 1);
    assert_ne!(taken[0].owned, held.owned);
}

/// The epoch only grows, and the nonce is the claim's.
pub async fn every_take_over_has_a_higher_epoch(w: &World) {
    w.submit("order-1").await;
    let mut last = 0;
    for _ in 0..3 {
        let nonce = Nonce::random();
        let held = w.claim_as(1, nonce).await.remove(0);
        assert!(held.owned.epoch > last);
        last = held.owned.epoch;
        let record = w.load(&held.owned.id).await;
        assert_eq!((record.epoch, record.owner), (last, Some(nonce)));
        w.pass(LEASE_MS + 1).await;
    }
}

/// Many claimants at once: each saga goes to one.
pub async fn claims_at_once_share_nothing(w: &World) {
    let batch: Vec<Submission> = (0..60)
        .map(|n| submission(&id(&format!("order-{n}")), "{}"))
        .collect();
    w.store.submit_sagas(&batch).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = w.store.clone();
        tasks.spawn(async move {
            let mut mine: Vec<SagaId> = Vec::new();
            loop {
                let nonce = Nonce::random();
                let claim = ClaimDue {
                    nonce,
                    lease_ms: LEASE_MS,
                    limit: 5,
                    unserved: Vec::new(),
                    grace_ms: 0,
                };
                let claimed = store.claim_sagas(&claim).await.unwrap().sagas;
                if claimed.is_empty() {
                    return mine;
                }
                mine.extend(claimed.into_iter().map(|saga| saga.id));
            }
        });
    }
    let all: Vec<SagaId> = tasks.join_all().await.concat();
    // A claimant may find rows of another's claim in its way and see nothing; what is left goes to the next.
    let rest = w.claim(100).await.into_iter().map(|held| held.owned.id);
    let all: Vec<SagaId> = all.into_iter().chain(rest).collect();
    assert_eq!((all.len(), all.iter().collect::<HashSet<_>>().len()), (60, 60));
}

/// Rule S8.
pub async fn unserved_definitions_are_left_to_others_for_a_grace(w: &World) {
    let other = Definition::new("other")
        .step(Step::new("look", "do").read_only())
        .check()
        .unwrap();
    let mine = submission(&id("mine"), "{}");
    let theirs = Submission {
        definition: other.clone(),
        ..submission(&id("theirs"), "{}")
    };
    w.store.submit_sagas(&[theirs, mine]).await.unwrap();
    let claim = || ClaimDue {
        nonce: Nonce::random(),
        lease_ms: LEASE_MS,
        limit: 10,
        unserved: vec![[7; 32], other.hash()],
        grace_ms: 60_000,
    };
    let names = |sagas: &[semel_core::store::SagaRecord]| {
        sagas.iter().map(|saga| saga.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(
        names(&w.store.claim_sagas(&claim()).await.unwrap().sagas),
        ["mine"]
    );
    w.pass(61_000).await;
    assert_eq!(
        names(&w.store.claim_sagas(&claim()).await.unwrap().sagas),
        ["theirs"]
    );
}

/// A renewal counts from now, and tells of what others wrote.
pub async fn a_renewal_keeps_a_saga_and_tells_its_version(w: &World) {
    let held = w.held("order-1").await;
    let stranger = semel_core::store::Ownership {
        nonce: Nonce::random(),
        ..held.owned.clone()
    };
    let older = semel_core::store::Ownership {
        epoch: held.owned.epoch - 1,
        ..held.owned.clone()
    };
    w.pass(LEASE_MS - 1_000).await;
    let replies = w
        .store
        .renew_sagas(&[stranger, held.owned.clone(), older], LEASE_MS)
        .await
        .unwrap();
    assert_eq!(
        replies,
        [
            RenewReply::Lost,
            RenewReply::Renewed { version: 1 },
            RenewReply::Lost
        ]
    );
    w.pass(LEASE_MS - 1_000).await;
    assert!(w.claim(10).await.is_empty());
    assert_eq!(w.save(&last_save(&held, 1)).await, SaveReply::Saved);
    let ended = w.store.renew_sagas(&[held.owned], LEASE_MS).await.unwrap();
    assert_eq!(ended, [RenewReply::Lost]);
}

/// A stopping owner makes nobody wait; a stranger cannot give away what is not its own.
pub async fn a_saga_given_back_is_free_at_once(w: &World) {
    let held = w.held("order-1").await;
    let stranger = semel_core::store::Ownership {
        nonce: Nonce::random(),
        ..held.owned.clone()
    };
    w.store.release_sagas(&[stranger]).await.unwrap();
    assert!(w.claim(10).await.is_empty());
    w.store
        .release_sagas(std::slice::from_ref(&held.owned))
        .await
        .unwrap();
    assert_eq!(
        w.save(&first_save(&held)).await,
        SaveReply::Lost,
        "it is nobody's"
    );
    assert_eq!(w.claim(10).await.len(), 1);
}
