//! When claims are looked up before they are written.

use std::sync::Arc;

use semel_core::claim::{ClaimReply, LeaseReply, Nonce};
use semel_core::{Claim, KeyStoreExt as _};
use semel_keys::Batched;
use semel_testkit::faulty::FaultyKeys;

use crate::support::{completion, request, sqlite};

#[tokio::test]
async fn fresh_keys_are_soon_not_looked_up_any_more_and_replays_soon_are() {
    let (db, _clock, _dir) = sqlite().await;
    let inner = FaultyKeys::over(db);
    let store = Batched::new(Arc::clone(&inner));
    let mut done = request();
    for _ in 0..100 {
        done = request();
        let ClaimReply::Granted { lease, .. } = store.claim(&done).await.unwrap() else {
            panic!("not granted")
        };
        let stored = store.complete(&completion(&done, lease)).await;
        assert!(matches!(stored, Ok(LeaseReply::Ok(_))));
    }
    let (looked, written) = (inner.calls("look"), inner.calls("claim"));
    assert!(looked < written, "{looked} looks for {written} fresh keys");
    for _ in 0..10 {
        let again = Claim {
            nonce: Nonce::random(),
            ..done.clone()
        };
        let reply = store.claim(&again).await.unwrap();
        assert!(matches!(reply, ClaimReply::Done { .. }), "{reply:?}");
    }
    assert!(inner.calls("look") > looked);
    assert!(
        inner.calls("claim") < written + 10,
        "the last ones did not trouble the writer"
    );
}
