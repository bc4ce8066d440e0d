//! The command line of `semel demo`, and of its children.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Orders at most: each is a task of the client and some rows in four files.
pub(crate) const ORDERS_MAX: i64 = 20_000;
/// Seconds of load at most.
pub(crate) const SECONDS_MAX: i64 = 3_600;

/// What can be asked of the demo.
#[derive(Debug, Clone, Args)]
pub(crate) struct DemoArgs {
    /// Orders that the client places in each shop
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=ORDERS_MAX))]
    pub(crate) orders: u32,
    /// How long the load and the killing last in each shop; settling and counting come after
    #[arg(long, value_name = "S", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=SECONDS_MAX))]
    pub(crate) seconds: u32,
    /// Makes the same orders, duplicates and kills again [default: a new one, printed]
    #[arg(long, value_name = "SEED")]
    pub(crate) seed: Option<u64>,
    /// Run only the shop that is built with Semel
    #[arg(long, conflicts_with = "naive_only")]
    pub(crate) semel_only: bool,
    /// Run only the shop that is written by hand
    #[arg(long)]
    pub(crate) naive_only: bool,
    /// Keep the services' databases, configuration and logs in this folder, which must be empty or not there yet
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Print the audit as JSON on stdout; progress still goes to stderr
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which process of the demo this is.
#[derive(Debug, Clone, Args)]
pub(crate) struct ChildArgs {
    #[command(subcommand)]
    pub(crate) role: Role,
}

/// The demo's own children: the same binary, started again.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Role {
    /// Kills what is left of the demo when the demo is gone
    Watchdog {
        /// A temporary folder to remove then
        #[arg(long)]
        remove: Option<PathBuf>,
    },
    /// Removes a temporary folder when the watchdog is gone
    Sweep {
        /// The folder
        #[arg(long)]
        remove: PathBuf,
    },
    /// A service of the shop that is written by hand
    ByHand(ServiceArgs),
    /// A service of the shop that is built with Semel
    Semel(ServiceArgs),
}

/// One service of a shop.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServiceArgs {
    /// Which service
    #[arg(long, value_enum)]
    pub(crate) service: Service,
    /// The shop's folder
    #[arg(long)]
    pub(crate) shop: PathBuf,
    /// The port to listen on
    #[arg(long)]
    pub(crate) port: u16,
}

/// The services that both shops have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Service {
    /// Takes orders. Two copies run over one file.
    Orders,
    /// Charges and refunds.
    Payments,
    /// Reserves and releases.
    Stock,
    /// Ships, and notifies the customer of each order event.
    Shipping,
}
