//! A process that dies at each named point, over SQLite: what its successor finds.

use std::path::Path;
use std::sync::Arc;

use semel_core::{Clock, KeyStore, SystemClock};
use semel_http::IdempotencyLayer;
use semel_testkit::clock::ManualClock;
use semel_testkit::crash::{self, Run};

use super::support::*;

async fn layer(folder: &Path, clock: Arc<dyn Clock>) -> IdempotencyLayer {
    let mut config = semel_sqlite::Config::new(folder.join("keys.db"));
    config.clock = clock;
    let db = semel_sqlite::Sqlite::open(config).await.unwrap();
    db.migrate().await.unwrap();
    let store: Arc<dyn KeyStore> = Arc::new(db);
    let config = semel_http::Config {
        wait_ms_max: 0,
        ..semel_http::Config::default()
    };
    IdempotencyLayer::builder(store)
        .config(config)
        .anonymous_scope("tests")
        .build()
        .unwrap()
}

/// An app whose effect is a line in a file.
fn charging(layer: &IdempotencyLayer, folder: &Path) -> axum::Router {
    let ledger = folder.join("ledger");
    app(layer, &Runs::default(), move |_| {
        let before = std::fs::read_to_string(&ledger).unwrap_or_default();
        std::fs::write(&ledger, format!("{before}charged\n")).unwrap();
        async { answer(201, "charged") }
    })
}

fn charges(folder: &Path) -> usize {
    std::fs::read_to_string(folder.join("ledger"))
        .unwrap_or_default()
        .lines()
        .count()
}

/// Point, charges made, what a retry is told while the lease lasts and after it.
const CASES: [(&str, usize, &str, &str); 3] = [
    ("http.claimed", 0, "running", "unknown"),
    ("http.before_complete", 1, "running", "unknown"),
    ("http.completed", 1, "succeeded", "succeeded"),
];

#[tokio::test]
async fn a_crash_at_any_point_never_charges_twice_and_says_what_is_known() {
    if let Some(folder) = crash::role("owner") {
        let folder = Path::new(&folder);
        let app = charging(&layer(folder, Arc::new(SystemClock)).await, folder);
        send(&app, post("a")).await;
        return;
    }
    for (point, made, during, after) in CASES {
        let dir = tempfile::tempdir().unwrap();
        let name = "crash::a_crash_at_any_point_never_charges_twice_and_says_what_is_known";
        let end = Run::test(name, "owner", dir.path()).at(point).run();
        assert!(end.crashed(), "{point}: {end:?}");
        let clock = Arc::new(ManualClock::at(SystemClock.now()));
        let app = charging(&layer(dir.path(), clock.clone()).await, dir.path());
        assert_eq!(send(&app, post("a")).await.outcome(), during, "{point}");
        clock.advance_ms(31_000);
        assert_eq!(send(&app, post("a")).await.outcome(), after, "{point}");
        assert_eq!(charges(dir.path()), made, "{point}");
    }
}
