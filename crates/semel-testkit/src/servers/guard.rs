//! One server process, watched.

use std::hash::{BuildHasher as _, RandomState};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// A port that nobody listens on now, never given twice by one process.
///
/// It lies below the range from which the system draws the source ports of outgoing connections. A port out of that
/// range can be taken by any client while the server is down for a restart, and a client that dials it meanwhile may
/// even connect to itself.
///
/// # Panics
/// No port is free.
#[must_use]
pub fn free_port() -> u16 {
    const FIRST: u32 = 14_000;
    const COUNT: u32 = 18_000;
    static NEXT: OnceLock<AtomicU32> = OnceLock::new();
    let next = NEXT.get_or_init(|| {
        // The keys of a fresh hasher are random: two test processes begin at different places.
        let word = RandomState::new().hash_one(std::process::id());
        AtomicU32::new(u32::try_from(word % u64::from(COUNT)).unwrap())
    });
    (0..COUNT)
        .map(|_| u16::try_from(FIRST + next.fetch_add(1, Ordering::Relaxed) % COUNT).unwrap())
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port between 14000 and 32000")
}

/// A running server with its data folder. Dropping it kills the server and removes the folder.
#[derive(Debug)]
pub struct Guard {
    pid: i32,
    watchdog: Child,
    dir: PathBuf,
}

/// Reads one process id per line, the last one counts. At the end of input it kills that process, gently first (SIGINT:
/// PostgreSQL's fast shutdown), hard and with its children after a while, and removes the folder, which is `$1`.
const WATCHDOG: &str = r#"
trap '' INT TERM HUP
while read -r line; do pid=$line; done
if [ -n "$pid" ]; then
  kill -CONT "$pid" 2>/dev/null; kill -INT "$pid" 2>/dev/null
  n=0; while kill -0 "$pid" 2>/dev/null && [ $n -lt 20 ]; do sleep 0.1; n=$((n+1)); done
  pkill -KILL -P "$pid" 2>/dev/null; kill -KILL "$pid" 2>/dev/null
fi
# What the dying still write into the folder while it is emptied makes it stay.
n=0; while ! rm -rf -- "$1" 2>/dev/null && [ $n -lt 50 ]; do sleep 0.1; n=$((n+1)); done
"#;

impl Guard {
    /// Watches over `dir` from now on; give it the server by [`Guard::watch`].
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        use std::os::unix::process::CommandExt as _;
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "semel-watchdog"])
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A group of its own: Ctrl-C in the terminal reaches the tests, not the one who cleans up after them.
            .process_group(0)
            .spawn()
            .unwrap();
        Self {
            pid: 0,
            watchdog,
            dir: dir.to_owned(),
        }
    }

    /// The server's process id, from now on the one to be killed.
    pub fn watch(&mut self, pid: i32) {
        use std::io::Write as _;
        self.pid = pid;
        let mut pipe = self.watchdog.stdin.as_ref().unwrap();
        writeln!(pipe, "{pid}").unwrap();
    }

    /// The data folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid).expect("a server is being watched");
        // A process that is gone already is as good as signalled.
        let _ = kill_process(pid, signal);
    }

    /// `kill -9`.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// `kill -9` of the processes that the server has started; waits until none of them runs any more.
    pub fn kill_children(&self) {
        let children = children_of(self.pid);
        for child in &children {
            // One that is gone already is as good as killed.
            let _ = kill_process(*child, Signal::KILL);
        }
        for _ in 0..200 {
            if !children.iter().any(|child| is_running(*child)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("processes of the server survive kill -9");
    }

    /// Processor time of the server and of the processes that it has started, those that have ended included.
    #[must_use]
    pub fn processor_time(&self) -> Duration {
        let children = children_of(self.pid);
        let pids = children.iter().map(|child| child.as_raw_nonzero().get());
        let pids = pids.chain([self.pid]).filter_map(|pid| u32::try_from(pid).ok());
        pids.map(processor_time).sum()
    }

    /// SIGTERM: a polite request to end.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// SIGSTOP.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.watchdog.stdin.take());
        let _ = self.watchdog.wait();
    }
}

/// State and parent of a process: the fields behind its name in `/proc/PID/stat` (the name may hold anything).
fn state_and_parent(pid: i32) -> Option<(String, i32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

/// Processor time of a process and of its children that have ended. A process that is gone has none.
#[must_use]
pub fn processor_time(pid: u32) -> Duration {
    /// What Linux counts in, whatever the kernel's own clock.
    const TICKS_PER_SECOND: u64 = 100;
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return Duration::ZERO;
    };
    // Behind the name: utime, stime, cutime and cstime are the fields 12 to 15.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields
        .skip(11)
        .take(4)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND)
}

fn children_of(parent: i32) -> Vec<Pid> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| state_and_parent(*pid).is_some_and(|(_, of)| of == parent))
        .filter_map(Pid::from_raw)
        .collect()
}

/// A zombie is over: its parent is stopped and cannot take note of it.
fn is_running(pid: Pid) -> bool {
    state_and_parent(pid.as_raw_nonzero().get()).is_some_and(|(state, _)| state != "Z" && state != "X")
}
