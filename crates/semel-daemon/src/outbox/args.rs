//! What `semel outbox` takes.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use semel_core::relay::{REPLAY_PER_SECOND, REPLAY_PER_SECOND_MAX};
use semel_core::store::ExceptionKind;

use crate::keys::{PersonArgs, StoreArgs};

const EXIT_CODES: &str = "\
Exit codes: 0 done; 1 the store gives no answer, or `why` found something that holds events back; 2 wrong use; \
3 there is no such event among those set aside; 4 it stands otherwise than asked: nothing was changed.
KEY is text; write base64:… for other bytes, as `list` shows them. TIME is 2026-12-01T13:00:00Z, or 90m, 2h, 3d for so \
long ago.";

/// `semel outbox`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct OutboxArgs {
    #[command(subcommand)]
    pub(crate) command: OutboxCommand,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum OutboxCommand {
    /// List the shards: who owns them, and what waits in them
    List(LookArgs),
    /// Say what holds events back, since when, and what to do
    #[command(after_help = EXIT_CODES)]
    Why(LookArgs),
    /// Events that were set aside
    #[command(subcommand)]
    Parked(ParkedCommand),
    /// Send published events that are still kept once more
    #[command(after_help = EXIT_CODES)]
    Replay(ReplayArgs),
    /// After a restore, a copy or an upgrade of the database: send everything that is kept again, in order, with its ids
    #[command(after_help = EXIT_CODES)]
    Rescan(RescanArgs),
    /// On PostgreSQL: put the outbox into partitions by time, which go as a whole; or make it one table again
    #[command(after_help = EXIT_CODES)]
    Partition(PartitionArgs),
}

/// `semel outbox parked`.
#[derive(Debug, Subcommand)]
pub(crate) enum ParkedCommand {
    /// List them
    List(ParkedListArgs),
    /// Show one with all it carries
    Show(ParkedShowArgs),
    /// Change what is sent: topic, type, content type, headers, data. Who and why is kept, and the event as it was
    #[command(after_help = EXIT_CODES)]
    Edit(EditArgs),
    /// Ask their shard's owner to send them; of a parked key all rows, in order, before its newer ones
    #[command(after_help = EXIT_CODES)]
    Retry(RetryArgs),
    /// Ask their shard's owner to forget them. Who and why is kept, and the event
    #[command(after_help = EXIT_CODES)]
    Drop(DropArgs),
    /// Show who changed what, and why
    Log(LogArgs),
}

/// `list` and `why`.
#[derive(Debug, Args)]
pub(crate) struct LookArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A kind of exception.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KindArg {
    /// It failed, and its key is parked with it
    Parked,
    /// It is behind a parked event of its key
    Behind,
    /// It failed and was left out
    Skipped,
}

impl From<KindArg> for ExceptionKind {
    fn from(kind: KindArg) -> Self {
        match kind {
            KindArg::Parked => Self::Parked,
            KindArg::Behind => Self::Behind,
            KindArg::Skipped => Self::Skipped,
        }
    }
}

/// `parked list`.
#[derive(Debug, Args)]
pub(crate) struct ParkedListArgs {
    #[command(flatten)]
    pub(crate) look: LookArgs,
    /// Only of this stream
    #[arg(long, value_name = "STREAM")]
    pub(crate) stream: Option<String>,
    /// Only of this key
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Only of this kind
    #[arg(long, value_enum)]
    pub(crate) kind: Option<KindArg>,
    /// Only rows behind this one: the last one of the list before
    #[arg(long, value_name = "ROW", default_value_t = 0)]
    pub(crate) after: i64,
    /// Events at most
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) limit: u32,
}

/// `parked show`.
#[derive(Debug, Args)]
pub(crate) struct ParkedShowArgs {
    #[command(flatten)]
    pub(crate) look: LookArgs,
    /// The row's number
    #[arg(value_name = "ROW")]
    pub(crate) row: i64,
}

/// `parked log`.
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    #[command(flatten)]
    pub(crate) look: LookArgs,
    /// Only entries behind this one
    #[arg(long, value_name = "ENTRY", default_value_t = 0)]
    pub(crate) after: i64,
    /// Entries at most
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
}

