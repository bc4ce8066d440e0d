//! Relays that say that they live, and who holds what.

use semel_core::relay::Roster;
use semel_core::store::{ABSENT_KEPT_MS, Presence};
use semel_core::{Nonce, StoreError};

use crate::db::Sqlite;
use crate::error::classify;

impl Sqlite {
    pub(super) async fn note_presence(&self, presence: &Presence) -> Result<(), StoreError> {
        let failed = |error| classify("attend", error);
        let mut tx = self.begin().await?;
        let now = self.now();
        sqlx::query("DELETE FROM semel_outbox_relay WHERE stream = ?1 AND until < ?2")
            .bind(&presence.stream)
            .bind(now.plus_ms(-ABSENT_KEPT_MS).0)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        sqlx::query(
            "INSERT INTO semel_outbox_relay (stream, relay, owner, until) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (stream, relay) DO UPDATE SET until = excluded.until",
        )
        .bind(&presence.stream)
        .bind(&presence.relay.0[..])
        .bind(&presence.owner)
        .bind(now.plus_ms(presence.ms).0)
        .execute(&mut *tx)
        .await
        .map_err(failed)?;
        self.commit(tx).await
    }

    pub(super) async fn drop_presence(&self, stream: &str, relay: Nonce) -> Result<(), StoreError> {
        let _turn = self.turn("leave").await?;
        sqlx::query("DELETE FROM semel_outbox_relay WHERE stream = ?1 AND relay = ?2")
            .bind(stream)
            .bind(&relay.0[..])
            .execute(&self.writer)
            .await
            .map_err(|error| classify("leave", error))?;
        Ok(())
    }

    pub(super) async fn read_roster(&self, stream: &str) -> Result<Roster, StoreError> {
        let rows: Vec<(i64, Option<Vec<u8>>)> = sqlx::query_as(
            "SELECT shard, CASE WHEN until > ?2 THEN coalesce(relay, x'') END FROM semel_outbox_shard WHERE stream = ?1
             UNION ALL SELECT -1, relay FROM semel_outbox_relay WHERE stream = ?1 AND until > ?2",
        )
        .bind(stream)
        .bind(self.now().0)
        .fetch_all(&self.reader)
        .await
        .map_err(|error| classify("roster", error))?;
        Ok(Roster::read(rows))
    }
}
