//! Relays that say that they live, and who holds what.

use semel_core::relay::Roster;
use semel_core::store::{ABSENT_KEPT_MS, Presence};
use semel_core::{Nonce, StoreError};

use crate::db::Postgres;
use crate::error::{autocommit_failed, classify};
use crate::gate::{query, query_as};

impl Postgres {
    pub(super) async fn note_presence(&self, presence: &Presence) -> Result<(), StoreError> {
        query(
            "WITH gone AS (DELETE FROM semel.outbox_relay WHERE stream = $1 AND relay <> $2
               AND until < clock_timestamp() - $5::float8 * interval '1 ms')
             INSERT INTO semel.outbox_relay (stream, relay, owner, until)
             VALUES ($1, $2, $3, clock_timestamp() + $4::float8 * interval '1 ms')
             ON CONFLICT (stream, relay) DO UPDATE SET until = EXCLUDED.until",
        )
        .bind(&presence.stream)
        .bind(&presence.relay.0[..])
        .bind(&presence.owner)
        .bind(presence.ms as f64)
        .bind(ABSENT_KEPT_MS as f64)
        .execute(&self.own)
        .await
        .map_err(|error| autocommit_failed("attend", error))?;
        Ok(())
    }

    pub(super) async fn drop_presence(&self, stream: &str, relay: Nonce) -> Result<(), StoreError> {
        query("DELETE FROM semel.outbox_relay WHERE stream = $1 AND relay = $2")
            .bind(stream)
            .bind(&relay.0[..])
            .execute(&self.own)
            .await
            .map_err(|error| autocommit_failed("leave", error))?;
        Ok(())
    }

    pub(super) async fn read_roster(&self, stream: &str) -> Result<Roster, StoreError> {
        let rows: Vec<(i64, Option<Vec<u8>>)> = query_as(
            "SELECT shard::bigint, CASE WHEN until > clock_timestamp() THEN coalesce(relay, '') END
               FROM semel.outbox_shard WHERE stream = $1
             UNION ALL SELECT -1, relay FROM semel.outbox_relay WHERE stream = $1 AND until > clock_timestamp()",
        )
        .bind(stream)
        .fetch_all(&self.own)
        .await
        .map_err(|error| classify("roster", error))?;
        Ok(Roster::read(rows))
    }
}
