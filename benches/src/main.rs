//! Measures Semel against the raw limit of the same machine in the same run.
//!
//! Contenders alternate, round by round, so that a machine that gets slower or faster meanwhile is unfair to none; each
//! is compared with the first of its table within the same round. Trust the ratios more than the figures.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a bench that fails has nothing to say"
)]

mod gateway;
mod harness;
mod http;
mod keys;
mod keys_mysql;
mod keys_postgres;
mod keys_redis;
mod load;
mod machine;
mod relay;
mod serve;

use std::time::Duration;

use clap::{Parser, Subcommand};

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
#[command(about = "Semel's figures, each beside the raw limit of the same machine")]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
    /// Rounds in which each contender runs once.
    #[arg(long, global = true, default_value_t = 3)]
    rounds: usize,
    /// Seconds that each run takes, where it is bound by time.
    #[arg(long, global = true, default_value_t = 4.0)]
    seconds: f64,
    /// Rows of each run, where it is bound by count.
    #[arg(long, global = true, default_value_t = 100_000)]
    rows: u32,
    /// As small as possible: shows that it runs, not how fast.
    #[arg(long, global = true)]
    smoke: bool,
}

#[derive(Debug, Clone, Subcommand)]
enum Bench {
    /// Claims on SQLite and PostgreSQL, single and batched, against bare inserts.
    Keys,
    /// The batcher of keys on SQLite against a group commit by hand (a part of `keys`).
    KeysBatched {
        /// Only the contenders whose table and name hold this text: for a profiler.
        #[arg(long)]
        only: Option<String>,
    },
    /// Keys on Redis, single and gathered, against a hash and two scripts by hand.
    KeysRedis,
    /// Claims on MariaDB, single and batched, against the same by hand.
    KeysMysql,
    /// Keys on PostgreSQL against statements by hand: batches, replays, and keys in business transactions.
    KeysPostgres {
        /// Only the contenders whose table and name hold one of these texts (`one|other`): for a profiler.
        #[arg(long)]
        only: Option<String>,
    },
    /// The HTTP layer on three stores against bare axum: by wrk where it is installed.
    Http,
    /// The processor time that the layer adds to a request, without sockets (a part of `http`).
    HttpCpu {
        /// Only one of `bare`, `new`, `replay`: for a profiler.
        #[arg(long)]
        only: Option<String>,
    },
    /// The gateway against nginx, where nginx, wrk and a `semel` built the same way are there.
    Gateway,
    /// The relay from SQLite to a webhook, out of MariaDB, from PostgreSQL to a Redis stream and, with the feature kafka, from
    /// PostgreSQL to Kafka.
    Relay,
    /// An event in a business transaction on PostgreSQL beside a row of a plain table (a part of `relay`).
    Enqueue {
        /// Only the contenders whose name holds one of these texts (`one|other`): for a profiler.
        #[arg(long)]
        only: Option<String>,
    },
    /// From PostgreSQL to Kafka (a part of `relay`).
    #[cfg(feature = "kafka")]
    RelayKafka {
        /// Only the contenders whose name holds this text: for a profiler.
        #[arg(long)]
        only: Option<String>,
    },
    /// The daemon from PostgreSQL to Kafka beside Debezium and Watermill, where they are built (benches/peers): rate, processor
    /// time, memory, latency.
    #[cfg(feature = "kafka")]
    RelayPeers,
    /// RabbitMQ and NATS beside bare publishers (a part of `relay`).
    #[cfg(feature = "brokers")]
    Brokers {
        /// Only the contenders whose name, behind the title of the table, holds one of these texts (`one|other`): for a profiler.
        #[arg(long)]
        only: Option<String>,
    },
    /// From PostgreSQL to a Redis stream (a part of `relay`).
    RelayRedis {
        /// Only the contenders whose name holds this text: for a profiler.
        #[arg(long)]
        only: Option<String>,
    },
    /// From SQLite to a webhook (a part of `relay`).
    RelayWebhook {
        /// Only the contenders whose name holds this text: for a profiler.
        #[arg(long)]
        only: Option<String>,
    },
    /// Everything.
    All,
    /// Serves an HTTP API behind the layer, to be tested and measured from outside.
    ServeHttp(serve::ServeArgs),
}

/// How much to measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    rounds: usize,
    run: Duration,
    rows: u32,
}

#[tokio::main]
async fn main() {
    let cli = Cli::parse();
    if let Bench::ServeHttp(args) = cli.bench {
        return serve::run(args).await;
    }
    let plan = if cli.smoke {
        Plan {
            rounds: 1,
            run: Duration::from_millis(200),
            rows: 500,
        }
    } else {
        Plan {
            rounds: cli.rounds,
            run: Duration::from_secs_f64(cli.seconds),
            rows: cli.rows,
        }
    };
    machine::print();
    semel_testkit::servers::for_speed();
    let all = matches!(cli.bench, Bench::All);
    if all || matches!(cli.bench, Bench::Keys) {
        keys::run(plan).await;
    }
    if let Bench::KeysBatched { only } = &cli.bench {
        keys::batched(plan, only.as_deref()).await;
    }
    if all || matches!(cli.bench, Bench::KeysRedis) {
        keys_redis::run(plan).await;
    }
    if all || matches!(cli.bench, Bench::KeysMysql) {
        keys_mysql::run(plan).await;
    }
    if let Bench::KeysPostgres { only } = &cli.bench {
        keys_postgres::run(plan, only.as_deref()).await;
    } else if all {
        keys_postgres::run(plan, None).await;
    }
    if all || matches!(cli.bench, Bench::Http) {
        http::run(plan).await;
    }
    if let Bench::HttpCpu { only } = &cli.bench {
        http::alone::run(plan, only.as_deref());
    }
    if all || matches!(cli.bench, Bench::Gateway) {
        gateway::run(plan).await;
    }
    if let Bench::Enqueue { only } = &cli.bench {
        relay::enqueue(plan, only.as_deref()).await;
    }
    #[cfg(feature = "kafka")]
    if let Bench::RelayKafka { only } = &cli.bench {
        relay::kafka(plan, only.as_deref()).await;
    }
    #[cfg(feature = "kafka")]
    if matches!(cli.bench, Bench::RelayPeers) {
        relay::peers(plan).await;
    }
    #[cfg(feature = "brokers")]
    if let Bench::Brokers { only } = &cli.bench {
        relay::brokers(plan, only.as_deref()).await;
    }
    if let Bench::RelayRedis { only } = &cli.bench {
        relay::redis(plan, only.as_deref()).await;
    }
    if let Bench::RelayWebhook { only } = &cli.bench {
        relay::webhook(plan, only.as_deref()).await;
    }
    if all || matches!(cli.bench, Bench::Relay) {
        relay::run(plan).await;
    }
}
