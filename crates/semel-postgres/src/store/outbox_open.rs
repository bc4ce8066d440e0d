//! Opening a batch: the mark, and with a small batch its first page.

use std::ops::ControlFlow;

use semel_core::StoreError;
use semel_core::relay::{Cursor, Mark, ShardLease};
use semel_core::store::{Guarded, Opening, Page, PageSize};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, SqlSafeStr};

use super::outbox::{LOOK_ROWS, MINE};
use super::outbox_reading::Reading;
use crate::db::Postgres;
use crate::error::autocommit_failed;
use crate::gate::query;

/// Rows and bytes that come with an opening at most. The server gathers 8 KiB before it sends.
const FIRST_ROWS: u32 = 16;
const FIRST_BYTES: i64 = 7_000;

/// When an opening is written. The mark must fit this very server: what it calls ended has ended here. One that was read elsewhere,
/// before a fail-over or a crash, would leave out for good what ends under its numbers afterwards (rules O2, O5).
fn guard() -> String {
    let mark = "coalesce($7, $6)::text::pg_snapshot";
    format!(
        "{MINE} AND s.map = $10 AND pg_snapshot_xmax({mark}) <= pg_snapshot_xmax(pg_current_snapshot())
           AND NOT EXISTS (SELECT FROM pg_snapshot_xip(pg_current_snapshot()) x WHERE pg_visible_in_snapshot(x, {mark}))"
    )
}

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
        let cur = Mark::new(look.cur);
        let next = match first {
            Some(first) => from.opened(cur, first),
            None => from.moved(cur),
        };
        let (opened, page) = if first.is_some() && small {
            let (opened, mut page) = self.open_and_read(lease, from, &next, map, size).await?;
            // The look has counted them.
            page.more = (page.rows.len() as i64) < look.found;
            (opened, (!page.rows.is_empty()).then_some(page))
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
               batch_no = $9, batch = $11, version = s.version + 1, suspect = NULL WHERE {}",
            guard()
        );
        let done = opening(AssertSqlSafe(sql), lease, from, next, map)
            .execute(&self.own)
            .await
            .map_err(|error| autocommit_failed("open_batch", error))?;
        Ok(done.rows_affected() == 1)
    }

    /// The same with the first rows, in one round trip.
    async fn open_and_read(
        &self,
        lease: &ShardLease,
        from: &Cursor,
        next: &Cursor,
        map: i64,
        size: PageSize,
    ) -> Result<(bool, Page), StoreError> {
        let sql = include_str!("../sql/outbox_open.sql").replace("{opening}", &guard());
        let query = opening(AssertSqlSafe(sql), lease, from, next, map)
            .bind(i32::from(lease.slots.first))
            .bind(i32::from(lease.slots.last))
            .bind(i64::from(size.rows.min(FIRST_ROWS)))
            .bind(FIRST_BYTES);
        let mut reading = Reading::after(next.last_id, size);
        self.own
            .take_rows(query, |row| {
                // To break off would be to take the opening back.
                let _ = reading.take(row);
                ControlFlow::Continue(())
            })
            .await
            .map_err(|error| autocommit_failed("open_batch", error))?;
        let (opened, _, page) = reading.end()?;
        Ok((opened, page))
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

#[cfg(test)]
mod tests {
    use semel_core::relay::OwnedShard;
    use semel_core::store::{Acquire, OutboxStore as _};
    use semel_core::{Event, Nonce, SystemClock, host::uuid_v7};

    use super::*;
    use crate::{Config, tx};

    const SIZE: PageSize = PageSize {
        rows: 100,
        bytes: 1 << 20,
    };

    async fn bed() -> (Postgres, OwnedShard) {
        let db = Postgres::connect(Config::new(semel_testkit::servers::postgres().fresh_database()))
            .await
            .unwrap();
        db.migrate().await.unwrap();
        db.register_stream("default", 1).await.unwrap();
        let wish = Acquire {
            stream: "default".to_owned(),
            max: 1,
            owner: "test".to_owned(),
            nonce: Nonce::random(),
            relay: Nonce::random(),
            lease_ms: 60_000,
        };
        let owned = db.acquire(&wish).await.unwrap().pop().unwrap();
        (db, owned)
    }

    async fn write(db: &Postgres, sizes: &[usize]) {
        let events: Vec<Event> = sizes
            .iter()
            .map(|size| Event::new(uuid_v7(&SystemClock), "t", "e").with_data("", "x".repeat(*size)))
            .collect();
        let mut tx = db.begin().await.unwrap();
        tx::enqueue_many(&mut tx, &events).await.unwrap();
        db.commit(tx).await.unwrap();
    }

    async fn snapshot(db: &Postgres) -> (u64, u64) {
        let (xmin, xmax): (String, String) = sqlx::query_as(
            "SELECT pg_snapshot_xmin(s)::text, pg_snapshot_xmax(s)::text FROM pg_current_snapshot() s",
        )
        .fetch_one(db.pool())
        .await
        .unwrap();
        (xmin.parse().unwrap(), xmax.parse().unwrap())
    }

    /// A look on another server, or on this one before it lost its last commits: numbers that it calls ended will be given out
    /// again here, or are still running.
    #[tokio::test]
    async fn a_mark_that_was_read_elsewhere_is_not_written() {
        let (db, owned) = bed().await;
        write(&db, &[1]).await;
        let map: i64 = sqlx::query_scalar("SELECT map FROM semel.outbox_shard")
            .fetch_one(db.pool())
            .await
            .unwrap();
        let mut running = db.begin().await.unwrap();
        sqlx::query("SELECT pg_current_xact_id()")
            .execute(&mut *running)
            .await
            .unwrap();
        // One that ends after it, so that the other is known as running.
        sqlx::query("SELECT pg_current_xact_id()")
            .execute(db.pool())
            .await
            .unwrap();
        let (xmin, xmax) = snapshot(&db).await;
        assert!(xmin < xmax, "one is running");
        let from = &owned.cursor;
        let marked = |mark: String, opens: bool| Cursor {
            prev: if opens {
                from.prev.clone()
            } else {
                Mark::new(mark.clone())
            },
            open: opens.then(|| Mark::new(mark)),
            batch_no: from.batch_no + 1,
            version: from.version + 1,
            ..from.clone()
        };
        let ahead = format!("{0}:{0}:", xmax + 100);
        let ended_elsewhere = format!("{xmax}:{xmax}:");
        for mark in [&ahead, &ended_elsewhere] {
            for opens in [true, false] {
                let next = marked(mark.clone(), opens);
                assert!(
                    !db.write_opening(&owned.lease, from, &next, map).await.unwrap(),
                    "{next:?}"
                );
                let (opened, page) = db
                    .open_and_read(&owned.lease, from, &next, map, SIZE)
                    .await
                    .unwrap();
                assert!(!opened && page.rows.is_empty(), "{next:?}");
            }
        }
        let fits = marked(format!("{xmin}:{xmax}:{xmin}"), true);
        let (opened, page) = db
            .open_and_read(&owned.lease, from, &fits, map, SIZE)
            .await
            .unwrap();
        assert!(opened && page.rows.len() == 1);
        running.rollback().await.unwrap();
    }

    /// What is more than the server gathers before it sends is asked for behind the commit: until that the row of the shard is
    /// locked, and a reader that stands still would keep it so.
    #[tokio::test]
    async fn an_opening_brings_no_more_than_the_server_gathers_before_it_sends() {
        let (db, mut owned) = bed().await;
        for (sizes, rows, more) in [
            (&[500; 3][..], 3, false),
            (&[500; 40][..], 10, true),
            (&[1; 40][..], 16, true),
            (&[20_000, 1][..], 0, true),
            (&[1, 20_000][..], 1, true),
        ] {
            write(&db, sizes).await;
            let opening = db
                .open_batch(&owned.lease, &owned.cursor, false, SIZE)
                .await
                .unwrap();
            let Guarded::Done(Opening::Opened(cursor, page)) = opening else {
                panic!("{opening:?}")
            };
            let found = page
                .as_ref()
                .map_or((0, true), |page| (page.rows.len(), page.more));
            assert_eq!(found, (rows, more), "{sizes:?}");
            let bytes: usize = page
                .iter()
                .flat_map(|page| &page.rows)
                .map(|row| row.row.event.data.as_ref().map_or(0, |data| data.len()))
                .sum();
            assert!(bytes < 8_192);
            owned.cursor = cursor;
        }
    }
}
