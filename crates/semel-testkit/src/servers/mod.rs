//! Real servers for tests: each on 127.0.0.1, with a free port and a data folder of its own.
//!
//! # Guarantees
//! Nothing is left running or behind: a small watchdog process holds a pipe to the process that started the server.
//! When that process ends, however it ends (`kill -9` included), the pipe closes and the watchdog kills the server and
//! removes its folder.

mod guard;
mod kafka;
mod kafka_log;
mod kafka_wire;
mod mariadb;
mod nats;
mod pgbouncer;
mod postgres;
mod rabbitmq;
mod redis;

pub use guard::{Guard, free_port};
pub use kafka::{KafkaServer, kafka};
pub use kafka_log::KafkaRecord;
pub use mariadb::{MariadbServer, mariadb};
pub use nats::{NatsServer, nats};
pub use pgbouncer::{PgBouncer, pgbouncer};
pub use postgres::{PostgresServer, postgres};
pub use rabbitmq::{RABBITMQ_MESSAGE_BYTES_MAX, RabbitmqServer, rabbitmq};
pub use redis::{RedisCluster, RedisServer, redis};
