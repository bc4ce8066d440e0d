//! `semel demo`.

use clap::Args;

use crate::exit::Exit;
use crate::out;

/// What can be asked of the demo.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {}

/// Which process of the demo this is.
#[derive(Debug, Args)]
pub(crate) struct ChildArgs {}

/// Runs the demo. Owns its runtime.
pub(crate) fn run(_args: DemoArgs) -> Exit {
    out::error("semel demo is not there yet");
    Exit::Failed
}

/// Runs one child process of the demo. Owns its runtime.
pub(crate) fn child(_args: ChildArgs) -> Exit {
    Exit::Failed
}
