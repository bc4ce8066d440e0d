//! When a saga is whose: due times, leases, ends.

use semel_core::Timestamp;
use semel_core::saga::Status;
use semel_core::store::{RenewReply, RequestReply, SagaRequest, Save, SaveReply};

use super::world::{LEASE_MS, World, id, last_save, moved, submission};

/// What is due later is claimed later; what nothing will happen to by itself, never.
pub async fn only_what_is_due_is_claimed(w: &World) {
    let held = w.held("order-1").await;
    let now = w.store.saga_time().await.unwrap();
    let sleeps = Save {
        due_at: Some(now.plus_ms(60_000)),
        release: true,
        ..moved(&held, 1, Status::Waiting)
    };
    assert_eq!(w.save(&sleeps).await, SaveReply::Saved);
    w.pass(30_000).await;
    assert!(w.claim(10).await.is_empty());
    w.pass(31_000).await;
    let held = w.claim(10).await.remove(0);
    let stuck = Save {
        due_at: None,
        release: true,
        ..moved(&held, 2, Status::Stuck)
    };
    assert_eq!(w.save(&stuck).await, SaveReply::Saved);
    w.pass(400 * 86_400_000).await;
    assert!(w.claim(10).await.is_empty());
}

/// Both must be over: the owner's lease, and the wait.
pub async fn a_saga_that_becomes_due_while_it_is_owned_waits_for_the_lease(w: &World) {
    let held = w.held("order-1").await;
    let now = w.store.saga_time().await.unwrap();
    let later = Save {
        due_at: Some(now.plus_ms(LEASE_MS * 2)),
        ..moved(&held, 1, Status::Waiting)
    };
    assert_eq!(w.save(&later).await, SaveReply::Saved);
    w.pass(LEASE_MS + 60_000).await;
    assert!(
        w.claim(10).await.is_empty(),
        "its lease is over, but it is not due"
    );
    w.pass(LEASE_MS).await;
    let held = w.claim(10).await.remove(0);
    assert_eq!(held.record.version, 2);
    // And the other way round: due at once, under a lease that is renewed.
    assert_eq!(w.save(&moved(&held, 2, Status::Running)).await, SaveReply::Saved);
    for _ in 0..3 {
        w.pass(LEASE_MS - 60_000).await;
        let renewed = w
            .store
            .renew_sagas(std::slice::from_ref(&held.owned), LEASE_MS)
            .await;
        assert_eq!(renewed.unwrap(), [RenewReply::Renewed { version: 3 }]);
        assert!(w.claim(10).await.is_empty());
    }
}

/// A saga accepted as owned stays with its owner for the lease that it named.
pub async fn a_claimed_submission_is_free_when_its_lease_ends(w: &World) {
    let submission = w
        .claimed_submission(&id("order-1"), semel_core::Nonce::random())
        .await;
    w.store.submit_sagas(&[submission]).await.unwrap();
    w.pass(LEASE_MS - 60_000).await;
    assert!(w.claim(10).await.is_empty());
    w.pass(61_000).await;
    assert_eq!(w.claim(10).await[0].owned.epoch, 2);
}

/// After a take-over nothing that the old owner decided is written, whatever version it names.
pub async fn a_stale_owner_changes_nothing(w: &World) {
    let slow = w.held("order-1").await;
    w.pass(LEASE_MS + 1).await;
    let fast = w.claim(1).await.remove(0);
    for version in 0..4 {
        assert_eq!(
            w.save(&moved(&slow, version, Status::Completed)).await,
            SaveReply::Lost
        );
    }
    assert_eq!(w.save(&moved(&fast, 1, Status::Waiting)).await, SaveReply::Saved);
    assert_eq!(w.save(&moved(&slow, 2, Status::Stuck)).await, SaveReply::Lost);
    w.store
        .release_sagas(std::slice::from_ref(&slow.owned))
        .await
        .unwrap();
    let saga = w.load(&slow.owned.id).await;
    assert_eq!((saga.status, saga.version, saga.epoch), (Status::Waiting, 2, 2));
    assert_eq!(saga.owner, Some(fast.owned.nonce));
}

