//! The schema: migrating twice is migrating once, a newer schema is refused, a missing one is named.

use semel_core::{ErrorKind, KeyStoreExt};
use semel_mysql::{Config, Mysql, SCHEMA_VERSION};
use semel_testkit::servers::mariadb;

use crate::keys::request;

async fn empty() -> Mysql {
    Mysql::connect(Config::new(mariadb().fresh_database()))
        .await
        .unwrap()
}

/// Every object of the schema, as text.
async fn objects(db: &Mysql) -> Vec<String> {
    let columns =
        "SELECT CONCAT_WS(' ', table_name, column_name, column_type, is_nullable, column_key, extra)
      FROM information_schema.columns WHERE table_schema = DATABASE() ORDER BY table_name, ordinal_position";
    sqlx::query_scalar(columns).fetch_all(db.pool()).await.unwrap()
}

#[tokio::test]
async fn migrating_twice_is_migrating_once() {
    let db = empty().await;
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
    let url = mariadb().fresh_database();
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let url = url.clone();
            tokio::spawn(async move {
                let db = Mysql::connect(Config::new(url)).await.unwrap();
                db.migrate().await.unwrap()
            })
        })
        .collect();
    let mut ran = 0;
    for task in tasks {
        ran += task.await.unwrap();
    }
    assert_eq!(i64::try_from(ran).unwrap(), SCHEMA_VERSION);
}

#[tokio::test]
async fn newer_schema_is_refused_and_left_alone() {
    let db = empty().await;
    db.migrate().await.unwrap();
    let newer = sqlx::query(
        "INSERT INTO semel_schema (version, name, applied_at) VALUES (?, 'of tomorrow', UTC_TIMESTAMP(6))",
    );
    newer.bind(SCHEMA_VERSION + 1).execute(db.pool()).await.unwrap();
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
    let db = empty().await;
    let error = db.claim(&request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    assert!(error.to_string().contains("semel migrate"), "{error}");
}

/// What `semel migrate --print` shows is what `migrate` does.
#[tokio::test]
async fn printed_script_makes_the_same_schema() {
    let (migrated, printed) = (empty().await, empty().await);
    migrated.migrate().await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(semel_mysql::script()))
        .execute(printed.pool())
        .await
        .unwrap();
    assert_eq!(objects(&printed).await, objects(&migrated).await);
}

/// A script that was cut off in the middle is run again from its start.
#[tokio::test]
async fn script_that_was_cut_off_is_run_again() {
    let db = empty().await;
    db.migrate().await.unwrap();
    let whole = objects(&db).await;
    sqlx::raw_sql("DROP TABLE semel_commit; DELETE FROM semel_schema")
        .execute(db.pool())
        .await
        .unwrap();
    assert_eq!(
        i64::try_from(db.migrate().await.unwrap()).unwrap(),
        SCHEMA_VERSION
    );
    assert_eq!(objects(&db).await, whole);
}
