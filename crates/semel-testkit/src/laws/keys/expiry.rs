//! What time does to a key, and what it does not.

use semel_core::KeyStoreExt;
use semel_core::claim::{
    Claim, ClaimReply, Completion, Keep, LeaseReply, OwnerLost, REMOVE_GRACE_MS, RERUN_KEPT_MS, State,
    SweepReport, succeeded,
};

use super::{LEASE_MS, World, duplicate, is_ok};

/// An expired `hold` claim reads as unknown, swept or not (rule K1), to claimants and readers alike.
pub async fn held_key_becomes_unknown_when_its_lease_ends(w: &World) {
    let claim = w.request();
    let lease = w.granted(&claim).await;
    w.lease_ends().await;
    for unswept in [1, 0] {
        let reply = w.claim(&duplicate(&claim)).await;
        assert_eq!(reply, ClaimReply::Unknown { token: lease.token });
        let record = w.read(&claim).await.unwrap();
        assert_eq!(record.state, State::Unknown { lease, attempt: 1 });
        assert_eq!(w.sweep().await.unknown, unswept);
    }
}

/// An expired `rerun` claim goes to whoever asks next, with a larger token and the next attempt number.
pub async fn rerun_key_goes_to_the_next_claimant_with_a_larger_token(w: &World) {
    let claim = w.rerun_request();
    let mut last = w.granted(&claim).await.token;
    for wanted in 2..5 {
        assert!(matches!(
            w.claim(&duplicate(&claim)).await,
            ClaimReply::Busy { .. }
        ));
        w.lease_ends().await;
        let swept = w.sweep().await;
        assert_eq!(swept, SweepReport::default(), "it may be run again");
        let ClaimReply::Granted { lease, attempt, .. } = w.claim(&duplicate(&claim)).await else {
            panic!("not granted");
        };
        assert!(lease.token > last);
        assert_eq!(attempt, wanted);
        last = lease.token;
    }
}

/// A claim that may be run again, and that nobody asks for again, is forgotten in the end; tokens do not go back.
pub async fn rerun_key_that_nobody_retries_is_forgotten_long_after_its_lease(w: &World) {
    let claims = [w.rerun_request(), w.rerun_request(), w.rerun_request()];
    let [kept, extended, abandoned] = &claims;
    let leases = [
        w.granted(kept).await,
        w.granted(extended).await,
        w.granted(abandoned).await,
    ];
    assert!(is_ok(w.extend(extended, leases[1]).await));
    assert!(is_ok(w.abandon(abandoned, leases[2]).await));
    w.pass_ms(LEASE_MS + RERUN_KEPT_MS - 1_000).await;
    assert_eq!(w.sweep().await, SweepReport::default());
    for claim in &claims {
        let state = w.read(claim).await.unwrap().state;
        assert!(matches!(state, State::Claimed { .. }), "{state:?}");
    }
    w.pass_ms(REMOVE_GRACE_MS + 2_000).await;
    assert_eq!(w.sweep().await.removed, 3);
    for (claim, lease) in claims.iter().zip(leases) {
        assert_eq!(w.read(claim).await, None);
        assert_eq!(w.complete(claim, lease, "late").await, LeaseReply::LeaseLost);
        let reply = w.claim(&duplicate(claim)).await;
        let ClaimReply::Granted {
            lease: next, attempt, ..
        } = reply
        else {
            panic!("not granted: {reply:?}");
        };
        assert!(next.token > lease.token);
        assert_eq!(attempt, 1);
    }
}

/// The policy stored with the claim decides what its loss means, not the one of whoever comes next (rule K10).
pub async fn stored_policy_decides_not_the_takers(w: &World) {
    let (held, rerun) = (w.request(), w.rerun_request());
    w.granted(&held).await;
    w.granted(&rerun).await;
    w.lease_ends().await;
    let taker = Claim {
        owner_lost: OwnerLost::Rerun,
        ..duplicate(&held)
    };
    assert!(matches!(w.claim(&taker).await, ClaimReply::Unknown { .. }));
    let taker = Claim {
        owner_lost: OwnerLost::Hold,
        ..duplicate(&rerun)
    };
    w.granted(&taker).await;
    w.lease_ends().await;
    let reply = w.claim(&duplicate(&rerun)).await;
    assert!(
        matches!(reply, ClaimReply::Unknown { .. }),
        "from the take-over on its own policy is the stored one: {reply:?}"
    );
}

