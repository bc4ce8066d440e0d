//! Several coordinators, dying and stopping ones.

use std::time::Duration;

use semel_core::saga::{Definition, Status};
use semel_core::store::SagaStore as _;
use semel_saga::{CoordinatorConfig, SagaHandle, Submitted};

use crate::shop::{Place, Reply, config, quick};

#[tokio::test(flavor = "multi_thread")]
async fn a_saga_whose_coordinator_died_is_taken_over_and_completed() {
    let place = Place::new().await;
    let first = place.coordinator();
    place.shop.will("charge", &[Reply::Gate]);
    let id = first
        .submit(&place.shop.chain(&["reserve", "charge"]), "order-1")
        .await;
    place.shop.until_called("charge", 1).await;
    first.dies().await;
    let second = place.coordinator();
    let end = second.end_of(&id).await;
    assert_eq!(end.status, Status::Completed);
    // Sent again under the same key and a higher epoch: the participant's barrier tells them apart.
    assert_eq!(place.shop.paths(), ["reserve", "charge", "charge"]);
    let seen = place.shop.seen();
    assert_eq!(
        seen[1].header("idempotency-key"),
        seen[2].header("idempotency-key")
    );
    assert_eq!(
        (seen[1].header("semel-epoch"), seen[2].header("semel-epoch")),
        ("1", "2")
    );
}

/// dtm, modelled: step 3 refuses, the coordinator dies right after the turn is durable.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_right_after_the_turn_leaves_every_compensation_made() {
    let place = Place::new().await;
    let first = place.coordinator();
    place.shop.will("ship", &[Reply::Refuse("no lorry")]);
    place.shop.will("undo-charge", &[Reply::Gate]);
    let id = first
        .submit(&place.shop.chain(&["reserve", "charge", "ship"]), "order-1")
        .await;
    place.shop.until_called("undo-charge", 1).await;
    first.dies().await;
    let second = place.coordinator();
    assert_eq!(second.end_of(&id).await.status, Status::Compensated);
    assert_eq!(place.shop.calls("undo-reserve"), 1);
    assert_eq!(place.shop.calls("ship"), 1, "what was refused is not run again");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_coordinators_share_sagas_and_each_step_is_called_once() {
    let place = Place::new().await;
    let patient = || CoordinatorConfig {
        lease: Duration::from_secs(20),
        ..config()
    };
    let (one, two) = (
        place.coordinator_with(patient()),
        place.coordinator_with(patient()),
    );
    let outside = SagaHandle::of_store(std::sync::Arc::new(place.db.clone()));
    let definition = place.shop.chain(&["reserve", "charge"]);
    for n in 0..60 {
        let id = semel_core::saga::SagaId::new(format!("order-{n}")).unwrap();
        let answer = outside.submit(&definition, id, "{}").await.unwrap();
        assert_eq!(answer, Submitted::New);
    }
    for n in 0..60 {
        let id = semel_core::saga::SagaId::new(format!("order-{n}")).unwrap();
        assert_eq!(one.end_of(&id).await.status, Status::Completed);
    }
    assert_eq!(
        (place.shop.calls("reserve"), place.shop.calls("charge")),
        (60, 60)
    );
    one.stops().await;
    two.stops().await;
}

