//! What is known of the next page of a shard: hints, which cost time at most where they are missing or wrong.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use semel_core::relay::ShardId;
use semel_core::store::PageSize;

#[derive(Debug, Clone, Copy, Default)]
struct Hint {
    /// The number of its open batch where that batch is small: it is read by its transactions, any other by the primary key,
    /// which walks over settled rows between a late small number and the newest. Both find the same rows.
    small: Option<i64>,
    /// Bytes of data of a row of the last page; rows that it asked for.
    row_bytes: u64,
    rows: u32,
}

/// Rows that a first page asks for, while nobody knows how large they are; each page after it at most so many times as many.
const ROWS_FIRST: u32 = 64;
const ROWS_GROWTH: u32 = 4;

/// Hints per shard.
#[derive(Clone, Default)]
pub(crate) struct PageHints(Arc<Mutex<HashMap<ShardId, Hint>>>);

impl PageHints {
    fn lock(&self) -> MutexGuard<'_, HashMap<ShardId, Hint>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A batch was opened; its number where it is small.
    pub(super) fn opened(&self, shard: &ShardId, small: Option<i64>) {
        self.lock().entry(shard.clone()).or_default().small = small;
    }

    /// A page was read, which asked for so many rows.
    pub(super) fn read(&self, shard: &ShardId, asked: u32, rows: usize, bytes: u64) {
        if rows == 0 {
            return;
        }
        let mut hints = self.lock();
        let hint = hints.entry(shard.clone()).or_default();
        hint.row_bytes = bytes / rows as u64;
        hint.rows = asked;
    }

    /// Whether the batch is small, and how many rows to ask for: not many more than the page can hold, for what is
    /// beyond it crosses the network for nothing.
    pub(super) fn hint(&self, shard: &ShardId, batch_no: i64, size: PageSize) -> (bool, u32) {
        let hint = self.lock().get(shard).copied().unwrap_or_default();
        let most = hint.rows.saturating_mul(ROWS_GROWTH).max(ROWS_FIRST);
        let fit = (size.bytes / hint.row_bytes.max(1)).saturating_add(1);
        let rows = size
            .rows
            .min(most)
            .min(u32::try_from(fit).unwrap_or(u32::MAX))
            .max(1);
        (hint.small == Some(batch_no), rows)
    }
}
