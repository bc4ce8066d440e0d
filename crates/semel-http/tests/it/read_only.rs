//! Real stores that may be read and not written to: they are there, so nothing passes them, and what they hold is answered.

use std::sync::Arc;

use semel_core::KeyStore;
use semel_core::store::KeyQuery;
use semel_http::{Event, IdempotencyLayer, Outage};
use semel_keys::Batched;
use semel_postgres::Postgres;
use semel_testkit::servers::postgres;

use super::support::*;

fn layer(store: &Arc<dyn KeyStore>, outage: Outage) -> IdempotencyLayer {
    let config = semel_http::Config {
        outage,
        wait_ms_max: 0,
        ..semel_http::Config::default()
    };
    IdempotencyLayer::builder(Arc::clone(store))
        .config(config)
        .anonymous_scope("tests")
        .build()
        .unwrap()
}

/// Whatever `open` says: somebody may be running the key, on another server perhaps.
async fn nothing_is_run_nor_stored_and_what_is_done_is_replayed(store: Arc<dyn KeyStore>) {
    let all = KeyQuery {
        scope: None,
        state: None,
        from: None,
        limit: 100,
    };
    let before = store.list(&all).await.unwrap().records;
    for outage in [Outage::Closed, Outage::Open] {
        let runs = Runs::default();
        let layer = layer(&store, outage);
        let app = counting(&layer, &runs);
        let refused = send(&app, post("new")).await;
        assert_eq!(
            (refused.status, refused.code().as_str(), refused.outcome()),
            (503, "SEM0411", "refused"),
            "{outage:?}"
        );
        assert_eq!(refused.header("retry-after"), Some("2"));
        let problem: serde_json::Value = serde_json::from_slice(&refused.body).unwrap();
        assert_eq!(problem["type"], "urn:semel:problem:store-unavailable");
        let text = refused.detail();
        assert!(
            text.contains("SEM0104") && !text.contains("store_ms_max"),
            "{text}"
        );
        let replay = send(&app, post("kept")).await;
        assert!(replay.replayed(), "{outage:?}: {replay:?}");
        let other = send(&app, request("POST", "/refunds", "kept", "{}")).await;
        assert_eq!(
            (other.status, other.code().as_str()),
            (422, "SEM0404"),
            "{outage:?}"
        );
        assert_eq!((runs.count(), layer.counts().get(Event::OpenPassed)), (0, 0));
        layer.drain().await;
    }
    let after = store.list(&all).await.unwrap().records;
    assert_eq!(after.len(), 1);
    assert_eq!(
        format!("{after:?}"),
        format!("{before:?}"),
        "nothing is half-stored"
    );
}

async fn open(url: &str) -> Postgres {
    Postgres::connect(semel_postgres::Config::new(url)).await.unwrap()
}

#[tokio::test]
async fn nothing_passes_a_read_only_postgres() {
    let url = postgres().fresh_database();
    let name = url.rsplit_once('/').unwrap().1;
    let db = open(&url).await;
    db.migrate().await.unwrap();
    let store: Arc<dyn KeyStore> = Arc::new(db.clone());
    let runs = Runs::default();
    let kept = counting(&layer(&store, Outage::Closed), &runs);
    assert_eq!(send(&kept, post("kept")).await.status, 201);
    db.close().await;

    postgres().run_sql(
        &postgres().url("postgres"),
        &format!("ALTER DATABASE {name} SET default_transaction_read_only = on"),
    );
    let db = open(&url).await;
    nothing_is_run_nor_stored_and_what_is_done_is_replayed(Arc::new(db.clone())).await;
    nothing_is_run_nor_stored_and_what_is_done_is_replayed(Arc::new(Batched::new(db.clone()))).await;
    db.close().await;

    postgres().run_sql(
        &postgres().url("postgres"),
        &format!("ALTER DATABASE {name} RESET default_transaction_read_only"),
    );
    let store: Arc<dyn KeyStore> = Arc::new(open(&url).await);
    let app = counting(&layer(&store, Outage::Closed), &runs);
    assert_eq!(send(&app, post("new")).await.body, "run 2", "it is free");
}
