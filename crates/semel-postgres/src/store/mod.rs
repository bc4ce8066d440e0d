//! The store traits of `semel-core` on PostgreSQL, one file per pattern.

mod inbox;
