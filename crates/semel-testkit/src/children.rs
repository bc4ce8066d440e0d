//! Child processes that never outlive the test.
//!
//! # Guarantees
//! A dropped [`Process`] is killed and reaped. When the test process itself is killed with `kill -9`, a watchdog that
//! holds a pipe to it kills every child still registered.

use std::io::{self, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Reads `+pid` and `-pid`; at the end of input it kills what is left.
const WATCHDOG: &str = r#"
trap '' INT TERM HUP
pids=" "
while read -r line; do
  case $line in
    +*) pids="$pids${line#+} " ;;
    -*) gone=${line#-}; pids="${pids%% $gone *} ${pids#* $gone }" ;;
  esac
done
for pid in $pids; do kill -KILL "$pid" 2>/dev/null; done
"#;

fn tell_watchdog(line: &str) {
    use std::os::unix::process::CommandExt as _;
    static SHELL: OnceLock<Mutex<Child>> = OnceLock::new();
    let shell = SHELL.get_or_init(|| {
        let shell = Command::new("sh")
            .args(["-c", WATCHDOG, "semel-watchdog"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        Mutex::new(shell)
    });
    let mut shell = shell.lock().unwrap_or_else(PoisonError::into_inner);
    writeln!(shell.stdin.as_mut().unwrap(), "{line}").unwrap();
}

/// A child process, killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts it.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        let child = command.spawn()?;
        tell_watchdog(&format!("+{}", child.id()));
        Ok(Self { child, status: None })
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The child, for its pipes. Wait for it here, not there.
    pub const fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    fn signal(&self, signal: Signal) {
        if self.status.is_none() {
            let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
            // Not reaped yet, so the id is still its own; having ended already is as good as being signalled.
            let _ = kill_process(pid, signal);
        }
    }

    /// `kill -9`, and waits for the end.
    pub fn kill(&mut self) -> ExitStatus {
        self.signal(Signal::KILL);
        self.wait()
    }

    /// SIGTERM: a polite request to end.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// SIGSTOP: it stalls, and its leases run out.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT: it wakes and goes on as if nothing had happened.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none()
            && let Some(status) = self.child.try_wait().unwrap()
        {
            self.reaped(status);
        }
        self.status
    }

    /// Waits for the end, however long it takes.
    pub fn wait(&mut self) -> ExitStatus {
        if let Some(status) = self.status {
            return status;
        }
        let status = self.child.wait().unwrap();
        self.reaped(status);
        status
    }

    /// Waits for the end; after `limit` it is killed and the answer is nothing.
    pub fn wait_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        while self.ended().is_none() {
            if Instant::now() > deadline {
                self.kill();
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.status
    }

    fn reaped(&mut self, status: ExitStatus) {
        tell_watchdog(&format!("-{}", self.child.id()));
        self.status = Some(status);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
