//! Semel on PostgreSQL 15 and later: shared by any number of processes on any number of machines.
//!
//! # Strength
//! Mark and effect commit in one transaction when the business tables live in the same database: *atomic*.
//!
//! # Guarantees
//! Every connection (behind a pooler every transaction) sets `synchronous_commit = on` for itself, whatever the database's
//! default (rule K7). Leases and deadlines use the server's clock. Everything lives in the schema `semel`; no superuser, no extension.
//!
//! ```no_run
//! # async fn f() -> Result<(), semel_core::StoreError> {
//! use semel_postgres::{Config, Postgres};
//! let db = Postgres::connect(Config::new("postgres://app@127.0.0.1/shop")).await?;
//! db.migrate().await?;
//! # Ok(()) }
//! ```

mod config;
mod db;
mod error;
mod gate;
mod migrate;
mod store;
pub mod tx;

pub use config::Config;
pub use db::Postgres;
pub use error::{autocommit_failed, classify, commit_failed};
pub use gate::Pooler;
pub use migrate::{SCHEMA_VERSION, script};
pub use store::{
    KEYS_MOVED, PARTITION_LOCK_WAIT, PARTITIONS_HELD, PARTITIONS_REFUSED, PartitionChange, Partitioning,
};
pub use tx::InboxTx;
