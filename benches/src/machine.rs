//! Under what conditions the figures were taken.

use std::process::Command;

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