/// The owner stalls, another takes over, the owner wakes: nothing that it writes counts.
pub async fn stale_owner_changes_nothing(w: &World) {
    let claim = w.rerun_request();
    let slow = w.granted(&claim).await;
    w.lease_ends().await;
    let taker = duplicate(&claim);
    let fast = w.granted(&taker).await;
    let stale = async |when| {
        assert_eq!(w.extend(&claim, slow).await, LeaseReply::LeaseLost, "{when}");
        assert_eq!(w.release(&claim, slow).await, LeaseReply::LeaseLost, "{when}");
        let late = w.complete(&claim, slow, "charged twice").await;
        assert_eq!(late, LeaseReply::LeaseLost, "{when}");
    };
    stale("while the other runs").await;
    assert!(is_ok(w.complete(&taker, fast, "charged once").await));
    stale("when the other is done").await;
    assert_eq!(w.outcome(&claim).await, Some(succeeded("charged once")));
}

/// Owners come and go while a sweeper works: of all the runs that end, the store accepts the end of one.
pub async fn one_of_many_racing_owners_completes(w: &World) {
    let claim = w.rerun_request();
    let owner = async |n: usize| {
        let mine = duplicate(&claim);
        for _ in 0..20 {
            match w.claim(&mine).await {
                ClaimReply::Granted { lease, .. } => {
                    // Half of them stall.
                    if n.is_multiple_of(2) {
                        w.lease_ends().await;
                    }
                    let done = Completion {
                        key: mine.key.clone(),
                        lease,
                        outcome: succeeded(n.to_string()),
                        keep: Keep::default(),
                    };
                    return is_ok(w.store.complete(&done).await.unwrap()).then_some(n);
                }
                ClaimReply::Done { .. } => return None,
                ClaimReply::Busy { .. } => tokio::task::yield_now().await,
                other => panic!("{other:?}"),
            }
        }
        None
    };
    let sweeper = async {
        for _ in 0..10 {
            w.sweep().await;
        }
    };
    let owners = futures_util::future::join_all((0..8).map(owner));
    let (completed, ()) = futures_util::future::join(owners, sweeper).await;
    let completed: Vec<usize> = completed.into_iter().flatten().collect();
    assert_eq!(completed.len(), 1, "{completed:?}");
    assert_eq!(w.outcome(&claim).await, Some(succeeded(completed[0].to_string())));
}

/// Time alone never makes a token stale: who was merely slow may still say how it ended (rule K1).
pub async fn slow_owner_completes_an_unknown_key(w: &World) {
    for swept in [false, true] {
        for claim in [w.request(), w.rerun_request()] {
            let lease = w.granted(&claim).await;
            w.pass_ms(10 * LEASE_MS).await;
            if swept {
                w.sweep().await;
            }
            assert!(is_ok(w.complete(&claim, lease, "late").await));
            assert_eq!(w.outcome(&claim).await, Some(succeeded("late")));
        }
    }
}

/// A late extension takes an unknown key back: its owner lives.
pub async fn slow_owner_that_extends_is_the_owner_again(w: &World) {
    for swept in [false, true] {
        let claim = w.request();
        let lease = w.granted(&claim).await;
        w.lease_ends().await;
        if swept {
            w.sweep().await;
        }
        assert!(is_ok(w.extend(&claim, lease).await));
        let reply = w.claim(&duplicate(&claim)).await;
        assert!(matches!(reply, ClaimReply::Busy { .. }), "{reply:?}");
        w.lease_ends().await;
        let reply = w.claim(&duplicate(&claim)).await;
        assert!(
            matches!(reply, ClaimReply::Unknown { .. }),
            "still held: {reply:?}"
        );
    }
}

