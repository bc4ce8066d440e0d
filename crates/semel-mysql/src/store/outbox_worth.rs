//! One look for all idle shards of a process.

use semel_core::StoreError;
use semel_core::relay::{Cursor, ShardLease};
use sqlx::AssertSqlSafe;

use super::key_rows::push_hex;
use super::outbox_mark::{Seen, condition};
use crate::db::Mysql;
use crate::error::classify;

/// Shards in one statement at most.
const SHARDS: usize = 64;
/// A shard whose mark has more holes looks by itself: each hole is in the statement.
const HOLES: usize = 100;

impl Mysql {
    /// A shard is left alone only where there is no row at all behind its mark, and none in its holes: over rows of others its
    /// own look moves the mark.
    pub(super) async fn look_at_all(&self, idle: &[(ShardLease, Cursor)]) -> Result<Vec<bool>, StoreError> {
        let failed = |error| classify("worth_opening", error);
        let mut worth = Vec::with_capacity(idle.len());
        for idle in idle.chunks(SHARDS) {
            let mut sql = String::new();
            for (at, (lease, from)) in idle.iter().enumerate() {
                if at > 0 {
                    sql.push_str(" UNION ALL ");
                }
                sql.push_str(&look(at, lease, from)?);
            }
            sql.push_str(" ORDER BY at");
            // Numbers and hexadecimal digits.
            let rows = sqlx::raw_sql(AssertSqlSafe(sql))
                .fetch_all(&self.own)
                .await
                .map_err(failed)?;
            for row in &rows {
                let quiet: i64 = sqlx::Row::try_get_unchecked(row, 1).map_err(failed)?;
                worth.push(quiet == 0);
            }
        }
        Ok(worth)
    }
}

/// Whether everything is as it was for one shard.
fn look(at: usize, lease: &ShardLease, from: &Cursor) -> Result<String, StoreError> {
    let Seen { high, holes } = Seen::parse(&from.prev)?;
    if holes.len() > HOLES {
        return Ok(format!("SELECT {at} AS at, 0 AS quiet"));
    }
    let mut stream = String::from("CONVERT(x'");
    push_hex(&mut stream, lease.shard.stream.as_bytes());
    stream.push_str("' USING ascii)");
    let (shard, version, late) = (lease.shard.index, from.version, condition("o.id", &holes));
    Ok(format!(
        "SELECT {at} AS at, EXISTS (SELECT 1 FROM semel_outbox_shard WHERE stream = {stream} AND shard = {shard} AND version = {version})
           AND NOT EXISTS (SELECT 1 FROM semel_outbox_reshard WHERE stream = {stream})
           AND EXISTS (SELECT 1 FROM semel_outbox_home h JOIN semel_outbox o ON o.id = h.row_id WHERE h.one = 1 AND o.stream = '')
           AND NOT EXISTS (SELECT 1 FROM semel_outbox o FORCE INDEX (PRIMARY) WHERE o.id > {high})
           AND NOT EXISTS (SELECT 1 FROM semel_outbox o FORCE INDEX (PRIMARY) WHERE {late}) AS quiet"
    ))
}