/// However it ended.
pub async fn every_end_is_an_end(w: &World) {
    for status in Status::ALL.into_iter().filter(|status| status.is_terminal()) {
        let held = w.held(status.as_str()).await;
        let end = Save {
            // A due time that came with it does not count.
            due_at: Some(held.record.accepted_at),
            ..moved(&held, 1, status)
        };
        assert_eq!(w.save(&end).await, SaveReply::Saved);
        assert_eq!(w.load(&held.owned.id).await.due_at, None);
        assert_eq!(w.save(&moved(&held, 2, Status::Running)).await, SaveReply::Lost);
        let renewed = w
            .store
            .renew_sagas(std::slice::from_ref(&held.owned), LEASE_MS)
            .await;
        assert_eq!(renewed.unwrap(), [RenewReply::Lost]);
        let retry = SagaRequest::Retry { by: "ann".into() };
        let reply = w.store.request_saga(&held.owned.id, &retry).await.unwrap();
        assert_eq!(reply, RequestReply::Ended(status));
        w.pass(LEASE_MS + 1).await;
        assert!(w.claim(10).await.is_empty());
        let replies = w.store.submit_sagas(&[submission(&held.owned.id, "{}")]).await;
        assert_eq!(
            replies.unwrap(),
            [semel_core::store::SubmitReply::Existing(status)]
        );
    }
}

/// Microseconds are kept, from 1970 to far ahead.
pub async fn any_due_time_is_kept(w: &World) {
    let held = w.held("order-1").await;
    for (version, due_at) in (1..).zip([0, 1, 1_800_000_000_123_457, 4_102_444_800_999_999]) {
        let save = Save {
            due_at: Some(Timestamp(due_at)),
            ..moved(&held, version, Status::Waiting)
        };
        assert_eq!(w.save(&save).await, SaveReply::Saved);
        assert_eq!(w.load(&held.owned.id).await.due_at, save.due_at);
    }
}

/// A parking write that was decided before the request must not put the saga to sleep over it.
pub async fn a_request_is_never_slept_over(w: &World) {
    let held = w.held("order-1").await;
    let cancel = SagaRequest::Cancel {
        by: "ann".into(),
        why: "'no' \u{e9}".into(),
    };
    w.store.request_saga(&held.owned.id, &cancel).await.unwrap();
    let parks = Save {
        due_at: None,
        release: true,
        ..moved(&held, 1, Status::Stuck)
    };
    assert_eq!(w.save(&parks).await, SaveReply::WrongVersion);
    let renewed = w
        .store
        .renew_sagas(std::slice::from_ref(&held.owned), LEASE_MS)
        .await;
    assert_eq!(renewed.unwrap(), [RenewReply::Renewed { version: 2 }]);
    w.store.release_sagas(&[held.owned]).await.unwrap();
    let next = w.claim(10).await.remove(0);
    assert_eq!(next.record.requests[0].request, cancel);
}

/// However many ask at once, each request raises the version and comes with it, whoever claims in between.
pub async fn requests_and_claims_at_once_miss_nothing(w: &World) {
    const REQUESTS: usize = 40;
    let saga = w.submit("order-1").await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..REQUESTS {
        let (store, saga) = (w.store.clone(), saga.clone());
        tasks.spawn(async move {
            let cancel = SagaRequest::Cancel {
                by: "ann".into(),
                why: n.to_string(),
            };
            store.request_saga(&saga, &cancel).await.unwrap()
        });
    }
    let mut seen = 0;
    while seen < REQUESTS {
        tokio::task::yield_now().await;
        for held in w.claim(1).await {
            let requests = &held.record.requests;
            assert_eq!(requests.len() as i64, held.record.version - 1);
            assert!(requests.is_sorted_by(|a, b| a.n < b.n));
            assert!(requests.len() >= seen);
            seen = requests.len();
            w.store.release_sagas(&[held.owned]).await.unwrap();
        }
    }
    assert!(
        tasks
            .join_all()
            .await
            .iter()
            .all(|reply| *reply == RequestReply::Noted)
    );
    let held = w.claim(1).await.remove(0);
    let end = Save {
        requests_done: i64::MAX,
        ..last_save(&held, held.record.version)
    };
    assert_eq!(w.save(&end).await, SaveReply::Saved);
    assert!(w.load(&saga).await.requests.is_empty());
}
