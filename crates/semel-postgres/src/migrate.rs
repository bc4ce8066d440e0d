//! The schema: numbered scripts, each run once, in one transaction with its number.

use semel_core::{ErrorKind, StoreError};

use crate::db::Postgres;
use crate::error::classify;
use crate::gate::{query, query_scalar};

const SCRIPTS: &[(i64, &str, &str)] = &[
    (1, "keys", include_str!("sql/0001_keys.sql")),
    (
        2,
        "outbox",
        concat!(
            include_str!("sql/0002_outbox.sql"),
            include_str!("sql/0002_outbox_functions.sql"),
            include_str!("sql/0002_outbox_partitions.sql"),
            include_str!("sql/0002_outbox_limit.sql")
        ),
    ),
    (3, "inbox", include_str!("sql/0003_inbox.sql")),
    (
        4,
        "saga",
        concat!(
            include_str!("sql/0004_saga.sql"),
            include_str!("sql/0004_saga_functions.sql"),
            include_str!("sql/0004_barrier.sql")
        ),
    ),
    (
        5,
        "keys from any language",
        concat!(
            include_str!("sql/0005_keys_functions.sql"),
            include_str!("sql/0005_once_functions.sql")
        ),
    ),
];

const VERSIONS: &str = "CREATE SCHEMA IF NOT EXISTS semel;
CREATE TABLE IF NOT EXISTS semel.schema_version (
  version bigint PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp());";

/// Serialises migrations of one database: an arbitrary number, only used here.
const MIGRATION_LOCK: i64 = 0x5e3e_1000;

/// The newest schema this build knows.
pub const SCHEMA_VERSION: i64 = 5;

/// The whole schema as one script, for `semel migrate --print`.
#[must_use]
pub fn script() -> String {
    // What the scripts make names the system's operators, whatever others have put where the session looks.
    let mut text = format!("SET search_path = pg_catalog, pg_temp;\n{VERSIONS}\n");
    for (version, name, sql) in SCRIPTS {
        text.push_str(&format!("\n-- {version}: {name}\n{sql}\n"));
    }
    text.push_str("\n-- Back to what the session began with.\nRESET search_path;\n");
    text
}

impl Postgres {
    /// Installs or upgrades the schema; returns how many scripts it ran. Safe to call from several processes.
    ///
    /// # Errors
    /// `Schema` when the database's schema is newer than this build knows; nothing is changed then.
    pub async fn migrate(&self) -> Result<usize, StoreError> {
        let failed = |error| classify("migrate", error);
        let mut tx = self.begin().await?;
        // What the scripts make names the system's operators, whatever others have put where this session looks.
        sqlx::raw_sql("SET LOCAL search_path = pg_catalog, pg_temp")
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        query("SELECT pg_advisory_xact_lock($1)")
            .bind(MIGRATION_LOCK)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        sqlx::raw_sql(VERSIONS).execute(&mut *tx).await.map_err(failed)?;
        let found: i64 = query_scalar("SELECT coalesce(max(version), 0) FROM semel.schema_version")
            .fetch_one(&mut *tx)
            .await
            .map_err(failed)?;
        if found > SCHEMA_VERSION {
            return Err(too_new(found));
        }
        let mut ran = 0;
        for (version, name, sql) in SCRIPTS.iter().filter(|(version, ..)| *version > found) {
            sqlx::raw_sql(*sql).execute(&mut *tx).await.map_err(failed)?;
            query("INSERT INTO semel.schema_version (version, name) VALUES ($1, $2)")
                .bind(version)
                .bind(name)
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            ran += 1;
        }
        self.commit(tx).await?;
        Ok(ran)
    }

    /// The schema version in the database; 0 when there is none.
    ///
    /// # Errors
    /// The server cannot be reached, or the schema is newer than this build knows.
    pub async fn schema_version(&self) -> Result<i64, StoreError> {
        let failed = |error| classify("schema_version", error);
        let exists: bool = query_scalar("SELECT to_regclass('semel.schema_version') IS NOT NULL")
            .fetch_one(&self.gate)
            .await
            .map_err(failed)?;
        if !exists {
            return Ok(0);
        }
        let found: i64 = query_scalar("SELECT coalesce(max(version), 0) FROM semel.schema_version")
            .fetch_one(&self.gate)
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
