//! `semel run`.

use crate::cli::RunArgs;
use crate::exit::Exit;
use crate::out;

/// Runs the roles of the configuration until told to stop.
pub(crate) fn run(_args: &RunArgs) -> Exit {
    out::error("semel run is not there yet");
    Exit::Failed
}
