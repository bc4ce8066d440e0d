//! Nothing outlives the demo: a watchdog process leads the process group of all children and kills the group when
//! the pipe from the demo closes, however the demo ended (Ctrl-C, a panic, `kill -9`, the terminal closed).
//!
//! A child that waited for the end of its own standard input would not do: one that is stopped by SIGSTOP waits for
//! nothing. SIGKILL reaches stopped processes too, and a group id is not used again while its leader lives, so no
//! stranger can be hit.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::process::{Signal, kill_current_process_group};
use tokio::signal::unix::{SignalKind, signal};

use crate::demo::trouble::{Doing as _, Trouble};
use crate::exit::Exit;

/// Written into the pipe before it is closed on purpose: the folder is still wanted.
const DONE: &[u8] = b"done";

/// How long a folder is tried to be removed while the demo waits for it, and by the sweeper, for whom nobody waits: a process
/// that was killed inside a long flush of a busy disk still makes files until it returns.
pub(crate) const REMOVAL_MAX: Duration = Duration::from_secs(5);
const SWEEP_MAX: Duration = Duration::from_secs(600);
/// How long between two tries.
const REMOVAL_PAUSE: Duration = Duration::from_millis(50);

/// The demo's end of the pipe. Dropping it kills every process of the group.
#[derive(Debug)]
pub(crate) struct Watchdog {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Watchdog {
    /// Starts it. When the demo dies, the folder `remove` goes with it.
    pub(crate) fn start(remove: Option<&Path>) -> Result<Self, Trouble> {
        let mut command = this_program()?;
        command.args(["demo-child", "watchdog"]);
        if let Some(dir) = remove {
            command.arg("--remove").arg(dir);
        }
        let mut child = command
            // A group of its own: Ctrl-C in the terminal reaches the demo, not the one who cleans up after it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .doing("start the watchdog")?;
        let pipe = child.stdin.take();
        Ok(Self { child, pipe })
    }

    /// The group that children join.
    pub(crate) fn group(&self) -> i32 {
        self.child.id().cast_signed()
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.pipe.take() {
            // Both fail only when the watchdog is gone already, and then the children see their own pipes close.
            let _ = pipe.write_all(DONE);
        }
        let _ = self.child.wait();
    }
}

/// This binary, to be started again.
pub(crate) fn this_program() -> Result<Command, Trouble> {
    let program = std::env::current_exe().doing("find this program's own file")?;
    Ok(Command::new(program))
}

/// The watchdog's own life.
pub(crate) fn watch(remove: Option<PathBuf>) -> Exit {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else {
        return Exit::Failed;
    };
    let _inside = runtime.enter();
    // When the demo dies while a child is stopped, the kernel sends SIGHUP to this group, as it does to every
    // orphaned group with stopped members: the watchdog must live through that. A handler, once there, stays.
    for kind in [
        SignalKind::hangup(),
        SignalKind::interrupt(),
        SignalKind::terminate(),
    ] {
        if signal(kind).is_err() {
            return Exit::Failed;
        }
    }
    let mut told = Vec::new();
    let read = std::io::stdin().read_to_end(&mut told);
    let sweeper = match remove {
        Some(dir) if read.is_err() || told != DONE => sweep_after_us(&dir),
        _ => None,
    };
    let killed = kill_current_process_group(Signal::KILL);
    drop(sweeper);
    if killed.is_ok() { Exit::Ok } else { Exit::Failed }
}

/// Starts the sweeper outside of the group; it waits for the pipe, which closes when the group is killed.
fn sweep_after_us(dir: &Path) -> Option<Child> {
    let mut command = this_program().ok()?;
    command.args(["demo-child", "sweep", "--remove"]).arg(dir);
    command.process_group(0).stdin(Stdio::piped());
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
}

/// The sweeper's own life.
pub(crate) fn sweep(remove: &Path) -> Exit {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    if remove_folder(remove, SWEEP_MAX) {
        Exit::Ok
    } else {
        Exit::Failed
    }
}

/// Removes a folder whose processes were killed. One of them may still be ending a system call that makes a file, so
/// what could not be removed is tried again, for so long. Says whether it is gone.
pub(crate) fn remove_folder(folder: &Path, at_most: Duration) -> bool {
    let tries = at_most.as_millis() / REMOVAL_PAUSE.as_millis();
    for _ in 0..tries {
        match std::fs::remove_dir_all(folder) {
            Ok(()) => return true,
            Err(error) if error.kind() == ErrorKind::NotFound => return true,
            Err(_) => std::thread::sleep(REMOVAL_PAUSE),
        }
    }
    false
}
