//! How to open the file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use semel_core::{Clock, SystemClock};

/// Settings of one SQLite file.
#[derive(Clone)]
pub struct Config {
    /// The file; made when missing, its folder is not.
    pub path: PathBuf,
    /// How long a writer waits for another process's transaction. Default 10 s.
    pub busy_timeout: Duration,
    /// Connections that only read. Default 4.
    pub readers: u32,
    /// Pages that the file may grow to (SQLite's `max_page_count`; a page has 4096 bytes). What needs more is refused: the store
    /// is full. A file that is larger already grows no more. Default none: what the disk holds.
    pub pages_max: Option<u32>,
    /// The clock of leases and deadlines. Default the host's; tests move their own.
    pub clock: Arc<dyn Clock>,
}

impl Config {
    /// The defaults for this file.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            busy_timeout: Duration::from_secs(10),
            readers: 4,
            pages_max: None,
            clock: Arc::new(SystemClock),
        }
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("path", &self.path)
            .field("busy_timeout", &self.busy_timeout)
            .field("readers", &self.readers)
            .field("pages_max", &self.pages_max)
            .finish_non_exhaustive()
    }
}
