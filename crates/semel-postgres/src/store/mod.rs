//! The store traits of `semel-core` on PostgreSQL, one file per pattern.

pub(crate) mod autocommit;
mod inbox;
pub(crate) mod key_batch;
mod key_hints;
pub(crate) mod key_rows;
pub(crate) mod keys;
mod outbox;
mod outbox_clean;
mod outbox_desk;
mod outbox_due;
mod outbox_hint;
mod outbox_limit;
mod outbox_open;
mod outbox_partition_change;
mod outbox_partitions;
mod outbox_reading;
mod outbox_relays;
mod outbox_reshard;
mod outbox_rows;
mod outbox_standing;
mod outbox_worth;
mod saga;
mod saga_rows;

pub(crate) use key_hints::Hints;
pub use keys::KEYS_MOVED;
pub(crate) use outbox_clean::CleanPlaces;
pub(crate) use outbox_hint::PageHints;
pub use outbox_partition_change::{
    PARTITION_LOCK_WAIT, PARTITIONS_HELD, PARTITIONS_REFUSED, PartitionChange, Partitioning,
};
pub(crate) use outbox_partitions::Drops;
