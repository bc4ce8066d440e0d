//! `semel check`.

use crate::cli::CheckArgs;
use crate::exit::Exit;
use crate::out;

/// Reads the configuration, then tries each server.
pub(crate) fn run(_args: &CheckArgs) -> Exit {
    out::error("semel check is not there yet");
    Exit::Failed
}
