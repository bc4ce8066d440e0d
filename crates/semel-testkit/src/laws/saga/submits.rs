//! Accepting, refusing, remembering.

use semel_core::saga::{Definition, Instance, Status, Step};
use semel_core::store::{SagaLookup, SaveReply, SaveState, Submission, SubmitReply};
use semel_core::{ErrorKind, Nonce, limits};

use super::world::{World, begun, first_save, id, last_save, order, save_of, submission};

/// The same id, definition and input is the same saga; another input or definition is a mismatch and harms nothing.
pub async fn a_saga_is_accepted_once(w: &World) {
    let id = w.submit("order-1").await;
    let other = Definition::new("order")
        .step(Step::new("look", "do").read_only())
        .check()
        .unwrap();
    let replies = w
        .store
        .submit_sagas(&[
            submission(&id, "{}"),
            submission(&id, "{\"amount\":3000}"),
            Submission {
                definition: other,
                ..submission(&id, "{}")
            },
        ])
        .await
        .unwrap();
    let expected = [
        SubmitReply::Existing(Status::Running),
        SubmitReply::OtherInput,
        SubmitReply::OtherDefinition,
    ];
    assert_eq!(replies, expected);
    let record = w.load(&id).await;
    assert_eq!(
        (record.version, record.epoch, &record.input[..]),
        (1, 0, &b"{}"[..])
    );
    assert_eq!(
        w.store.saga_definition(&order().hash()).await.unwrap().as_deref(),
        Some(order().json())
    );
}

/// A batch is decided in its order.
pub async fn an_id_twice_in_one_batch_is_one_saga(w: &World) {
    let id = id("order-1");
    let batch = [
        submission(&id, "{}"),
        submission(&id, "{}"),
        submission(&id, "[]"),
    ];
    let replies = w.store.submit_sagas(&batch).await.unwrap();
    let expected = [
        SubmitReply::Accepted,
        SubmitReply::Existing(Status::Running),
        SubmitReply::OtherInput,
    ];
    assert_eq!(replies, expected);
}

/// However many send it, one hears `Accepted`.
pub async fn fifty_submissions_of_an_id_at_once_are_one_saga(w: &World) {
    let id = id("order-1");
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (store, submission) = (w.store.clone(), submission(&id, "{}"));
        tasks.spawn(async move { store.submit_sagas(&[submission]).await.unwrap()[0] });
    }
    let replies = tasks.join_all().await;
    assert_eq!(
        replies
            .iter()
            .filter(|reply| **reply == SubmitReply::Accepted)
            .count(),
        1,
        "{replies:?}"
    );
}

/// Its reply was lost: the same nonce is accepted again, a stranger's is not; after a later write neither is.
pub async fn a_claimed_submission_that_is_repeated_is_accepted_again(w: &World) {
    let (id, nonce) = (id("order-1"), Nonce::random());
    for _ in 0..2 {
        let reply = w
            .store
            .submit_sagas(&[w.claimed_submission(&id, nonce).await])
            .await
            .unwrap();
        assert_eq!(reply, [SubmitReply::Accepted]);
    }
    let stranger = w.claimed_submission(&id, Nonce::random()).await;
    let reply = w.store.submit_sagas(&[stranger]).await.unwrap();
    assert_eq!(reply, [SubmitReply::Existing(Status::Running)]);
    let record = w.load(&id).await;
    assert_eq!((record.epoch, record.version, record.owner), (1, 1, Some(nonce)));
    assert!(w.claim(10).await.is_empty(), "it is owned from its acceptance");
    assert_eq!(
        w.store.saga_log(&id, 10).await.unwrap().len(),
        1,
        "the first step's start is logged once"
    );
}

/// Bytes are bytes, zero bytes in outputs included.
pub async fn inputs_and_states_come_back_byte_for_byte(w: &World) {
    let id = id("order-1");
    let input: Vec<u8> = (0..=255).collect();
    let bytes = Submission {
        input: input.clone().into(),
        ..submission(&id, "")
    };
    w.store.submit_sagas(&[bytes]).await.unwrap();
    let held = w.claim(1).await.remove(0);
    assert_eq!(&held.record.input[..], &input[..]);
    let mut decision = begun(Instance::new(&order()), held.record.accepted_at);
    decision.instance.steps[0].output = Some(input.clone().into());
    decision.instance.steps[0].action.last = Some("a\u{0}b \u{1F980} '\"\\".to_owned());
    let written = decision.instance.clone();
    assert_eq!(w.save(&save_of(&held, 1, decision)).await, SaveReply::Saved);
    let read = Instance::from_json(&w.load(&id).await.state, &order()).unwrap();
    assert_eq!(read, written);
}

