//! Lists, reasons, and what is forgotten when.

use semel_core::saga::{SagaId, Status};
use semel_core::store::{RequestReply, SagaLookup, SagaRequest, SaveState, SubmitReply};

use super::world::{World, moved, order, submission};

const HOUR_MS: i64 = 3_600_000;

/// An id is its bytes, on every list and look-up.
pub async fn ids_are_compared_byte_for_byte(w: &World) {
    let mut names = ["order-7", "Order-7", "order-07", "order_7", "order-7%", "~"];
    for name in names {
        w.submit(name).await;
    }
    names.sort_unstable();
    let mut seen: Vec<SagaId> = Vec::new();
    while let page = w.store.list_sagas(None, seen.last(), 4).await.unwrap()
        && !page.is_empty()
    {
        seen.extend(page.into_iter().map(|saga| saga.id));
    }
    assert!(seen.iter().map(SagaId::as_str).eq(names), "{seen:?}");
    let found = w.store.load_sagas(&seen).await.unwrap();
    let absent = found.iter().filter(|it| matches!(it, SagaLookup::Absent));
    assert_eq!(absent.count(), 0);
    assert!(w.store.list_sagas(None, None, 0).await.unwrap().is_empty());
}

/// In every status there is.
pub async fn every_status_is_listed_and_counted(w: &World) {
    assert!(w.store.count_sagas().await.unwrap().is_empty());
    for status in Status::ALL {
        let held = w.held(status.as_str()).await;
        w.save(&moved(&held, 1, status)).await;
    }
    let mut all: Vec<_> = Status::ALL.into_iter().map(|status| (status, 1)).collect();
    all.sort_unstable();
    assert_eq!(w.store.count_sagas().await.unwrap(), all);
    for status in Status::ALL {
        let listed = w.store.list_sagas(Some(status), None, 10).await.unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(
            (listed[0].id.as_str(), listed[0].status),
            (status.as_str(), status)
        );
        assert!(listed[0].updated_at >= listed[0].accepted_at);
    }
}

/// Why a person must look goes when it is mended.
pub async fn reasons_come_and_go_with_the_state(w: &World) {
    let held = w.held("order-1").await;
    let mut stuck = moved(&held, 1, Status::Stuck);
    if let SaveState::Instance(instance) = &mut stuck.state {
        instance.halted = Some("nobody serves it".into());
        instance.steps[1].needs_person = Some("402: ask the bank".into());
    }
    w.save(&stuck).await;
    let why = async || w.store.list_sagas(None, None, 1).await.unwrap().remove(0).why;
    assert_eq!(
        why().await.as_deref(),
        Some("nobody serves it; charge: 402: ask the bank")
    );
    w.save(&moved(&held, 2, Status::Running)).await;
    assert_eq!(why().await, None);
}

/// Rule S6: nothing of it is listed, counted, claimed or asked for any more, and its definition stays.
pub async fn a_tombstone_is_no_saga(w: &World) {
    let held = w.held("order-1").await;
    w.save(&moved(&held, 1, Status::Compensated)).await;
    w.pass(HOUR_MS + 1_000).await;
    assert_eq!(w.store.prune_sagas(HOUR_MS, HOUR_MS, 10).await.unwrap(), 1);
    assert_eq!(w.store.prune_sagas(HOUR_MS, HOUR_MS, 10).await.unwrap(), 0);
    let saga = held.owned.id;
    let retry = SagaRequest::Retry { by: "ann".into() };
    assert_eq!(
        w.store.request_saga(&saga, &retry).await.unwrap(),
        RequestReply::Ended(Status::Compensated)
    );
    assert!(w.store.list_sagas(None, None, 10).await.unwrap().is_empty());
    let of_status = w.store.list_sagas(Some(Status::Compensated), None, 10).await;
    assert!(of_status.unwrap().is_empty());
    assert!(w.store.count_sagas().await.unwrap().is_empty());
    assert!(w.claim(10).await.is_empty());
    let body = w.store.saga_definition(&order().hash()).await.unwrap();
    assert_eq!(body.as_deref(), Some(order().json()));
    assert_eq!(w.store.saga_definition(&[7; 32]).await.unwrap(), None);
}

/// The id is free again when the tombstone has ended, not before; nothing of the old run is left.
pub async fn after_its_tombstone_an_id_is_free(w: &World) {
    let held = w.held("order-1").await;
    let saga = held.owned.id.clone();
    w.save(&moved(&held, 1, Status::Completed)).await;
    w.pass(2_000).await;
    assert_eq!(w.store.prune_sagas(1_000, HOUR_MS, 10).await.unwrap(), 1);
    w.pass(HOUR_MS - 60_000).await;
    w.store.prune_sagas(1_000, HOUR_MS, 10).await.unwrap();
    let again = submission(&saga, "{}");
    let reply = w.store.submit_sagas(std::slice::from_ref(&again)).await.unwrap();
    assert_eq!(reply, [SubmitReply::Ended(Status::Completed)]);
    w.pass(61_000).await;
    assert_eq!(w.store.prune_sagas(1_000, HOUR_MS, 10).await.unwrap(), 0);
    let reply = w.store.submit_sagas(&[again]).await.unwrap();
    assert_eq!(reply, [SubmitReply::Accepted]);
    let saga = w.load(&saga).await;
    assert_eq!((saga.version, saga.epoch), (1, 0));
    assert!(w.store.saga_log(&saga.id, 10).await.unwrap().is_empty());
}

/// Only what has ended, and no more than asked for.
pub async fn pruning_takes_what_has_ended_up_to_its_limit(w: &World) {
    for status in Status::ALL {
        let held = w.held(status.as_str()).await;
        w.save(&moved(&held, 1, status)).await;
    }
    w.pass(400 * 86_400_000).await;
    for pruned in [2, 1, 0] {
        assert_eq!(w.store.prune_sagas(HOUR_MS, HOUR_MS, 2).await.unwrap(), pruned);
    }
    let left = w.store.list_sagas(None, None, 10).await.unwrap();
    assert!(left.iter().all(|saga| !saga.status.is_terminal()));
    assert_eq!(left.len(), 4);
}
