//! Callers that leave, and a batcher that is closed.

use semel_core::claim::{Claim, ClaimReply, Extension, State};
use semel_core::{KeyStore as _, KeyStoreExt as _, LeaseReply, Nonce, Release};

use super::held;
use crate::support::{completion, request};

/// Rule K3: a caller that had no answer in time asks again with its nonce and runs. The batcher must not withdraw it, or
/// somebody else would run, too.
#[tokio::test]
async fn a_caller_that_left_and_asks_again_with_its_nonce_keeps_its_grant() {
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
    let reply = store.claim(&claim).await.unwrap();
    assert!(matches!(reply, ClaimReply::Granted { .. }), "{reply:?}");
    store.close().await;
    assert_eq!(inner.calls("release"), 0);
    let somebody_else = Claim {
        nonce: Nonce::random(),
        ..claim
    };
    let reply = inner.claim(&somebody_else).await.unwrap();
    assert!(matches!(reply, ClaimReply::Busy { .. }), "{reply:?}");
}

/// The answer has arrived, and its caller goes without having looked at it.
#[tokio::test]
async fn a_grant_that_nobody_took_stays_its_owners() {
    let (store, inner) = held(|_| {});
    let claim = request();
    let mut claiming = Box::pin(store.claim(&claim));
    assert!(futures_util::poll!(&mut claiming).is_pending());
    inner.called("claim", 1).await;
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    drop(claiming);
    store.close().await;
    assert_eq!(inner.calls("release"), 0);
    let reply = inner.claim(&claim).await.unwrap();
    assert!(matches!(reply, ClaimReply::Granted { .. }), "{reply:?}");
}

/// An owner that gave its run up gets its lease back by no extension that still waited.
#[tokio::test]
async fn an_extension_whose_caller_left_before_it_was_sent_is_not_sent() {
    let (store, inner) = held(|_| {});
    let running = request();
    let ClaimReply::Granted { lease, .. } = store.claim(&running).await.unwrap() else {
        panic!("not granted")
    };
    let hold = inner.hold("claim");
    let first = tokio::spawn({
        let (store, claim) = (store.clone(), request());
        async move { store.claim(&claim).await }
    });
    inner.called("claim", 2).await;
    let extension = Extension {
        key: running.key,
        lease,
        lease_ms: running.lease_ms,
    };
    let leaver = tokio::spawn({
        let store = store.clone();
        async move { store.extend(&extension).await }
    });
    while store.waiting() < 1 {
        tokio::task::yield_now().await;
    }
    leaver.abort();
    let _ = leaver.await;
    drop(hold);
    first.await.unwrap().unwrap();
    store.close().await;
    assert_eq!(inner.calls("extend"), 0);
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