/// A short or delayed extension does not take away what was granted before.
pub async fn extension_never_makes_a_lease_shorter(w: &World) {
    let claim = w.request();
    let lease = w.granted(&claim).await;
    assert!(is_ok(w.extend_by(&claim, lease, 1).await));
    w.pass_ms(LEASE_MS / 2).await;
    assert!(matches!(
        w.claim(&duplicate(&claim)).await,
        ClaimReply::Busy { .. }
    ));
    assert!(is_ok(w.extend(&claim, lease).await));
    w.pass_ms(LEASE_MS / 2).await;
    assert!(matches!(
        w.claim(&duplicate(&claim)).await,
        ClaimReply::Busy { .. }
    ));
}

/// A key that was purged and is claimed again gets a larger token than ever before.
pub async fn token_grows_across_purge(w: &World) {
    let claim = w.request();
    let mut last = 0;
    for _ in 0..3 {
        let lease = w.granted(&duplicate(&claim)).await;
        assert!(lease.token.0 > last, "{lease:?} after {last}");
        last = lease.token.0;
        assert!(is_ok(w.complete(&claim, lease, "done").await));
        w.pass_ms(1_000_000).await;
        assert_eq!(w.sweep().await.removed, 1);
    }
}

/// Retention, then tombstone, then nothing: by the store's time, swept or not.
pub async fn outcome_becomes_a_tombstone_and_is_forgotten(w: &World) {
    for swept in [false, true] {
        let sweep = async || {
            if swept {
                w.sweep().await;
            }
        };
        let claim = w.request();
        let lease = w.granted(&claim).await;
        w.complete(&claim, lease, "kept").await;
        w.pass_ms(50_000).await;
        sweep().await;
        assert_eq!(w.outcome(&claim).await, Some(succeeded("kept")));
        w.pass_ms(10_000).await;
        sweep().await;
        assert!(matches!(
            w.claim(&duplicate(&claim)).await,
            ClaimReply::Gone { .. }
        ));
        w.pass_ms(60_000).await;
        sweep().await;
        assert_eq!(w.read(&claim).await, None);
        let ClaimReply::Granted { attempt, .. } = w.claim(&duplicate(&claim)).await else {
            panic!("not granted");
        };
        assert_eq!(attempt, 1, "a new operation");
        let late = w.complete(&claim, lease, "kept").await;
        assert_eq!(late, LeaseReply::LeaseLost);
    }
}

/// One sweep of a store that holds one of everything.
pub async fn sweep_marks_drops_and_removes_what_has_ended(w: &World) {
    let report = |unknown, tombstoned, removed| SweepReport {
        unknown,
        tombstoned,
        removed,
    };
    let (held, rerun, done, freed) = (w.request(), w.rerun_request(), w.request(), w.request());
    w.granted(&held).await;
    w.granted(&rerun).await;
    let lease = w.granted(&done).await;
    w.complete(&done, lease, "done").await;
    let lease = w.granted(&freed).await;
    w.release(&freed, lease).await;
    assert_eq!(w.sweep().await, report(0, 0, 0), "nothing has ended yet");
    w.pass_ms(60_000).await;
    assert_eq!(w.sweep().await, report(1, 1, 0));
    assert_eq!(w.sweep().await, report(0, 0, 0), "once");
    w.pass_ms(120_000).await;
    let swept = w.sweep().await;
    assert_eq!(swept, report(0, 0, 2), "the tombstone and the withdrawal");
    w.pass_ms(100_000_000).await;
    let swept = w.sweep().await;
    assert_eq!(swept, report(0, 0, 0), "only a person or an owner moves the rest");
    assert!(matches!(
        w.claim(&duplicate(&held)).await,
        ClaimReply::Unknown { .. }
    ));
}

/// A sweep is bounded; the next one goes on.
pub async fn sweep_takes_no_more_than_its_limit(w: &World) {
    for _ in 0..5 {
        w.granted(&w.request()).await;
    }
    w.lease_ends().await;
    let mut marked = Vec::new();
    for _ in 0..4 {
        marked.push(w.store.sweep(2).await.unwrap().unknown);
    }
    assert_eq!(marked, [2, 2, 1, 0]);
}
