//! The daemon beside relays of others, each a process of its own: rate, processor time, memory, latency. How they are built:
//! `benches/peers/README.md`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use semel_testkit::children::Process;
use semel_testkit::servers::{kafka, processor_time};

use super::drain::{Backlog, PARTITIONS, Running, relaying, steady};
use crate::Plan;
use crate::gateway::{quiet, semel};
use crate::harness::{Table, thousands};
use crate::machine::memory_kib;

/// Rows for one that does two thousand a second.
const FEW: u32 = 2_000;
/// How long a peer may take with its backlog.
const WITHIN: Duration = Duration::from_secs(120);
/// How long the daemon is watched while it has nothing to do.
const IDLE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy)]
enum Peer {
    Semel { shards: u16 },
    Debezium { poll_ms: u32 },
    Watermill,
}

/// What a relay of a backlog took.
struct Drained {
    /// From the start of the process; from the first record on.
    per_second: (f64, f64),
    cpu_us_per_row: f64,
    peak_mb: f64,
}

pub(super) async fn beside_peers(plan: Plan) {
    let contenders = [
        ("semel run, one shard", Peer::Semel { shards: 1 }),
        ("semel run, 4 shards, its default", Peer::Semel { shards: 4 }),
        (
            "Debezium embedded, reading the same table",
            Peer::Debezium { poll_ms: 500 },
        ),
        ("Watermill forwarder", Peer::Watermill),
    ];
    let contenders: Vec<_> = contenders
        .into_iter()
        .filter(|(name, peer)| {
            let there = peer.program().is_some();
            if !there {
                println!("\n{name}: not built (benches/peers/README.md)");
            }
            there
        })
        .collect();
    let mut all: Vec<Vec<Drained>> = contenders.iter().map(|_| Vec::new()).collect();
    for _ in 0..plan.rounds {
        for ((_, peer), drained) in contenders.iter().zip(&mut all) {
            drained.push(peer.drain(plan.rows).await);
        }
    }
    println!("\n### Processes from PostgreSQL to Kafka, a backlog of events of 500 bytes, medians\n");
    println!(
        "| | rows/s from the first record | least to most | with its start | µs of processor per row | peak RSS, MiB |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    for ((name, _), drained) in contenders.iter().zip(&all) {
        let sorted = |figure: fn(&Drained) -> f64| {
            let mut figures: Vec<f64> = drained.iter().map(figure).collect();
            figures.sort_by(f64::total_cmp);
            figures
        };
        let middle = |figure| sorted(figure)[drained.len() / 2];
        let rates = sorted(|it| it.per_second.1);
        println!(
            "| {name} | {} | {} to {} | {} | {:.1} | {:.0} |",
            thousands(middle(|it| it.per_second.1)),
            thousands(rates[0]),
            thousands(rates[rates.len() - 1]),
            thousands(middle(|it| it.per_second.0)),
            middle(|it| it.cpu_us_per_row),
            middle(|it| it.peak_mb),
        );
    }
    if semel().is_some() {
        println!("\n### The daemon with one relay and nothing to do\n");
        println!("| shards | % of a core | RSS, MiB |\n| ---: | ---: | ---: |");
        for shards in [1, 4, 16] {
            idle(shards).await;
        }
    }
    let mut table = Table::new(
        "From commit to consumer beside peers, 500 transactions a second",
        "events",
    );
    table = table.contender("relay, as it comes", || {
        steady(
            plan.run,
            |backlog, stop| relaying(backlog, Default::default(), None, stop),
            None,
        )
    });
    let debezium = Peer::Debezium { poll_ms: 10 };
    if debezium.program().is_some() {
        table = table.contender("Debezium embedded, poll interval 10 ms", move || {
            steady(plan.run, move |backlog, _| debezium.steadily(backlog), None)
        });
    }
    table.measure(plan.rounds).await;
}

