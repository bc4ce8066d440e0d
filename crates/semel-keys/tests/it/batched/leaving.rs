//! Callers that leave, and a batcher that is closed.

use std::time::Duration;

use semel_core::claim::{ClaimReply, State};
use semel_core::{KeyStore as _, KeyStoreExt as _, LeaseReply, Nonce, Release};

use super::held;
use crate::support::{completion, request};

/// Rule K4, without a word from the caller.
#[tokio::test]
async fn a_claim_whose_caller_left_before_the_answer_is_given_back() {
    let (store, inner) = held(|_| {});
    let claim = request();
    let hold = inner.hold("claim");
    let leaver = tokio::spawn({
        let (store, claim) = (store.clone(), claim.clone());
        async move { store.claim(&claim).await }
    });
    inner.called("claim", 1).await;
    leaver.abort();
    assert!(leaver.await.unwrap_err().is_cancelled());
    drop(hold);
    inner.called("release", 1).await;
    let again = semel_core::Claim {
        nonce: Nonce::random(),
        ..claim
    };
    let reply = tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            match store.claim(&again).await.unwrap() {
                ClaimReply::Busy { .. } => tokio::task::yield_now().await,
                reply => return reply,
            }
        }
    });
    assert!(matches!(reply.await.unwrap(), ClaimReply::Granted { .. }));
}

/// The answer has arrived, and its caller goes without having looked at it.
#[tokio::test]
async fn a_grant_that_nobody_took_is_given_back() {
    let (store, inner) = held(|_| {});
    let claim = request();
    let mut claiming = Box::pin(store.claim(&claim));
    assert!(futures_util::poll!(&mut claiming).is_pending());
    inner.called("claim", 1).await;
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    drop(claiming);
    inner.called("release", 1).await;
    store.close().await;
    assert_eq!(inner.read(&claim.key).await.unwrap(), None);
}

#[tokio::test]
async fn a_claim_whose_caller_left_before_it_was_sent_is_not_sent() {
    let (store, inner) = held(|_| {});
    let hold = inner.hold("claim");
    let spawn = || {
        let (store, claim) = (store.clone(), request());
        tokio::spawn(async move { store.claim(&claim).await })
    };
    let first = spawn();
    inner.called("claim", 1).await;
    let (leaver, stayer) = (spawn(), spawn());
    while store.waiting() < 2 {
        tokio::task::yield_now().await;
    }
    leaver.abort();
    let _ = leaver.await;
    drop(hold);
    stayer.await.unwrap().unwrap();
    first.await.unwrap().unwrap();
    assert_eq!(inner.batches("claim"), [1, 1]);
    assert_eq!(inner.calls("release"), 0);
}

/// A caller that gives up and withdraws, as the contract asks, is served as well.
#[tokio::test]
async fn a_withdrawal_is_never_overtaken_by_its_claim() {
    let (store, inner) = held(|_| {});
    let claim = request();
    let hold = inner.hold("claim");
    let leaver = tokio::spawn({
        let (store, claim) = (store.clone(), claim.clone());
        async move { store.claim(&claim).await }
    });
    inner.called("claim", 1).await;
    leaver.abort();
    let _ = leaver.await;
    let withdrawal = Release {
        key: claim.key.clone(),
        nonce: claim.nonce,
        token: None,
    };
    let withdrawn = tokio::spawn({
        let store = store.clone();
        async move { store.release(&withdrawal).await }
    });
    while store.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    drop(hold);
    assert!(matches!(withdrawn.await.unwrap(), Ok(LeaseReply::Ok(_))));
    assert_eq!(store.claim(&claim).await.unwrap(), ClaimReply::Withdrawn);
}

#[tokio::test]
async fn a_completion_whose_caller_left_is_stored() {
    let (store, inner) = held(|_| {});
    let claim = request();
    let ClaimReply::Granted { lease, .. } = store.claim(&claim).await.unwrap() else {
        panic!("not granted")
    };
    let hold = inner.hold("complete");
    let leaver = tokio::spawn({
        let (store, done) = (store.clone(), completion(&claim, lease));
        async move { store.complete(&done).await }
    });
    inner.called("complete", 1).await;
    leaver.abort();
    let _ = leaver.await;
    drop(hold);
    store.close().await;
    let record = inner.read(&claim.key).await.unwrap().unwrap();
    assert!(matches!(record.state, State::Done { .. }));
}

#[tokio::test]
async fn closing_answers_what_was_let_in_and_refuses_the_rest() {
    let (store, inner) = held(|_| {});
    let hold = inner.hold("claim");
    let spawn = || {
        let (store, claim) = (store.clone(), request());
        tokio::spawn(async move { store.claim(&claim).await })
    };
    let first = spawn();
    inner.called("claim", 1).await;
    let second = spawn();
    while store.waiting() < 1 {
        tokio::task::yield_now().await;
    }
    let closing = tokio::spawn({
        let store = store.clone();
        async move { store.close().await }
    });
    tokio::task::yield_now().await;
    let error = store.claim(&request()).await.unwrap_err();
    assert!(error.to_string().contains("closed; nothing was done"), "{error}");
    drop(hold);
    closing.await.unwrap();
    for claiming in [first, second] {
        assert!(matches!(claiming.await.unwrap(), Ok(ClaimReply::Granted { .. })));
    }
    assert!(store.claim_many(&[request()]).await[0].is_err());
}
