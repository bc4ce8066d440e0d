//! An effect that has a name happens once.
//!
//! This crate is what a service adds to its `Cargo.toml`: the names and protocols of [`semel_core`], with one feature
//! per backend and per pattern.
//!
//! | feature | module | what for |
//! | --- | --- | --- |
//! | `sqlite` (default) | [`sqlite`] | state in one file, no server |
//! | `postgres` | `postgres` | state shared by machines |
//! | `mysql` | `mysql` | keys and the outbox on MariaDB or MySQL |
//! | `redis` | `redis` | keys shared by machines, on Redis; the sink for Redis Streams |
//! | `keys` (default) | [`keys`] | claims in batches, keys for any async function, issued ids, quotas |
//! | `http-client` | `http_client` | keys for HTTP clients, kept across retries |
//! | `http` (default) | [`http`] | `Idempotency-Key` as a tower layer |
//! | `outbox` (default) | [`outbox`] | the relay engine |
//! | `webhook` (default) | [`webhook`] | the webhook sink |
//! | `inbox` (default) | [`inbox`] | deliveries taken once |
//! | `saga` (default) | [`saga`] | coordinator and HTTP participants |
//! | `rabbitmq` | `rabbitmq` | the RabbitMQ sink |
//! | `nats` | `nats` | the NATS JetStream sink |
//! | `kafka` | `kafka` | sink, consumer, and consume-transform-produce in Kafka transactions; builds librdkafka |
//!
//! The README has an example per pattern; each is compiled with this crate's tests.

pub use semel_core::*;

#[cfg(feature = "http")]
pub use semel_http as http;
#[cfg(feature = "http-client")]
pub use semel_http_client as http_client;
/// Deliveries taken once: the protocol and what drives it.
#[cfg(feature = "inbox")]
pub mod inbox {
    pub use semel_core::inbox::*;
    pub use semel_inbox::*;
}
#[cfg(feature = "kafka")]
pub use semel_kafka as kafka;
#[cfg(feature = "keys")]
pub use semel_keys as keys;
#[cfg(feature = "mysql")]
pub use semel_mysql as mysql;
#[cfg(feature = "nats")]
pub use semel_nats as nats;
#[cfg(feature = "outbox")]
pub use semel_outbox as outbox;
#[cfg(feature = "postgres")]
pub use semel_postgres as postgres;
#[cfg(feature = "rabbitmq")]
pub use semel_rabbitmq as rabbitmq;
#[cfg(feature = "redis")]
pub use semel_redis as redis;
/// Sagas: definition, protocol, coordinator and participants.
#[cfg(feature = "saga")]
pub mod saga {
    pub use semel_core::saga::*;
    pub use semel_saga::*;
}
#[cfg(feature = "sqlite")]
pub use semel_sqlite as sqlite;
#[cfg(feature = "webhook")]
pub use semel_webhook as webhook;

#[cfg(all(doctest, feature = "postgres", feature = "kafka"))]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../../../docs/stores.md")]
struct Stores;
