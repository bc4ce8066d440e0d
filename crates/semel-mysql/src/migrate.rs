//! The schema: numbered scripts, each run once under a lock of the server, then noted by its number.
//!
//! On these servers a statement that makes a table commits by itself. A script that was cut off in the middle is run
//! again from its start, so each of its statements does nothing where it has been done.

use semel_core::{ErrorKind, StoreError};
use sqlx::mysql::MySqlConnection;

use crate::db::Mysql;
use crate::error::classify;

const SCRIPTS: &[(i64, &str, &str)] = &[
    (1, "keys", include_str!("sql/0001_keys.sql")),
    (
        2,
        "outbox",
        concat!(
            include_str!("sql/0002_outbox.sql"),
            include_str!("sql/0002_outbox_limit.sql")
        ),
    ),
];

const VERSIONS: &str = "CREATE TABLE IF NOT EXISTS semel_schema (
  version BIGINT PRIMARY KEY, name VARCHAR(100) NOT NULL, applied_at DATETIME(6) NOT NULL) ENGINE = InnoDB;";

/// Serialises migrations of one database; the lock ends with its connection.
const LOCK: &str = "SELECT GET_LOCK(CONCAT('semel:', MD5(DATABASE())), 60)";
const UNLOCK: &str = "SELECT RELEASE_LOCK(CONCAT('semel:', MD5(DATABASE())))";

/// The newest schema this build knows.
pub const SCHEMA_VERSION: i64 = 2;

/// The whole schema as one script, for `semel migrate --print`.
#[must_use]
pub fn script() -> String {
    let mut text = format!("{VERSIONS}\n");
    for (version, name, sql) in SCRIPTS {
        text.push_str(&format!("\n-- {version}: {name}\n{sql}\n"));
    }
    text
}

impl Mysql {
    /// Installs or upgrades the schema; returns how many scripts it ran. Safe to call from several processes.
    ///
    /// # Errors
    /// `Schema` when the database's schema is newer than this build knows; nothing is changed then.
    pub async fn migrate(&self) -> Result<usize, StoreError> {
        let failed = |error| classify("migrate", error);
        let mut connection = self.pool.acquire().await.map_err(failed)?;
        let locked: Option<i64> = sqlx::query_scalar(LOCK)
            .fetch_one(&mut *connection)
            .await
            .map_err(failed)?;
        if locked != Some(1) {
            let text = "another process has been migrating this database for a minute; try again later";
            return Err(StoreError::new(ErrorKind::NotApplied, "migrate", text));
        }
        let ran = run(&mut connection).await;
        if let Err(error) = sqlx::query(UNLOCK).execute(&mut *connection).await {
            tracing::debug!(%error, "the lock of migrations ends with its connection");
        }
        ran
    }

    /// The schema version in the database; 0 when there is none.
    ///
    /// # Errors
    /// The server cannot be reached, or the schema is newer than this build knows.
    pub async fn schema_version(&self) -> Result<i64, StoreError> {
        let failed = |error| classify("schema_version", error);
        let mut connection = self.pool.acquire().await.map_err(failed)?;
        let found = found(&mut connection).await?;
        if found > SCHEMA_VERSION {
            Err(too_new(found))
        } else {
            Ok(found)
        }
    }
}

async fn found(db: &mut MySqlConnection) -> Result<i64, StoreError> {
    let failed = |error| classify("schema_version", error);
    let tables = "SELECT COUNT(*) FROM information_schema.tables
        WHERE table_schema = DATABASE() AND table_name = 'semel_schema'";
    let tables: i64 = sqlx::query_scalar(tables)
        .fetch_one(&mut *db)
        .await
        .map_err(failed)?;
    if tables == 0 {
        return Ok(0);
    }
    sqlx::query_scalar("SELECT COALESCE(MAX(version), 0) FROM semel_schema")
        .fetch_one(&mut *db)
        .await
        .map_err(failed)
}

async fn run(db: &mut MySqlConnection) -> Result<usize, StoreError> {
    let failed = |error| classify("migrate", error);
    let found = found(db).await?;
    if found > SCHEMA_VERSION {
        return Err(too_new(found));
    }
    let mut ran = 0;
    for (version, name, sql) in SCRIPTS.iter().filter(|(version, ..)| *version > found) {
        if ran == 0 {
            sqlx::raw_sql(VERSIONS).execute(&mut *db).await.map_err(failed)?;
        }
        sqlx::raw_sql(*sql).execute(&mut *db).await.map_err(failed)?;
        sqlx::query("INSERT INTO semel_schema (version, name, applied_at) VALUES (?, ?, UTC_TIMESTAMP(6))")
            .bind(version)
            .bind(name)
            .execute(&mut *db)
            .await
            .map_err(failed)?;
        ran += 1;
    }
    Ok(ran)
}

fn too_new(found: i64) -> StoreError {
    let text = format!("the schema is version {found}, this build knows {SCHEMA_VERSION}: use a newer semel");
    StoreError::new(ErrorKind::Schema, "migrate", text)
}
