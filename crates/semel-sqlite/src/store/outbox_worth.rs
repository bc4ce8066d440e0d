//! One look for all idle shards of a process.

use semel_core::StoreError;
use semel_core::relay::{Cursor, ShardLease};
use sqlx::AssertSqlSafe;

use super::outbox_rows::id_of;
use crate::db::Sqlite;
use crate::error::classify;

/// Shards in one statement at most.
const SHARDS: usize = 64;

impl Sqlite {
    pub(super) async fn look_at_all(&self, idle: &[(ShardLease, Cursor)]) -> Result<Vec<bool>, StoreError> {
        let mut worth = Vec::with_capacity(idle.len());
        for idle in idle.chunks(SHARDS) {
            let sql = format!(
                "WITH a (stream, shard, first, last, prev, version) AS (VALUES {}) SELECT
                   NOT EXISTS (SELECT 1 FROM semel_outbox_shard s
                     WHERE s.stream = a.stream AND s.shard = a.shard AND s.version = a.version)
                   OR EXISTS (SELECT 1 FROM semel_outbox_reshard r WHERE r.stream = a.stream)
                   OR a.prev > coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'semel_outbox'), 0)
                   OR EXISTS (SELECT 1 FROM semel_outbox o
                     WHERE o.id > a.prev AND o.stream = a.stream AND o.slot BETWEEN a.first AND a.last)
                 FROM a",
                vec!["(?,?,?,?,?,?)"; idle.len()].join(",")
            );
            let mut query = sqlx::query_scalar(AssertSqlSafe(sql));
            for (lease, from) in idle {
                query = query
                    .bind(&lease.shard.stream)
                    .bind(lease.shard.index)
                    .bind(lease.slots.first)
                    .bind(lease.slots.last)
                    .bind(id_of(&from.prev)?)
                    .bind(from.version);
            }
            let told: Vec<bool> = query
                .fetch_all(&self.reader)
                .await
                .map_err(|error| classify("worth_opening", error))?;
            worth.extend(told);
        }
        Ok(worth)
    }
}
