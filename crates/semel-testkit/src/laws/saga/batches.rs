//! Batches: decided in order, bounded, each item alone.

use std::collections::HashSet;

use semel_core::saga::Status;
use semel_core::store::{Ownership, Save, SaveReply, Submission, SubmitReply};
use semel_core::{ErrorKind, Nonce, limits};

use super::world::{Held, LEASE_MS, World, id, moved, submission};

/// Claimed and unclaimed ones together, and one id more than once.
pub async fn submissions_of_a_batch_are_decided_in_order(w: &World) {
    let (a, b) = (id("a"), id("b"));
    let claimed = w.claimed_submission(&b, Nonce::random()).await;
    let batch = [
        submission(&a, "{}"),
        claimed.clone(),
        submission(&a, "[]"),
        submission(&b, "{}"),
        claimed,
        submission(&a, "{}"),
    ];
    let expected = [
        SubmitReply::Accepted,
        SubmitReply::Accepted,
        SubmitReply::OtherInput,
        SubmitReply::Existing(Status::Running),
        SubmitReply::Accepted,
        SubmitReply::Existing(Status::Running),
    ];
    assert_eq!(w.store.submit_sagas(&batch).await.unwrap(), expected);
    assert_eq!(w.load(&a).await.input, "{}");
    assert!(w.store.submit_sagas(&[]).await.unwrap().is_empty());
    assert!(w.store.save_sagas(&[]).await.unwrap().is_empty());
    assert!(w.store.load_sagas(&[]).await.unwrap().is_empty());
}

/// A full batch of every kind works, one item more is refused and does nothing.
pub async fn batches_have_a_limit(w: &World) {
    const MAX: usize = limits::BATCH_ITEMS_MAX;
    let mut batch: Vec<Submission> = (0..MAX)
        .map(|n| submission(&id(&format!("order-{n}")), "{}"))
        .collect();
    let replies = w.store.submit_sagas(&batch).await.unwrap();
    assert!(replies.iter().all(|reply| *reply == SubmitReply::Accepted));
    let held = w.claim(u32::MAX).await;
    let ids: HashSet<_> = held.iter().map(|held| &held.owned.id).collect();
    assert_eq!(ids.len(), MAX);
    let mut saves: Vec<Save> = held.iter().map(|held| moved(held, 1, Status::Waiting)).collect();
    let replies = w.store.save_sagas(&saves).await.unwrap();
    assert!(replies.iter().all(|reply| *reply == SaveReply::Saved));

    let mut rights: Vec<Ownership> = held.iter().map(|held| held.owned.clone()).collect();
    batch.push(submission(&id("more"), "{}"));
    saves.push(moved(&held[0], 2, Status::Stuck));
    rights.push(held[0].owned.clone());
    let mut ids: Vec<_> = rights.iter().map(|owned| owned.id.clone()).collect();
    ids.push(id("more"));
    let refused = [
        w.store.submit_sagas(&batch).await.unwrap_err(),
        w.store.save_sagas(&saves).await.unwrap_err(),
        w.store.renew_sagas(&rights, LEASE_MS).await.unwrap_err(),
        w.store.release_sagas(&rights).await.unwrap_err(),
        w.store.load_sagas(&ids).await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    }
    let saga = w.load(&held[0].owned.id).await;
    assert_eq!((saga.version, saga.owner), (2, Some(held[0].owned.nonce)));
}

/// The second write of a saga is decided on what the first one left.
pub async fn two_writes_of_a_saga_in_a_batch_are_decided_in_order(w: &World) {
    let held = w.held("order-1").await;
    let batch = [
        moved(&held, 1, Status::Waiting),
        moved(&held, 1, Status::Stuck),
        moved(&held, 2, Status::Completed),
        moved(&held, 3, Status::Running),
    ];
    let expected = [
        SaveReply::Saved,
        SaveReply::WrongVersion,
        SaveReply::Saved,
        SaveReply::Lost,
    ];
    assert_eq!(w.store.save_sagas(&batch).await.unwrap(), expected);
    let saga = w.load(&held.owned.id).await;
    assert_eq!((saga.status, saga.version), (Status::Completed, 3));
}

