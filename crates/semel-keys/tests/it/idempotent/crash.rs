//! A process that dies at each named point, with a batcher over each store that outlives it: what its successor finds.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use semel_core::{Key, KeyStore, Scope};
use semel_keys::{Batched, Failed, Idempotent, NotRun, Outcome};
use semel_testkit::crash::{self, Run};
use semel_testkit::servers;

/// Over the store that the folder names.
async fn once(folder: &Path) -> Idempotent<Batched<Arc<dyn KeyStore>>> {
    let url = std::fs::read_to_string(folder.join("store")).unwrap();
    Idempotent::new(Batched::new(opened(&url).await))
        .wait_ms_max(0)
        .lease_ms(1_000)
}

/// The store of a URL, by its scheme.
async fn opened(url: &str) -> Arc<dyn KeyStore> {
    match url.split_once(':').unwrap() {
        ("sqlite", path) => {
            let db = semel_sqlite::Sqlite::open(semel_sqlite::Config::new(path)).await;
            let db = db.unwrap();
            db.migrate().await.unwrap();
            Arc::new(db)
        }
        ("redis", _) => {
            let db = semel_redis::Redis::connect(semel_redis::Config::new(url)).await;
            Arc::new(db.unwrap())
        }
        ("mysql", _) => {
            let db = semel_mysql::Mysql::connect(semel_mysql::Config::new(url)).await;
            let db = db.unwrap();
            db.migrate().await.unwrap();
            Arc::new(db)
        }
        _ => {
            let db = semel_postgres::Postgres::connect(semel_postgres::Config::new(url)).await;
            let db = db.unwrap();
            db.migrate().await.unwrap();
            Arc::new(db)
        }
    }
}

/// A function whose effect is a line in a file.
async fn charge(once: &Idempotent<Batched<Arc<dyn KeyStore>>>, folder: &Path) -> Result<Outcome, NotRun> {
    let key = Key::new(Scope::new("tests").unwrap(), "order-7").unwrap();
    let ledger = folder.join("ledger");
    let ran = once.run(&key, "40.00", move |_| async move {
        let before = std::fs::read_to_string(&ledger).unwrap_or_default();
        std::fs::write(&ledger, format!("{before}charged\n"))?;
        Ok::<_, Failed>("charged")
    });
    ran.await.map(|ran| ran.outcome)
}

fn charges(folder: &Path) -> usize {
    let ledger = std::fs::read_to_string(folder.join("ledger"));
    ledger.unwrap_or_default().lines().count()
}

/// Point, charges made, whether the outcome is known.
const CASES: [(&str, usize, bool); 6] = [
    ("key.claimed", 0, false),
    ("run.claimed", 0, false),
    ("run.before_complete", 1, false),
    ("key.before_complete", 1, false),
    ("key.completed", 1, true),
    ("run.completed", 1, true),
];

/// Between two looks at a key whose owner is dead.
const PAUSE: Duration = Duration::from_millis(20);

/// Called by the test `name`; each case has a store of its own, and all go at once.
async fn a_crash_at_any_point_never_runs_twice_and_says_what_is_known(
    name: &'static str,
    fresh: impl Fn(&Path) -> String,
) {
    if let Some(folder) = crash::role("owner") {
        let folder = Path::new(&folder);
        let _ = charge(&once(folder).await, folder).await;
        return;
    }
    join_all(CASES.map(|(point, made, known)| {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("store"), fresh(dir.path())).unwrap();
        async move {
            let folder = dir.path().to_owned();
            let died = move || Run::test(name, "owner", &folder).at(point).run();
            let end = tokio::task::spawn_blocking(died).await.unwrap();
            assert!(end.crashed(), "{point}: {end:?}");
            let once = once(dir.path()).await;
            let found = loop {
                match charge(&once, dir.path()).await {
                    Err(NotRun::Running { .. }) if !known => tokio::time::sleep(PAUSE).await,
                    found => break found,
                }
            };
            match &found {
                Ok(Outcome::Succeeded(output)) if known => assert_eq!(&output[..], b"charged"),
                Ok(Outcome::Unknown) if !known => {}
                _ => panic!("{point}: {found:?}"),
            }
            assert_eq!(charges(dir.path()), made, "{point}");
        }
    }))
    .await;
}

macro_rules! on_each_durable_store {
    ($name:ident, $($store:ident: $fresh:expr),+ $(,)?) => {
        $(#[tokio::test]
        async fn $store() {
            $name(concat!("idempotent::crash::", stringify!($store)), $fresh).await;
        })+
    };
}

on_each_durable_store![
    a_crash_at_any_point_never_runs_twice_and_says_what_is_known,
    on_sqlite: |folder| format!("sqlite:{}", folder.join("keys.db").display()),
    on_postgres: |_| servers::postgres().fresh_database(),
    on_mariadb: |_| servers::mariadb().fresh_database(),
    on_redis: |_| servers::redis().fresh_database(),
];
