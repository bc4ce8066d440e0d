//! How the process ends.

use std::process::ExitCode;

/// The exit codes, as `semel --help` documents them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done, or stopped as asked.
    Ok,
    /// It was understood and could not be done: a server away, a port in use, an audit that found something.
    Failed,
    /// It was not understood: a flag, the configuration file, a missing variable. Repeating does not help.
    Usage,
    /// `semel keys` and `semel outbox`: there is no such key or event.
    Absent,
    /// `semel keys` and `semel outbox`: it stands otherwise than asked, and was left alone.
    Changed,
}

impl Exit {
    /// The number.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Absent => 3,
            Self::Changed => 4,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
