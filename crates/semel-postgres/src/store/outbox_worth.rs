//! One look for all idle shards of a process.

use semel_core::StoreError;
use semel_core::relay::{Cursor, ShardLease};

use crate::db::Postgres;
use crate::error::classify;
use crate::gate::query_scalar;

impl Postgres {
    pub(super) async fn look_at_all(&self, idle: &[(ShardLease, Cursor)]) -> Result<Vec<bool>, StoreError> {
        fn each<T>(idle: &[(ShardLease, Cursor)], column: impl Fn(&ShardLease, &Cursor) -> T) -> Vec<T> {
            idle.iter().map(|(lease, from)| column(lease, from)).collect()
        }
        query_scalar(include_str!("../sql/outbox_worth.sql"))
            .bind(each(idle, |lease, _| lease.shard.stream.clone()))
            .bind(each(idle, |lease, _| i32::from(lease.shard.index)))
            .bind(each(idle, |lease, _| i32::from(lease.slots.first)))
            .bind(each(idle, |lease, _| i32::from(lease.slots.last)))
            .bind(each(idle, |_, from| from.prev.as_str().to_owned()))
            .bind(each(idle, |_, from| from.version))
            .fetch_all(&self.own)
            .await
            .map_err(|error| classify("worth_opening", error))
    }
}
