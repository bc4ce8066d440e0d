//! Writing transitions: compare-and-set, log, ends.

use semel_core::Nonce;
use semel_core::saga::Status;
use semel_core::store::{Ownership, RequestReply, SagaRequest, Save, SaveReply};

use super::world::{LEASE_MS, World, first_save, last_save};

/// Rules R5, S3, O11: all of them, or nothing is written.
pub async fn a_write_needs_epoch_and_nonce_and_version(w: &World) {
    let held = w.held("order-1").await;
    let good = first_save(&held);
    let with = |owned: Ownership, version: i64| Save {
        owned,
        version,
        ..good.clone()
    };
    let epoch = |epoch| Ownership {
        epoch,
        ..held.owned.clone()
    };
    let nonce = Ownership {
        nonce: Nonce::random(),
        ..held.owned.clone()
    };
    for (save, expected) in [
        (with(epoch(held.owned.epoch - 1), 1), SaveReply::Lost),
        (with(epoch(held.owned.epoch + 1), 1), SaveReply::Lost),
        (with(nonce, 1), SaveReply::Lost),
        (with(held.owned.clone(), 0), SaveReply::WrongVersion),
        (with(held.owned.clone(), 2), SaveReply::WrongVersion),
    ] {
        assert_eq!(w.save(&save).await, expected, "{save:?}");
    }
    let record = w.load(&held.owned.id).await;
    assert_eq!((record.version, &record.state), (1, &held.record.state));
    assert_eq!(w.save(&good).await, SaveReply::Saved);
    assert_eq!(w.load(&held.owned.id).await.version, 2);
}

/// One verdict each; many sagas share the commit.
pub async fn a_write_that_misses_harms_no_neighbour_and_logs_nothing(w: &World) {
    let held = [w.held("a").await, w.held("b").await, w.held("c").await];
    let mut saves: Vec<Save> = held.iter().map(first_save).collect();
    saves[1].version = 9;
    let replies = w.store.save_sagas(&saves).await.unwrap();
    assert_eq!(
        replies,
        [SaveReply::Saved, SaveReply::WrongVersion, SaveReply::Saved]
    );
    for (held, entries) in held.iter().zip([1, 0, 1]) {
        assert_eq!(w.store.saga_log(&held.owned.id, 10).await.unwrap().len(), entries);
    }
}

/// Its reply was lost: `WrongVersion` says load and see, not lost; and nothing is logged twice.
pub async fn a_write_that_is_repeated_is_told_from_one_that_is_lost(w: &World) {
    let held = w.held("order-1").await;
    let save = first_save(&held);
    assert_eq!(w.save(&save).await, SaveReply::Saved);
    assert_eq!(w.save(&save).await, SaveReply::WrongVersion);
    assert_eq!(w.store.saga_log(&held.owned.id, 10).await.unwrap().len(), 1);
    w.pass(LEASE_MS + 1).await;
    assert_eq!(w.claim(1).await.len(), 1);
    assert_eq!(w.save(&save).await, SaveReply::Lost);
}

/// Rule S3: a delayed write of the same owner comes after the end. Terminal is terminal.
pub async fn terminal_sagas_match_no_write(w: &World) {
    let held = w.held("order-1").await;
    let id = held.owned.id.clone();
    // The last write does not release here, so that only its end protects it.
    let end = Save {
        release: false,
        ..last_save(&held, 1)
    };
    assert_eq!(w.save(&end).await, SaveReply::Saved);
    let ended = w.load(&id).await;
    assert_eq!((ended.status, ended.due_at), (Status::Completed, None));
    for version in [1, 2, 3] {
        assert_eq!(
            w.save(&Save {
                version,
                ..first_save(&held)
            })
            .await,
            SaveReply::Lost
        );
    }
    w.store
        .release_sagas(std::slice::from_ref(&held.owned))
        .await
        .unwrap();
    let cancel = SagaRequest::Cancel {
        by: "ann".into(),
        why: String::new(),
    };
    assert_eq!(
        w.store.request_saga(&id, &cancel).await.unwrap(),
        RequestReply::Ended(Status::Completed)
    );
    w.pass(LEASE_MS + 1).await;
    assert!(w.claim(10).await.is_empty());
    let after = w.load(&id).await;
    assert_eq!(
        (after.state, after.version, after.status),
        (ended.state, ended.version, ended.status)
    );
}

/// A long wait holds no owner and no lease.
pub async fn a_write_that_releases_leaves_the_saga_to_its_timer(w: &World) {
    let held = w.held("order-1").await;
    let due_at = Some(w.store.saga_time().await.unwrap().plus_ms(60_000));
    let save = Save {
        release: true,
        due_at,
        ..first_save(&held)
    };
    assert_eq!(w.save(&save).await, SaveReply::Saved);
    assert_eq!(
        w.save(&Save { version: 2, ..save }).await,
        SaveReply::Lost,
        "it is nobody's"
    );
    assert!(w.claim(10).await.is_empty());
    w.pass(61_000).await;
    let again = w.claim(10).await;
    assert_eq!((again.len(), again[0].record.version), (1, 2));
}

/// Every entry belongs to the version it was written with.
pub async fn the_log_tells_the_writes_in_order(w: &World) {
    let held = w.held("order-1").await;
    assert_eq!(w.save(&first_save(&held)).await, SaveReply::Saved);
    assert_eq!(w.save(&last_save(&held, 2)).await, SaveReply::Saved);
    let log = w.store.saga_log(&held.owned.id, 100).await.unwrap();
    let told: Vec<_> = log
        .iter()
        .map(|row| {
            (
                row.version,
                row.entry.step.as_deref().unwrap_or("-"),
                row.entry.event.as_str(),
            )
        })
        .collect();
    let expected = [
        (2, "reserve", "started"),
        (3, "charge", "succeeded"),
        (3, "-", "completed"),
    ];
    assert_eq!(told, expected);
    assert!(log.windows(2).all(|pair| pair[0].at <= pair[1].at));
    assert_eq!(w.store.saga_log(&held.owned.id, 1).await.unwrap(), log[..1]);
}
