//! The demo's children: how they are started, struck, started again, and how they all end.

mod keeper;
mod ports;
mod troupe;
mod watchdog;

pub(crate) use keeper::{Counts, Keeper, Recipe};
pub(crate) use ports::Port;
pub(crate) use troupe::{Part, Troupe};
pub(crate) use watchdog::{REMOVAL_MAX, Watchdog, remove_folder, sweep, watch};
