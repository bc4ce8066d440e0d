//! How a run ends.

use bytes::Bytes;
use semel_core::StoredOutcome;
use semel_core::claim::{Lease, LeaseReply, Nonce, Token, succeeded};

use super::{World, is_ok};

/// The reply to a `complete` was lost and it is sent again: `Ok`; but never two outcomes for one run (rule K2).
pub async fn repeated_complete_is_ok_and_another_outcome_a_conflict(w: &World) {
    let claim = w.request();
    let lease = w.granted(&claim).await;
    let repeat = async |when| {
        assert!(is_ok(w.complete(&claim, lease, "charged").await), "{when}");
        let other = w.complete(&claim, lease, "other").await;
        assert_eq!(other, LeaseReply::Conflict, "{when}");
        let refused = StoredOutcome::Refused("charged".into());
        let other = w.complete_with(&claim, lease, refused).await;
        assert_eq!(other, LeaseReply::Conflict, "{when}");
    };
    repeat("done").await;
    assert_eq!(w.outcome(&claim).await, Some(succeeded("charged")));
    w.pass_ms(60_000).await;
    repeat("tombstone").await;
    w.sweep().await;
    repeat("swept tombstone").await;
}

/// Token and nonce are both compared: a token that a fail-over handed out twice is not enough (rule K9).
pub async fn complete_needs_token_and_nonce(w: &World) {
    let claim = w.request();
    let lease = w.granted(&claim).await;
    let strangers = [
        Lease {
            nonce: Nonce::random(),
            ..lease
        },
        Lease {
            token: Token(lease.token.0 + 1),
            ..lease
        },
        Lease {
            token: Token(lease.token.0 - 1),
            ..lease
        },
    ];
    for stranger in strangers {
        let late = w.complete(&claim, stranger, "not mine").await;
        assert_eq!(late, LeaseReply::LeaseLost);
        assert_eq!(w.extend(&claim, stranger).await, LeaseReply::LeaseLost);
        assert_eq!(w.release(&claim, stranger).await, LeaseReply::LeaseLost);
    }
    assert!(is_ok(w.complete(&claim, lease, "mine").await));
    let nobody = w.request();
    let late = w.complete(&nobody, lease, "never claimed").await;
    assert_eq!(late, LeaseReply::LeaseLost);
    assert_eq!(w.extend(&nobody, lease).await, LeaseReply::LeaseLost);
    assert_eq!(w.read(&nobody).await, None);
}

/// Success, refusal and the note that the answer was not kept come back as they were stored, all bytes included.
pub async fn every_outcome_is_kept_byte_for_byte(w: &World) {
    let all_bytes: Bytes = (0..=255_u8).cycle().take(100_000).collect();
    let outcomes = [
        StoredOutcome::Succeeded(Bytes::new()),
        StoredOutcome::Succeeded(all_bytes.clone()),
        StoredOutcome::Refused(all_bytes),
        StoredOutcome::Refused(Bytes::new()),
        StoredOutcome::Forgotten,
    ];
    for outcome in outcomes {
        let claim = w.request();
        let lease = w.granted(&claim).await;
        assert!(is_ok(w.complete_with(&claim, lease, outcome.clone()).await));
        assert_eq!(w.outcome(&claim).await, Some(outcome));
    }
}
