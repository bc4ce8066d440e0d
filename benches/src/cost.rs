//! Processor time of contenders: on a machine that others use, too, that is steadier than a rate.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::harness::Sample;

/// Microseconds of the client's processor time, of the server's, and operations, by contender.
type Spent = BTreeMap<usize, (&'static str, u64, u64, u64)>;

/// What the operations of each contender cost this process and a PostgreSQL server.
#[derive(Clone)]
pub(crate) struct Costs {
    /// The server's first process.
    server: u32,
    spent: Arc<Mutex<Spent>>,
}

impl Costs {
    pub(crate) fn new(server: u32) -> Self {
        Self {
            server,
            spent: Arc::default(),
        }
    }

    /// The first process of the server that this pool leads to.
    pub(crate) async fn server_of(pool: &sqlx::PgPool) -> u32 {
        let data: String = sqlx::query_scalar("SHOW data_directory")
            .fetch_one(pool)
            .await
            .unwrap();
        let pid = std::fs::read_to_string(format!("{data}/postmaster.pid")).unwrap();
        pid.lines().next().unwrap().trim().parse().unwrap()
    }

    /// A contender's place in the list.
    pub(crate) fn contender(&self, name: &'static str) -> usize {
        let mut spent = self.spent.lock().unwrap();
        let place = spent.len();
        spent.insert(place, (name, 0, 0, 0));
        place
    }

    /// Adds what a run costs to a contender.
    pub(crate) async fn of(&self, place: usize, run: impl Future<Output = Sample>) -> Sample {
        let (client, server) = (client_cpu(), server_cpu(self.server));
        let sample = run.await;
        let mut spent = self.spent.lock().unwrap();
        let cost = spent.get_mut(&place).unwrap();
        cost.1 += client_cpu() - client;
        cost.2 += server_cpu(self.server).saturating_sub(server);
        cost.3 += sample.done;
        sample
    }

    pub(crate) fn print(&self, title: &str) {
        let spent = self.spent.lock().unwrap();
        let mut limit = None;
        for (name, client, server, done) in spent.values().filter(|cost| cost.3 > 0) {
            let each = |all: &u64| *all as f64 / *done as f64;
            let sum = each(client) + each(server);
            if limit.is_none() {
                println!("\n#### Processor time: {title}\n");
                println!("| | client µs | server µs | the limit's sum of it |\n| --- | ---: | ---: | ---: |");
            }
            let share = *limit.get_or_insert(sum) / sum;
            println!(
                "| {name} | {:.0} | {:.0} | {share:.2} |",
                each(client),
                each(server)
            );
        }
    }
}

/// Microseconds that this process has used.
fn client_cpu() -> u64 {
    ticks(&std::fs::read_to_string("/proc/self/stat").unwrap()) * 10_000
}

/// User and system time of a line of `/proc/PID/stat`, in hundredths of a second.
fn ticks(stat: &str) -> u64 {
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Microseconds that the server's processes have used.
fn server_cpu(postmaster: u32) -> u64 {
    let mut nanos = 0;
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(1));
        if parent.and_then(|parent| parent.parse().ok()) == Some(postmaster) {
            let used = std::fs::read_to_string(entry.path().join("schedstat")).unwrap_or_default();
            nanos += used
                .split(' ')
                .next()
                .and_then(|nanos| nanos.parse().ok())
                .unwrap_or(0);
        }
    }
    nanos / 1_000
}