impl Peer {
    fn program(self) -> Option<PathBuf> {
        let peers = || std::env::var_os("SEMEL_BENCH_PEERS").map(PathBuf::from);
        let program = match self {
            Self::Semel { .. } => return semel(),
            Self::Debezium { .. } => peers()?.join("debezium/target/peer-debezium-0.1.jar"),
            Self::Watermill => peers()?.join("watermill/forwarder"),
        };
        program.is_file().then_some(program)
    }

    /// What must be there before the first row is written: texts that are transactions of their own.
    const fn before(self) -> &'static [&'static str] {
        match self {
            Self::Debezium { .. } => &[
                "CREATE PUBLICATION peer FOR TABLE semel.outbox WITH (publish = 'insert')",
                "SELECT pg_create_logical_replication_slot(current_database()::text, 'pgoutput')",
            ],
            _ => &[],
        }
    }

    async fn drain(self, rows: u32) -> Drained {
        let rows = if matches!(self, Self::Watermill) {
            FEW.min(rows)
        } else {
            rows
        };
        let backlog = Backlog::prepared(rows, false, self.before()).await;
        if matches!(self, Self::Watermill) {
            envelopes(&backlog).await;
        }
        let dir = tempfile::tempdir().unwrap();
        let topic = backlog.topic.clone();
        let begun = Instant::now();
        let process = self.start(&backlog, dir.path());
        let arrived = tokio::task::spawn_blocking(move || arrived(&topic, u64::from(rows)));
        let (first, last) = arrived.await.unwrap();
        let (cpu, peak_mb) = (processor_time(process.id()), memory(process.id(), "VmHWM"));
        let rate = |rows: u64, from: Instant| rows as f64 / (last - from).as_secs_f64();
        let drained = Drained {
            per_second: (
                rate(u64::from(rows), begun),
                rate(u64::from(rows) - first.1, first.0),
            ),
            cpu_us_per_row: cpu.as_secs_f64() * 1e6 / f64::from(rows),
            peak_mb,
        };
        self.end(process, &backlog).await;
        drained
    }

    /// While its latency is measured. It is given time to get warm first.
    fn steadily(self, backlog: &Backlog) -> Running {
        let dir = tempfile::tempdir().unwrap();
        let (url, database) = (backlog.url.clone(), database(&backlog.url).to_owned());
        for text in self.before() {
            let mut psql = Command::new("psql");
            psql.args([
                "-Xq",
                &url,
                "-v",
                "ON_ERROR_STOP=1",
                "-o",
                "/dev/null",
                "-c",
                text,
            ]);
            assert!(psql.status().unwrap().success());
        }
        let process = self.start(backlog, dir.path());
        let active = format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{database}'");
        let until = Instant::now() + WITHIN;
        while Command::new("psql")
            .args(["-XqAt", &url, "-c", &active])
            .output()
            .unwrap()
            .stdout
            != b"t\n"
        {
            assert!(Instant::now() < until, "the peer does not read");
            std::thread::sleep(Duration::from_millis(200));
        }
        std::thread::sleep(Duration::from_secs(5));
        Box::pin(async move {
            let _kept = (process, dir);
            std::future::pending().await
        })
    }

    fn start(self, backlog: &Backlog, dir: &Path) -> Process {
        let url = &backlog.url;
        let program = self.program().unwrap();
        match self {
            Self::Semel { shards } => daemon(url, shards, dir),
            Self::Debezium { poll_ms } => {
                let (host, port) = address(url);
                let database = database(url);
                let jars = program.parent().unwrap().join("dependency/*");
                quiet(
                    Command::new("java")
                        .args([
                            "-Xmx512m",
                            "-XX:+UseSerialGC",
                            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
                            "-cp",
                        ])
                        .arg(format!("{}:{}", program.display(), jars.display()))
                        .args(["bench.Relay", host, port, database, database])
                        .arg(dir.join("offsets"))
                        .args([kafka().bootstrap(), poll_ms.to_string()]),
                )
            }
            Self::Watermill => {
                quiet(Command::new(program).args([url.as_str(), &kafka().bootstrap(), "10ms"]))
            }
        }
    }

    /// A slot that is left behind keeps the log of all databases.
    async fn end(self, mut process: Process, backlog: &Backlog) {
        process.terminate();
        if process.wait_within(Duration::from_secs(10)).is_none() {
            process.kill();
        }
        if matches!(self, Self::Debezium { .. }) {
            let drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = current_database()";
            sqlx::query(drop).execute(backlog.store.pool()).await.unwrap();
        }
    }
}

