//! A key's row that somebody's open transaction holds, with the times as they are by default: whoever shares a batch or a
//! lane with it is answered all the same.

use std::sync::Arc;

use semel_core::{Fingerprint, Key, KeyStore, Scope};
use semel_http::IdempotencyLayer;
use semel_keys::Batched;
use semel_testkit::servers;
use tokio::task::JoinHandle;

use super::support::*;

fn held() -> Key {
    Key::new(Scope::new("tests").unwrap(), "held").unwrap()
}

fn layer(store: impl KeyStore) -> IdempotencyLayer {
    IdempotencyLayer::builder(Arc::new(Batched::new(store)) as Arc<dyn KeyStore>)
        .anonymous_scope("tests")
        .build()
        .unwrap()
}

/// Clients repeat the key that is held, as many as may wait for one; others come with keys of their own.
async fn no_neighbour_waits_for_it(layer: &IdempotencyLayer) {
    let runs = Runs::default();
    let app = counting(layer, &runs);
    let repeated: Vec<JoinHandle<Answer>> = (0..64).map(|_| send_soon(&app, post("held"))).collect();
    for round in 0..5 {
        let others: Vec<JoinHandle<Answer>> = (0..10)
            .map(|n| send_soon(&app, post(&format!("other-{round}-{n}"))))
            .collect();
        for other in others {
            let other = other.await.unwrap();
            assert_eq!(other.status, 201, "{other:?}");
        }
    }
    assert_eq!(runs.count(), 50);
    for repeated in repeated {
        let repeated = repeated.await.unwrap();
        assert_eq!(repeated.outcome(), "running", "{repeated:?}");
    }
}

#[tokio::test]
async fn a_row_held_by_a_transaction_fails_no_neighbour_on_postgres() {
    use semel_postgres::tx::{Once, OnceOptions, once};
    let url = servers::postgres().fresh_database();
    let db = semel_postgres::Postgres::connect(semel_postgres::Config::new(url))
        .await
        .unwrap();
    db.migrate().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    let first = once(&mut tx, &held(), Fingerprint::of(b"mine"), OnceOptions::default()).await;
    assert!(matches!(first.unwrap(), Once::First(_)));
    no_neighbour_waits_for_it(&layer(db.clone())).await;
    tx.rollback().await.unwrap();
}

#[tokio::test]
async fn a_row_held_by_a_transaction_fails_no_neighbour_on_mariadb() {
    use semel_mysql::tx::{Once, OnceOptions, once};
    let url = servers::mariadb().fresh_database();
    let db = semel_mysql::Mysql::connect(semel_mysql::Config::new(url))
        .await
        .unwrap();
    db.migrate().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    let first = once(&mut tx, &held(), Fingerprint::of(b"mine"), OnceOptions::default()).await;
    assert!(matches!(first.unwrap(), Once::First(_)));
    no_neighbour_waits_for_it(&layer(db.clone())).await;
    tx.rollback().await.unwrap();
}
