//! The store traits of `semel-core` on SQLite, one file per pattern.

mod inbox;
mod key_desk;
mod key_record;
pub(crate) mod key_rows;
mod key_table;
mod keys;
mod outbox;
mod outbox_clean;
mod outbox_desk;
mod outbox_due;
mod outbox_limit;
mod outbox_page;
mod outbox_relays;
mod outbox_reshard;
mod outbox_rows;
mod outbox_worth;
mod saga;
mod saga_rows;

pub(crate) use outbox_clean::CleanPlaces;
pub(crate) use outbox_limit::refused;
