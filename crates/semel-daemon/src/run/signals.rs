//! SIGTERM and SIGINT: the first asks, the second insists. SIGHUP: read the configuration again.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::exit::Exit;

/// Cancels `stop` at the first signal and exits the process at the second.
///
/// # Errors
/// The signals cannot be watched.
pub(crate) fn watch(stop: CancellationToken) -> io::Result<JoinHandle<()>> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    Ok(tokio::spawn(async move {
        for first in [true, false] {
            let name = tokio::select! {
                _ = term.recv() => "SIGTERM",
                _ = int.recv() => "SIGINT",
            };
            if first {
                tracing::info!(signal = name, "asked to stop; a second signal exits at once");
                stop.cancel();
            } else {
                tracing::warn!(signal = name, "exiting at once");
                std::process::exit(i32::from(Exit::Failed.code()));
            }
        }
    }))
}

/// Each SIGHUP from now on.
///
/// # Errors
/// It cannot be watched.
pub(crate) fn hang_up() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}