/// Nothing is stored, of its neighbours neither.
pub async fn an_input_over_the_limit_is_refused_with_the_limit_named(w: &World) {
    let large = Submission {
        input: vec![0; limits::SAGA_PAYLOAD_BYTES_MAX + 1].into(),
        ..submission(&id("large"), "")
    };
    let refused = w
        .store
        .submit_sagas(&[submission(&id("small"), "{}"), large])
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LimitExceeded);
    assert!(refused.to_string().contains("saga input"), "{refused}");
    assert!(matches!(
        w.store.load_sagas(&[id("small")]).await.unwrap()[0],
        SagaLookup::Absent
    ));
}

/// Rule S6: neither its answers nor its id are given out again while the tombstone stands.
pub async fn a_pruned_saga_is_remembered_as_ended(w: &World) {
    let held = w.held("order-1").await;
    let id = held.owned.id.clone();
    w.submit("order-2").await;
    assert_eq!(w.save(&last_save(&held, 1)).await, SaveReply::Saved);
    assert_eq!(
        w.store.prune_sagas(1_000, 60_000, 10).await.unwrap(),
        0,
        "it has only just ended"
    );
    w.pass(2_000).await;
    assert_eq!(
        w.store.prune_sagas(1_000, 60_000, 10).await.unwrap(),
        1,
        "what runs is never pruned"
    );
    let found = w.store.load_sagas(std::slice::from_ref(&id)).await.unwrap();
    assert!(
        matches!(found[0], SagaLookup::Ended(Status::Completed)),
        "{found:?}"
    );
    assert!(w.store.saga_log(&id, 10).await.unwrap().is_empty());
    let replies = w
        .store
        .submit_sagas(&[submission(&id, "{}"), submission(&id, "[]")])
        .await
        .unwrap();
    assert_eq!(
        replies,
        [SubmitReply::Ended(Status::Completed), SubmitReply::OtherInput]
    );
    w.pass(120_000).await;
    w.store.prune_sagas(1_000_000, 60_000, 10).await.unwrap();
    let found = w.store.load_sagas(&[id]).await.unwrap();
    assert!(matches!(found[0], SagaLookup::Absent), "{found:?}");
}

/// The operator sees why, and the state stays for whoever can read it.
pub async fn an_unreadable_state_is_kept_and_the_saga_is_stuck(w: &World) {
    let held = w.held("order-1").await;
    let mut save = first_save(&held);
    save.state = SaveState::Unreadable("its state cannot be read".into());
    (save.due_at, save.release) = (None, true);
    assert_eq!(w.save(&save).await, SaveReply::Saved);
    let record = w.load(&held.owned.id).await;
    assert_eq!(
        (record.status, &record.state),
        (Status::Stuck, &held.record.state)
    );
    let listed = w.store.list_sagas(Some(Status::Stuck), None, 10).await.unwrap();
    assert_eq!(listed[0].why.as_deref(), Some("its state cannot be read"));
    assert!(w.claim(10).await.is_empty());
}

/// Lists go by id and can be paged.
pub async fn sagas_are_listed_and_counted_by_status(w: &World) {
    let held = w.held("b").await;
    assert_eq!(w.save(&last_save(&held, 1)).await, SaveReply::Saved);
    for name in ["d", "a", "c", "B"] {
        w.submit(name).await;
    }
    let names = |listed: &[semel_core::store::SagaSummary]| {
        listed.iter().map(|saga| saga.id.to_string()).collect::<Vec<_>>()
    };
    let all = w.store.list_sagas(None, None, 10).await.unwrap();
    assert_eq!(
        names(&all),
        ["B", "a", "b", "c", "d"],
        "bytes decide, not a language's order"
    );
    assert_eq!(
        (all[2].status, all[2].definition.as_str()),
        (Status::Completed, "order")
    );
    let running = w
        .store
        .list_sagas(Some(Status::Running), Some(&id("a")), 1)
        .await
        .unwrap();
    assert_eq!(names(&running), ["c"]);
    assert_eq!(
        w.store.count_sagas().await.unwrap(),
        [(Status::Running, 4), (Status::Completed, 1)]
    );
}
