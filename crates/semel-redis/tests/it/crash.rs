//! A process that dies at each named point: what its successor finds.

use semel_core::claim::{Claim, ClaimReply, Nonce, succeeded};
use semel_core::{Key, KeyStoreExt, Scope};
use semel_redis::{Config, Redis};
use semel_testkit::crash::{self, Run};
use semel_testkit::laws::keys::LEASE_MS;

use super::world::{Raw, completion, fresh, request as new_request};

/// The same request in every process, under a nonce of this attempt.
fn request() -> Claim {
    Claim {
        key: Key::new(Scope::new("tests").unwrap(), "order-7").unwrap(),
        nonce: Nonce::random(),
        ..new_request()
    }
}

/// Claims, charges, completes.
async fn charge(store: &Redis) {
    let claim = request();
    let ClaimReply::Granted { lease, .. } = store.claim(&claim).await.unwrap() else {
        panic!("not granted")
    };
    store
        .complete(&completion(&claim, lease, "charged"))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_crash_at_any_point_is_unknown_until_it_is_known_to_be_done() {
    if let Some(url) = crash::role("owner") {
        return charge(&Redis::connect(Config::new(url)).await.unwrap()).await;
    }
    for (point, done) in [
        ("key.claimed", false),
        ("key.before_complete", false),
        ("key.completed", true),
    ] {
        let (url, store) = fresh().await;
        let name = "crash::a_crash_at_any_point_is_unknown_until_it_is_known_to_be_done";
        let end = Run::test(name, "owner", &url).at(point).run();
        assert!(end.crashed(), "{point}: {end:?}");
        for expired in [false, true] {
            let reply = store.claim(&request()).await.unwrap();
            match (&reply, done, expired) {
                (ClaimReply::Done { outcome, .. }, true, _) => assert_eq!(outcome, &succeeded("charged")),
                (ClaimReply::Busy { .. }, false, false) | (ClaimReply::Unknown { .. }, false, true) => {}
                _ => panic!("{point}, expired {expired}: {reply:?}"),
            }
            Raw::open(&url).await.age_ms("semel", LEASE_MS).await;
        }
    }
}
