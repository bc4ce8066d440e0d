//! The store traits of `semel-core` on MariaDB and MySQL, one file per pattern.

mod key_batch;
pub(crate) mod key_rows;
mod keys;
