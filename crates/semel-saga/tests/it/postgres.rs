//! The same engine over PostgreSQL: what depends on the store, once more.

use std::sync::Arc;
use std::time::Duration;

use semel_core::saga::{SagaId, Status};
use semel_core::store::SagaStore;
use semel_saga::{CoordinatorConfig, SagaHandle};
use semel_testkit::servers;

use crate::shop::{Place, Reply, config, postgres};

async fn store() -> Arc<dyn SagaStore> {
    Arc::new(postgres(&servers::postgres().fresh_database()).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn sagas_complete_or_are_compensated_in_reverse() {
    let (place, store) = (Place::new().await, store().await);
    let coordinator = place.coordinator_over(store, config());
    place
        .shop
        .will("ship", &[Reply::Ok("{}"), Reply::Refuse("no lorry")]);
    let definition = place.shop.chain(&["reserve", "charge", "ship"]);
    assert_eq!(
        coordinator.run(&definition, "order-1").await.status,
        Status::Completed
    );
    assert_eq!(
        coordinator.run(&definition, "order-2").await.status,
        Status::Compensated
    );
    assert_eq!(
        place.shop.paths()[3..],
        ["reserve", "charge", "ship", "undo-charge", "undo-reserve"]
    );
    coordinator.stops().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_saga_whose_coordinator_died_is_taken_over() {
    let (place, store) = (Place::new().await, store().await);
    let first = place.coordinator_over(store.clone(), config());
    place.shop.will("charge", &[Reply::Gate]);
    let id = first
        .submit(&place.shop.chain(&["reserve", "charge"]), "order-1")
        .await;
    place.shop.until_called("charge", 1).await;
    first.dies().await;
    let second = place.coordinator_over(store, config());
    assert_eq!(second.end_of(&id).await.status, Status::Completed);
    assert_eq!(place.shop.paths(), ["reserve", "charge", "charge"]);
    second.stops().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_coordinators_share_sagas_and_each_step_is_called_once() {
    let (place, store) = (Place::new().await, store().await);
    let patient = || CoordinatorConfig {
        lease: Duration::from_secs(20),
        ..config()
    };
    let coordinators = [
        place.coordinator_over(store.clone(), patient()),
        place.coordinator_over(store.clone(), patient()),
    ];
    let outside = SagaHandle::of_store(store);
    let definition = place.shop.chain(&["reserve", "charge"]);
    let ids: Vec<SagaId> = (0..60)
        .map(|n| SagaId::new(format!("order-{n}")).unwrap())
        .collect();
    for id in &ids {
        outside.submit(&definition, id.clone(), "{}").await.unwrap();
    }
    for id in &ids {
        assert_eq!(coordinators[0].end_of(id).await.status, Status::Completed);
    }
    assert_eq!(
        (place.shop.calls("reserve"), place.shop.calls("charge")),
        (60, 60)
    );
    for coordinator in coordinators {
        coordinator.stops().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_from_another_process_reaches_the_owner() {
    let (place, store) = (Place::new().await, store().await);
    let coordinator = place.coordinator_over(store.clone(), config());
    place.shop.will("charge", &[Reply::Gate]);
    let id = coordinator
        .submit(&place.shop.chain(&["reserve", "charge"]), "order-1")
        .await;
    place.shop.until_called("charge", 1).await;
    SagaHandle::of_store(store)
        .cancel(&id, "ann", "changed her mind")
        .await
        .unwrap();
    // The renewal tells its owner of the version; nothing else wakes it.
    while !coordinator
        .sagas
        .log(&id, 100)
        .await
        .unwrap()
        .iter()
        .any(|row| row.entry.event == "turned")
    {
        tokio::task::yield_now().await;
    }
    place.shop.open_gate();
    assert_eq!(coordinator.end_of(&id).await.status, Status::Compensated);
    coordinator.stops().await;
}
