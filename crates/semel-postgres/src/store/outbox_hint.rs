//! Which shards' open batches are small.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use semel_core::relay::ShardId;

/// Per shard, the number of its open batch where that batch is small: such a batch is read by its transactions, any other
/// by the primary key, which walks over settled rows between a late small number and the newest. Both find the same rows,
/// so a hint that is missing costs time at most.
#[derive(Clone, Default)]
pub(crate) struct SmallBatches(Arc<Mutex<HashMap<ShardId, i64>>>);

impl SmallBatches {
    pub(super) fn set(&self, shard: &ShardId, batch_no: Option<i64>) {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match batch_no {
            Some(batch_no) => map.insert(shard.clone(), batch_no),
            None => map.remove(shard),
        };
    }

    pub(super) fn get(&self, shard: &ShardId) -> Option<i64> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(shard)
            .copied()
    }
}
