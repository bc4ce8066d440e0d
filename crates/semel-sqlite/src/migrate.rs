//! The schema: numbered scripts, each run once, in one transaction with its number.

use semel_core::{ErrorKind, StoreError};

use crate::db::Sqlite;
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
    (3, "inbox", include_str!("sql/0003_inbox.sql")),
    (4, "saga", include_str!("sql/0004_saga.sql")),
];

const VERSIONS: &str = "CREATE TABLE IF NOT EXISTS semel_schema (
  version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT";

/// The newest schema this build knows.
pub const SCHEMA_VERSION: i64 = 4;

/// The whole schema as one script, for `semel migrate --print`.
#[must_use]
pub fn script() -> String {
    let mut text = format!("{VERSIONS};\n");
    for (version, name, sql) in SCRIPTS {
        text.push_str(&format!("\n-- {version}: {name}\n{sql}\n"));
    }
    text
}

impl Sqlite {
    /// Installs or upgrades the schema; returns how many scripts it ran. Safe to call from several processes.
    ///
    /// # Errors
    /// `Schema` when the file's schema is newer than this build knows; nothing is changed then.
    pub async fn migrate(&self) -> Result<usize, StoreError> {
        let failed = |error| classify("migrate", error);
        let mut tx = self.begin().await?;
        sqlx::raw_sql(VERSIONS).execute(&mut *tx).await.map_err(failed)?;
        let found: i64 = sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM semel_schema")
            .fetch_one(&mut *tx)
            .await
            .map_err(failed)?;
        if found > SCHEMA_VERSION {
            return Err(too_new(found));
        }
        let mut ran = 0;
        for (version, name, sql) in SCRIPTS.iter().filter(|(version, ..)| *version > found) {
            sqlx::raw_sql(*sql).execute(&mut *tx).await.map_err(failed)?;
            sqlx::query("INSERT INTO semel_schema (version, name, applied_at) VALUES (?1, ?2, ?3)")
                .bind(version)
                .bind(name)
                .bind(self.now().0)
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            ran += 1;
        }
        self.commit(tx).await?;
        Ok(ran)
    }

    /// The schema version in the file; 0 when there is none.
    ///
    /// # Errors
    /// The file cannot be read, or its schema is newer than this build knows.
    pub async fn schema_version(&self) -> Result<i64, StoreError> {
        let failed = |error| classify("schema_version", error);
        let tables: i64 =
            sqlx::query_scalar("SELECT count(*) FROM sqlite_master WHERE name = 'semel_schema'")
                .fetch_one(&self.reader)
                .await
                .map_err(failed)?;
        if tables == 0 {
            return Ok(0);
        }
        let found: i64 = sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM semel_schema")
            .fetch_one(&self.reader)
            .await
            .map_err(failed)?;
        if found > SCHEMA_VERSION {
            Err(too_new(found))
        } else {
            Ok(found)
        }
    }
}

fn too_new(found: i64) -> StoreError {
    let text = format!("the schema is version {found}, this build knows {SCHEMA_VERSION}: use a newer semel");
    StoreError::new(ErrorKind::Schema, "migrate", text)
}
