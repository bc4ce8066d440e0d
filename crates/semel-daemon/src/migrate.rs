//! `semel migrate`.

use crate::cli::MigrateArgs;
use crate::exit::Exit;
use crate::out;

/// Installs or upgrades Semel's tables.
pub(crate) fn run(_args: &MigrateArgs) -> Exit {
    out::error("semel migrate is not there yet");
    Exit::Failed
}