/// conductor#213: a sweep as often as can be, and a slow participant.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_participant_is_called_once_however_often_sagas_are_looked_for() {
    let place = Place::new().await;
    let busy = CoordinatorConfig {
        poll: Duration::from_millis(1),
        lease: Duration::from_secs(4),
        ..config()
    };
    let coordinator = place.coordinator_with(busy);
    place.shop.will("charge", &[Reply::Late(9_000)]);
    let patient = place.shop.step("charge").with_attempt_timeout_ms(60_000);
    let chain = Definition::new("shop").step(patient).check().unwrap();
    let end = coordinator.run(&chain, "order-1").await;
    assert_eq!((end.status, place.shop.calls("charge")), (Status::Completed, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_coordinator_records_what_is_out_and_gives_its_sagas_back_at_once() {
    let place = Place::new().await;
    let long = CoordinatorConfig {
        lease: Duration::from_secs(3_600),
        ..config()
    };
    let first = place.coordinator_with(long.clone());
    place.shop.will("reserve", &[Reply::Late(300)]);
    let id = first
        .submit(&place.shop.chain(&["reserve", "charge"]), "order-1")
        .await;
    place.shop.until_called("reserve", 1).await;
    first.stops().await;
    assert_eq!(place.shop.paths(), ["reserve"], "nothing new was started");
    let second = place.coordinator_with(long);
    assert_eq!(second.end_of(&id).await.status, Status::Completed);
    assert_eq!(place.shop.paths(), ["reserve", "charge"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_participant_away_for_longer_than_the_hold_is_retried_by_whoever_is_there() {
    let place = Place::new().await;
    let first = place.coordinator();
    place.shop.will("charge", &[Reply::Status(503)]);
    let later = semel_core::RetryPolicy {
        initial_ms: 700,
        jitter: 0.0,
        ..quick(3)
    };
    let definition = Definition::new("shop")
        .step(place.shop.step("charge").with_retry(later))
        .check()
        .unwrap();
    let id = first.submit(&definition, "order-1").await;
    place.shop.until_called("charge", 1).await;
    while first.sagas.get(&id).await.unwrap().unwrap().status != Status::Waiting {
        tokio::task::yield_now().await;
    }
    // It waits without an owner: another coordinator need not wait for a lease.
    first.dies().await;
    let second = place.coordinator_with(CoordinatorConfig {
        lease: Duration::from_secs(3_600),
        ..config()
    });
    assert_eq!(second.end_of(&id).await.status, Status::Completed);
    assert_eq!(place.shop.calls("charge"), 2);
}

/// omicron#5947: one unreadable saga at start-up.
#[tokio::test(flavor = "multi_thread")]
async fn one_saga_that_cannot_be_read_is_stuck_and_the_others_go_on() {
    let place = Place::new().await;
    let outside = SagaHandle::of_store(std::sync::Arc::new(place.db.clone()));
    let definition = place.shop.chain(&["charge"]);
    for name in ["bad", "good"] {
        let id = semel_core::saga::SagaId::new(name).unwrap();
        outside.submit(&definition, id, "{}").await.unwrap();
    }
    let mut tx = place.db.begin().await.unwrap();
    sqlx::query("UPDATE semel_saga SET state = '{' WHERE id = 'bad'")
        .execute(&mut *tx)
        .await
        .unwrap();
    place.db.commit(tx).await.unwrap();
    let coordinator = place.coordinator();
    for (name, status) in [("good", Status::Completed), ("bad", Status::Stuck)] {
        let id = semel_core::saga::SagaId::new(name).unwrap();
        assert_eq!(coordinator.end_of(&id).await.status, status);
    }
    let stuck = place.db.list_sagas(Some(Status::Stuck), None, 10).await.unwrap();
    assert!(
        stuck[0].why.as_ref().unwrap().contains("cannot be read"),
        "{stuck:?}"
    );
}

/// Rule S8: a rolling deployment. The old coordinator leaves alone what it has no handler for.
#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_claims_only_what_it_can_serve_and_after_a_grace_it_is_stuck() {
    use semel_core::saga::{Answer, SagaId, Step};
    use semel_saga::Handlers;

    use crate::shop::Running;
    let place = Place::new().await;
    let start = |handlers: Handlers, grace: u64| {
        let config = CoordinatorConfig {
            unserved_grace: Duration::from_millis(grace),
            ..config()
        };
        Running::start(
            std::sync::Arc::new(place.db.clone()),
            std::sync::Arc::new(handlers),
            config,
        )
    };
    let step = |name: &str| Step::new(name, name).compensated_by(name).keyed();
    let new = Definition::new("new").step(step("pack")).check().unwrap();
    let old = start(Handlers::new(), 3_600_000);
    let outside = SagaHandle::of_store(std::sync::Arc::new(place.db.clone()));
    let id = SagaId::new("order-1").unwrap();
    outside.submit(&new, id.clone(), "{}").await.unwrap();
    let serving = start(
        Handlers::new().on("pack", |_| async { Answer::Succeeded("".into()) }),
        3_600_000,
    );
    assert_eq!(serving.end_of(&id).await.status, Status::Completed);
    serving.stops().await;
    old.stops().await;

    let alone = start(Handlers::new(), 100);
    let id = SagaId::new("order-2").unwrap();
    outside.submit(&new, id.clone(), "{}").await.unwrap();
    let end = alone.end_of(&id).await;
    assert_eq!(end.status, Status::Stuck);
    assert!(
        end.instance.unwrap().reasons()[0].contains("pack"),
        "the handler is named"
    );
    alone.stops().await;
    let mended = start(
        Handlers::new().on("pack", |_| async { Answer::Succeeded("".into()) }),
        100,
    );
    mended.sagas.retry(&id, "ann").await.unwrap();
    while mended.sagas.get(&id).await.unwrap().unwrap().status != Status::Completed {
        tokio::task::yield_now().await;
    }
}
