//! Log lines on stderr.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::cli::{LogFormat, RunArgs};

/// Starts logging.
///
/// # Errors
/// The filter cannot be read.
pub(crate) fn init(args: &RunArgs) -> Result<(), String> {
    let filter = EnvFilter::try_new(&args.log).map_err(|error| {
        format!(
            "--log {}: {error}; write a level (error, warn, info, debug, trace) or target=level pairs",
            args.log
        )
    })?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let done = match args.log_format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => lines
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .try_init(),
    };
    done.map_err(|error| format!("logging cannot start: {error}"))
}
