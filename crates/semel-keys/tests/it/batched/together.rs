//! What goes together, what does not, and what one item may do to its neighbours.

use std::sync::Arc;

use semel_core::claim::ClaimReply;
use semel_core::model::MemoryKeys;
use semel_core::{Claim, ErrorKind, KeyStoreExt as _, LeaseReply, Retry, StoreError};
use semel_keys::{BatchConfig, Batched};
use semel_testkit::faulty::{Fault, FaultyKeys};
use tokio::task::JoinHandle;

use super::held;
use crate::support::{completion, request};

type Store = Batched<Arc<FaultyKeys>>;
type Claiming = JoinHandle<Result<ClaimReply, StoreError>>;

fn claim_soon(store: &Store, claim: &Claim) -> Claiming {
    let (store, claim) = (store.clone(), claim.clone());
    tokio::spawn(async move { store.claim(&claim).await })
}

/// So many claims that wait behind one that is held.
async fn behind_a_held_one(store: &Store, inner: &FaultyKeys, claims: &[Claim]) -> (Claiming, Vec<Claiming>) {
    let first = claim_soon(store, &request());
    inner.called("claim", 1).await;
    let mut others = Vec::new();
    for claim in claims {
        let before = store.waiting();
        others.push(claim_soon(store, claim));
        while store.waiting() == before {
            tokio::task::yield_now().await;
        }
    }
    (first, others)
}

fn requests(count: usize) -> Vec<Claim> {
    (0..count).map(|_| request()).collect()
}

#[tokio::test]
async fn what_comes_while_a_batch_is_on_its_way_goes_together() {
    let (store, inner) = held(|_| {});
    let hold = inner.hold("claim");
    let (first, others) = behind_a_held_one(&store, &inner, &requests(20)).await;
    drop(hold);
    for claiming in std::iter::once(first).chain(others) {
        assert!(matches!(claiming.await.unwrap(), Ok(ClaimReply::Granted { .. })));
    }
    assert_eq!(inner.batches("claim"), [1, 20]);
}

#[tokio::test]
async fn a_batch_over_its_limit_of_items_or_bytes_is_split() {
    let (store, inner) = held(|config| config.items_max = Some(8));
    let hold = inner.hold("claim");
    let (_first, others) = behind_a_held_one(&store, &inner, &requests(20)).await;
    drop(hold);
    for claiming in others {
        claiming.await.unwrap().unwrap();
    }
    assert_eq!(inner.batches("claim"), [1, 8, 8, 4]);

    // A call weighs 200 bytes, its scope and its id: 221 here.
    let (store, inner) = held(|config| config.bytes_max = 700);
    let hold = inner.hold("claim");
    let (_first, others) = behind_a_held_one(&store, &inner, &requests(5)).await;
    drop(hold);
    for claiming in others {
        claiming.await.unwrap().unwrap();
    }
    assert_eq!(inner.batches("claim"), [1, 3, 2]);
}

#[tokio::test]
async fn a_full_queue_refuses_claims_by_name_but_not_the_ends_of_runs() {
    let (store, inner) = held(|config| config.queue_items_max = 3);
    let running = request();
    let ClaimReply::Granted { lease, .. } = store.claim(&running).await.unwrap() else {
        panic!("not granted")
    };
    let hold = inner.hold("claim");
    let first = claim_soon(&store, &request());
    inner.called("claim", 2).await;
    let mut others = Vec::new();
    while store.waiting() < 3 {
        others.push(claim_soon(&store, &request()));
        tokio::task::yield_now().await;
    }
    let error = store.claim(&request()).await.unwrap_err();
    assert_eq!((error.code(), error.retry()), ("SEM0110", Retry::Later));
    assert!(error.to_string().contains("queue_items_max = 3"), "{error}");
    let done = completion(&running, lease);
    let done = tokio::spawn({
        let store = store.clone();
        async move { store.complete(&done).await }
    });
    while store.waiting() < 4 {
        tokio::task::yield_now().await;
    }
    drop(hold);
    assert!(matches!(done.await.unwrap(), Ok(LeaseReply::Ok(_))));
    for claiming in others.into_iter().chain([first]) {
        claiming.await.unwrap().unwrap();
    }
}

