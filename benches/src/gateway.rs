//! The gateway beside nginx's `proxy_pass` with keep-alive, before the same upstream, under the same load.
//!
//! Needs nginx, wrk and a `semel` built the same way beside this program (or named by `SEMEL_BIN`); says so where one of
//! them is missing. The load, the upstream and what is measured share the machine: only ratios inside one run count.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use semel_testkit::children::Process;
use semel_testkit::servers::free_port;
use tokio::net::TcpStream;

use crate::Plan;
use crate::harness::Table;
use crate::load;
use crate::machine::memory_kib;

const CONNECTIONS: usize = 64;
/// Connections of the memory table.
const IDLE: usize = 10_000;
const POSTED: load::Posted = load::Posted {
    target: "/orders",
    body: r#"{"customer":"c-8f3b2c1d","amount":129900,"currency":"EUR","items":[{"sku":"A-100234","qty":2},{"sku":"B-558120","qty":1}]}"#,
    authorization: None,
};

pub(crate) async fn run(plan: Plan) {
    let (Some(nginx), Some(_)) = (find("nginx"), find("wrk")) else {
        println!("\nThe gateway was not measured: install nginx and wrk.");
        return;
    };
    let Some(semel) = semel() else {
        println!(
            "\nThe gateway was not measured: build it the same way first (cargo build --profile … -p semel-daemon), or set SEMEL_BIN."
        );
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let upstream = free_port();
    let answer = "x".repeat(200);
    let _upstream = start_nginx(
        &nginx,
        dir,
        "upstream",
        upstream,
        &format!("return 201 '{answer}';"),
        "",
    );
    let proxy = free_port();
    let pass = "proxy_pass http://u; proxy_http_version 1.1; proxy_set_header Connection '';";
    let pool = format!(
        "upstream u {{ server 127.0.0.1:{upstream}; keepalive 256; keepalive_requests 1000000000; }}"
    );
    let _proxy = start_nginx(&nginx, dir, "proxy", proxy, pass, &pool);
    let gateway = free_port();
    let daemon = start_semel(&semel, dir, gateway, upstream);
    for port in [upstream, proxy, gateway] {
        load::until_there(port).await;
    }
    let load = |port: u16, mode: &'static str| load::wrk(dir, port, CONNECTIONS, &POSTED, mode, plan.run);
    Table::new(
        format!("POST through a proxy, {CONNECTIONS} connections, keep-alive on both sides"),
        "requests",
    )
    .contender("limit: nginx proxy_pass", || load(proxy, "none"))
    .contender("no proxy", || load(upstream, "none"))
    .contender("semel, no key", || load(gateway, "none"))
    .contender("semel, new keys in memory", || load(gateway, "new"))
    .contender("semel, replays from memory", || load(gateway, "replay"))
    .measure(plan.rounds)
    .await;
    idle(&daemon, gateway).await;
}

/// The daemon's memory before, with and after many connections that do nothing.
async fn idle(daemon: &Process, port: u16) {
    let before = memory_kib(daemon.id(), "VmRSS");
    let mut open = Vec::with_capacity(IDLE);
    for _ in 0..IDLE {
        match TcpStream::connect(("127.0.0.1", port)).await {
            Ok(stream) => open.push(stream),
            Err(error) => {
                println!("\n{} idle connections could be made: {error}", open.len());
                break;
            }
        }
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let first = memory_kib(daemon.id(), "VmRSS");
    tokio::time::sleep(Duration::from_secs(10)).await;
    let later = memory_kib(daemon.id(), "VmRSS");
    let count = open.len();
    println!("\n### {count} idle connections to the gateway\n");
    println!("| | resident KiB |\n| --- | ---: |");
    println!("| before | {before} |\n| 3 s after the last was made | {first} |\n| 10 s later | {later} |");
    println!(
        "| per connection | {:.1} |",
        (later.saturating_sub(before)) as f64 / count.max(1) as f64
    );
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    places
        .map(|place| place.join(program))
        .find(|file| file.is_file())
}

pub(crate) fn semel() -> Option<PathBuf> {
    let beside = || Some(std::env::current_exe().ok()?.parent()?.join("semel"));
    let named = std::env::var_os("SEMEL_BIN").map(PathBuf::from);
    named.or_else(beside).filter(|file| file.is_file())
}

pub(crate) fn quiet(command: &mut Command) -> Process {
    Process::spawn(
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    )
    .unwrap()
}

/// A running nginx. Its workers outlive a master that is killed, and hold whatever they inherited: it is told to stop.
struct Nginx {
    stop: Command,
    _process: Process,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // One that is gone already needs no telling.
        let _ = self.stop.status();
    }
}

fn start_nginx(nginx: &Path, dir: &Path, name: &str, port: u16, location: &str, http: &str) -> Nginx {
    let own = dir.join(name);
    std::fs::create_dir_all(&own).unwrap();
    let place = own.display();
    // One process, so that it ends with this one.
    let config = format!(
        "daemon off; master_process off; pid {place}/pid; error_log {place}/error.log;\n\
         events {{ worker_connections 20000; }}\n\
         http {{ access_log off; keepalive_requests 1000000000; client_body_temp_path {place}/b; proxy_temp_path {place}/p;\n\
         fastcgi_temp_path {place}/f; uwsgi_temp_path {place}/u; scgi_temp_path {place}/s; {http}\n\
         server {{ listen 127.0.0.1:{port} reuseport backlog=4096; location / {{ {location} }} }} }}\n"
    );
    let config = if name == "proxy" {
        // What is compared has all cores, as semel has.
        config.replace("master_process off;", "worker_processes auto;")
    } else {
        config
    };
    let file = own.join("nginx.conf");
    std::fs::write(&file, config).unwrap();
    let run = || {
        let mut command = Command::new(nginx);
        command.arg("-c").arg(&file).arg("-e").arg(own.join("first.log"));
        command
    };
    let mut stop = run();
    stop.args(["-s", "stop"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Nginx {
        stop,
        _process: quiet(&mut run()),
    }
}

fn start_semel(semel: &Path, dir: &Path, port: u16, upstream: u16) -> Process {
    let file = dir.join("semel.toml");
    let server = free_port();
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:{server}\"\n[store]\nurl = \"memory:\"\n[[gateway]]\nname = \"bench\"\n\
         listen = \"127.0.0.1:{port}\"\nupstream = \"http://127.0.0.1:{upstream}\"\nanonymous = true\n\
         upstream_idle_ms = 60000\n"
    );
    std::fs::write(&file, config).unwrap();
    quiet(
        Command::new(semel)
            .args(["run", "-c"])
            .arg(&file)
            .args(["--log", "warn"]),
    )
}
