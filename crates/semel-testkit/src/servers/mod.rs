//! Real servers for tests: each on 127.0.0.1, with a free port and a data folder of its own.
//!
//! # Guarantees
//! Nothing is left running or behind: a small watchdog process holds a pipe to the process that started the server.
//! When that process ends, however it ends (`kill -9` included), the pipe closes and the watchdog kills the server and
//! removes its folder.

mod guard;
mod kafka;
mod kafka_guarded;
mod kafka_log;
mod kafka_wire;
mod mariadb;
mod nats;
mod pgbouncer;
mod postgres;
mod rabbitmq;
mod redis;

use std::sync::atomic::{AtomicBool, Ordering};

pub use guard::{Guard, free_port, processor_time};
pub use kafka::{KafkaServer, kafka};
pub use kafka_guarded::{GuardedKafka, KafkaGuards};
pub use kafka_log::KafkaRecord;
pub use mariadb::{MariadbServer, mariadb};
pub use nats::{NatsServer, nats};
pub use pgbouncer::{PgBouncer, pgbouncer};
pub use postgres::{PostgresServer, postgres};
pub use rabbitmq::{RABBITMQ_MESSAGE_BYTES_MAX, RabbitmqServer, rabbitmq};
pub use redis::{RedisCluster, RedisServer, redis};

static FOR_SPEED: AtomicBool = AtomicBool::new(false);

/// For benches, before the first server starts: sets servers up to work fast. Without it they are set up to start fast
/// and to stay small (Kafka's virtual machine compiles in a hurry, PostgreSQL caches 64 MB).
pub fn for_speed() {
    FOR_SPEED.store(true, Ordering::Relaxed);
}

fn is_for_speed() -> bool {
    FOR_SPEED.load(Ordering::Relaxed)
}