/// One bad item never fails its neighbours, also where the store fails the whole batch with it.
#[tokio::test]
async fn an_item_that_fails_its_batch_is_found_and_fails_alone() {
    for kind in [
        ErrorKind::Constraint,
        ErrorKind::LimitExceeded,
        ErrorKind::ReplyLost,
    ] {
        let (store, inner) = held(|_| {});
        let claims = requests(20);
        inner.poison(&claims[13].key, kind);
        let hold = inner.hold("claim");
        let (_first, others) = behind_a_held_one(&store, &inner, &claims).await;
        drop(hold);
        for (n, claiming) in others.into_iter().enumerate() {
            match claiming.await.unwrap() {
                Ok(reply) => {
                    assert_ne!(n, 13);
                    let ClaimReply::Granted { lease, attempt, .. } = reply else {
                        panic!("{kind:?}, claim {n}: {reply:?}")
                    };
                    assert_eq!((lease.nonce, attempt), (claims[n].nonce, 1));
                }
                Err(error) => assert_eq!((n, error.kind()), (13, kind)),
            }
        }
        assert!(
            inner.calls("claim") < 14,
            "halves, not singles: {:?}",
            inner.batches("claim")
        );
    }
}

/// Rule K2: the reply of a batch of completions was lost though they are stored.
#[tokio::test]
async fn completions_whose_reply_is_lost_are_asked_again_and_are_ok() {
    let (store, inner) = held(|_| {});
    let mut done = Vec::new();
    for claim in requests(8) {
        let ClaimReply::Granted { lease, .. } = store.claim(&claim).await.unwrap() else {
            panic!("not granted")
        };
        done.push(completion(&claim, lease));
    }
    inner.fail("complete", Fault::ReplyLost, 1);
    let replies = semel_core::KeyStore::complete_many(&store, &done).await;
    assert!(replies.iter().all(|reply| matches!(reply, Ok(LeaseReply::Ok(_)))));
}

#[tokio::test]
async fn a_store_that_is_away_is_asked_once_per_batch() {
    let (store, inner) = held(|_| {});
    let hold = inner.hold("claim");
    let (first, others) = behind_a_held_one(&store, &inner, &requests(20)).await;
    inner.fail("claim", Fault::Down, 2);
    drop(hold);
    for claiming in others.into_iter().chain([first]) {
        let error = claiming.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    assert_eq!(inner.calls("claim"), 2);
}

#[tokio::test]
async fn a_store_that_panics_is_an_answer_lost_and_the_lane_goes_on() {
    let (store, inner) = held(|_| {});
    inner.fail("claim", Fault::Panic, 1);
    let claim = request();
    let error = store.claim(&claim).await.unwrap_err();
    assert_eq!(error.retry(), Retry::OutcomeUnknown);
    assert!(matches!(
        store.claim(&claim).await,
        Ok(ClaimReply::Granted { .. })
    ));
}

/// One commit for all kinds, where the store can do that; they are not sent one after the other.
#[tokio::test]
async fn kinds_of_one_lane_share_a_batch() {
    let inner = FaultyKeys::over(MemoryKeys::default());
    inner.mixes();
    let config = BatchConfig {
        lanes: Some(1),
        ..BatchConfig::default()
    };
    let store = Batched::with(Arc::clone(&inner), &config).unwrap();
    let running = request();
    let ClaimReply::Granted { lease, .. } = store.claim(&running).await.unwrap() else {
        panic!("not granted")
    };
    let hold = inner.hold("claim");
    let (_first, claiming) = {
        let first = claim_soon(&store, &request());
        inner.called("claim", 2).await;
        (first, claim_soon(&store, &request()))
    };
    let done = tokio::spawn({
        let (store, done) = (store.clone(), completion(&running, lease));
        async move { store.complete(&done).await }
    });
    while store.waiting() < 2 {
        tokio::task::yield_now().await;
    }
    drop(hold);
    claiming.await.unwrap().unwrap();
    assert!(matches!(done.await.unwrap(), Ok(LeaseReply::Ok(_))));
    assert_eq!(inner.batches("transact"), [1, 1, 2]);
}
