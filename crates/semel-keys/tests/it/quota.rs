//! Growth limits per scope.

use std::sync::Arc;

use semel_core::claim::{Claim, ClaimReply, Completion, Keep, succeeded};
use semel_core::model::MemoryKeys;
use semel_core::store::Usage;
use semel_core::{ErrorKind, Key, KeyStore, KeyStoreExt as _, LeaseReply, Scope};
use semel_keys::{Batched, Quota, QuotaConfig};
use semel_testkit::clock::ManualClock;
use semel_testkit::faulty::{Fault, FaultyKeys};
use semel_testkit::laws::keys::{World, duplicate};

use crate::support::{completion, request};

type Store = Quota<Batched<MemoryKeys>>;

fn store(config: QuotaConfig) -> (Store, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::default());
    let inner = Batched::new(MemoryKeys::new(clock.clone()));
    (Quota::with_clock(inner, config, clock.clone()).unwrap(), clock)
}

fn of_scope(scope: &str) -> Claim {
    let claim = request();
    let key = Key::new(Scope::new(scope).unwrap(), claim.key.id()).unwrap();
    Claim { key, ..claim }
}

async fn done(store: &Store, claim: &Claim) {
    let ClaimReply::Granted { lease, .. } = store.claim(claim).await.unwrap() else {
        panic!("not granted")
    };
    let reply = store.complete(&completion(claim, lease)).await.unwrap();
    assert!(matches!(reply, LeaseReply::Ok(_)));
}

/// stregsystemet-rs#54: refused, nothing live evicted.
#[tokio::test]
async fn a_full_scope_refuses_new_keys_by_name_and_answers_old_ones() {
    let (store, _clock) = store(QuotaConfig {
        records_max: 3,
        ..QuotaConfig::default()
    });
    let claims: Vec<Claim> = (0..3).map(|_| of_scope("ada")).collect();
    for claim in &claims {
        done(&store, claim).await;
    }
    let error = store.claim(&of_scope("ada")).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.code()),
        (ErrorKind::LimitExceeded, "SEM0111")
    );
    assert_eq!(store.refused(), 1);
    for part in [
        "SEM0111",
        "the scope ada holds 3 records",
        "records_max = 3",
        "retention_ms",
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
    for claim in &claims {
        let reply = store.claim(&duplicate(claim)).await.unwrap();
        assert!(matches!(reply, ClaimReply::Done { .. }), "{reply:?}");
    }
    assert!(matches!(
        store.claim(&of_scope("bob")).await,
        Ok(ClaimReply::Granted { .. })
    ));
}

#[tokio::test]
async fn bytes_are_counted_as_runs_end_and_a_running_one_is_never_refused() {
    let (store, _clock) = store(QuotaConfig {
        bytes_max: 100,
        ..QuotaConfig::default()
    });
    let (first, second) = (of_scope("ada"), of_scope("ada"));
    let mut leases = Vec::new();
    for claim in [&first, &second] {
        let ClaimReply::Granted { lease, .. } = store.claim(claim).await.unwrap() else {
            panic!("not granted")
        };
        leases.push(lease);
    }
    for (claim, lease) in [(&first, leases[0]), (&second, leases[1])] {
        let done = Completion {
            key: claim.key.clone(),
            lease,
            outcome: succeeded(vec![0; 80]),
            keep: Keep::default(),
        };
        assert!(matches!(store.complete(&done).await, Ok(LeaseReply::Ok(_))));
    }
    let error = store.claim(&of_scope("ada")).await.unwrap_err().to_string();
    assert!(
        error.contains("160 bytes of outcomes, bytes_max = 100"),
        "{error}"
    );
}

#[tokio::test]
async fn room_is_noticed_soon_after_a_sweep() {
    let (store, clock) = store(QuotaConfig {
        records_max: 1,
        ..QuotaConfig::default()
    });
    done(&store, &of_scope("ada")).await;
    assert!(store.claim(&of_scope("ada")).await.is_err());
    clock.advance_ms(200_000);
    store.sweep(100).await.unwrap();
    assert!(matches!(
        store.claim(&of_scope("ada")).await,
        Ok(ClaimReply::Granted { .. })
    ));
}

