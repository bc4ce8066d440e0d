//! Relays that say that they live, and who holds what.

use semel_core::relay::Roster;
use semel_core::store::{ABSENT_KEPT_MS, Presence};
use semel_core::{Nonce, StoreError};
use sqlx::{AssertSqlSafe, Row as _};

use super::key_rows::NOW;
use crate::db::Mysql;
use crate::error::{autocommit_failed, classify};

impl Mysql {
    pub(super) async fn note_presence(&self, presence: &Presence) -> Result<(), StoreError> {
        let failed = |error| autocommit_failed("attend", error);
        let sql = format!(
            "INSERT INTO semel_outbox_relay (stream, relay, owner, until_us) VALUES (?, ?, ?, {NOW} + ? * 1000)
             ON DUPLICATE KEY UPDATE until_us = VALUES(until_us)"
        );
        sqlx::query(AssertSqlSafe(sql))
            .bind(&presence.stream)
            .bind(&presence.relay.0[..])
            .bind(&presence.owner)
            .bind(presence.ms)
            .execute(&self.own)
            .await
            .map_err(failed)?;
        let sql = format!("DELETE FROM semel_outbox_relay WHERE stream = ? AND until_us < {NOW} - ? * 1000");
        sqlx::query(AssertSqlSafe(sql))
            .bind(&presence.stream)
            .bind(ABSENT_KEPT_MS)
            .execute(&self.own)
            .await
            .map_err(failed)?;
        Ok(())
    }

    pub(super) async fn drop_presence(&self, stream: &str, relay: Nonce) -> Result<(), StoreError> {
        sqlx::query("DELETE FROM semel_outbox_relay WHERE stream = ? AND relay = ?")
            .bind(stream)
            .bind(&relay.0[..])
            .execute(&self.own)
            .await
            .map_err(|error| autocommit_failed("leave", error))?;
        Ok(())
    }

    pub(super) async fn read_roster(&self, stream: &str) -> Result<Roster, StoreError> {
        let sql = format!(
            "SELECT CAST(shard AS SIGNED), IF(until_us > {NOW}, COALESCE(relay, x''), NULL) FROM semel_outbox_shard
               WHERE stream = ?
             UNION ALL SELECT -1, relay FROM semel_outbox_relay WHERE stream = ? AND until_us > {NOW}"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(stream)
            .bind(stream)
            .fetch_all(&self.own)
            .await
            .map_err(|error| classify("roster", error))?;
        let rows = rows
            .iter()
            .map(|row| Ok((row.try_get_unchecked(0)?, row.try_get_unchecked(1)?)));
        let rows: Result<Vec<_>, sqlx::Error> = rows.collect();
        Ok(Roster::read(rows.map_err(|error| classify("roster", error))?))
    }
}
