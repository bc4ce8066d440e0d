//! Over a real server: what instances on several machines share.

use std::sync::Arc;

use semel_core::KeyStore;
use semel_http::{Config, IdempotencyLayer};
use semel_postgres::Postgres;
use semel_testkit::servers::postgres;

use super::support::*;

/// A layer with connections of its own.
async fn instance(url: &str, lease_ms: i64) -> IdempotencyLayer {
    let db = Postgres::connect(semel_postgres::Config::new(url)).await.unwrap();
    db.migrate().await.unwrap();
    let store: Arc<dyn KeyStore> = Arc::new(db);
    let config = Config {
        lease_ms,
        ..Config::default()
    };
    IdempotencyLayer::builder(store)
        .config(config)
        .anonymous_scope("tests")
        .build()
        .unwrap()
}

/// laravel-idempotency#1, fullstackhero/docs#240.
#[tokio::test]
async fn twenty_equal_posts_over_two_instances_run_once_and_get_equal_answers() {
    let url = postgres().fresh_database();
    let (runs, gate) = (Runs::default(), Gate::default());
    let layers = [instance(&url, 30_000).await, instance(&url, 30_000).await];
    let apps = layers.each_ref().map(|layer| gated(layer, &runs, &gate));
    let all: Vec<_> = (0..20).map(|n| send_soon(&apps[n % 2], post("a"))).collect();
    gate.arrived().await;
    gate.open();
    for answer in all {
        let answer = answer.await.unwrap();
        assert_eq!((answer.status, &answer.body[..]), (201, &b"run 1"[..]));
        assert!(answer.header("semel-guarantee").unwrap().starts_with("guarded"));
    }
    let other = send(&apps[0], request("POST", "/refunds", "a", "{}")).await;
    assert_eq!((other.status, runs.count()), (422, 1));
}

#[tokio::test]
async fn a_panic_is_unknown_to_the_other_instance_at_once() {
    let url = postgres().fresh_database();
    let runs = Runs::default();
    let first = app(&instance(&url, 30_000).await, &runs, |_| async {
        panic!("charged, then this")
    });
    assert_eq!(send(&first, post("a")).await.outcome(), "unknown");
    let other = counting(&instance(&url, 30_000).await, &runs);
    let again = send(&other, post("a")).await;
    assert_eq!(
        (again.status, again.code().as_str(), runs.count()),
        (409, "SEM0406", 1)
    );
}
