//! The shop built with Semel.

use std::path::Path;

use super::args::ServiceArgs;
use super::stage::Cast;
use super::trouble::Trouble;

pub(crate) async fn run(_args: &ServiceArgs) -> Result<(), Trouble> {
    Err(Trouble::new("run", "not there yet"))
}

pub(crate) fn cast(_dir: &Path) -> Result<Cast, Trouble> {
    Err(Trouble::new("run the shop with Semel", "it is not there yet"))
}
