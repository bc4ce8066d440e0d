//! The relay engine: publishes the events of an outbox, at least once, in order per key.
//!
//! A [`Relay`] moves one stream of one [`OutboxStore`](semel_core::OutboxStore) into one [`Sink`](semel_core::Sink).
//! Any number of relays, in any number of processes, share the stream's shards by leases. The protocol is
//! [`semel_core::relay::Machine`], and [`semel_core::relay::Balance`] for sharing; this crate carries out what they say.
//!
//! # Guarantees
//! - Every committed event reaches the sink or the exceptions table; a crash anywhere sends some again, with the same
//!   ids. No event of a transaction that did not commit is ever sent.
//! - A key's events are handed over in order. Nothing new is handed over after the lease's local deadline, which counts
//!   from before the renewal was sent and keeps counting while the machine is suspended (rule O17).
//! - A broker that is away costs no attempts; [`RelayHandle::stats`] says why nothing moves and since when.
//! - A stop lets what is on its way finish, saves the cursor, and gives the shards back.
//! - Shares: relays of a stream come to hold numbers of shards that are at most one apart. One that joins is given its share, a
//!   shard at a time, each drained as in a stop; those of one that stops are taken at once, those of one that died when
//!   its lease has ended.
//!
//! # Not guaranteed
//! - That a receiver sees an event once: it drops ids it has seen (see `semel-inbox`). A sink that is a log
//!   ([`LogSink`](semel_core::store::LogSink)) holds the cursor in its own transactions and has each event once.
//! - Equal load: shards are counted, not what is in them.
//! - One read of the table for all shards: shards that are idle look together and all of them share the window, but each reads
//!   its own rows.
//!
//! # Cancel safety
//! Dropping the future of [`Relay::run`] is a crash: what was on its way may arrive, and leases end by time. Cancel the
//! token instead.
//!
//! ```no_run
//! # async fn f(store: std::sync::Arc<dyn semel_core::OutboxStore>, sink: std::sync::Arc<dyn semel_core::Sink>)
//! #     -> Result<(), semel_core::StoreError> {
//! use semel_outbox::{Relay, RelayConfig};
//! use tokio_util::sync::CancellationToken;
//!
//! let shutdown = CancellationToken::new();
//! let relay = Relay::new(store, sink, RelayConfig::default());
//! let handle = relay.handle();
//! relay.run(shutdown.clone()).await?;
//! println!("{} events published", handle.stats().published);
//! # Ok(()) }
//! ```

mod backlog;
mod cleaner;
mod clock;
mod config;
mod delayed;
mod leases;
mod looks;
mod presence;
mod relay;
mod shard;
mod status;
mod word;

pub use config::{Clean, Delayed, RelayConfig};
pub use relay::Relay;
pub use semel_core::relay::{PauseKind, Poison, RelayPolicy};
pub use semel_core::store::StreamLimit;
pub use status::{Paused, RelayHandle, RelayStats, ShardStats};
pub use word::leave_word;
