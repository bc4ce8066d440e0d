//! Answers that never come, and drivers that are gone.

use std::time::Duration;

use semel_core::claim::ClaimReply;
use semel_core::{ErrorKind, KeyStore as _, KeyStoreExt as _, Retry, StoreError};
use semel_testkit::faulty::Fault;
use tokio::runtime::{Builder, Runtime};

use super::held;
use crate::support::request;

fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

/// What comes within a time in which a lane that hangs gives no answer.
async fn soon<T>(answer: impl Future<Output = T>) -> T {
    let answer = tokio::time::timeout(Duration::from_secs(20), answer);
    answer.await.expect("the lane hangs")
}

/// The batch was committed and its reply lost; that the repeat did not reach the store does not undo it.
#[tokio::test]
async fn a_repeat_that_fails_does_not_make_a_lost_answer_certain() {
    let (store, inner) = held(|_| {});
    let claims = [request(), request()];
    inner.poison(&claims[0].key, ErrorKind::ReplyLost);
    // Only the second half meets it: the calls before it hold the poisoned key.
    inner.fail("claim", Fault::Down, 3);
    let replies = store.claim_many(&claims).await;
    assert_eq!(inner.batches("claim"), [2, 1, 1]);
    for reply in replies {
        assert_eq!(reply.unwrap_err().retry(), Retry::OutcomeUnknown);
    }
}

/// A host that vanished without a word holds the lane only so long, and is not asked once per item.
#[tokio::test]
async fn a_batch_without_an_answer_ends_by_its_limit_and_the_lane_goes_on() {
    let (store, inner) = held(|config| config.batch_ms_max = 100);
    let claims = [request(), request()];
    inner.fail("claim", Fault::Silent, 1);
    for reply in soon(store.claim_many(&claims)).await {
        let error = reply.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReplyLost);
        assert!(error.to_string().contains("batch_ms_max = 100 ms"), "{error}");
    }
    assert_eq!(inner.batches("claim"), [2], "not asked again in halves");
    for claim in &claims {
        let reply = soon(store.claim(claim)).await.unwrap();
        assert!(matches!(reply, ClaimReply::Granted { .. }), "{reply:?}");
    }
    inner.fail("read", Fault::Silent, 1);
    let error = soon(store.read(&claims[0].key)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReplyLost);
    soon(store.read(&claims[0].key)).await.unwrap();
}

/// The first repeat of a batch that failed for certain hangs: the others are not tried one time after the other.
#[tokio::test]
async fn a_repeat_without_an_answer_ends_the_repeats() {
    let (store, inner) = held(|config| config.batch_ms_max = 100);
    let claims = [request(), request(), request(), request()];
    inner.poison(&claims[3].key, ErrorKind::Constraint);
    inner.fail("claim", Fault::Silent, 2);
    let errors: Vec<StoreError> = soon(store.claim_many(&claims))
        .await
        .into_iter()
        .map(Result::unwrap_err)
        .collect();
    assert_eq!(inner.batches("claim"), [4, 2]);
    let retries: Vec<Retry> = errors.iter().map(StoreError::retry).collect();
    let unknown = Retry::OutcomeUnknown;
    assert_eq!(retries, [unknown, unknown, Retry::Later, Retry::Later]);
}

#[test]
fn a_runtime_that_ended_loses_answers_and_hangs_nobody() {
    let (theirs, ours) = (runtime(), runtime());
    let (store, inner) = theirs.block_on(async { held(|_| {}) });
    let _hold = inner.hold("claim");
    let call = || {
        let store = store.clone();
        ours.spawn(async move { store.claim(&request()).await })
    };
    let sent = call();
    ours.block_on(soon(inner.called("claim", 1)));
    let waits = call();
    ours.block_on(soon(async {
        while store.waiting() == 0 {
            tokio::task::yield_now().await;
        }
    }));
    theirs.shutdown_timeout(Duration::from_secs(10));
    for call in [sent, waits] {
        let error = ours.block_on(soon(call)).unwrap().unwrap_err();
        assert_eq!(error.retry(), Retry::OutcomeUnknown);
    }
    // The lane was reset, and there is no runtime to begin again on.
    let error = ours.block_on(soon(store.claim(&request()))).unwrap_err();
    assert_eq!(error.retry(), Retry::OutcomeUnknown);
    ours.block_on(soon(store.close()));
}
