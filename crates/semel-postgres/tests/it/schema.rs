//! The schema: migrating twice is migrating once, a newer schema is refused, a missing one is named.

use semel_core::{ErrorKind, KeyStoreExt};
use semel_postgres::{Config, Postgres, SCHEMA_VERSION};
use semel_testkit::servers::postgres;

use crate::keys::request;

async fn empty() -> Postgres {
    Postgres::connect(Config::new(postgres().fresh_database()))
        .await
        .unwrap()
}

/// Every object of the schema, as text.
async fn objects(db: &Postgres) -> Vec<String> {
    let columns = "SELECT concat_ws(' ', c.relkind, c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull)
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
      WHERE n.nspname = 'semel' AND NOT coalesce(a.attisdropped, false) ORDER BY 1";
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
    let url = postgres().fresh_database();
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let url = url.clone();
            tokio::spawn(async move {
                let db = Postgres::connect(Config::new(url)).await.unwrap();
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
    let newer = sqlx::query("INSERT INTO semel.schema_version (version, name) VALUES ($1, 'of tomorrow')");
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
    sqlx::raw_sql(sqlx::AssertSqlSafe(semel_postgres::script()))
        .execute(printed.pool())
        .await
        .unwrap();
    assert_eq!(objects(&printed).await, objects(&migrated).await);
}

/// What the script makes stays bound to what it found when it was run: that must not be somebody else's.
#[tokio::test]
async fn the_printed_schema_names_the_system_whatever_the_session_looks_into_first() {
    let db = empty().await;
    let mut session = db.pool().acquire().await.unwrap();
    let theirs = "CREATE SCHEMA theirs;
        CREATE FUNCTION theirs.substr(bytea, integer, integer) RETURNS bytea LANGUAGE sql AS 'SELECT $1';
        SET search_path = theirs, pg_catalog, public";
    sqlx::raw_sql(theirs).execute(&mut *session).await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(semel_postgres::script()))
        .execute(&mut *session)
        .await
        .unwrap();
    // Refused while something is bound to it.
    sqlx::raw_sql("DROP FUNCTION theirs.substr(bytea, integer, integer)")
        .execute(&mut *session)
        .await
        .unwrap();
    let path: String = sqlx::query_scalar("SHOW search_path")
        .fetch_one(&mut *session)
        .await
        .unwrap();
    assert_eq!(path, "\"$user\", public", "the session is as it began");
}
