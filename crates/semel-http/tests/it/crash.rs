//! A process that dies at each named point, over each store that outlives it: what its successor finds.

use std::path::Path;

use semel_http::IdempotencyLayer;
use semel_testkit::crash::{self, Run};
use semel_testkit::servers;

use super::support::*;

/// An app over the store that the folder names, whose effect is a line in a file there.
async fn charging(folder: &Path) -> axum::Router {
    let url = std::fs::read_to_string(folder.join("store")).unwrap();
    let config = semel_http::Config {
        lease_ms: 1_000,
        wait_ms_max: 0,
        ..semel_http::Config::default()
    };
    let layer = IdempotencyLayer::builder(opened(&url).await)
        .config(config)
        .anonymous_scope("tests")
        .build()
        .unwrap();
    let ledger = folder.join("ledger");
    app(&layer, &Runs::default(), move |_| {
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

/// Called by the test `name`; each case has a store of its own.
async fn a_crash_at_any_point_never_charges_twice_and_says_what_is_known(
    name: &str,
    fresh: impl Fn(&Path) -> String,
) {
    if let Some(folder) = crash::role("owner") {
        send(&charging(Path::new(&folder)).await, post("a")).await;
        return;
    }
    for (point, made, during, after) in CASES {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("store"), fresh(dir.path())).unwrap();
        let end = Run::test(name, "owner", dir.path()).at(point).run();
        assert!(end.crashed(), "{point}: {end:?}");
        let app = charging(dir.path()).await;
        until("the lease of the dead one has ended", async || {
            let retry = send(&app, post("a")).await;
            assert!([during, after].contains(&retry.outcome()), "{point}: {retry:?}");
            retry.outcome() == after
        })
        .await;
        assert_eq!(charges(dir.path()), made, "{point}");
    }
}

macro_rules! on_each_durable_store {
    ($name:ident, $($store:ident: $fresh:expr),+ $(,)?) => {
        $(#[tokio::test]
        async fn $store() {
            $name(concat!("crash::", stringify!($store)), $fresh).await;
        })+
    };
}

on_each_durable_store![
    a_crash_at_any_point_never_charges_twice_and_says_what_is_known,
    on_sqlite: |folder| format!("sqlite:{}", folder.join("keys.db").display()),
    on_postgres: |_| servers::postgres().fresh_database(),
    on_mariadb: |_| servers::mariadb().fresh_database(),
    on_redis: |_| servers::redis().fresh_database(),
];
