//! The store traits of `semel-core` on SQLite, one file per pattern.

mod inbox;
mod key_desk;
pub(crate) mod key_rows;
mod keys;
mod outbox;
mod outbox_rows;
mod saga;
mod saga_rows;
