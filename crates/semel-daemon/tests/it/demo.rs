//! `semel demo`: what it counts, and that nothing of it stays behind.

use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;

use super::daemon::{semel, texts};

fn folder() -> TempDir {
    tempfile::Builder::new().prefix("semel-it-").tempdir().unwrap()
}

fn demo(arguments: &[&str]) -> (String, String, i32) {
    let output = semel()
        .arg("demo")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    texts(&output)
}

fn shop<'a>(audit: &'a Value, id: &str) -> &'a Value {
    &audit["shops"][id]
}

#[test]
fn the_hand_written_shop_is_counted_and_is_no_failure_of_the_demo() {
    let folder = folder();
    let kept = folder.path().join("kept");
    let arguments = [
        "--naive-only",
        "--orders",
        "60",
        "--seconds",
        "6",
        "--seed",
        "7",
        "--json",
    ];
    let (out, errors, code) = demo(&[&arguments[..], &["--dir", kept.to_str().unwrap()]].concat());
    assert_eq!(code, 0, "{errors}");
    let audit: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    assert_eq!(audit["seed"], 7);
    let by_hand = shop(&audit, "by-hand");
    assert_eq!(by_hand["orders"], 60);
    assert!(
        by_hand["ordeal"]["duplicates"].as_u64().unwrap() > 10,
        "{by_hand}"
    );
    assert!(by_hand["ordeal"]["kills"].as_u64().unwrap() > 2, "{by_hand}");
    // A third of all orders is sent twice at the same moment or cut off: the usual patterns cannot come out clean.
    assert_eq!(by_hand["clean"], false, "{by_hand}");
    for name in [
        "orders.db",
        "payments.db",
        "stock.db",
        "shipping.db",
        "logs/orders-1.log",
    ] {
        assert!(kept.join("by-hand").join(name).exists(), "{name} is kept");
    }
}

#[test]
fn the_shop_with_semel_comes_out_right() {
    let folder = folder();
    let kept = folder.path().join("kept");
    let arguments = [
        "--semel-only",
        "--orders",
        "60",
        "--seconds",
        "6",
        "--seed",
        "7",
        "--json",
    ];
    let (out, errors, code) = demo(&[&arguments[..], &["--dir", kept.to_str().unwrap()]].concat());
    let audit: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{errors}"));
    let semel = shop(&audit, "semel");
    if code != 0 {
        // Someone has to look into the files.
        panic!("kept in {}: {semel}\n{errors}", folder.keep().display());
    }
    assert_eq!(semel["clean"], true, "{semel}");
    assert_eq!(
        (semel["orders"].as_u64(), semel["right"].as_u64()),
        (Some(60), Some(60))
    );
    let ends = semel["completed"].as_u64().unwrap() + semel["undone"].as_u64().unwrap();
    assert_eq!(ends, 60, "{semel}");
    assert!(semel["completed"].as_u64().unwrap() > 20, "{semel}");
    assert!(semel["ordeal"]["kills"].as_u64().unwrap() > 2, "{semel}");
    assert!(semel["ordeal"]["duplicates"].as_u64().unwrap() > 10, "{semel}");
}

#[test]
fn a_folder_with_something_in_it_is_refused_and_left_alone() {
    let folder = folder();
    std::fs::write(folder.path().join("mine"), "precious").unwrap();
    let (_, errors, code) = demo(&["--naive-only", "--dir", folder.path().to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(errors.contains("not empty"), "{errors}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn flags_that_contradict_each_other_are_wrong_use() {
    let (_, errors, code) = demo(&["--naive-only", "--semel-only"]);
    assert_eq!(code, 2);
    assert!(errors.contains("cannot be used with"), "{errors}");
}

/// However the demo ends, no process of it lives on, not even one that is stopped.
#[cfg(target_os = "linux")]
mod nothing_stays_behind {
    use std::path::Path;
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, kill_process, test_kill_process_group};
    use semel_testkit::children::Process;

    use super::super::daemon::semel;
    use super::folder;

    const LIMIT: Duration = Duration::from_secs(60);

    fn until(what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !holds() {
            assert!(Instant::now() < deadline, "waited in vain until {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The demo's services whose files are below `root`, with their process group.
    fn services(root: &Path) -> Vec<(i32, i32)> {
        let root = root.to_str().unwrap();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap() {
            let path = entry.unwrap().path();
            let Some(pid) = path.file_name().and_then(|name| name.to_str()?.parse().ok()) else {
                continue;
            };
            // Processes end while they are looked at.
            let Ok(command) = std::fs::read(path.join("cmdline")) else {
                continue;
            };
            let Ok(stat) = std::fs::read_to_string(path.join("stat")) else {
                continue;
            };
            let command = String::from_utf8_lossy(&command);
            if command.contains("--shop") && command.contains(root) {
                let after_name = stat.rsplit(')').next().unwrap();
                found.push((
                    pid,
                    after_name.split_whitespace().nth(2).unwrap().parse().unwrap(),
                ));
            }
        }
        found
    }

    /// Starts a demo, waits for its services, stops one of them, ends the demo by `signal`, and looks.
    fn ended_by(signal: Signal) -> Option<i32> {
        let temporary = folder();
        let mut demo = Process::spawn(
            semel()
                .args(["demo", "--naive-only", "--seconds", "600", "--orders", "100"])
                .env("TMPDIR", temporary.path())
                .stdout(Stdio::null())
                .stderr(Stdio::null()),
        )
        .unwrap();
        let mut running = Vec::new();
        until("all services run", || {
            running = services(temporary.path());
            running.len() == 5
        });
        let (stopped, group) = running[0];
        kill_process(Pid::from_raw(stopped).unwrap(), Signal::STOP).unwrap();

        kill_process(Pid::from_raw(i32::try_from(demo.id()).unwrap()).unwrap(), signal).unwrap();
        let status = demo.wait_within(LIMIT).expect("the demo ends");

        // The group holds the services and the watchdog.
        until("the process group is empty", || {
            test_kill_process_group(Pid::from_raw(group).unwrap()).is_err()
        });
        assert_eq!(services(temporary.path()), []);
        until("the temporary folder is gone", || {
            std::fs::read_dir(temporary.path()).unwrap().next().is_none()
        });
        status.code()
    }

    #[test]
    fn after_ctrl_c() {
        assert_eq!(ended_by(Signal::INT), Some(1));
    }

    #[test]
    fn after_kill_9() {
        assert_eq!(ended_by(Signal::KILL), None);
    }
}
