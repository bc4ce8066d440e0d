//! Semel on MariaDB 10.6 and later and MySQL 8: shared by any number of processes on any number of machines.
//! Tested on MariaDB 10.11; MySQL 8 is written for, and not tested.
//!
//! # Strength
//! Mark and effect commit in one transaction when the business tables live in the same database: *atomic*.
//!
//! # Guarantees
//! Keys are `VARBINARY`: no collation folds or trims them. Leases and deadlines use the server's clock. A server that
//! acknowledges commits before they are durable is refused ([`ServerSettings`]): no session can set that for itself.
//!
//! # Limits
//! One primary. On a cluster with several writers (Galera) all Semel processes must write to one and the same node.
//!
//! ```no_run
//! # async fn f() -> Result<(), semel_core::StoreError> {
//! use semel_mysql::{Config, Mysql};
//! let db = Mysql::connect(Config::new("mysql://app@127.0.0.1/shop")).await?;
//! db.migrate().await?;
//! # Ok(()) }
//! ```

mod config;
mod db;
mod error;
mod migrate;
mod server;
mod store;
pub mod tx;

pub use config::{Config, LOCK_WAIT_MAX};
pub use db::Mysql;
pub use error::{autocommit_failed, classify, commit_failed};
pub use migrate::{SCHEMA_VERSION, script};
pub use server::{Fault, ServerSettings};

/// What to run when the table of events was emptied or replaced (SEM0202), relays stopped: every event in it is sent again.
pub const ADOPT_OUTBOX: &str = include_str!("sql/outbox_adopt.sql");
