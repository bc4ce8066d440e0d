//! Who is granted a key, and what the others hear.

use std::sync::Arc;

use semel_core::claim::{Claim, ClaimReply, State, Token, succeeded};
use semel_core::{Key, KeyStoreExt, Scope};

use super::{LEASE_MS, World, duplicate, is_ok, other_request};

/// The first claim of a key is granted as attempt 1; until it ends, everybody else is told how long it may take.
pub async fn first_claim_is_granted_and_a_duplicate_is_busy(w: &World) {
    let claim = w.request();
    assert_eq!(w.read(&claim).await, None);
    let ClaimReply::Granted { attempt, .. } = w.claim(&claim).await else {
        panic!("not granted");
    };
    assert_eq!(attempt, 1);
    let ClaimReply::Busy { lease_left_ms } = w.claim(&duplicate(&claim)).await else {
        panic!("a duplicate is not told that somebody runs it");
    };
    // A store that knows the time in milliseconds leaves the owner the rest of one more.
    assert!((1..=LEASE_MS + 1).contains(&lease_left_ms), "{lease_left_ms}");
    let record = w.read(&claim).await.unwrap();
    assert!(matches!(record.state, State::Claimed { .. }));
}

/// Once a key is done, every duplicate gets the stored outcome, as often as it asks.
pub async fn duplicate_of_a_finished_key_gets_the_stored_outcome(w: &World) {
    let claim = w.request();
    let lease = w.granted(&claim).await;
    assert!(is_ok(w.complete(&claim, lease, "charged once").await));
    for _ in 0..3 {
        assert_eq!(w.outcome(&claim).await, Some(succeeded("charged once")));
    }
    // The owner's own claim, too.
    assert!(matches!(w.claim(&claim).await, ClaimReply::Done { .. }));
}

/// A key used for another request is a mismatch in every state, before anything else is judged (rule K11).
pub async fn mismatched_fingerprint_never_sees_the_stored_output(w: &World) {
    let claim = w.request();
    let lease = w.granted(&claim).await;
    let mismatch = async |when| {
        let reply = w.claim(&other_request(&claim)).await;
        assert_eq!(reply, ClaimReply::Mismatch, "{when}");
        // Not even under the owner's nonce.
        let same_nonce = Claim {
            nonce: claim.nonce,
            ..other_request(&claim)
        };
        assert_eq!(w.claim(&same_nonce).await, ClaimReply::Mismatch, "{when}");
    };
    mismatch("claimed").await;
    w.lease_ends().await;
    mismatch("unknown").await;
    w.complete(&claim, lease, "secret").await;
    mismatch("done").await;
    w.pass_ms(60_000).await;
    mismatch("tombstone").await;
    w.sweep().await;
    mismatch("swept tombstone").await;
}

/// An expired claim that may be run again is taken over by its own request only, not by another one.
pub async fn mismatch_is_judged_at_take_over(w: &World) {
    let claim = w.rerun_request();
    w.granted(&claim).await;
    w.lease_ends().await;
    assert_eq!(w.claim(&other_request(&claim)).await, ClaimReply::Mismatch);
    w.granted(&duplicate(&claim)).await;
}

/// Scopes and ids are bytes: nothing is trimmed, folded, collated or concatenated.
pub async fn keys_that_differ_in_any_byte_are_different_keys(w: &World) {
    let binary: Vec<u8> = (0..=254).collect();
    let names: Vec<(&[u8], &[u8])> = vec![
        (b"ab", b"c"),
        (b"a", b"bc"),
        (b"A", b"bc"),
        (b"a", b"bc "),
        (b"a", b"bc\0"),
        (b"a", b"\xff\x00\x80"),
        (b"a", "\u{e9}".as_bytes()),
        (b"a", "e\u{301}".as_bytes()),
        (&binary, &binary),
    ];
    for (scope, id) in names {
        let key = Key::new(Scope::new(scope).unwrap(), id).unwrap();
        let claim = Claim { key, ..w.request() };
        let lease = w.granted(&claim).await;
        assert!(is_ok(w.complete(&claim, lease, "done").await));
        assert_eq!(w.outcome(&claim).await, Some(succeeded("done")));
    }
}

/// The reply to a claim was lost and the caller asks again: same token, same deadline (rule K3).
pub async fn repeated_nonce_gets_the_same_token_and_deadline(w: &World) {
    let claim = w.request();
    let first = w.claim(&claim).await;
    w.pass_ms(LEASE_MS / 2).await;
    let again = w.claim(&claim).await;
    let (
        ClaimReply::Granted {
            lease,
            until,
            attempt,
        },
        ClaimReply::Granted {
            lease: same,
            until: ends,
            attempt: still,
        },
    ) = (first, again)
    else {
        panic!("not granted");
    };
    assert_eq!((lease, attempt), (same, still));
    // A world that ages rows moves the deadline with them.
    let moved = until.ms_since(ends);
    assert!(
        moved == 0 || moved == LEASE_MS / 2,
        "the deadline moved by {moved} ms"
    );
    assert!(matches!(
        w.claim(&duplicate(&claim)).await,
        ClaimReply::Busy { .. }
    ));
}

/// After an extension the owner is known to have its reply: the same nonce is then somebody who copied it (rule K3).
pub async fn repeated_nonce_after_an_extension_is_a_stranger(w: &World) {
    let claim = w.request();
    let lease = w.granted(&claim).await;
    assert!(is_ok(w.extend(&claim, lease).await));
    assert!(matches!(w.claim(&claim).await, ClaimReply::Busy { .. }));
}

/// A nonce kept over a crash does not get its token back after the lease: `hold` cannot be bypassed (rule K3).
pub async fn repeated_nonce_after_the_lease_is_a_stranger(w: &World) {
    let (held, rerun) = (w.request(), w.rerun_request());
    let lost = w.granted(&held).await;
    let first = w.granted(&rerun).await;
    w.lease_ends().await;
    assert_eq!(w.claim(&held).await, ClaimReply::Unknown { token: lost.token });
    let second = w.granted(&rerun).await;
    assert!(second.token > first.token);
}

/// Many ask at the same moment: one is granted, all others are told that it is running.
pub async fn one_of_many_concurrent_claims_is_granted(w: &World) {
    let claim = w.request();
    let tasks: Vec<_> = (0..32)
        .map(|_| {
            let (store, claim) = (Arc::clone(&w.store), duplicate(&claim));
            tokio::spawn(async move { store.claim(&claim).await.unwrap() })
        })
        .collect();
    let mut granted = Vec::<Token>::new();
    for task in tasks {
        match task.await.unwrap() {
            ClaimReply::Granted { lease, .. } => granted.push(lease.token),
            ClaimReply::Busy { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(granted.len(), 1, "{granted:?}");
}
