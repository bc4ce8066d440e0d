//! A server process of its own for each run (`serve-http`, fresh store), under keep-alive connections: wrk where it is
//! installed, else the generator of this program. Load and server share the machine's processors, and all servers have the
//! same allocator.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use semel_testkit::children::Process;
use semel_testkit::servers::{free_port, postgres, processor_time};

use crate::Plan;
use crate::harness::{Sample, Table};
use crate::load;

const CONNECTIONS: usize = 64;
const POSTED: load::Posted = load::Posted {
    target: "/bench",
    body: load::BODY,
    authorization: Some("Bearer ada"),
};

/// Server, keys: what is compared, the limit first.
const CONTENDERS: [(&str, &str, &str); 6] = [
    ("limit: axum without the layer", "none", "new"),
    ("new keys in memory", "memory", "new"),
    ("replays from memory", "memory", "replay"),
    ("new keys on SQLite", "sqlite", "new"),
    ("replays from SQLite", "sqlite", "replay"),
    ("new keys on PostgreSQL", "postgres", "new"),
];

pub(super) async fn run(plan: Plan) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let wrk = load::wrk_is_there();
    let by = if wrk { "wrk" } else { "this program" };
    // Microseconds of the server's processor time per request, run by run.
    let spent: [Mutex<Vec<f64>>; CONTENDERS.len()] = Default::default();
    let mut table = Table::new(
        format!(
            "POST of 316 bytes, answer of 211: {CONNECTIONS} connections by {by}, on the processors of the server"
        ),
        "requests",
    );
    for ((name, store, mode), spent) in CONTENDERS.into_iter().zip(&spent) {
        table = table.contender(name, move || one(dir, store, mode, plan.run, wrk, spent));
    }
    table.measure(plan.rounds).await;
    println!("\n### Processor time of the server per request, median of the rounds\n");
    println!("| | µs | added |\n| --- | ---: | ---: |");
    let median = |runs: &Mutex<Vec<f64>>| {
        let mut runs = runs.lock().unwrap().clone();
        runs.sort_by(f64::total_cmp);
        runs[runs.len() / 2]
    };
    let bare = median(&spent[0]);
    for ((name, ..), spent) in CONTENDERS.into_iter().zip(&spent) {
        let us = median(spent);
        println!("| {name} | {us:.1} | {:.1} |", us - bare);
    }
}

async fn one(
    dir: &Path,
    store: &str,
    mode: &'static str,
    run: Duration,
    wrk: bool,
    spent: &Mutex<Vec<f64>>,
) -> Sample {
    let port = free_port();
    let server = serve(dir, store, port);
    load::until_there(port).await;
    let before = processor_time(server.id());
    let sample = if wrk {
        load::wrk(dir, port, CONNECTIONS, &POSTED, mode, run).await
    } else if mode == "replay" {
        load::repeat_one(port, CONNECTIONS, run).await
    } else {
        load::post(port, CONNECTIONS, run, AtomicU64::new(0).into()).await
    };
    let spent_now = processor_time(server.id()).saturating_sub(before);
    let us = spent_now.as_secs_f64() * 1e6 / sample.done as f64;
    spent.lock().unwrap().push(us);
    sample
}

fn serve(dir: &Path, store: &str, port: u16) -> Process {
    let url = match store {
        "postgres" => postgres().fresh_database(),
        _ => dir.join(format!("{port}.db")).display().to_string(),
    };
    Process::spawn(
        Command::new(std::env::current_exe().unwrap())
            .args(["serve-http", "--store", store, "--url", &url])
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .stdin(Stdio::null()),
    )
    .unwrap()
}
