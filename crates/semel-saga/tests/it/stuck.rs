//! What needs a person, and what becomes of it.

use semel_core::saga::{Definition, Status, StepState};

use crate::shop::{Place, Reply, quick};

#[tokio::test(flavor = "multi_thread")]
async fn a_compensation_that_fails_is_stuck_and_goes_on_after_a_retry() {
    let place = Place::new().await;
    let coordinator = place.coordinator();
    place.shop.will("charge", &[Reply::Refuse("no money")]);
    place
        .shop
        .will("undo-reserve", &[Reply::Status(500), Reply::Status(500)]);
    let reserve = place.shop.step("reserve").with_compensation_retry(quick(2));
    let definition = Definition::new("shop")
        .step(reserve)
        .step(place.shop.step("charge"))
        .check()
        .unwrap();
    let end = coordinator.run(&definition, "order-1").await;
    assert_eq!(end.status, Status::Stuck);
    let instance = end.instance.unwrap();
    assert_eq!(
        instance.step("reserve").unwrap().state,
        StepState::CompensationStuck
    );
    assert!(
        instance.reasons()[0].contains("status 500"),
        "{:?}",
        instance.reasons()
    );
    coordinator.sagas.retry(&end.id, "ann").await.unwrap();
    while coordinator.sagas.get(&end.id).await.unwrap().unwrap().status != Status::Compensated {
        tokio::task::yield_now().await;
    }
    assert_eq!(place.shop.calls("undo-reserve"), 3);
}

/// temporalio/sdk-php#786: of three parallel compensations two fail.
#[tokio::test(flavor = "multi_thread")]
async fn of_three_parallel_compensations_all_are_called_and_both_errors_are_shown() {
    let place = Place::new().await;
    let coordinator = place.coordinator();
    for name in ["undo-a", "undo-c"] {
        place
            .shop
            .will(name, &[Reply::Refuse("locked"), Reply::Refuse("locked")]);
    }
    place.shop.will("last", &[Reply::Refuse("no")]);
    let wide = ["a", "b", "c"]
        .iter()
        .fold(Definition::new("wide"), |all, name| {
            all.step(place.shop.step(name).after([""; 0]))
        })
        .step(place.shop.step("last").after(["a", "b", "c"]))
        .check()
        .unwrap();
    let end = coordinator.run(&wide, "order-1").await;
    assert_eq!(end.status, Status::Stuck);
    for name in ["undo-a", "undo-b", "undo-c"] {
        assert_eq!(place.shop.calls(name), 1, "{name}");
    }
    let instance = end.instance.unwrap();
    assert_eq!(instance.step("b").unwrap().state, StepState::Compensated);
    assert_eq!(instance.reasons().len(), 2, "{:?}", instance.reasons());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_url_is_given_to_a_person_after_few_attempts_and_can_be_cancelled() {
    let place = Place::new().await;
    let coordinator = place.coordinator();
    place.shop.will(
        "charge",
        &[Reply::Status(404), Reply::Status(404), Reply::Status(404)],
    );
    let end = coordinator
        .run(&place.shop.chain(&["reserve", "charge"]), "order-1")
        .await;
    assert_eq!((end.status, place.shop.calls("charge")), (Status::Stuck, 3));
    coordinator
        .sagas
        .cancel(&end.id, "ann", "the shop is closed")
        .await
        .unwrap();
    while coordinator.sagas.get(&end.id).await.unwrap().unwrap().status != Status::Compensated {
        tokio::task::yield_now().await;
    }
    assert_eq!(place.shop.paths()[4..], ["undo-charge", "undo-reserve"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abandoned_saga_stays_as_it_is() {
    let place = Place::new().await;
    let coordinator = place.coordinator();
    place.shop.will("charge", &[Reply::Gate]);
    let id = coordinator
        .submit(&place.shop.chain(&["charge", "ship"]), "order-1")
        .await;
    place.shop.until_called("charge", 1).await;
    coordinator
        .sagas
        .abandon(&id, "ann", "settled by telephone")
        .await
        .unwrap();
    assert_eq!(coordinator.end_of(&id).await.status, Status::Abandoned);
    place.shop.open_gate();
    coordinator.stops().await;
    assert_eq!(place.shop.paths(), ["charge"]);
}
