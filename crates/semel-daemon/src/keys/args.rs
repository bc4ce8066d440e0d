//! What `semel keys` takes.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use semel_core::claim::StateName;

use crate::cli::ConfigArg;

const EXIT_CODES: &str = "\
Exit codes: 0 done; 1 the store gives no answer, or perhaps none yet (the message says which); 2 wrong use; \
3 there is no such key; 4 the key stands otherwise than asked: nothing was changed.
SCOPE and ID are text; write base64:… for other bytes, as `list` shows them.";

/// `semel keys`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    pub(crate) command: KeysCommand,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// List keys, such as those that wait for a person: --state unknown
    #[command(after_help = EXIT_CODES)]
    List(ListArgs),
    /// Show one key with what came of it
    #[command(after_help = EXIT_CODES)]
    Show(ShowArgs),
    /// Say what came of an unknown key, after looking where its effect would be
    #[command(after_help = EXIT_CODES)]
    Settle(SettleArgs),
    /// Give back a claim whose owner is gone for good before it did anything
    #[command(after_help = EXIT_CODES)]
    Release(ReleaseArgs),
    /// Leave only tombstones of a scope, because its principal was deleted and its name may be given out again
    #[command(after_help = EXIT_CODES)]
    Close(CloseArgs),
}

/// Which store.
#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArg,
    /// A store of the file; without it that of [api] or of the relays, or [store]
    #[arg(long = "store", value_name = "NAME")]
    pub(crate) name: Option<String>,
}

/// Which key.
#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// The key's scope
    #[arg(value_name = "SCOPE")]
    pub(crate) scope: String,
    /// The key's id
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

/// `list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Only keys of this scope
    #[arg(long, value_name = "SCOPE")]
    pub(crate) scope: Option<String>,
    /// Only keys that stand so
    #[arg(long, value_enum)]
    pub(crate) state: Option<StateArg>,
    /// Keys at most
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) limit: u32,
    /// Go on behind the last list, with what it said
    #[arg(long, value_name = "NEXT")]
    pub(crate) page: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Who wants it, and why.
#[derive(Debug, Args)]
pub(crate) struct PersonArgs {
    /// Who decides this
    #[arg(long, value_name = "WHO", env = "USER")]
    pub(crate) by: String,
    /// How that was found out, in a line
    #[arg(long, value_name = "TEXT")]
    pub(crate) why: String,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}

/// `settle`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("verdict").required(true))]
pub(crate) struct SettleArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    /// It happened: later claims get the output
    #[arg(long, group = "verdict")]
    pub(crate) succeeded: bool,
    /// It was refused for good: later claims get the output
    #[arg(long, group = "verdict")]
    pub(crate) refused: bool,
    /// It happened, and there is no output to give
    #[arg(long, group = "verdict")]
    pub(crate) forgotten: bool,
    /// It is certain that it did not happen: the next claim runs it
    #[arg(long, group = "verdict")]
    pub(crate) did_not_happen: bool,
    /// The output, as text
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["forgotten", "did_not_happen"])]
    pub(crate) output: Option<String>,
    /// The output, from a file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["forgotten", "did_not_happen", "output"])]
    pub(crate) output_file: Option<PathBuf>,
    /// The run that was judged; without it the one that is unknown now
    #[arg(long, value_name = "N")]
    pub(crate) token: Option<i64>,
    #[command(flatten)]
    pub(crate) person: PersonArgs,
}

/// `release`.
#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    #[command(flatten)]
    pub(crate) person: PersonArgs,
}

/// `close`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).args(["scope", "gateway"]))]
pub(crate) struct CloseArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// The scope, as `list` shows it
    #[arg(value_name = "SCOPE")]
    pub(crate) scope: Option<String>,
    /// Instead of SCOPE: the scope of a caller of this gateway
    #[arg(long, value_name = "NAME", requires = "principal")]
    pub(crate) gateway: Option<String>,
    /// The caller's id, as `principal_header` says it
    #[arg(long, value_name = "ID", requires = "gateway")]
    pub(crate) principal: Option<String>,
    /// The host that was asked for, where the gateway has host = "preserve"
    #[arg(long, value_name = "HOST", requires = "gateway")]
    pub(crate) host: Option<String>,
    #[command(flatten)]
    pub(crate) person: PersonArgs,
}

/// A state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StateArg {
    /// Somebody may run it
    Claimed,
    /// Its owner was lost; it may have happened
    Unknown,
    /// It is done, its outcome is kept
    Done,
    /// It was done once
    Tombstone,
}

impl From<StateArg> for StateName {
    fn from(state: StateArg) -> Self {
        match state {
            StateArg::Claimed => Self::Claimed,
            StateArg::Unknown => Self::Unknown,
            StateArg::Done => Self::Done,
            StateArg::Tombstone => Self::Tombstone,
        }
    }
}
