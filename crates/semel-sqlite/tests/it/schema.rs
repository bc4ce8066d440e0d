//! The schema: migrating twice is migrating once, a newer schema is refused, a missing one is named.

use semel_core::{ErrorKind, KeyStoreExt};
use semel_sqlite::{Config, SCHEMA_VERSION, Sqlite};
use sqlx::Connection as _;
use tempfile::TempDir;

use crate::keys::request;

async fn empty() -> (Sqlite, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let db = Sqlite::open(Config::new(dir.path().join("test.db")))
        .await
        .unwrap();
    (db, dir)
}

/// Every object of the schema, as text.
async fn objects(db: &Sqlite) -> Vec<String> {
    let sql = "SELECT type || ' ' || name || ' ' || coalesce(sql, '') FROM sqlite_master ORDER BY 1";
    sqlx::query_scalar(sql).fetch_all(db.readers()).await.unwrap()
}

#[tokio::test]
async fn migrating_twice_is_migrating_once() {
    let (db, _dir) = empty().await;
    assert_eq!(db.schema_version().await.unwrap(), 0);
    assert_eq!(
        i64::try_from(db.migrate().await.unwrap()).unwrap(),
        SCHEMA_VERSION
    );
    let once = objects(&db).await;
    assert_eq!(db.migrate().await.unwrap(), 0);
    assert_eq!(objects(&db).await, once);
    assert_eq!(db.schema_version().await.unwrap(), SCHEMA_VERSION);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_processes_may_migrate_at_the_same_time() {
    for _ in 0..10 {
        let dir = tempfile::tempdir().unwrap();
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let config = Config::new(dir.path().join("test.db"));
                tokio::spawn(async move { Sqlite::open(config).await.unwrap().migrate().await.unwrap() })
            })
            .collect();
        let mut ran = 0;
        for task in tasks {
            ran += task.await.unwrap();
        }
        assert_eq!(i64::try_from(ran).unwrap(), SCHEMA_VERSION);
    }
}

#[tokio::test]
async fn a_file_that_another_process_holds_is_waited_for_as_long_as_the_setting_says() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::new(dir.path().join("test.db"));
    // Not in WAL mode yet, and held: the change of mode is refused at once, however long the busy time-out.
    let held = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(&config.path)
        .create_if_missing(true);
    let mut other = sqlx::SqliteConnection::connect_with(&held).await.unwrap();
    sqlx::raw_sql("CREATE TABLE t (a); BEGIN; SELECT * FROM t")
        .execute(&mut other)
        .await
        .unwrap();

    config.busy_timeout = std::time::Duration::from_millis(30);
    let error = Sqlite::open(config.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotApplied);
    assert!(error.to_string().contains("raise busy_timeout"), "{error}");

    config.busy_timeout = std::time::Duration::from_secs(60);
    let opening = tokio::spawn(Sqlite::open(config));
    tokio::task::yield_now().await;
    assert!(!opening.is_finished());
    sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
    opening.await.unwrap().unwrap();
}

#[tokio::test]
async fn newer_schema_is_refused_and_left_alone() {
    let (db, _dir) = empty().await;
    db.migrate().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    let newer = "INSERT INTO semel_schema (version, name, applied_at) VALUES (?1, 'of tomorrow', 0)";
    sqlx::query(newer)
        .bind(SCHEMA_VERSION + 1)
        .execute(&mut *tx)
        .await
        .unwrap();
    db.commit(tx).await.unwrap();
    for error in [
        db.migrate().await.unwrap_err(),
        db.schema_version().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Schema);
        assert!(error.to_string().contains("use a newer semel"), "{error}");
    }
}

#[tokio::test]
async fn missing_schema_is_named_with_what_to_do() {
    let (db, _dir) = empty().await;
    let error = db.claim(&request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    assert!(error.to_string().contains("semel migrate"), "{error}");
}

/// What `semel migrate --print` shows is what `migrate` does.
#[tokio::test]
async fn printed_script_makes_the_same_schema() {
    let ((migrated, _a), (printed, _b)) = (empty().await, empty().await);
    migrated.migrate().await.unwrap();
    let mut tx = printed.begin().await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(semel_sqlite::script()))
        .execute(&mut *tx)
        .await
        .unwrap();
    printed.commit(tx).await.unwrap();
    assert_eq!(objects(&printed).await, objects(&migrated).await);
}
