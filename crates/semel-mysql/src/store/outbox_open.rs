//! Opening a batch, and coming to the mark at which the map of shards is replaced.

use semel_core::StoreError;
use semel_core::relay::{Cursor, ShardLease};
use semel_core::store::{Guarded, Opening};
use sqlx::AssertSqlSafe;

use super::outbox::MINE;
use super::outbox_look::Rows;
use crate::db::Mysql;
use crate::error::autocommit_failed;

/// An idle shard's mark moves on over so many rows of others, so that they are not looked at again.
const MOVE_ROWS: usize = 1_000;

impl Mysql {
    /// Looks and opens; `None` when the map of shards changed in between.
    pub(super) async fn try_open(
        &self,
        lease: &ShardLease,
        from: &Cursor,
        mut advance: bool,
    ) -> Result<Option<Guarded<Opening>>, StoreError> {
        let prev = from.open.as_ref().unwrap_or(&from.prev);
        let stream = &lease.shard.stream;
        let mut look = self.look_behind(lease, prev).await?;
        let Some(map) = look.map else {
            return Ok(Some(Guarded::Lost));
        };
        if look.changing
            && let Some(change) = self.change_of(stream).await?
        {
            if change.rested {
                self.set_mark(stream, None).await?;
                return Ok(None);
            }
            if change.held && change.mark == *prev {
                if from.open.is_none() && self.switch_map(stream).await? {
                    return Ok(Some(Guarded::Lost));
                }
                return Ok(Some(Guarded::Done(Opening::Empty)));
            }
            if change.held {
                advance = true;
                look = self.look_to(lease, prev, &change.mark, look.map).await?;
            }
        }
        let cur = look.seen.mark();
        let first = look.mine.first().map(|row| row.0);
        if first.is_none() && (cur == *prev || !advance && look.passed < MOVE_ROWS) {
            return Ok(Some(Guarded::Done(Opening::Empty)));
        }
        let next = match first {
            Some(first) => from.opened(cur, first),
            None => from.moved(cur),
        };
        // This commit is also the durability gate.
        let sql = format!(
            "UPDATE semel_outbox_shard SET prev_mark = ?, open_mark = ?, last_id = ?, batch_no = ?, batch = ?,
               version = version + 1, suspect = NULL WHERE {MINE} AND map = ?"
        );
        let done = sqlx::query(AssertSqlSafe(sql))
            .bind(next.prev.as_str())
            .bind(next.open.as_ref().map(|mark| mark.as_str()))
            .bind(next.last_id)
            .bind(next.batch_no)
            .bind(&next.batch.0[..])
            .bind(stream)
            .bind(lease.shard.index)
            .bind(lease.epoch.0)
            .bind(&lease.nonce.0[..])
            .bind(from.version)
            .bind(map)
            .execute(&self.own)
            .await
            .map_err(|error| autocommit_failed("open_batch", error))?;
        // The driver asks for matched rows.
        if done.rows_affected() != 1 {
            let found = self.find_shard(lease, "open_batch").await?;
            return Ok(match found.filter(|found| found.is_owned_by(lease)) {
                None => Some(Guarded::Lost),
                Some(found) if found.cursor.version != from.version => Some(Guarded::Reload),
                Some(_) => None,
            });
        }
        if next.open.is_none() {
            return Ok(Some(Guarded::Done(Opening::Moved(next))));
        }
        let rows = Rows {
            after: next.last_id,
            more: false,
            rows: look.mine.into(),
        };
        self.outbox.set_batch(lease, &next, rows);
        Ok(Some(Guarded::Done(Opening::Opened(next, None))))
    }
}
