//! No child outlives its test.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use semel_testkit::children::Process;
use semel_testkit::crash;

fn alive(pid: u32) -> bool {
    // A zombie that nobody has reaped yet has ended too.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or_default().starts_with('Z'))
}

#[test]
fn a_dropped_process_is_killed_even_when_it_is_stopped() {
    let process = Process::spawn(Command::new("sleep").arg("1000")).unwrap();
    let pid = process.id();
    process.pause();
    drop(process);
    assert!(!alive(pid));
}

#[test]
fn a_process_that_does_not_end_in_time_is_killed() {
    let mut process = Process::spawn(Command::new("sleep").arg("1000")).unwrap();
    assert_eq!(process.wait_within(Duration::from_millis(20)), None);
    assert!(process.ended().is_some());
    let mut quick = Process::spawn(&mut Command::new("true")).unwrap();
    assert!(quick.wait_within(Duration::from_secs(60)).unwrap().success());
}

#[test]
fn children_die_with_a_test_process_that_is_killed() {
    if crash::role("parent").is_some() {
        let gone = Process::spawn(&mut Command::new("true")).unwrap().kill();
        let child = Process::spawn(Command::new("sleep").arg("1000")).unwrap();
        println!("\nchild {} after {gone}", child.id());
        std::thread::park();
    }
    let name = "children::children_die_with_a_test_process_that_is_killed";
    let mut parent = Process::spawn(
        Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env("SEMEL_TEST_ROLE", "parent")
            .stdout(Stdio::piped()),
    )
    .unwrap();
    let child: u32 = BufReader::new(parent.child().stdout.take().unwrap())
        .lines()
        .find_map(|line| line.unwrap().strip_prefix("child ").map(ToOwned::to_owned))
        .and_then(|line| line.split(' ').next().unwrap().parse().ok())
        .unwrap();
    assert!(alive(child));
    parent.kill();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while alive(child) {
        assert!(
            std::time::Instant::now() < deadline,
            "the child outlived its parent"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}
