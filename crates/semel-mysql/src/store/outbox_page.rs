//! Pages of the open batch.

use semel_core::StoreError;
use semel_core::relay::{Cursor, ShardLease};
use semel_core::store::{PageRow, PageSize};
use sqlx::{AssertSqlSafe, Row as _};

use super::outbox_look::Rows;
use super::outbox_mark::{Range, condition};
use super::outbox_rows::{EVENT, page_row};
use crate::db::Mysql;
use crate::error::classify;

/// Numbers between two rows of a page that are read as one range: rows of other shards, mostly.
const GAP_MAX: i64 = 256;

/// The next rows of a batch behind `after`, as many as a page takes, and whether there are more.
pub(super) fn cut(rows: &Rows, after: i64, size: PageSize) -> (&[(i64, u32)], bool) {
    let behind = &rows.rows[rows.rows.partition_point(|row| row.0 <= after)..];
    let mut bytes = 0;
    let fits = |(n, row): &(usize, &(i64, u32))| {
        bytes += u64::from(row.1);
        *n < size.rows.max(1) as usize && (bytes <= size.bytes || *n == 0)
    };
    let taken = behind.iter().enumerate().take_while(fits).count();
    (&behind[..taken], taken < behind.len() || rows.more)
}

/// Rows of a page as few ranges.
fn ranges(wanted: &[(i64, u32)]) -> Vec<Range> {
    let mut all: Vec<Range> = Vec::new();
    for (id, _) in wanted {
        match all.last_mut().filter(|range| id - range.1 <= GAP_MAX) {
            Some(range) => range.1 = *id,
            None => all.push((*id, *id)),
        }
    }
    all
}

impl Mysql {
    /// These rows of the open batch; none where it is not this owner's any more (rule O2: the cursor in the database is the
    /// one in memory).
    pub(super) async fn rows(
        &self,
        lease: &ShardLease,
        cursor: &Cursor,
        wanted: &[(i64, u32)],
    ) -> Result<Vec<PageRow>, StoreError> {
        let failed = |error| classify("read_page", error);
        let ranges = ranges(wanted);
        let condition = if ranges.len() == 1 {
            "o.id BETWEEN ? AND ?".to_owned()
        } else {
            condition("o.id", &ranges)
        };
        let sql = format!(
            "SELECT {EVENT} FROM semel_outbox_shard s STRAIGHT_JOIN semel_outbox o
             WHERE s.stream = ? AND s.shard = ? AND s.epoch = ? AND s.nonce = ? AND s.batch_no = ? AND s.open_mark = ?
               AND o.stream = ? AND o.slot BETWEEN ? AND ? AND {condition} ORDER BY o.id"
        );
        let mut query = sqlx::query(AssertSqlSafe(sql))
            .persistent(ranges.len() == 1)
            .bind(&lease.shard.stream)
            .bind(lease.shard.index)
            .bind(lease.epoch.0)
            .bind(&lease.nonce.0[..])
            .bind(cursor.batch_no)
            .bind(cursor.open.as_ref().map(|mark| mark.as_str()))
            .bind(&lease.shard.stream)
            .bind(lease.slots.first)
            .bind(lease.slots.last);
        if let [(first, last)] = ranges[..] {
            query = query.bind(first).bind(last);
        }
        let rows = query.fetch_all(&self.own).await.map_err(failed)?;
        let mut page = Vec::with_capacity(rows.len());
        for row in &rows {
            let id: i64 = row.try_get_unchecked(0).map_err(failed)?;
            // Between them may be rows that were committed after the batch was opened.
            if wanted.binary_search_by_key(&id, |row| row.0).is_ok() {
                page.push(page_row(row)?);
            }
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_ends_at_the_first_limit_and_has_one_row() {
        let rows = Rows {
            after: 0,
            more: false,
            rows: [(1, 10), (3, 10), (4, 100), (9, 1)].into(),
        };
        let size = |rows, bytes| PageSize { rows, bytes };
        assert_eq!(cut(&rows, 0, size(2, 1_000)), (&[(1, 10), (3, 10)][..], true));
        assert_eq!(cut(&rows, 0, size(9, 25)), (&[(1, 10), (3, 10)][..], true));
        assert_eq!(cut(&rows, 3, size(9, 25)), (&[(4, 100)][..], true));
        assert_eq!(cut(&rows, 4, size(9, 25)), (&[(9, 1)][..], false));
        assert_eq!(cut(&rows, 9, size(9, 25)), (&[][..], false));
    }

    #[test]
    fn rows_far_apart_are_read_apart() {
        assert_eq!(
            ranges(&[(1, 0), (2, 0), (200, 0), (9_000, 0)]),
            [(1, 200), (9_000, 9_000)]
        );
    }
}