#[tokio::test]
async fn many_at_once_never_exceed_the_limit_in_one_process() {
    let (store, _clock) = store(QuotaConfig {
        records_max: 10,
        ..QuotaConfig::default()
    });
    let store = Arc::new(store);
    let tasks: Vec<_> = (0..40)
        .map(|_| {
            let (store, claim) = (Arc::clone(&store), of_scope("ada"));
            tokio::spawn(async move { store.claim(&claim).await.is_ok() })
        })
        .collect();
    let mut granted = 0;
    for task in tasks {
        granted += usize::from(task.await.unwrap());
    }
    let scope = Scope::new("ada").unwrap();
    let usage = store.usage(&scope, 100).await.unwrap();
    assert_eq!(
        (granted, usage),
        (
            10,
            Usage {
                records: 10,
                bytes: 0
            }
        )
    );
}

/// The new count does not know of a claim that is still on its way; its place stays taken.
#[tokio::test]
async fn a_measurement_does_not_forget_claims_that_are_on_their_way() {
    let clock = Arc::new(ManualClock::default());
    let inner = FaultyKeys::over(MemoryKeys::new(clock.clone()));
    let config = QuotaConfig {
        records_max: 1,
        ..QuotaConfig::default()
    };
    let store = Arc::new(Quota::with_clock(Arc::clone(&inner), config, clock.clone()).unwrap());
    let hold = inner.hold("claim");
    let first = tokio::spawn({
        let (store, claim) = (Arc::clone(&store), of_scope("ada"));
        async move { store.claim(&claim).await }
    });
    inner.called("claim", 1).await;
    clock.advance_ms(31_000);
    let second = tokio::spawn({
        let (store, claim) = (Arc::clone(&store), of_scope("ada"));
        async move { store.claim(&claim).await }
    });
    while !second.is_finished() && inner.calls("claim") < 2 {
        tokio::task::yield_now().await;
    }
    drop(hold);
    let error = second.await.unwrap().unwrap_err();
    assert_eq!(error.code(), "SEM0111", "{error}");
    assert!(matches!(first.await.unwrap(), Ok(ClaimReply::Granted { .. })));
}

/// A claim that is refused, or whose caller leaves, keeps no place for good.
#[tokio::test]
async fn places_of_calls_that_ended_are_free_after_the_next_measurement() {
    let clock = Arc::new(ManualClock::default());
    let inner = FaultyKeys::over(MemoryKeys::new(clock.clone()));
    let config = QuotaConfig {
        records_max: 1,
        ..QuotaConfig::default()
    };
    let store = Arc::new(Quota::with_clock(Arc::clone(&inner), config, clock.clone()).unwrap());
    inner.fail("claim", Fault::Down, 1);
    assert_eq!(
        store.claim(&of_scope("ada")).await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    let hold = inner.hold("claim");
    let leaver = tokio::spawn({
        let (store, claim) = (Arc::clone(&store), of_scope("ada"));
        async move { store.claim(&claim).await }
    });
    inner.called("claim", 2).await;
    leaver.abort();
    let _ = leaver.await;
    drop(hold);
    let error = store.claim(&of_scope("ada")).await.unwrap_err();
    assert_eq!(error.code(), "SEM0111", "it may have been granted: {error}");
    clock.advance_ms(1_000);
    assert!(matches!(
        store.claim(&of_scope("ada")).await,
        Ok(ClaimReply::Granted { .. })
    ));
}

#[tokio::test]
async fn a_measurement_may_be_remembered_for_ever() {
    let (store, clock) = store(QuotaConfig {
        remember: std::time::Duration::MAX,
        ..QuotaConfig::default()
    });
    clock.advance_ms(1);
    done(&store, &of_scope("ada")).await;
    done(&store, &of_scope("ada")).await;
}

#[test]
fn a_store_that_cannot_count_is_refused_at_once() {
    let error = Quota::new(crate::support::Uncounted, QuotaConfig::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("counts_scopes"), "{error}");
}

async fn world() -> World {
    let (store, clock) = store(QuotaConfig::default());
    World::new(Arc::new(store), move |ms| {
        clock.advance_ms(ms);
        std::future::ready(())
    })
}

/// Below its limit it changes no answer.
mod laws {
    use super::world;
    semel_testkit::key_laws!(world);
}
