//! The rows of a batch, in memory.

use bytes::Bytes;

use super::outbox::{Inner, commit_of};
use crate::relay::{Cursor, ShardId, ShardLease, Slots};
use crate::store::{OutboxRow, Page, PageRow, PageSize};

impl Inner {
    /// Rows of the shard that are visible in `to` and not in `from`, by number.
    pub(super) fn between<'a>(
        &'a self,
        shard: &'a ShardId,
        slots: Slots,
        from: u64,
        to: u64,
    ) -> impl Iterator<Item = &'a OutboxRow> {
        self.rows
            .values()
            .filter(move |(commit, row)| {
                *commit > from
                    && *commit <= to
                    && row.event.stream == shard.stream
                    && slots.range().contains(&row.event.slot())
            })
            .map(|(_, row)| row)
    }

    /// Rows of the open batch above `after`.
    pub(super) fn page(&self, lease: &ShardLease, cursor: &Cursor, after: i64, size: PageSize) -> Page {
        let mut page = Page::default();
        let Some(open) = &cursor.open else {
            return page;
        };
        let (low, high) = (commit_of(&cursor.prev), commit_of(open));
        let mut bytes = 0;
        for row in self
            .between(&lease.shard, lease.slots, low, high)
            .filter(|row| row.row > after)
        {
            bytes += row.event.data.as_ref().map_or(0, Bytes::len) as u64;
            if page.rows.len() >= size.rows as usize || (bytes > size.bytes && !page.rows.is_empty()) {
                page.more = true;
                break;
            }
            page.rows.push(PageRow {
                row: row.clone(),
                barred: None,
            });
        }
        page
    }
}
