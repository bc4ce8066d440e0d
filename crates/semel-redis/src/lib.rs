//! Semel's keys on Redis 7 and later: shared by any number of processes on any number of machines.
//!
//! [`RedisSink`] is another thing: it appends a relay's events to Redis Streams.
//!
//! # Strength
//! *Keyed* and *guarded*: a key cannot commit together with your tables, as Redis is not where they are.
//!
//! # Guarantees
//! Each transition is one script, by Redis' own clock. A run that has not ended never expires by itself: when its owner
//! is lost, the key is unknown or free for the next one, as its claim said. Tokens grow per key over purge and restart.
//! Any `maxmemory-policy` but `noeviction` is refused, at start and from time to time (rule K8).
//!
//! # Not guaranteed
//! What Redis forgets, Semel forgets: with `appendfsync everysec` a crash of the machine takes about the last second of
//! claims and outcomes, and those requests would run again; a replica that is promoted may not have seen the last ones
//! ([`Capabilities::durable`](semel_core::Capabilities), `token_survives_failover`). Set `appendfsync always` where that
//! must not be; [`Config::replicas_min`] narrows the second gap.
//!
//! # Limits
//! One script runs at most 64 items. The scopes of keys are not counted (`counts_scopes` is false).
//!
//! ```no_run
//! # async fn f() -> Result<(), semel_core::StoreError> {
//! use semel_redis::{Config, Redis};
//! let store = Redis::connect(Config::new("redis://127.0.0.1:6379/0")).await?;
//! # Ok(()) }
//! ```

mod batch;
mod clock;
mod config;
mod error;
mod health;
mod hints;
mod link;
mod list;
mod names;
mod record;
mod redis_store;
mod runs;
mod sink;
mod store;
mod sweep;
#[cfg(feature = "tls")]
mod tls;

pub use config::{ClientCertificate, Config, Tls};
pub use health::Facts;
pub use redis_store::Redis;
pub use sink::{RedisSink, RedisSinkConfig, read_arrivals};