/// `parked edit`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("change").required(true).multiple(true))]
pub(crate) struct EditArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// The row's number
    #[arg(value_name = "ROW")]
    pub(crate) row: i64,
    /// Another topic
    #[arg(long, group = "change")]
    pub(crate) topic: Option<String>,
    /// Another type
    #[arg(long = "type", group = "change", value_name = "TYPE")]
    pub(crate) kind: Option<String>,
    /// Another media type of the data
    #[arg(long, group = "change", value_name = "TYPE")]
    pub(crate) content_type: Option<String>,
    /// Other data, as text
    #[arg(long, group = "change", value_name = "TEXT")]
    pub(crate) data: Option<String>,
    /// Other data, from a file
    #[arg(long, group = "change", value_name = "FILE", conflicts_with = "data")]
    pub(crate) data_file: Option<PathBuf>,
    /// No data: a tombstone
    #[arg(long, group = "change", conflicts_with_all = ["data", "data_file"])]
    pub(crate) no_data: bool,
    /// Leave out the headers it has
    #[arg(long, group = "change")]
    pub(crate) no_headers: bool,
    /// Put this header in place of those of its name; may be given several times
    #[arg(long, group = "change", value_name = "NAME=VALUE")]
    pub(crate) header: Vec<String>,
    /// Show what it would be, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) person: PersonArgs,
}

/// Which events.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).args(["rows", "key", "all"]))]
pub(crate) struct WhichArgs {
    /// Rows, by number: of a parked key its first one
    #[arg(value_name = "ROW")]
    pub(crate) rows: Vec<i64>,
    /// All of this key
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// All there are
    #[arg(long)]
    pub(crate) all: bool,
    /// With --key and --all: only of this stream
    #[arg(long, value_name = "STREAM", conflicts_with = "rows")]
    pub(crate) stream: Option<String>,
    /// Show what would be asked, and ask nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `parked retry`.
#[derive(Debug, Args)]
pub(crate) struct RetryArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    #[command(flatten)]
    pub(crate) person: PersonArgs,
}

/// `parked drop`.
#[derive(Debug, Args)]
pub(crate) struct DropArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// Send those behind it; without this the next one stands for the key
    #[arg(long, conflicts_with_all = ["key", "all"])]
    pub(crate) release: bool,
    #[command(flatten)]
    pub(crate) person: PersonArgs,
}

/// Which ids the copies of a replay have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum IdsArg {
    /// Those of the events: receivers that drop what they have seen take only what they have not
    Same,
    /// Fresh ones: receivers take them once more
    Fresh,
}

/// `replay`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["from", "to", "key", "topic", "all"]))]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    pub(crate) look: LookArgs,
    /// The stream
    #[arg(long, value_name = "STREAM", default_value = "default")]
    pub(crate) stream: String,
    /// Written at this time or later
    #[arg(long, value_name = "TIME")]
    pub(crate) from: Option<String>,
    /// Written before this time
    #[arg(long, value_name = "TIME")]
    pub(crate) to: Option<String>,
    /// Of this key
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Of this topic
    #[arg(long, value_name = "TOPIC")]
    pub(crate) topic: Option<String>,
    /// All that is kept of the stream
    #[arg(long)]
    pub(crate) all: bool,
    /// Only rows behind this one: where a replay that was broken off ended
    #[arg(long, value_name = "ROW", default_value_t = 0)]
    pub(crate) after: i64,
    /// Events at most
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) limit: u64,
    /// Events asked for in a second at most, so that live ones are not pushed aside. With the same ids the shards send them no faster
    /// than `replay_per_second` of their relay
    #[arg(long, value_name = "N", default_value_t = REPLAY_PER_SECOND,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(REPLAY_PER_SECOND_MAX)))]
    pub(crate) rate: u32,
    /// Which ids the copies have
    #[arg(long, value_enum, default_value_t = IdsArg::Same)]
    pub(crate) ids: IdsArg,
    /// Show what would be sent, and send nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) person: PersonArgs,
}

/// `rescan`.
#[derive(Debug, Args)]
pub(crate) struct RescanArgs {
    #[command(flatten)]
    pub(crate) look: LookArgs,
    /// Only this stream; where the database is another one than before, only all streams together can be
    #[arg(long, value_name = "STREAM")]
    pub(crate) stream: Option<String>,
    /// Show what would be sent, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) person: PersonArgs,
}

/// `partition`.
#[derive(Debug, Args)]
pub(crate) struct PartitionArgs {
    #[command(flatten)]
    pub(crate) look: LookArgs,
    /// The time that a partition is for, 1m to 32d; about `keep_ms`, so that a handful are there at once [default: 1h, or as it is]
    #[arg(long, value_name = "TIME")]
    pub(crate) width: Option<String>,
    /// How many are made for the time ahead [default: 3, or as it is]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) ahead: Option<u32>,
    /// Make it one table again
    #[arg(long, conflicts_with_all = ["width", "ahead"])]
    pub(crate) off: bool,
    /// Refuse it where more events are kept: 50,000 are copied in a second, and all writers wait
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub(crate) rows_max: u64,
    /// Show what would be done and who is in the way, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) person: PersonArgs,
}