fn daemon(url: &str, shards: u16, dir: &Path) -> Process {
    let config = dir.join("semel.toml");
    let (port, broker) = (semel_testkit::servers::free_port(), kafka().bootstrap());
    let text = format!(
        "server = {{ listen = \"127.0.0.1:{port}\" }}\nstore = {{ url = \"{url}\" }}\n[[relay]]\nname = \"peer\"\nshards = {shards}\n\
         sink = {{ kafka = {{ brokers = [\"{broker}\"] }} }}\n"
    );
    std::fs::write(&config, text).unwrap();
    quiet(Command::new(semel().unwrap()).args(["run", "-c"]).arg(config))
}

async fn idle(shards: u16) {
    let backlog = Backlog::new(0, false).await;
    let dir = tempfile::tempdir().unwrap();
    let mut process = daemon(&backlog.url, shards, dir.path());
    tokio::time::sleep(IDLE / 2).await;
    let before = processor_time(process.id());
    tokio::time::sleep(IDLE).await;
    let used = processor_time(process.id()) - before;
    println!(
        "| {shards} | {:.2} | {:.0} |",
        used.as_secs_f64() * 100.0 / IDLE.as_secs_f64(),
        memory(process.id(), "VmRSS")
    );
    process.kill();
}

/// The backlog as Watermill's forwarder has it.
async fn envelopes(backlog: &Backlog) {
    let sql = r#"CREATE TABLE watermill_peer ("offset" bigserial, uuid varchar(36) NOT NULL, created_at timestamp NOT NULL DEFAULT
            current_timestamp, payload bytea, metadata json, transaction_id xid8 NOT NULL, PRIMARY KEY (transaction_id, "offset"));
        INSERT INTO watermill_peer (uuid, payload, metadata, transaction_id)
            SELECT event_id::text, convert_to(json_build_object('destination_topic', topic, 'uuid', event_id, 'payload',
                translate(encode(data, 'base64'), E'\n', ''), 'metadata', json_build_object('key', convert_from(key, 'UTF8')))::text,
                'UTF8'), '{}', pg_current_xact_id() FROM semel.outbox ORDER BY id"#;
    sqlx::raw_sql(sql).execute(backlog.store.pool()).await.unwrap();
}

/// When the first records were seen and how many they were; when all were there.
fn arrived(topic: &str, rows: u64) -> ((Instant, u64), Instant) {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", kafka().bootstrap())
        .create()
        .unwrap();
    let until = Instant::now() + WITHIN;
    let mut first = None;
    loop {
        let count = |partition| {
            consumer
                .fetch_watermarks(topic, partition, Duration::from_secs(10))
                .unwrap()
                .1
        };
        let seen = (0..i32::from(PARTITIONS)).map(count).sum::<i64>() as u64;
        let now = Instant::now();
        if seen > 0 && first.is_none() {
            first = Some((now, seen));
        }
        if seen >= rows {
            return (first.unwrap(), now);
        }
        assert!(now < until, "only {seen} of {rows} rows arrived");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn database(url: &str) -> &str {
    url.rsplit('/').next().unwrap()
}

fn address(url: &str) -> (&str, &str) {
    let host = url.split('@').nth(1).unwrap().split('/').next().unwrap();
    host.split_once(':').unwrap()
}

/// Mebibytes.
fn memory(pid: u32, field: &str) -> f64 {
    memory_kib(pid, field) as f64 / 1_024.0
}
