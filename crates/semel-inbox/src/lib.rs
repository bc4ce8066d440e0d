//! Consumers whose dedup mark and effect commit together.
//!
//! [`receive`] takes a webhook [`Delivery`] once: it marks the delivery's id and runs your handler in one transaction
//! of your own database, so that a crash leaves both or neither, and answers a redelivery without running it again.
//!
//! A [`Verifier`] takes only what was signed with a secret that it knows.
//!
//! [`settle_batch`] takes a batch of a log's [`Message`]s once, with its positions; a broker's consumer (such as
//! `semel_kafka::Consumer`) drives it.
//!
//! What was parked waits for [`redrive`], or for a person's [`discard`].
//!
//! The crate depends on no database: `Sqlite` and `Postgres` implement
//! [`InboxStore`](semel_core::store::InboxStore), and handlers get the backend's own transaction.
//!
//! ```
//! # async fn f(db: semel_sqlite::Sqlite, delivery: semel_inbox::Delivery) -> Result<(), Box<dyn std::error::Error>> {
//! use semel_core::Scope;
//! use semel_inbox::{Received, receive};
//! let scope = Scope::new("shipping")?;
//! let received = receive(&db, &scope, &delivery, async |tx, delivery| {
//!     sqlx::query("INSERT INTO parcel (label) VALUES (?1)")
//!         .bind(&delivery.data[..])
//!         .execute(tx.conn())
//!         .await
//!         .map_err(|error| semel_sqlite::classify("ship", error))?;
//!     Ok(())
//! })
//! .await?;
//! match received {
//!     Received::New(()) => println!("shipped"),
//!     Received::Duplicate => println!("shipped before"),
//! }
//! # Ok(()) }
//! ```

mod answer;
#[cfg(feature = "axum")]
mod axum;
mod batch;
mod delivery;
mod message;
mod receive;
mod redrive;
mod verify;

#[cfg(feature = "axum")]
pub use crate::axum::DeliveryLimits;
pub use answer::{problem, receive_error_answer};
pub use batch::{BatchOptions, settle_batch};
pub use delivery::{Delivery, DeliveryError};
pub use message::{Handler, Message};
pub use receive::{HandlerError, ReceiveError, ReceiveOptions, Received, receive, receive_with};
pub use redrive::{KEYS_FAILED_MAX, Redriven, StillParked, Tried, discard, redrive, redrive_after};
pub use verify::Verifier;
