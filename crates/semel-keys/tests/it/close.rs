//! Closing the scope of a principal that is gone.

use semel_core::claim::{Claim, ClaimReply, Keep, LeaseReply, Nonce, StateName};
use semel_core::model::MemoryKeys;
use semel_core::store::KeyQuery;
use semel_core::{ErrorKind, Key, KeyStore, KeyStoreExt as _, Retry, Scope, StoreError};
use semel_keys::{Batched, close_scope, close_some};
use semel_testkit::faulty::FaultyKeys;
use semel_testkit::laws::keys::KEEP;

use crate::support::{completion, request, sqlite};

fn of(scope: &str, id: &str) -> Claim {
    let key = Key::new(Scope::new(scope).unwrap(), id).unwrap();
    Claim { key, ..request() }
}

async fn done(store: &dyn KeyStore, claim: &Claim) {
    let ClaimReply::Granted { lease, .. } = store.claim(claim).await.unwrap() else {
        panic!("not granted")
    };
    let reply = store.complete(&completion(claim, lease)).await.unwrap();
    assert!(matches!(reply, LeaseReply::Ok(_)));
}

/// Rule K13: the principal is deleted and its name given out again.
async fn a_principal_of_the_same_name_never_reads_what_its_predecessor_left(store: &dyn KeyStore) {
    let ids: Vec<String> = (0..230).map(|n| format!("order-{n}")).collect();
    for id in &ids {
        done(store, &of("ada", id)).await;
    }
    let running = of("ada", "still-running");
    assert!(matches!(
        store.claim(&running).await,
        Ok(ClaimReply::Granted { .. })
    ));
    done(store, &of("adam", "order-1")).await;

    let scope = Scope::new("ada").unwrap();
    assert_eq!(close_scope(store, &scope, KEEP).await.unwrap(), 231);
    assert_eq!(close_scope(store, &scope, KEEP).await.unwrap(), 0, "it is closed");
    for id in ids.iter().map(String::as_str).chain(["still-running"]) {
        let again = store.claim(&of("ada", id)).await.unwrap();
        assert!(matches!(again, ClaimReply::Gone { .. }), "{id}: {again:?}");
    }
    // A request of another kind under an old key is no more welcome, and learns no more.
    let other = Claim {
        fingerprint: semel_core::Fingerprint::of(b"another request"),
        ..of("ada", "order-7")
    };
    assert_eq!(store.claim(&other).await.unwrap(), ClaimReply::Mismatch);
    // New keys and other scopes are as ever.
    done(store, &of("ada", "order-230")).await;
    let theirs = store.claim(&of("adam", "order-1")).await.unwrap();
    assert!(matches!(theirs, ClaimReply::Done { .. }));
    let left = KeyQuery {
        scope: Some(scope),
        state: Some(StateName::Done),
        from: None,
        limit: 1_000,
    };
    assert_eq!(store.list(&left).await.unwrap().records.len(), 1);
}

#[tokio::test]
async fn in_memory_a_principal_of_the_same_name_never_reads_what_its_predecessor_left() {
    a_principal_of_the_same_name_never_reads_what_its_predecessor_left(&MemoryKeys::default()).await;
}

#[tokio::test]
async fn in_a_file_and_behind_the_batcher_likewise() {
    let (db, _clock, _folder) = sqlite().await;
    a_principal_of_the_same_name_never_reads_what_its_predecessor_left(&Batched::new(db)).await;
}

#[tokio::test]
async fn a_step_takes_no_more_than_its_limit_and_says_where_the_next_begins() {
    let store = MemoryKeys::default();
    for n in 0..5 {
        done(&store, &of("ada", &format!("order-{n}"))).await;
    }
    let scope = Scope::new("ada").unwrap();
    let (mut from, mut steps, mut closed) = (None, 0, 0);
    loop {
        let step = close_some(&store, &scope, KEEP, from, 2).await.unwrap();
        assert!(step.closed <= 2);
        (steps, closed) = (steps + 1, closed + step.closed);
        match step.next {
            Some(next) => from = Some(next),
            None => break,
        }
    }
    assert_eq!((steps, closed), (3, 5));
}

/// The run that was under way ends as a run whose key was settled by a person does: nothing of it is stored.
#[tokio::test]
async fn what_runs_while_its_scope_is_closed_stores_nothing() {
    let store = MemoryKeys::default();
    let claim = of("ada", "order-1");
    let ClaimReply::Granted { lease, .. } = store.claim(&claim).await.unwrap() else {
        panic!("not granted")
    };
    close_scope(&store, claim.key.scope(), KEEP).await.unwrap();
    let late = store.complete(&completion(&claim, lease)).await.unwrap();
    assert_eq!(late, LeaseReply::Conflict);
    let again = Claim {
        nonce: Nonce::random(),
        ..claim
    };
    assert!(matches!(store.claim(&again).await, Ok(ClaimReply::Gone { .. })));
}

#[tokio::test]
async fn a_time_outside_of_its_limits_is_refused() {
    let keep = Keep {
        retention_ms: 0,
        ..KEEP
    };
    let error = close_scope(&MemoryKeys::default(), &Scope::new("ada").unwrap(), keep).await;
    assert!(error.unwrap_err().to_string().contains("retention_ms"));
}

/// One record that cannot be read says nothing of all those that were closed before it.
#[tokio::test]
async fn a_closing_that_stops_says_what_it_has_done() {
    let store = FaultyKeys::over(MemoryKeys::default());
    for n in 0..150 {
        done(&*store, &of("ada", &format!("order-{n}"))).await;
    }
    let bad = of("ada", "torn");
    done(&*store, &bad).await;
    store.poison(&bad.key, ErrorKind::Corrupt);
    let scope = Scope::new("ada").unwrap();
    let stopped = close_scope(&*store, &scope, KEEP).await.unwrap_err();
    assert_eq!((stopped.closed(), stopped.retry()), (100, Retry::Never));
    let said = "100 keys were closed before that, and stay closed";
    assert!(stopped.to_string().ends_with(said), "{stopped}");
    // "Later" alone would say that nothing was done.
    store.poison(&bad.key, ErrorKind::Unavailable);
    done(&*store, &of("ada", "another")).await;
    let stopped = close_scope(&*store, &scope, KEEP).await.unwrap_err();
    assert_eq!((stopped.closed(), stopped.retry()), (1, Retry::OutcomeUnknown));
    assert_eq!(StoreError::from(stopped).kind(), ErrorKind::ReplyLost);
}
