//! Crash tests: run a child process that aborts at a named point, then look at what it left.
//!
//! The child must be built with the feature `crash-points`: write
//! `semel-testkit = { workspace = true, features = ["crash-points"] }` under `[dev-dependencies]`. It may be any program, or a test of the same binary that behaves differently as a child:
//!
//! ```no_run
//! use semel_testkit::crash::{self, Run};
//!
//! // In tests/it/crash.rs:
//! fn a_crash_before_the_cursor_sends_again() {
//!     if let Some(database) = crash::role("relay") {
//!         return; // the child: run the relay over `database` until it aborts
//!     }
//!     let end = Run::test("crash::a_crash_before_the_cursor_sends_again", "relay", "/tmp/x.db")
//!         .at("relay.before_cursor")
//!         .run();
//!     assert!(end.crashed(), "{end:?}");
//!     // audit here
//! }
//! ```

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::children::Process;

/// Longer than any healthy run on a busy machine; reaching it is a failed test.
const LIMIT: Duration = Duration::from_secs(120);
const ROLE: &str = "SEMEL_TEST_ROLE";
const ARGUMENT: &str = "SEMEL_TEST_ARGUMENT";

/// The argument handed over when this process is a child in that role.
#[must_use]
pub fn role(name: &str) -> Option<String> {
    (std::env::var(ROLE).ok()? == name).then(|| std::env::var(ARGUMENT).unwrap_or_default())
}

/// A child process to be run, perhaps until it aborts at a crash point.
#[derive(Debug)]
pub struct Run {
    command: Command,
    limit: Duration,
}

impl Run {
    /// This program with these arguments.
    #[must_use]
    pub fn new(command: Command) -> Self {
        Self {
            command,
            limit: LIMIT,
        }
    }

    /// A test of this very binary, by its full name as `cargo test` prints it, in a role: there [`role`] answers with
    /// `argument`.
    #[must_use]
    pub fn test(name: &str, role: &str, argument: impl AsRef<std::ffi::OsStr>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([name, "--exact", "--nocapture", "--include-ignored"])
            .env(ROLE, role)
            .env(ARGUMENT, argument.as_ref());
        Self::new(command)
    }

    /// Abort when this point is passed: `name`, or `name:n` for the n-th time.
    ///
    /// # Panics
    /// There is no such point in [`semel_core::crash::CRASH_POINTS`].
    #[must_use]
    pub fn at(mut self, point: &str) -> Self {
        let name = point.split_once(':').map_or(point, |(name, _)| name);
        assert!(
            semel_core::crash::CRASH_POINTS.contains(&name),
            "there is no crash point {name}"
        );
        self.command.env("SEMEL_CRASH_POINT", point);
        self
    }

    /// An environment variable for the child.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Give up after this long instead of two minutes.
    #[must_use]
    pub const fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Starts it and waits for its end.
    #[must_use]
    pub fn run(self) -> End {
        self.start().end()
    }

    /// Starts it; the test goes on beside it.
    #[must_use]
    pub fn start(mut self) -> Running {
        // A file, not a pipe: nobody needs to read along, and grandchildren cannot keep it open.
        let output = tempfile::tempfile().unwrap();
        let process = Process::spawn(
            self.command
                .stdin(Stdio::null())
                .stdout(output.try_clone().unwrap())
                .stderr(output.try_clone().unwrap()),
        )
        .unwrap_or_else(|error| panic!("{:?}: {error}", self.command));
        Running {
            process,
            output,
            limit: self.limit,
        }
    }
}

/// A child that runs.
#[derive(Debug)]
pub struct Running {
    /// The process, to be killed or paused.
    pub process: Process,
    output: File,
    limit: Duration,
}

impl Running {
    /// Waits for its end; kills it at the limit.
    #[must_use]
    pub fn end(mut self) -> End {
        let status = self.process.wait_within(self.limit);
        let mut output = Vec::new();
        self.output.rewind().unwrap();
        self.output.read_to_end(&mut output).unwrap();
        End {
            status,
            output: String::from_utf8_lossy(&output).into_owned(),
        }
    }
}

/// How a child ended.
#[derive(Debug)]
pub struct End {
    /// Nothing when it had to be killed at the limit.
    pub status: Option<ExitStatus>,
    /// What it wrote to stdout and stderr.
    pub output: String,
}

impl End {
    /// It aborted at a crash point, and not for any other reason.
    #[must_use]
    pub fn crashed(&self) -> bool {
        use std::os::unix::process::ExitStatusExt as _;
        self.status.is_some_and(|status| status.signal() == Some(6))
            && self.output.contains(semel_core::crash::LAST_WORDS)
    }

    /// It ended by itself with exit code 0.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}
