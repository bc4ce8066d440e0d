//! Under what conditions the figures were taken.

use std::process::Command;
use std::time::Duration;

use semel_testkit::servers::{postgres, processor_time};

/// Who takes processor time where PostgreSQL serves this process.
pub(crate) const WITH_POSTGRESQL: &[&str] = &["this process", "PostgreSQL"];

/// The processor time of each of [`WITH_POSTGRESQL`] so far.
pub(crate) fn with_postgresql() -> [Duration; 2] {
    [processor_time(std::process::id()), postgres().processor_time()]
}

/// Kibibytes of a process by `/proc/PID/status`: `VmRSS`, what is resident now, or `VmHWM`, what was at most.
pub(crate) fn memory_kib(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
        .unwrap_or(0)
}

pub(crate) fn print() {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let dir = std::env::temp_dir();
    let disk = Command::new("stat")
        .args(["-f", "-c", "%T"])
        .arg(&dir)
        .output()
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?");
    let build = if cfg!(debug_assertions) {
        "debug build: these figures say nothing"
    } else {
        "release build"
    };
    let allocator = if cfg!(feature = "mimalloc") {
        "mimalloc"
    } else {
        "the system's allocator"
    };
    println!("{cores} cores, load {load} at the start, data on {disk}, {build}, {allocator}");
}
