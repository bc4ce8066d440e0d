//! Opening a batch: the mark, and with a small batch its first page.

use std::ops::ControlFlow;

use semel_core::relay::{Cursor, Mark, ShardLease};
use semel_core::store::{Guarded, Opening, Page, PageSize};
use semel_core::{Nonce, StoreError};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, SqlSafeStr};

use super::outbox::{LOOK_ROWS, MINE};
use super::outbox_reading::Reading;
use crate::db::Postgres;
use crate::error::autocommit_failed;
use crate::gate::query;

impl Postgres {
    /// Looks and opens; `None` when the map of shards changed in between.
    pub(super) async fn try_open(
        &self,
        lease: &ShardLease,
        from: &Cursor,
        mut advance: bool,
        size: PageSize,
    ) -> Result<Option<Guarded<Opening>>, StoreError> {
        let prev = from.open.as_ref().unwrap_or(&from.prev);
        let mut look = self.look(lease, prev).await?;
        let Some(map) = look.map else {
            return Ok(Some(Guarded::Lost));
        };
        if let Some(change) = look.change.take() {
            if change.rested {
                self.set_mark(&lease.shard.stream, None).await?;
                return Ok(None);
            }
            if change.held && change.mark == prev.as_str() {
                if from.open.is_none() && self.switch_map(&lease.shard.stream).await? {
                    return Ok(Some(Guarded::Lost));
                }
                return Ok(Some(Guarded::Done(Opening::Empty)));
            }
            if change.held {
                advance = true;
                self.look_to(lease, prev, &change.mark, &mut look).await?;
            }
        }
        if look.first.is_none() && !(advance && look.cur != prev.as_str()) {
            return Ok(Some(Guarded::Done(Opening::Empty)));
        }
        let small = look.found < LOOK_ROWS;
        let first = match look.first {
            Some(first) if !small => self.first(prev, &look.cur).await?.or(Some(first)),
            first => first,
        };
        let version = from.version + 1;
        let next = match first {
            Some(first) => Cursor {
                prev: prev.clone(),
                open: Some(Mark::new(look.cur.clone())),
                last_id: first - 1,
                batch_no: from.batch_no + 1,
                batch: Nonce::random(),
                version,
                suspect: None,
                log: from.log,
            },
            None => Cursor {
                prev: Mark::new(look.cur.clone()),
                open: None,
                last_id: 0,
                version,
                suspect: None,
                ..from.clone()
            },
        };
        let (opened, page) = if first.is_some() && small {
            self.open_and_read(lease, from, &next, map, size).await?
        } else {
            (self.write_opening(lease, from, &next, map).await?, None)
        };
        if !opened {
            let found = self.find_shard(lease, "open_batch").await?;
            return Ok(match found.filter(|found| found.is_owned_by(lease)) {
                None => Some(Guarded::Lost),
                Some(found) if found.cursor.version != from.version => Some(Guarded::Reload),
                Some(_) => None,
            });
        }
        self.pages.opened(&lease.shard, small.then_some(next.batch_no));
        Ok(Some(Guarded::Done(if next.open.is_some() {
            Opening::Opened(next, page)
        } else {
            Opening::Moved(next)
        })))
    }

    /// Writes the cursor; false when it is not the one that was decided on.
    async fn write_opening(
        &self,
        lease: &ShardLease,
        from: &Cursor,
        next: &Cursor,
        map: i64,
    ) -> Result<bool, StoreError> {
        let sql = format!(
            "UPDATE semel.outbox_shard s SET prev = $6::text::pg_snapshot, open = $7::text::pg_snapshot, last_id = $8,
               batch_no = $9, batch = $11, version = s.version + 1, suspect = NULL WHERE {MINE} AND s.map = $10"
        );
        let done = opening(AssertSqlSafe(sql), lease, from, next, map)
            .execute(&self.own)
            .await
            .map_err(|error| autocommit_failed("open_batch", error))?;
        Ok(done.rows_affected() == 1)
    }

    /// The same with the first page, in one round trip.
    async fn open_and_read(
        &self,
        lease: &ShardLease,
        from: &Cursor,
        next: &Cursor,
        map: i64,
        size: PageSize,
    ) -> Result<(bool, Option<Page>), StoreError> {
        let (_, rows_max) = self.pages.hint(&lease.shard, next.batch_no, size);
        let query = opening(include_str!("../sql/outbox_open.sql"), lease, from, next, map)
            .bind(i32::from(lease.slots.first))
            .bind(i32::from(lease.slots.last))
            .bind(i64::from(rows_max));
        let mut reading = Reading::after(next.last_id, size);
        self.own
            .take_rows(query, |row| {
                // To break off would be to take the opening back.
                let _ = reading.take(row);
                ControlFlow::Continue(())
            })
            .await
            .map_err(|error| autocommit_failed("open_batch", error))?;
        let (opened, page) = reading.end(&self.pages, &lease.shard, rows_max)?;
        Ok((opened, Some(page)))
    }
}

fn opening<'q>(
    sql: impl SqlSafeStr,
    lease: &ShardLease,
    from: &Cursor,
    next: &Cursor,
    map: i64,
) -> Query<'q, sqlx::Postgres, PgArguments> {
    query(sql)
        .bind(lease.shard.stream.clone())
        .bind(i32::from(lease.shard.index))
        .bind(lease.epoch.0)
        .bind(lease.nonce.0.to_vec())
        .bind(from.version)
        .bind(next.prev.as_str().to_owned())
        .bind(next.open.as_ref().map(|mark| mark.as_str().to_owned()))
        .bind(next.last_id)
        .bind(next.batch_no)
        .bind(map)
        .bind(next.batch.0.to_vec())
}
