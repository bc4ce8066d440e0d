//! The store traits of `semel-core` on MariaDB and MySQL, one file per pattern.

mod key_batch;
pub(crate) mod key_rows;
pub(crate) mod key_straight;
mod keys;
mod outbox;
mod outbox_again;
mod outbox_clean;
mod outbox_desk;
mod outbox_due;
mod outbox_limit;
pub(crate) mod outbox_look;
mod outbox_mark;
mod outbox_open;
mod outbox_page;
mod outbox_relays;
mod outbox_reshard;
mod outbox_rows;
mod outbox_standing;
mod outbox_worth;