/// Every kind of miss beside writes that fit: each saga is what its own write made of it, and so is its log.
pub async fn each_write_of_a_batch_is_judged_alone(w: &World) {
    let mut held: Vec<Held> = Vec::new();
    for name in ["a", "b", "c", "d", "e", "f"] {
        held.push(w.held(name).await);
    }
    w.save(&moved(&held[1], 1, Status::Waiting)).await;
    w.save(&moved(&held[2], 1, Status::Completed)).await;
    let mut batch: Vec<Save> = held
        .iter()
        .map(|held| moved(held, 1, Status::Compensating))
        .collect();
    batch[3].owned.nonce = Nonce::random();
    batch[4].owned.id = id("never");
    let expected = [
        SaveReply::Saved,
        SaveReply::WrongVersion,
        SaveReply::Lost,
        SaveReply::Lost,
        SaveReply::Lost,
        SaveReply::Saved,
    ];
    assert_eq!(w.store.save_sagas(&batch).await.unwrap(), expected);
    let after = [
        (Status::Compensating, 2),
        (Status::Waiting, 2),
        (Status::Completed, 2),
        (Status::Running, 1),
        (Status::Running, 1),
        (Status::Compensating, 2),
    ];
    for (held, (status, version)) in held.iter().zip(after) {
        let saga = w.load(&held.owned.id).await;
        assert_eq!((saga.status, saga.version), (status, version));
        let told = w.store.saga_log(&held.owned.id, 10).await.unwrap();
        let told: Vec<_> = told.iter().map(|row| row.entry.event.as_str()).collect();
        assert_eq!(told, vec![status.as_str(); told.len()]);
        assert_eq!(told.len(), usize::from(version == 2));
    }
}

/// Batches that overlap in different orders, all at once: each write is applied once.
pub async fn overlapping_batches_at_once_write_each_saga_once(w: &World) {
    let mut held: Vec<Held> = Vec::new();
    for n in 0..8 {
        held.push(w.held(&format!("order-{n}")).await);
    }
    let mut tasks = tokio::task::JoinSet::new();
    for turn in 0..8 {
        let mut batch: Vec<Save> = held.iter().map(|held| moved(held, 1, Status::Waiting)).collect();
        batch.rotate_left(turn);
        let store = w.store.clone();
        tasks.spawn(async move {
            let replies = store.save_sagas(&batch).await.unwrap();
            let saved = replies.iter().filter(|reply| **reply == SaveReply::Saved);
            saved.count()
        });
    }
    let saved: usize = tasks.join_all().await.into_iter().sum();
    assert_eq!(saved, 8);
    for held in &held {
        assert_eq!(w.load(&held.owned.id).await.version, 2);
        assert_eq!(w.store.saga_log(&held.owned.id, 10).await.unwrap().len(), 1);
    }
}

/// A log of many entries per write comes back in order.
pub async fn long_logs_are_in_order(w: &World) {
    let held = w.held("order-1").await;
    let mut expected = Vec::new();
    for version in 1..6 {
        let mut save = moved(&held, version, Status::Running);
        let entry = save.log[0].clone();
        save.log = (0..version * 7)
            .map(|n| semel_core::saga::LogEntry {
                event: format!("{version}-{n}"),
                ..entry.clone()
            })
            .collect();
        expected.extend(save.log.iter().map(|entry| (version + 1, entry.clone())));
        assert_eq!(w.save(&save).await, SaveReply::Saved);
    }
    let log = w.store.saga_log(&held.owned.id, 1_000).await.unwrap();
    let told: Vec<_> = log.into_iter().map(|row| (row.version, row.entry)).collect();
    assert_eq!(told, expected);
    assert!(w.store.saga_log(&id("never"), 10).await.unwrap().is_empty());
}
