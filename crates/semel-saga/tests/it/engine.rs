//! One coordinator, every kind of answer.

use std::time::Duration;

use semel_core::saga::{Answer, Definition, SagaId, Status, Step, StepState};
use semel_saga::{Handlers, SagaError, Submitted};

use crate::shop::{Place, Reply, Running, config, quick};

#[tokio::test(flavor = "multi_thread")]
async fn a_saga_calls_its_steps_in_order_under_stable_keys_and_completes() {
    let place = Place::new().await;
    let coordinator = place.coordinator();
    place.shop.will("reserve", &[Reply::Ok(r#"{"place":7}"#)]);
    let end = coordinator
        .run(&place.shop.chain(&["reserve", "charge"]), "order-1")
        .await;
    assert_eq!(end.status, Status::Completed);
    assert_eq!(place.shop.paths(), ["reserve", "charge"]);
    let charge = &place.shop.seen()[1];
    assert_eq!(
        (charge.header("semel-saga-id"), charge.header("semel-step")),
        ("order-1", "charge")
    );
    assert_eq!(
        (charge.header("semel-op"), charge.header("semel-epoch")),
        ("action", "1")
    );
    assert_eq!(charge.body["input"]["amount"], 30);
    assert_eq!(charge.body["outputs"]["reserve"]["place"], 7);
    assert_eq!(charge.header("idempotency-key").len(), 64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_compensates_in_reverse_with_the_actions_output() {
    let place = Place::new().await;
    let coordinator = place.coordinator();
    place.shop.will("charge", &[Reply::Ok(r#"{"payment":9}"#)]);
    place.shop.will("ship", &[Reply::Refuse("no lorry")]);
    let end = coordinator
        .run(&place.shop.chain(&["reserve", "charge", "ship"]), "order-1")
        .await;
    assert_eq!(end.status, Status::Compensated);
    assert_eq!(
        place.shop.paths(),
        ["reserve", "charge", "ship", "undo-charge", "undo-reserve"]
    );
    let seen = place.shop.seen();
    let undo = &seen[3];
    assert_eq!(
        (undo.header("semel-op"), undo.header("semel-action")),
        ("compensation", "succeeded")
    );
    assert_eq!(undo.body["action"]["output"]["payment"], 9);
    assert_eq!(undo.header("semel-action-key"), seen[1].header("idempotency-key"));
    assert_ne!(undo.header("idempotency-key"), seen[1].header("idempotency-key"));
    let why = end.instance.unwrap().turned.unwrap().why;
    assert!(why.contains("ship") && why.contains("no lorry"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_charge_that_succeeds_after_its_deadline_is_refunded() {
    let place = Place::new().await;
    let coordinator = place.coordinator();
    place
        .shop
        .will("charge", &[Reply::Late(3_000), Reply::Late(3_000)]);
    let charge = place
        .shop
        .step("charge")
        .with_attempt_timeout_ms(150)
        .with_retry(quick(2));
    let definition = Definition::new("shop").step(charge).check().unwrap();
    let end = coordinator.run(&definition, "order-1").await;
    assert_eq!(end.status, Status::Compensated);
    assert_eq!(place.shop.paths(), ["charge", "charge", "undo-charge"]);
    assert_eq!(place.shop.seen()[2].header("semel-action"), "unknown");
    let keys: Vec<_> = place.shop.seen()[..2]
        .iter()
        .map(|seen| seen.header("idempotency-key").to_owned())
        .collect();
    assert_eq!(keys[0], keys[1], "an attempt's number is no part of the key");
}

/// steno#66: the reply is lost, then the port is closed. That says nothing about the first attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_and_then_a_closed_port_is_unknown_and_compensated() {
    let place = Place::new().await;
    let coordinator = place.coordinator();
    // A server that takes one request, answers nothing and closes its port.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/charge", listener.local_addr().unwrap());
    let once = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        stream.readable().await.unwrap();
    });
    let charge = Step {
        action: url,
        ..place.shop.step("charge")
    };
    let end = coordinator
        .run(&Definition::new("shop").step(charge).check().unwrap(), "order-1")
        .await;
    once.await.unwrap();
    assert_eq!(end.status, Status::Compensated);
    assert_eq!(place.shop.paths(), ["undo-charge"]);
    assert_eq!(place.shop.seen()[0].header("semel-action"), "unknown");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_participant_that_was_never_there_is_a_certain_refusal() {
    let place = Place::new().await;
    let coordinator = place.coordinator();
    let port = semel_testkit::servers::free_port();
    let charge = Step {
        action: format!("http://127.0.0.1:{port}/charge"),
        ..place.shop.step("charge")
    };
    let definition = Definition::new("shop")
        .step(place.shop.step("reserve"))
        .step(charge)
        .check()
        .unwrap();
    let end = coordinator.run(&definition, "order-1").await;
    assert_eq!(end.status, Status::Compensated);
    assert_eq!(place.shop.paths(), ["reserve", "undo-reserve"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_answers_500_may_have_done_half_and_is_undone() {
    let place = Place::new().await;
    let coordinator = place.coordinator();
    place.shop.will(
        "charge",
        &[
            Reply::Status(500),
            Reply::Status(503),
            Reply::Status(500),
            Reply::Status(500),
        ],
    );
    let end = coordinator.run(&place.shop.chain(&["charge"]), "order-1").await;
    assert_eq!(end.status, Status::Compensated);
    assert_eq!(
        (place.shop.calls("charge"), place.shop.calls("undo-charge")),
        (4, 1)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_participant_that_still_works_is_asked_again_and_no_attempt_is_spent() {
    let place = Place::new().await;
    let coordinator = place.coordinator();
    place
        .shop
        .will("charge", &[Reply::Running, Reply::Running, Reply::Running]);
    let charge = place.shop.step("charge").with_retry(quick(1));
    let end = coordinator
        .run(&Definition::new("shop").step(charge).check().unwrap(), "order-1")
        .await;
    assert_eq!((end.status, place.shop.calls("charge")), (Status::Completed, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_too_large_to_keep_is_compensated_with_the_limit_named() {
    let place = Place::new().await;
    let coordinator = place.coordinator();
    place.shop.will("charge", &[Reply::Huge]);
    let end = coordinator.run(&place.shop.chain(&["charge"]), "order-1").await;
    assert_eq!(end.status, Status::Compensated);
    assert_eq!(place.shop.seen()[1].header("semel-action"), "succeeded");
    assert!(
        end.instance
            .unwrap()
            .turned
            .unwrap()
            .why
            .contains("1048576 bytes")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_id_fifty_times_at_once_is_one_saga() {
    let place = Place::new().await;
    let coordinator = place.coordinator();
    let definition = place.shop.chain(&["charge"]);
    let id = SagaId::new("order-1").unwrap();
    let submit = || async {
        let sagas = coordinator.sagas.clone();
        sagas.submit(&definition, id.clone(), "{}").await.unwrap()
    };
    let answers = futures_util::future::join_all((0..50).map(|_| submit())).await;
    assert_eq!(
        answers.iter().filter(|answer| **answer == Submitted::New).count(),
        1
    );
    coordinator.end_of(&id).await;
    assert_eq!(place.shop.calls("charge"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_id_with_other_input_or_definition_is_a_mismatch_and_harms_nothing() {
    let place = Place::new().await;
    let coordinator = place.coordinator();
    let definition = place.shop.chain(&["charge"]);
    let id = SagaId::new("order-1").unwrap();
    coordinator
        .sagas
        .submit(&definition, id.clone(), r#"{"amount":30}"#)
        .await
        .unwrap();
    let other = coordinator
        .sagas
        .submit(&definition, id.clone(), r#"{"amount":3000}"#)
        .await;
    assert!(matches!(other, Err(SagaError::OtherInput)), "{other:?}");
    let other = coordinator
        .sagas
        .submit(&place.shop.chain(&["reserve"]), id.clone(), r#"{"amount":30}"#)
        .await;
    assert!(matches!(other, Err(SagaError::OtherDefinition)), "{other:?}");
    assert_eq!(coordinator.end_of(&id).await.status, Status::Completed);
    let again = coordinator
        .sagas
        .submit(&definition, id, r#"{"amount":30}"#)
        .await
        .unwrap();
    assert_eq!(again, Submitted::Existing(Status::Completed));
    assert_eq!(place.shop.paths(), ["charge"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_during_the_second_step_undoes_both() {
    let place = Place::new().await;
    let coordinator = place.coordinator();
    place.shop.will("charge", &[Reply::Gate]);
    let id = coordinator
        .submit(&place.shop.chain(&["reserve", "charge", "ship"]), "order-1")
        .await;
    place.shop.until_called("charge", 1).await;
    coordinator
        .sagas
        .cancel(&id, "ann", "changed her mind")
        .await
        .unwrap();
    let log = || async { coordinator.sagas.log(&id, 100).await.unwrap() };
    while !log().await.iter().any(|row| row.entry.event == "turned") {
        tokio::task::yield_now().await;
    }
    place.shop.open_gate();
    let end = coordinator.end_of(&id).await;
    assert_eq!(end.status, Status::Compensated);
    assert_eq!(
        place.shop.paths(),
        ["reserve", "charge", "undo-charge", "undo-reserve"]
    );
    assert_eq!(
        place.shop.seen()[2].header("semel-action"),
        "succeeded",
        "the late reply was recorded"
    );
    let late = coordinator.sagas.cancel(&id, "ann", "again").await;
    assert!(
        matches!(late, Err(SagaError::Ended(Status::Compensated))),
        "{late:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parallel_sibling_is_awaited_and_its_undo_gets_its_output() {
    let place = Place::new().await;
    let coordinator = place.coordinator();
    place.shop.will("a", &[Reply::Gate]);
    place.shop.will("b", &[Reply::Refuse("no")]);
    let wide = Definition::new("wide")
        .step(place.shop.step("a").after([""; 0]))
        .step(place.shop.step("b").after([""; 0]))
        .check()
        .unwrap();
    let id = coordinator.submit(&wide, "order-1").await;
    place.shop.until_called("b", 1).await;
    place.shop.open_gate();
    assert_eq!(coordinator.end_of(&id).await.status, Status::Compensated);
    assert_eq!(place.shop.seen()[2].body["action"]["succeeded"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_in_this_process_take_part_and_a_panic_is_unknown() {
    let place = Place::new().await;
    let handlers = Handlers::new()
        .on("reserve", |call| async move { Answer::Succeeded(call.input) })
        .on("release", |_| async { Answer::Succeeded("".into()) })
        .on("charge", |_| async { panic!("out of paper") });
    let steps = Definition::new("local")
        .step(Step::new("reserve", "reserve").compensated_by("release").keyed())
        .step(Step::new("charge", "charge").compensated_by("release"));
    let coordinator = Running::start(
        std::sync::Arc::new(place.db.clone()),
        std::sync::Arc::new(handlers),
        config(),
    );
    let end = coordinator.run(&steps.check().unwrap(), "order-1").await;
    // Its participant knows no keys: whether it happened, only a person can tell.
    assert_eq!(end.status, Status::Stuck);
    let instance = end.instance.unwrap();
    assert_eq!(
        instance.step("charge").unwrap().state,
        StepState::CompensationStuck
    );
    assert!(
        instance
            .step("charge")
            .unwrap()
            .action
            .last
            .as_ref()
            .unwrap()
            .contains("panicked")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_sagas_share_a_destination_that_takes_few_calls_at_a_time() {
    let place = Place::new().await;
    let coordinator = place.coordinator_with(semel_saga::CoordinatorConfig {
        lease: Duration::from_secs(20),
        per_destination_max: 4,
        ..config()
    });
    let definition = place.shop.chain(&["charge"]);
    let ids = futures_util::future::join_all((0..300).map(|n| {
        let (coordinator, definition) = (&coordinator, &definition);
        async move { coordinator.submit(definition, &format!("order-{n}")).await }
    }));
    for id in ids.await {
        assert_eq!(coordinator.end_of(&id).await.status, Status::Completed);
    }
    assert_eq!(place.shop.calls("charge"), 300);
    assert!(
        place.shop.inside_max() <= 4,
        "{} at a time",
        place.shop.inside_max()
    );
    assert_eq!(
        coordinator.sagas.stats().await.unwrap(),
        [(Status::Completed, 300)]
    );
    coordinator.stops().await;
}
