//! The store traits of `semel-core` on SQLite, one file per pattern.

mod inbox;
