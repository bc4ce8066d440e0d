//! Semel on SQLite: the embedded default. One file, no server, several processes of one machine.
//!
//! # Strength
//! Mark and effect commit in one transaction when the business tables live in the same file: *atomic*.
//!
//! # Guarantees
//! WAL with `synchronous=FULL`: what was acknowledged survives a power cut. Every write runs in a
//! `BEGIN IMMEDIATE` transaction, so that inside it nobody else writes; that is what makes reading a record,
//! deciding with the pure machine and writing it back one atomic step.
//!
//! # Not guaranteed
//! Use by several machines (no network file systems).
//!
//! ```
//! # async fn f() -> Result<(), semel_core::StoreError> {
//! use semel_sqlite::{Config, Sqlite};
//! let db = Sqlite::open(Config::new("shop.db")).await?;
//! db.migrate().await?;
//! # Ok(()) }
//! ```

mod config;
mod db;
mod direct;
mod error;
mod migrate;
mod store;
pub mod tx;

pub use config::Config;
pub use db::Sqlite;
pub use error::{classify, commit_failed};
pub use migrate::{SCHEMA_VERSION, script};
pub use tx::InboxTx;

/// SQL that makes the relays of an outbox go on after its table was emptied or replaced (SEM0202). In one transaction, and
/// with the relays stopped: every event that is in the table is sent, again if it was sent before.
pub const ADOPT_OUTBOX: &str = include_str!("sql/outbox_adopt.sql");
